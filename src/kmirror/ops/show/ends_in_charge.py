"""`in-charge`: which end of a mirror takes the writes now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kmirror.cluster.security.client_config import client_config
from kmirror.commands import on_mirror
from kmirror.engine.clock import now
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, TimedOutError, UnreachableError
from kmirror.ops.base.context import Destination, as_kmirror_error, known_mirror
from kmirror.ops.show.charge_keeper import ChargeKeeper, EndInCharge
from kmirror.state.records import MirrorRecord
from kmirror.state.store import StateStore
from kmirror.state.waiting import Deadline
from kmirror.status.in_charge import FRESH_S, SETTLED_S

SOURCE, DESTINATION = "source", "destination"
#: The pause between two reads, how long one may take, and how long to read until the answer is certain.
_PAUSE_S, _READ_S, _PATIENCE_S = 0.3, 2.0, SETTLED_S + 2.5


def in_charge(destination: Destination, mirror: str, topic: str | None = None) -> tuple[EndInCharge, EndInCharge]:
    """Return whether the source is in charge of a mirror's topics, or of one, and whether the destination is.

    Takes some seconds: who was in charge a moment ago may still count as such elsewhere.

    Raises:
        RefusedError: there is no such mirror or topic.
        UnreachableError: the destination does not answer; or neither end is certain to be in charge, and the source
            does not answer or refuses us.
    """
    state = destination.state()
    record = known_mirror(state, mirror)
    if topic is not None and topic not in {one for t in state.topics(mirror) for one in (t.topic, t.source_topic)}:
        raise RefusedError(f"mirror {mirror} has no topic {topic}", "`kmirror describe` lists its topics")
    keeper, servers = ChargeKeeper((SOURCE, DESTINATION)), destination.bootstrap_server
    until, is_first = now() + _PATIENCE_S, True
    with _reading_source(record, keeper) as trouble:
        while True:
            asked_at = now()
            try:
                state = destination.store.read_certain(Deadline(_READ_S))
                keeper.take(DESTINATION, destination.cluster_id, servers, state, asked_at)
            except TimedOutError as error:
                keeper.doubt(DESTINATION, error.message)
            found = keeper.answer(mirror, SOURCE, topic), keeper.answer(mirror, DESTINATION, topic)
            if now() > until or any(one.in_charge for one in found):
                break
            is_known = all(one.in_charge is False for one in found)
            if is_known and not is_first:
                break
            is_first = not is_known
            threading.Event().wait(_PAUSE_S)
    if trouble and not any(one.in_charge for one in found):
        raise _unknown(trouble[-1], mirror)
    return found


def _unknown(trouble: KmirrorError, mirror: str) -> KmirrorError:
    """Return the error for a source that is needed and does not answer, or refuses us."""
    what = f"neither cluster is certain to be in charge, and the source does not say: {trouble.message}"
    if trouble.reason is not Reason.DESTINATION_UNREACHABLE:
        return UnreachableError(what, trouble.hint, trouble.reason)
    hint = f"check that the source is up: `{on_mirror('check', mirror)}`; topics that are failed over do not need it"
    return UnreachableError(what, hint, Reason.SOURCE_UNREACHABLE)


@contextmanager
def _reading_source(record: MirrorRecord, keeper: ChargeKeeper) -> Iterator[list[KmirrorError]]:
    """Read the source's state until the block ends; yields what the last read has failed with."""
    ended, trouble = threading.Event(), list[KmirrorError]()

    def read() -> None:
        store: StateStore | None = None
        while not ended.is_set():
            try:
                if store is None:
                    config = client_config(record.source).expecting(record.source_cluster_id)
                    store = StateStore(config)
                asked_at = now()
                state = store.read_certain(Deadline(_READ_S))
                servers = record.source.get("bootstrap.servers", "")
                keeper.take(SOURCE, record.source_cluster_id or "", servers, state, asked_at)
                trouble.clear()
            except (KmirrorError, OutcomeUnknown) as error:
                trouble[:] = [as_kmirror_error(error)]
            ended.wait(_PAUSE_S)
        if store is not None:
            store.close()

    thread = threading.Thread(target=read, name="kmirror-source", daemon=True)
    thread.start()
    try:
        yield trouble
    finally:
        ended.set()
        thread.join(FRESH_S)
