"""The way back: make the old source a mirror of the new primary."""
