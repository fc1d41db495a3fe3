"""`run`: be the engine of some mirrors."""
