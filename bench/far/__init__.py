"""Measure copies over a distance: `python -m bench.far`."""
