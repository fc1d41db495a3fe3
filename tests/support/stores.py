"""State stores of a cluster, for tests that need several of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.writing.transactional_writer import CommitInDoubtError, TransactionalWriter
from kmirror.errors import UnreachableError
from kmirror.state.records import MirrorRecord
from kmirror.state.store import StateStore


def state_store(config: ClientConfig | Mapping[str, str]) -> StateStore:
    """Return a store, by its configuration or by Java properties; its connections end with it."""
    store = StateStore(config if isinstance(config, ClientConfig) else client_config(config))
    weakref.finalize(store, store._client.close)
    return store


def mirror(name: str, at: int = 0) -> MirrorRecord:
    """Return a mirror's record; its source does not exist and is never queried."""
    return MirrorRecord(name, {"bootstrap.servers": "a:9092"}, {}, None, "eve@ops", at)


#: What a transaction writes, by partition.
Written = Mapping[TopicPartition, Sequence[tuple[bytes, bytes | None]]]


class LostAnswers:
    """Commits whose answers are lost, and no answer at all while `is_cut_off`: for writers of a kind of id.

    `is_lost` is asked of what a transaction writes; whether it is carried out is `carried_out`.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        is_lost: Callable[[Written], bool],
        *,
        ids: str = "kmirror-",
        carried_out: bool = True,
        cuts_off: bool = False,
    ) -> None:
        self.is_cut_off = False
        self.lost = 0
        begin, commit, end = TransactionalWriter.begin, TransactionalWriter.commit, TransactionalWriter._commit
        written: dict[TransactionalWriter, Written] = {}

        def begun(writer: TransactionalWriter, topics: Any, remaining: Any, **how: Any) -> None:
            if self.is_cut_off and writer._id.startswith(ids):
                raise UnreachableError("connection refused")
            begin(writer, topics, remaining, **how)

        def committed(writer: TransactionalWriter, records: Any, remaining: Any) -> tuple[str, int]:
            written[writer] = records
            return commit(writer, records, remaining)

        def ended(writer: TransactionalWriter, place: tuple[str, int], remaining: Any) -> None:
            loses = writer._id.startswith(ids) and is_lost(written[writer])
            if not loses or carried_out:
                end(writer, place, remaining)
            if loses:
                self.lost += 1
                self.is_cut_off = cuts_off
                raise CommitInDoubtError(place, "the answer was lost")

        monkeypatch.setattr(TransactionalWriter, "begin", begun)
        monkeypatch.setattr(TransactionalWriter, "commit", committed)
        monkeypatch.setattr(TransactionalWriter, "_commit", ended)
