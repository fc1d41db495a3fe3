"""Writes to one cluster's partitions besides records: empty transactions, fences, and whether we may write."""
