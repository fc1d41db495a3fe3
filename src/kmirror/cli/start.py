"""Start the command line: Ctrl-C ends the process silently until `main` answers it in words.

Loading the command line takes a tenth of a second, in which Python would print a traceback. So this comes before
everything else, and imports what is built in only: `signal` takes milliseconds, too.
"""

import _signal  # type: ignore[import-not-found]


def kmirror() -> None:
    """Run the command `kmirror`."""
    from kmirror.cli.main import entry_point

    entry_point()


def kafka_mirrors() -> None:
    """Run the command `kafka-mirrors`."""
    from kmirror.beside import beside

    beside("kafka_mirrors")()


# where it is ignored, as for a background job of a script, it stays so
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
