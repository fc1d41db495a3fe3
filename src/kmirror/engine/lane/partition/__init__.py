"""What the copy of one partition decides: events with their time in, permitted actions out. Pure."""
