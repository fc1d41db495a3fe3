"""The verbs on a mirror as a whole: create, config, pause and resume, recover, delete."""
