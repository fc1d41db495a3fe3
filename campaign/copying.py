"""The copying side of generated logs: kmirror's lane in its own process, with a claim as its engine would write.

A lane can be killed at any moment, with requests in flight; its successor is granted a later incarnation, and learns
how long its predecessor may still write. `python -m campaign.copying` is the process: it reads what to copy from
standard input, and writes a line whenever other partitions have FAILED or fewer still need alignment, and the state of
all when it ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TTL_MS = 2000
#: A successor counts its own time to live and a margin, from a claim that is written a little later.
_SETTLED_AFTER_S = _TTL_MS / 1000 + 1.0
_HEARTBEAT_S = 1.0
_RETRY_TIMEOUT_MS = 300_000
_GRACE_S = 60.0

Failures = dict[tuple[str, int], tuple[str, str]]


class Copying:
    """One lane that copies all partitions of some topics; its owner starts, kills and stops it."""

    def __init__(
        self, mirror: str, source: str, destination: str, partitions: Mapping[str, int], follows: set[str], log: Path
    ) -> None:
        """Describe it; the copies exist already. `follows`: topics that skip what the source lost (a setting)."""
        from kmirror.cluster.client import ClusterClient
        from kmirror.cluster.security.client_config import client_config

        self._mirror, self._log = mirror, log
        self._source, self._destination = source, destination
        self._client = ClusterClient(client_config({"bootstrap.servers": destination}))
        with ClusterClient(client_config({"bootstrap.servers": source})) as client:
            theirs = client.metadata(partitions).topics
        ours = self._client.metadata(partitions).topics
        #: By topic: how many partitions, its ids on both clusters, whether it skips what the source lost.
        self._topics = {
            name: [count, theirs[name].printed_topic_id, ours[name].printed_topic_id, name in follows]
            for name, count in partitions.items()
        }
        self._generation = 0
        self._settled_at = 0.0
        self._is_running = True
        self._process: subprocess.Popen[str] | None = None
        #: What FAILED, with reason and message, by the lane's last report.
        self.failures: Failures = {}
        #: How many partitions do not yet begin where they should, by the lane's last report; None: no report yet.
        self.unready: int | None = None
        self.stories: list[str] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)

    def start(self, *, is_first: bool = False) -> None:
        """Start a lane instead of the previous one, which was killed, unless it is the first."""
        with self._lock:
            self._generation += 1
            self.failures, self.unready = {}, None
            self._claim_surely(settles=not is_first)
        if is_first:
            self._beats.start()
        given = {
            "mirror": self._mirror,
            "source": self._source,
            "destination": self._destination,
            "topics": self._topics,
            "generation": self._generation,
            "predecessorMayWrite": not is_first,
        }
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "campaign.copying"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def kill(self) -> None:
        """Kill the lane, whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def is_alive(self) -> bool:
        """Return whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """End the lane as an engine does; return its exit code."""
        with self._lock:
            self._is_running = False
            self._claim_surely()
        assert self._process is not None
        try:
            return self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return -1

    def close(self) -> None:
        """Kill what still runs."""
        self._ended.set()
        if self.is_alive:
            self.kill()
        if self._beats.is_alive():
            self._beats.join()
        self._client.close()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if process is self._process:
                report = json.loads(line)
                self.failures = {(topic, index): (reason, text) for topic, index, reason, text in report["failed"]}
                self.unready, self.stories = report["unready"], report["stories"]

    def _beat(self) -> None:
        from kmirror.errors import KmirrorError, OutcomeUnknown

        while not self._ended.wait(_HEARTBEAT_S):
            with self._lock:
                try:
                    self._claim()
                except (KmirrorError, OutcomeUnknown, OSError):
                    continue  # a broker that restarts

    def _claim_surely(self, *, settles: bool = False) -> None:
        """Write a claim, repeatedly while a broker that was just killed is not fully back yet."""
        from kmirror.errors import KmirrorError, OutcomeUnknown

        deadline = time.monotonic() + _GRACE_S
        while True:
            self._settled_at = time.monotonic() + _SETTLED_AFTER_S if settles else self._settled_at
            try:
                return self._claim()
            except (KmirrorError, OutcomeUnknown):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _claim(self) -> None:
        """Write the engine's record; the caller holds the lock."""
        from kmirror.cluster.protocol.batch_records import Record, make_batch
        from kmirror.engine.lane.reports.state_log import STATE_PARTITION, append_to
        from kmirror.state.record_kinds import encode
        from kmirror.state.records import EngineRecord, EngineState, Incarnation

        at = time.time_ns() // 1_000_000
        record = EngineRecord(
            mirror=self._mirror,
            lease_id="campaign",
            state=EngineState.RUNNING if self._is_running else EngineState.STOPPING,
            host="here",
            boot_id="boot",
            pid=1,
            pid_start_time=1,
            application_id=None,
            master=None,
            since_ms=at,
            last_seen_ms=at,
            ttl_ms=_TTL_MS,
            settle_ms=_TTL_MS if time.monotonic() < self._settled_at else 0,
            lanes={0: Incarnation(self._generation, 0)},
            revisions=None,
        )
        append_to(self._client, STATE_PARTITION, memoryview(make_batch([Record(0, at, *encode(record))])))


def _copy(given: Mapping[str, Any]) -> int:
    """Run the lane to its end."""
    from kmirror.engine.lane.lane import Lane
    from kmirror.engine.lane.partition.states import Status
    from kmirror.engine.lane.reports.row_reports import row_of
    from kmirror.engine.spec import LaneSpec, own_producer_id
    from kmirror.state.assignment import Assignment

    source, destination = ({"bootstrap.servers": given[side]} for side in ("source", "destination"))
    assignments = tuple(
        Assignment(
            topic=name,
            partition=index,
            source_topic=name,
            source_topic_id=source_id,
            destination_topic_id=destination_id,
            producer_id=own_producer_id(given["mirror"], name, index),
            follows_truncation=follows,
            merges_batches=number % 2 == 0,
        )
        for number, (name, (count, source_id, destination_id, follows)) in enumerate(given["topics"].items())
        for index in range(count)
    )
    spec = LaneSpec(
        given["mirror"],
        0,
        given["generation"],
        "campaign",
        source,
        destination,
        assignments,
        _TTL_MS,
        given["predecessorMayWrite"],
        _RETRY_TIMEOUT_MS,
    )
    lane = Lane(spec, 0)
    sent: list[Any] = []

    def say(*, with_stories: bool = False) -> None:
        rows = [(partition, row_of(partition)) for partition in lane.partitions]
        failed = [[row.topic, row.partition, str(row.reason), row.message] for _, row in rows if row.state == "FAILED"]
        ready = sum(one.status is Status.COPYING and not one.is_to_be_trimmed for one, _ in rows)
        news = [failed, len(assignments) - len(failed) - ready]
        if news != sent or with_stories:
            sent[:] = news
            stories = [_story(one) for one in lane.partitions if not one.caught_up] if with_stories else []
            print(json.dumps({"failed": failed, "unready": news[1], "stories": stories[:20]}), flush=True)

    def watch() -> None:
        while True:
            time.sleep(0.5)
            say()

    threading.Thread(target=watch, daemon=True).start()
    result = lane.run()
    say(with_stories=True)
    return 0 if result.ended == "STOPPED" else 1


def _story(partition: Any) -> str:
    return "\n".join(map(str, (partition, partition.retry.trouble, *partition.history)))


if __name__ == "__main__":
    sys.exit(_copy(json.load(sys.stdin)))
