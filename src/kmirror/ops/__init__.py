"""What the verbs do: one module a verb; it decides and records, and knows neither click nor Spark."""
