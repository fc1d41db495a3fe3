"""Spark: the JVM, the application, and what runs around our functions in its workers."""
