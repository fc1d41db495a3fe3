"""Copy records that are to be deleted into an archive topic, and check the copy first."""
