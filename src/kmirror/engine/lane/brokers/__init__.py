"""What speaks to brokers: connections with their requests in flight, and the threads of blocking requests."""
