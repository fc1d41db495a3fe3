"""The driver: mirrors, their lanes, the plan, the source monitor, side jobs."""
