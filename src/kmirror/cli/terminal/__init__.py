"""What a person sees: tables, progress and live screens on a terminal, lines in a log; documents for scripts."""
