"""The running copy: `driver` runs mirrors, `lanes` plans, `lane` copies, `histories` judges whether one may continue."""
