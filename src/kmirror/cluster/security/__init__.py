"""Client properties as Java clients have them, and what they mean for our own connections: TLS and SASL."""
