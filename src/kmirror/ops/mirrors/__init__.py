"""Mirrors as a whole: create, config, pause and resume, recover, delete."""
