"""Work that reads logs in bulk: cut into ranges, done side by side in threads here or in Spark tasks, put together."""
