"""What a running engine answers over HTTP: whether it turns, whether records flow, its rows and its metrics."""
