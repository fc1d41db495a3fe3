"""The groups of one cluster: consumer, share and streams groups."""
