"""Consumer group offsets: sync, commit, restore."""
