"""The copy loop of one Spark task."""
