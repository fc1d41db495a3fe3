"""Run the command line as ``python -m kmirror``."""

from kmirror.cli.start import kmirror

if __name__ == "__main__":
    kmirror()
