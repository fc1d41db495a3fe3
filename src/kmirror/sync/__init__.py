"""What is synced besides records: each module turns two clusters' views into a list of changes."""
