"""Read single keys without Enter, and restore the terminal whatever ends the `with` block."""

from __future__ import annotations

import os
import re
import select
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

ENTER, ESCAPE, BACKSPACE = "enter", "escape", "backspace"

_NAMED = {"\r": ENTER, "\n": ENTER, "\x1b": ESCAPE, "\x7f": BACKSPACE, "\b": BACKSPACE}
#: What arrow and function keys send.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.)")
#: After an escape byte the rest of a sequence follows at once; after the Esc key nothing does.
_SEQUENCE_S = 0.05
_MOST_BYTES = 1024


@contextmanager
def keys_at_once(stream: TextIO) -> Iterator[int]:
    """Put a terminal in cbreak mode and yield the descriptor for `read_keys`."""
    file = stream.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file, termios.TCSANOW)
    try:
        yield file
    finally:
        termios.tcsetattr(file, termios.TCSANOW, before)


def read_keys(file: int) -> list[str] | None:
    """Return the keys that were pressed, None at end of file."""
    typed = os.read(file, _MOST_BYTES)
    if typed.endswith(b"\x1b") and select.select([file], [], [], _SEQUENCE_S)[0]:
        typed += os.read(file, _MOST_BYTES)
    return keys_of(typed) if typed else None


def keys_of(typed: bytes) -> list[str]:
    """Return the name or character of each key; arrow and function keys are left out."""
    text = _SEQUENCE.sub("", typed.decode(errors="ignore"))
    return [_NAMED.get(character, character) for character in text if character in _NAMED or character.isprintable()]
