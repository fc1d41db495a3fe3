"""Rehearse a failover and the way back, without touching production: the command `rehearse`."""
