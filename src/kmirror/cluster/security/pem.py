"""PEM text: extract blocks, and write them as OpenSSL expects.

Text between the blocks (`keytool` and `openssl` write some) is dropped, and white space inside them is normalised:
properties files fold lines.
"""

from __future__ import annotations

import base64
import re

_BLOCK = re.compile(r"-----BEGIN (?P<label>[A-Z0-9 ]+)-----(?P<body>.*?)-----END (?P=label)-----", re.DOTALL)
_LINE_LENGTH = 64


def certificates(text: str) -> str:
    """Return the certificates in a text, or ""."""
    return "".join(_rewritten(match) for match in _BLOCK.finditer(text) if match["label"].endswith("CERTIFICATE"))


def private_key(text: str) -> str:
    """Return the first private key in a text, encrypted or not, or ""."""
    return next((_rewritten(match) for match in _BLOCK.finditer(text) if match["label"].endswith("PRIVATE KEY")), "")


def block(label: str, der: bytes) -> str:
    """Return a block of these bytes."""
    return _folded(label, base64.b64encode(der).decode())


def _rewritten(match: re.Match[str]) -> str:
    label, body = match["label"], match["body"]
    if ":" in body:  # headers of a traditional encrypted key: their lines have to be kept
        return f"-----BEGIN {label}-----\n{body.strip()}\n-----END {label}-----\n"
    return _folded(label, "".join(body.split()))


def _folded(label: str, packed: str) -> str:
    lines = "\n".join(packed[at : at + _LINE_LENGTH] for at in range(0, len(packed), _LINE_LENGTH))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"
