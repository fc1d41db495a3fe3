"""Writes to one cluster's partitions: records at their offsets, markers, fences."""
