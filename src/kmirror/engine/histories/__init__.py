"""May a copy continue, and from where? The judge, and what it looks at on both clusters."""
