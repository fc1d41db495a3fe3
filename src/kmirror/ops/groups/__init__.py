"""Consumer groups' offsets: synchronized, committed, restored."""
