"""Real Kafka clusters on this machine: for users who try and rehearse, for the demo, the tests and the bench."""
