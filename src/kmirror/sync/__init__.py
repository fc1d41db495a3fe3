"""What travels beside the records: each module turns two clusters' views into a list of changes."""
