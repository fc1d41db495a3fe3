"""The running copy: what to run (driver), which lane gets which partitions (plan), the copy loop (lane)."""
