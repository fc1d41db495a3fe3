"""The commands `sandbox` and `demo`."""
