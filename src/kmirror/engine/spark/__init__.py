"""Spark: the JVM, the application, and the code that runs our functions in its workers."""
