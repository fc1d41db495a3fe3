"""What an engine knows of one mirror: its topics and partitions, whether records flow, and what it reports."""
