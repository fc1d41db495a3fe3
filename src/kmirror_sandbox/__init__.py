"""Real Kafka clusters on this machine, for trying and rehearsing, the demo, the tests and the benchmarks."""
