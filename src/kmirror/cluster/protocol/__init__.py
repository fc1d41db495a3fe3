"""Kafka's wire formats: bytes in, bytes out. Nothing here reaches a socket, a clock or a thread."""
