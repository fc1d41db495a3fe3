"""Start the command line: Ctrl-C ends the process silently until `main` answers it in words.

Loading the command line takes a tenth of a second, in which Python would print a traceback.
"""

from __future__ import annotations

import signal


def kmirror() -> None:
    """Run the command `kmirror`."""
    _quiet()
    from kmirror.cli.main import entry_point

    entry_point()


def kafka_mirrors() -> None:
    """Run the command `kafka-mirrors`."""
    _quiet()
    from kmirror.cli.compat import entry_point

    entry_point()


def _quiet() -> None:
    # where it is ignored, as for a background job of a script, it stays so
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
