"""The driver: runs the mirrors of one application, and what each does beside its lanes."""
