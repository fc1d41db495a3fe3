"""What a lane writes to `__kmirror_state`, and the claims that it reads there."""
