"""The click commands, a module per family of verbs, and what only they need."""
