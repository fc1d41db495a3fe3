"""The judge: a separate process that reads both clusters with librdkafka and knows nothing of kmirror.

`python -m campaign.oracle QUESTION.json` prints a JSON list of violations; an empty one is a pass. The question names
the clusters, the file of what the source acknowledged, and the topics with what is claimed of them: a running copy has
everything that the source shows, at the same offsets with the same bytes, and ends where it ends; a stopped one ends
where reported, and has everything that the source has below; a FAILED one has everything up to its end. What the source
acknowledged is there, and nothing else. Both isolation levels see the same of a copy, unless applications wrote to that
log before: then it may hold what their transactions aborted. Offsets begin where the later of both logs begins, and in
a compacted log either side may have removed what a later record of its key replaces.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from campaign.reading import COMMITTED, LOG_APPEND_TIME, UNCOMMITTED, Place, Record, Seen, read

_MOST_TOLD = 5
#: Read violations once more before reporting: a reader that got no end may have missed something.
_READINGS = 2

Acks = Mapping[int, set[int]]


def judge(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the violations."""
    acknowledged = acknowledged_in(Path(question["acks"]))
    claims = {(claim["topic"], index): claim for claim in question["topics"] for index in range(claim["partitions"])}
    found: list[dict[str, Any]] = []
    for _ in range(_READINGS):
        found = _judge(question, claims, acknowledged)
        claims = {place: claims[place] for place in {(one["topic"], one["partition"]) for one in found}}
        if not claims:
            break
    return found


def _judge(
    question: Mapping[str, Any], claims: Mapping[Place, Mapping[str, Any]], acknowledged: Mapping[Place, Acks]
) -> list[dict[str, Any]]:
    places, self_checking = sorted(claims), question.get("selfTold", True)
    silent = {place for place, claim in claims.items() if claim.get("tiered", False)}
    sources = read(question["source"], places, COMMITTED, self_checking=self_checking, silent=silent)
    committed = read(question["destination"], places, COMMITTED, self_checking=self_checking, silent=silent)
    copies = committed
    if not question.get("wasASource", False):
        copies = read(question["destination"], places, UNCOMMITTED, self_checking=self_checking, silent=silent)
    found = []
    if "seen" in question:
        _write_seen(Path(question["seen"]), sources)
    for place in places:
        claim, index = claims[place], str(place[1])
        source, copy = sources[place], copies[place]
        has_failed = place[1] in claim.get("failed", ())
        reported_end = copy.end if has_failed else claim.get("ends", {}).get(index)
        wrong = compare(
            source,
            copy,
            acknowledged.get(place, {}),
            reported_end,
            claim.get("lost", {}).get(index),
            compacted=claim["compacted"],
            all_acknowledged=question.get("allAcknowledged", False),
        )
        wrong |= compare_isolation(copy, committed[place])
        found += [
            {
                "topic": place[0],
                "partition": place[1],
                "what": what,
                "count": len(offsets),
                "offsets": sorted(offsets)[:_MOST_TOLD],
                "source": [source.start, source.end],
                "destination": [copy.start, copy.end],
                "told": reported_end,
            }
            for what, offsets in wrong.items()
        ]
    return found


def _write_seen(path: Path, sources: Mapping[Place, Seen]) -> None:
    """Record by topic how many offsets and records its source has, the first time that it is read."""
    if not path.exists():
        seen: dict[str, list[int]] = {}
        for (topic, _), one in sources.items():
            offsets, records = seen.get(topic, (0, 0))
            seen[topic] = [offsets + one.end - one.start, records + len(one.records)]
        path.write_text(json.dumps(seen), encoding="utf-8")


def compare(
    source: Seen,
    copy: Seen,
    acks: Acks,
    reported_end: int | None = None,
    lost: int | None = None,
    *,
    compacted: bool = False,
    all_acknowledged: bool = False,
) -> dict[str, list[int]]:
    """Return the violations of a copy by kind, with the offsets.

    `reported_end`: of the copy, and `lost` how many records are known to be lost after it.
    `all_acknowledged`: nothing was written that is not among the acknowledged.
    """
    begin = max(source.start, copy.start)
    end = source.end if reported_end is None else reported_end
    wrong: dict[str, list[int]] = {}
    # a failover may write a marker after the copy, which takes an offset and is never shown
    if copy.end != end and (reported_end is None or copy.end != end + 1 or end in copy.records):
        wrong["ends elsewhere"] = [copy.end, end]
    if source.end < end:
        wrong["is longer than its source"] = [source.end, end]
    at_source, at_copy = _Latest(source if compacted else None), _Latest(copy if compacted else None)
    for offset, record in source.records.items():
        if begin <= offset < min(copy.end, end):
            there = copy.records.get(offset)
            # the destination's own cleaner may have removed it
            if there is None and not at_copy.may_lack(offset, record):
                wrong.setdefault("lacks", []).append(offset)
            elif there is not None and not _is_same(record, there):
                wrong.setdefault("differs", []).append(offset)
    for offset, record in copy.records.items():
        if not record.is_whole:
            wrong.setdefault("is damaged", []).append(offset)
        # the source's cleaner may have come since, for a later record that was copied too
        elif (
            offset >= begin
            and offset not in source.records
            and not any(side.may_lack(offset, record) for side in (at_source, at_copy))
        ):
            wrong.setdefault("is not at the source", []).append(offset)
        values = acks.get(offset)
        if values is not None and record.content not in values:
            wrong.setdefault("was acknowledged and is another one", []).append(offset)
        elif values is None and all_acknowledged:
            wrong.setdefault("was never acknowledged", []).append(offset)
    for offset in acks:
        if begin <= offset < end and offset not in copy.records and not compacted:
            wrong.setdefault("was acknowledged and is lost", []).append(offset)
    if lost is not None and lost > source.end - end:
        wrong["fewer are lost than was reported"] = [lost, source.end - end]
    return wrong


def compare_isolation(uncommitted: Seen, committed: Seen) -> dict[str, list[int]]:
    """Return what consumers of the two isolation levels see differently in a copy."""
    if (uncommitted.start, uncommitted.end) != (committed.start, committed.end):
        return {"last stable offset is elsewhere": [uncommitted.end, committed.end]}
    seen, other = uncommitted.records, committed.records
    differing = [offset for offset in seen.keys() | other.keys() if seen.get(offset) != other.get(offset)]
    return {"isolation levels differ": differing} if differing else {}


def _is_same(source: Record, copy: Record) -> bool:
    """Return whether a copy equals what its source shows; a timestamp set by the source's broker is kept too."""
    if source.timestamp_type == LOG_APPEND_TIME:
        source = source._replace(timestamp_type=copy.timestamp_type)
    return source == copy


class _Latest:
    """The last record of each key in a compacted log; without it nothing may be missing."""

    def __init__(self, seen: Seen | None) -> None:
        records = seen.records if seen is not None else {}
        self._is_compacted = seen is not None
        self._last: dict[bytes | None, int] = {record.key: offset for offset, record in sorted(records.items())}

    def may_lack(self, offset: int, record: Record) -> bool:
        """Return whether a cleaner may have removed a record: there is a later one of its key, or it is a tombstone."""
        return self._is_compacted and (record.is_tombstone or self._last.get(record.key, -1) > offset)


def acknowledged_in(path: Path, size: int | None = None) -> dict[Place, dict[int, set[int]]]:
    """Read what the source acknowledged, by partition and offset, up to this size of the file."""
    found: dict[Place, dict[int, set[int]]] = {}
    for line in path.read_bytes()[:size].decode().splitlines():
        if len(fields := line.split(" ")) < 4:
            continue  # it is being written
        topic, partition, offset, checksum = fields
        found.setdefault((topic, int(partition)), {}).setdefault(int(offset), set()).add(int(checksum, 16))
    return found


def main() -> int:
    """Judge what the question asks."""
    question = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    violations = judge(question)
    print(json.dumps(violations))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
