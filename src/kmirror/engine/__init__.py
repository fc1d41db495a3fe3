"""The running copy: `control` plans and watches, `lane` copies, `histories` decides whether a copy may continue."""
