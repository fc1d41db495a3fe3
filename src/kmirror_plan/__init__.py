"""Plan a migration: what moves together, in which order, how long it takes, and what is in the way."""
