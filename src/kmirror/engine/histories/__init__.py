"""May a copy go on, and from where? The judge, and what it looks at on both clusters."""
