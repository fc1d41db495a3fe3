"""The ApiVersions request (KIP-511), version 3: which kinds of requests a broker offers, in which versions.

It is the first request on each connection. A broker that does not know version 3 answers with code 35 in the layout of
version 0, as it does with any other code: of such an answer only the code is read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kmirror.cluster.protocol.wire import (
    INT16,
    INT32,
    NO_TAGS,
    Api,
    Exchange,
    compact_string,
    decodes,
    encoded_exchange,
    read_unsigned_varint,
    skip_tagged_fields,
)

KEY = 18
VERSION = 3

_CODE_AT = INT32.size
_OFFERED = struct.Struct(">hhh")


def exchange(software: str) -> Exchange:
    """Return the request of a client of this name; its answer is `answer`."""
    body = compact_string(software) + compact_string("1") + NO_TAGS
    return encoded_exchange(Api(KEY, "ApiVersions", VERSION, VERSION), body, answer)


@decodes("ApiVersions")
def answer(frame: memoryview) -> tuple[tuple[int, Mapping[int, tuple[int, int]]], int]:
    """Decode one frame into the error code with the lowest and highest version of each kind, and the throttle in ms.

    Raises:
        FrameError: not such an answer.
    """
    (code,) = INT16.unpack_from(frame, _CODE_AT)
    if code:
        return (code, {}), 0
    count, position = read_unsigned_varint(frame, _CODE_AT + INT16.size)
    offered = {}
    for _ in range(count - 1):
        key, lowest, highest = _OFFERED.unpack_from(frame, position)
        offered[key] = lowest, highest
        position = skip_tagged_fields(frame, position + _OFFERED.size)
    (throttle_time_ms,) = INT32.unpack_from(frame, position)
    skip_tagged_fields(frame, position + INT32.size)
    return (0, offered), throttle_time_ms
