"""What kmirror keeps on the destination cluster: typed records, the internal topics, the operators' lock, the lease."""
