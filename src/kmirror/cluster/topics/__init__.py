"""The topics of one cluster: their settings, their size, where their logs start."""
