"""The running copy: `driver` runs mirrors, `lanes` plans, `lane` copies, `histories` judges if one may continue."""
