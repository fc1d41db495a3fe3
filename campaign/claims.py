"""Check whether what a tool says about a copy is true at that moment: its rows, compared with both clusters. Pure.

A row may be old if it says so, and may call something unknown. What it does state must be true: a log end is a number
that the log had between question and answer; the source's end is as recent as the lag promises; and a copy shown as
healthy makes progress while there is something to copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Place = tuple[str, int]
Ends = Mapping[Place, int]
Violation = dict[str, Any]

#: A source's end counts as known for ten seconds after it was read.
_SOURCE_AGE_S = 10.0
_MARGIN_S = 3.0
#: How long a copy with records to copy may make no progress before it must be reported.
STANDS_STILL_S = 40.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of `describe`, requested at `at` and answered by `until`; log ends just before and just after.

    Ends are None where a cluster did not answer.
    """

    at: float
    until: float
    rows: Sequence[Mapping[str, Any]]
    source_before: Ends | None
    source_after: Ends | None
    destination_before: Ends | None
    destination_after: Ends | None


def judge_samples(samples: Sequence[Sample], topics: set[str]) -> list[Violation]:
    """Return the violations, for these topics."""
    found: list[Violation] = []
    for number, sample in enumerate(samples):
        for row in sample.rows:
            place = row["topic"], row["partition"]
            if row["topic"] in topics and row["state"] != "STOPPED":
                wrong = [*_of_row(row, place, sample), *_of_age(row, place, samples[: number + 1])]
                found += [{"what": what, "row": _short(row), "at": sample.at, "truth": truth} for what, truth in wrong]
    return found + list(_standing_still(samples, topics))


def _of_row(row: Mapping[str, Any], place: Place, sample: Sample) -> Iterator[tuple[str, Any]]:
    end, source, lag = row["destinationOffset"], row["sourceOffset"], row["lag"]
    before, after = _at(sample.destination_before, place), _at(sample.destination_after, place)
    if end is not None and before is not None and end < before:
        yield "the destination ended later already", before
    if end is not None and after is not None and end > after:
        yield "the destination does not end so late", after
    newest = _at(sample.source_after, place)
    if source is not None and newest is not None and source > newest:
        yield "the source does not end so late", newest
    # a partition that only the source has is behind by its whole log; no other lag is known without the copy's end
    copied = row["sourceLogStart"] or 0 if end is None and before is None else end
    # both ends are read at different moments: the copy may have passed what was seen of the source
    if lag is not None and (source is None or copied is None or lag != max(0, source - copied)):
        yield "a lag that is not the difference of both ends", None


def _of_age(row: Mapping[str, Any], place: Place, samples: Sequence[Sample]) -> Iterator[tuple[str, Any]]:
    """Compare with what the source had long before."""
    if row["lag"] is None:
        return
    asked = samples[-1].at
    for older in reversed(samples[:-1]):
        if asked - older.until > _SOURCE_AGE_S + _MARGIN_S:
            had = _at(older.source_before, place)
            if had is not None and row["sourceOffset"] < had:
                yield f"a lag by a source's end that is {asked - older.until:.0f} s old", had
            return


def _standing_still(samples: Sequence[Sample], topics: set[str]) -> Iterator[Violation]:
    """Find copies that every row shows as healthy and that made no progress although there was something to copy."""
    since: dict[Place, tuple[float, int]] = {}
    for sample in samples:
        for row in sample.rows:
            place = row["topic"], row["partition"]
            end, owed = _at(sample.destination_before, place), _at(sample.source_before, place)
            is_well = row["topic"] in topics and row["state"] == "MIRRORING" and row["reason"] is None
            if not is_well or end is None or owed is None or owed <= end:
                since.pop(place, None)
                continue
            began, where = since.setdefault(place, (sample.at, end))
            if end > where:
                since[place] = sample.at, end
            elif sample.at - began > STANDS_STILL_S:
                since[place] = sample.at, end
                violation = {"what": "all is well, and nothing is copied", "row": _short(row), "at": sample.at}
                yield {**violation, "truth": [round(sample.at - began), end, owed]}


def judge_loss(
    rows: Sequence[Mapping[str, Any]], source_ends: Ends | None, acknowledged: Mapping[Place, set[int]]
) -> list[Violation]:
    """Return losses that a failover reported too small, or invented.

    `source_ends` and `acknowledged`: right before it was typed; the ends are None if the source was dead by then.
    """
    found: list[Violation] = []
    for row in rows:
        if row["partition"] is None or row["lastMirroredOffset"] is None:
            continue
        place, end, reported = (row["topic"], row["partition"]), row["lastMirroredOffset"], row["lag"]
        lost = sorted(offset for offset in acknowledged.get(place, ()) if offset >= end)
        truth = {"row": _short(row), "truth": [len(lost), lost[:1], lost[-1:]]}
        if source_ends is not None and reported is None:
            found.append({"what": "a loss is unknown although the source answers", **truth})
        elif source_ends is not None and reported < source_ends.get(place, 0) - end:
            found.append({"what": "more was lost than was reported", **truth})
        elif reported == 0 and lost and row.get("estimatedMoreRecords") is None and _is_new(row):
            found.append({"what": "a loss was reported as none", **truth})
    return found


def _is_new(row: Mapping[str, Any]) -> bool:
    """Return whether a row claims to be current: it does not say that the source was seen long before the stop."""
    as_of, stopped = row.get("asOf"), row.get("stopTimeMs")
    return as_of is not None and stopped is not None and as_of >= stopped


def judge_group(source: Ends, destination: Ends, bounds: Mapping[Place, tuple[int, int]], *, quiet: bool) -> list[str]:
    """Return what is wrong with the offsets that a group has committed, in sentences.

    The destination's are read first, and a group at the source only moves forward: none may exceed the source's,
    brought into `bounds`, where the copies start and end. `quiet`: nothing was committed or copied for longer than the
    sync's interval; then they must be equal.
    """
    wrong = []
    for place, (start, end) in sorted(bounds.items()):
        there, committed = destination.get(place), source.get(place)
        owed = None if committed is None else min(max(committed, start), end)
        if there is not None and (committed is None or there > max(committed, start) or there > end):
            wrong.append(f"{place}: {there} at the destination, {committed} at the source, a log of {start} to {end}")
        elif quiet and there != owed:
            wrong.append(f"{place}: {there} at the destination, {committed} at the source, and all is quiet")
    return wrong


def judge_idle_group(owed: Ends, there: Ends) -> list[str]:
    """Return what a group without members has lost of the offsets that it has committed once, in sentences."""
    return [f"{place}: {offset} is forgotten" for place, offset in sorted(owed.items()) if place not in there]


def _at(ends: Ends | None, place: Place) -> int | None:
    return None if ends is None else ends.get(place)


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("topic", "partition", "state", "reason", "sourceOffset", "destinationOffset", "lag", "lastMirroredOffset")
    return {key: row[key] for key in keys if row.get(key) is not None}
