"""What a mirror, its topics and its partitions are doing: one model, which everything that shows it reads. Pure."""
