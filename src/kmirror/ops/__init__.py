"""What the verbs do, a folder for each family of them: they decide and record, and know neither click nor Spark."""
