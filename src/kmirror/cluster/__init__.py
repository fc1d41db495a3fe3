"""One Kafka cluster as we see it: connections, record batches, and the requests we make of brokers."""
