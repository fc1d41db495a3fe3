"""A stopped broker's log directories: read, cut and restored without any cluster."""
