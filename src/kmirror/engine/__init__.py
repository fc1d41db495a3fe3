"""The running copy: `driver` runs mirrors, `lanes` plans, `lane` copies, `histories` decides whether one may continue."""
