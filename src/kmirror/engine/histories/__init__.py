"""Whether a copy may continue, and from where: the judge, and the facts it needs from both clusters."""
