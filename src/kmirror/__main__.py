"""Run the command line as ``python -m kmirror``."""

from kmirror.cli.main import entry_point

if __name__ == "__main__":
    entry_point()
