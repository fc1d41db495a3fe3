"""Files that people name: where they are, and how they are read up to a bound, as what is named may be endless."""

from __future__ import annotations

import errno
from pathlib import Path

from kmirror.errors import UsageError

#: The largest file of properties, secrets, certificates or names; and the largest document that kmirror has written.
MOST_BYTES, MOST_DOCUMENT_BYTES = 64_000_000, 250_000_000


def expanded(path: str | Path, where: str) -> Path:
    """Return a path that was given in `where`, with the home directory for `~` or `~user`.

    Raises:
        UsageError: that is unknown, as for a user that does not exist.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(f"{where}: the home directory in {path} is unknown", "write the full path") from None


def read_file(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file that somebody named.

    Raises OSError, also if there are more bytes than `most`.
    """
    with Path(path).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise too_large(most)
    return content


def too_large(most: int) -> OSError:
    """Return the error for what has more bytes than it may."""
    return OSError(errno.EFBIG, f"it has more than {most // 1_000_000} MB")
