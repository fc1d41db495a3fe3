"""`append`: records from a file, to the offsets that it gives them."""
