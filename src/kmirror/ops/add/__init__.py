"""`add`: mirror topics of the source."""
