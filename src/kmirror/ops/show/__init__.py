"""Show how mirrors stand: list, describe, events, wait."""
