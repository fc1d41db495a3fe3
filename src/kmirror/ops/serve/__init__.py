"""What a running engine answers over HTTP: whether its driver runs, whether records flow, its rows and its metrics."""
