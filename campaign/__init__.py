"""Worlds made by chance, with load and faults, and an oracle that knows nothing of kmirror: `python -m campaign`."""
