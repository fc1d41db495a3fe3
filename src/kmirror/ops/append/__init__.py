"""`append`: write records from a file at the offsets given there."""
