"""A stopped broker's log directories: read, cut and put back without any cluster."""
