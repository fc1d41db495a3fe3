"""The one table of mirror settings, and how people write lists, times and filters."""
