"""`add`: make topics of the source mirror topics."""
