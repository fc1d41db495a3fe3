"""Faults that can be injected into a running world and undone; each says why a mirror survives it."""
