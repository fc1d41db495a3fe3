"""The lanes of a mirror as its engine sees them: which there are, what each copies, and who plans that."""
