"""Copy records into an archive topic before they are deleted, and check the copy."""
