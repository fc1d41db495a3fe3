"""Mirror Kafka topics between stock clusters with the same offsets, record for record."""

__version__ = "0.1.0"
