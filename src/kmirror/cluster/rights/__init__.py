"""Who may do what on one cluster: ACLs, quotas, our own rights, and the commands that grant them."""
