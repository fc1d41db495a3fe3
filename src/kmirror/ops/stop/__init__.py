"""The end of mirroring: failover, remove, promote, switchover."""
