"""What the driver does: mirrors, their lanes, the plan, the look at the source, the jobs beside the copy."""
