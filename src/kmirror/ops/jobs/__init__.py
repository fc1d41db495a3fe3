"""The jobs that an engine runs beside the copy."""
