"""The running copy: `control` plans and watches, `lane` copies, `histories` judges whether it may."""
