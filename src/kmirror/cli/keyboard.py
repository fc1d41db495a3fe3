"""Keys as they are pressed, without Enter, and a terminal that is put back whatever ends the `with` block."""

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
#: After an escape byte the rest of a sequence follows at once, and nothing after the key.
_SEQUENCE_S = 0.05
_MOST_BYTES = 1024


@contextmanager
def keys_at_once(stream: TextIO) -> Iterator[int]:
    """Have a terminal hand over each key when it is pressed; yield what `read_keys` reads."""
    file = stream.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file, termios.TCSANOW)
    try:
        yield file
    finally:
        termios.tcsetattr(file, termios.TCSANOW, before)


def read_keys(file: int) -> list[str] | None:
    """Return the keys that were pressed, None when there will be no more."""
    typed = os.read(file, _MOST_BYTES)
    if typed.endswith(b"\x1b") and select.select([file], [], [], _SEQUENCE_S)[0]:
        typed += os.read(file, _MOST_BYTES)
    return keys_of(typed) if typed else None


def keys_of(typed: bytes) -> list[str]:
    """Return keys by their name, or the character that they write; arrows and the like are left out."""
    text = _SEQUENCE.sub("", typed.decode(errors="ignore"))
    return [_NAMED.get(character, character) for character in text if character in _NAMED or character.isprintable()]
