"""The running copy: `driver` runs mirrors, `lanes` plans, `lane` copies, `histories` says whether one may continue."""
