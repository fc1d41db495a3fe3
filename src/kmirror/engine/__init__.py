"""The running copy: `driver` runs mirrors, `lanes` plans, `status` knows, `lane` copies, `histories` decides whether a copy may continue."""
