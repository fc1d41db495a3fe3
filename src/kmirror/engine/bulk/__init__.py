"""Work that reads whole logs: cut into ranges, processed in parallel in local threads or Spark tasks, then merged."""
