"""The jobs that an engine does beside copying."""
