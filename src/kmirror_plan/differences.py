"""What has changed between two plans, as `plan --against` shows it. Pure.

The older one is read from its document, so that plans of earlier versions can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from kmirror.columns import TEXT, Table, columns_of, one_of, shown, table_row
from kmirror.words import byte_count, listed

#: A topic that has grown or shrunk by less than this share is as it was.
_NOTABLE = 0.2


class ChangeKind(StrEnum):
    """What happened to something."""

    ADDED = "ADDED"
    GONE = "GONE"
    CHANGED = "CHANGED"


@table_row
class PlanChange:
    """One change."""

    change: ChangeKind = shown(one_of("change", ChangeKind), "what happened", "CHANGE")
    kind: str = shown(TEXT, "what it happened to: topic, group, producer, application, hub, wave, finding", "WHAT")
    name: str = shown(TEXT, "its name", "NAME")
    message: str = shown(TEXT, "what was and is", "MESSAGE")


CHANGES: Table[PlanChange] = Table(
    columns_of(PlanChange), "CHANGE WHAT NAME MESSAGE", "nothing has changed since the plan was made"
)


def changes_between(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[PlanChange]:
    """Return what changed from one document to the other."""
    found = list(_changes("topics", "topic", "topic", before, now, _topic))
    found += _changes("groups", "group", "group", before, now, _group)
    found += _changes("applications", "application", "name", before, now, _application)
    found += _changes("hubs", "hub", "name", before, now, lambda *_: "")
    found += _changes("waves", "wave", "number", before, now, _wave)
    bad = [{**plan, "bad": [one for one in plan.get("findings", []) if not one.get("ok")]} for plan in (before, now)]
    found += _changes("bad", "finding", "check", bad[0], bad[1], lambda *_: "")
    return found


def _changes(
    key: str, kind: str, name_key: str, before: Mapping[str, Any], now: Mapping[str, Any], differ: Any
) -> Iterator[PlanChange]:
    old = {str(one[name_key]): one for one in before.get(key, [])}
    new = {str(one[name_key]): one for one in now.get(key, [])}
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            message = new[name].get("message") or new[name].get("reason") or ""
            yield PlanChange(change=ChangeKind.ADDED, kind=kind, name=name, message=message)
        elif name not in new:
            yield PlanChange(change=ChangeKind.GONE, kind=kind, name=name, message="")
        elif message := differ(old[name], new[name]):
            yield PlanChange(change=ChangeKind.CHANGED, kind=kind, name=name, message=message)


def _topic(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    parts = [
        f"{key}: {old.get(key)} → {new.get(key)}"
        for key in ("partitions", "shape", "retentionMs", "isCompacted", "isTransactional", "codecs")
        if old.get(key) != new.get(key)
    ]
    before, now = old.get("bytes"), new.get("bytes")
    if before is not None and now is not None and abs(now - before) > _NOTABLE * max(before, 1_000_000):
        parts.append(f"bytes: {byte_count(before)} → {byte_count(now)}")
    return "; ".join(parts)


def _group(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return _sets("reads", old, new)


def _application(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return "; ".join(filter(None, (_sets(key, old, new) for key in ("topics", "groups"))))


def _wave(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    return _sets("applications", old, new)


def _sets(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    before, now = set(old.get(key, ())), set(new.get(key, ()))
    parts: list[str] = []
    for word, names in (("now also", now - before), ("no longer", before - now)):
        if names:
            parts.append(f"{key} {word} {listed(sorted(names), 5)}")
    return "; ".join(parts)
