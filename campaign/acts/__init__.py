"""What can be done to a world that runs, and be taken back; each says why a mirror survives it."""
