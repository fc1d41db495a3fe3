"""Producers whose batches are what a test takes them for.

librdkafka sends what it has when `linger.ms` is over, 5 ms by default: on a busy machine the first record may well go
alone. And a batch that compression does not make smaller is sent as it is. So who counts batches, or asks for their
codec, produces compressible records with WHOLE_BATCHES and flushes.
"""

from __future__ import annotations

#: Records wait for one another until `flush`, which ends the lingering at once, or until a batch is full.
WHOLE_BATCHES = {"acks": "all", "linger.ms": 30_000}
