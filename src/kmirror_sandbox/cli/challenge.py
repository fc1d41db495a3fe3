"""`sandbox challenge`: what happens to a source's log that a mirror must not get wrong, in three scenarios.

Log ends are read with librdkafka, not with kmirror's own client.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kmirror.cli.failures import ended_by_signals
from kmirror.cli.options import Call, verb
from kmirror.cli.terminal import plain_tables as tables
from kmirror.errors import ExitCode
from kmirror_sandbox.cli.demo_stage import Stage, StepFailedError

if TYPE_CHECKING:
    from kmirror_sandbox.cli.demo_output import CommandRunner
    from kmirror_sandbox.cluster import SandboxCluster

MIRROR = "challenge"
_COPIED, _LATER, _DELETED_BELOW, _FRESH = 1000, 200, 1150, 100
_TRUNCATED = "source log truncation detected"
_RESET = "source topic reset detected"
_PATIENCE_S = 120.0


@verb(
    "challenge",
    "Watch a copy, a truncated source and a reset topic.\n\nStarts two Kafka clusters of"
    " its own on this machine, compares every number with what the brokers say, and ends with ALL SCENARIOS PASSED, or"
    " with exit code 7 and the scenario that failed. Cleans up after itself.",
    examples=("kmirror sandbox challenge", "kmirror sandbox challenge -v"),
    changes=True,
    dry_run=False,
    destination=False,
    documents=False,
)
def challenge_verb(call: Call) -> int:
    with ended_by_signals(), ExitStack() as stack:
        return _Challenge(call.output.screen, stack).play()


def _caught_up(topic: str) -> list[str]:
    return ["wait", "--mirror", MIRROR, "--topics", topic, "--for", "caught-up", "--timeout", f"{_PATIENCE_S:g}s"]


class _UnexpectedError(Exception):
    """Something is not as it should be."""


class _Challenge(Stage):
    """The three scenarios."""

    def play(self) -> int:
        """Run all scenarios; return 0 if all passed."""
        self.output.aside("Real brokers, a real engine. Ctrl-C ends it at any time and cleans up.")
        scenario = "the start"
        try:
            source, destination = self.start_clusters()
            kmirror = self.command_line(destination)
            self.must(kmirror, "create", "--mirror", MIRROR, "--mirror-config", self.write_properties(source))
            self.stack.callback(kmirror.start("run", "--mirror", MIRROR).kill)
            for scenario, steps in (
                ("scenario 1, a copy", self._copy),
                ("scenario 2, a truncated source", self._truncate),
                ("scenario 3, a source topic that was reset", self._reset),
            ):
                steps(kmirror, source, destination)
                self.output.say(f"{scenario}: passed")
        except StepFailedError as failed:
            self.output.aside(f"{scenario} FAILED: `{failed.command}` exited with {failed.code}", "bold red")
            return failed.code
        except _UnexpectedError as wrong:
            self.output.aside(f"{scenario} FAILED: {wrong}", "bold red")
            return ExitCode.HISTORIES_DIFFER
        self.output.aside(f"ALL SCENARIOS PASSED in {tables.elapsed(time.monotonic() - self.began)}", "bold green")
        return ExitCode.OK

    def _copy(self, kmirror: CommandRunner, source: SandboxCluster, destination: SandboxCluster) -> None:
        self.output.heading(f"Scenario 1: {_COPIED:,} records")
        self._mirror(kmirror, source, destination, "copied")
        self.must(kmirror, "verify", "--mirror", MIRROR, "--topics", "copied")

    def _truncate(self, kmirror: CommandRunner, source: SandboxCluster, destination: SandboxCluster) -> None:
        from kmirror_sandbox.cli.demo_traffic import delete_records, write_records

        topic = "truncated"
        self.output.heading("Scenario 2: the source deletes records before they are copied")
        self._mirror(kmirror, source, destination, topic)
        self._pause(kmirror, topic)
        self.output.say(f"{_LATER} more records reach a, and a deletes all below offset {_DELETED_BELOW:,}.")
        write_records(source.bootstrap_servers, topic, _LATER)
        delete_records(source.bootstrap_servers, topic, _DELETED_BELOW)
        self._expect(source, topic, (_DELETED_BELOW, _COPIED + _LATER), "on a")
        self.must(kmirror, "resume", "--mirror", MIRROR, "--topics", topic)
        if kmirror.run(*_caught_up(topic)) == ExitCode.OK:
            raise _UnexpectedError("the copy has caught up, as if nothing was lost")
        self.must(kmirror, "describe", "--mirror", MIRROR, "--topics", topic, "--failed")
        (row,) = kmirror.document("describe", "--mirror", MIRROR, "--topics", topic)
        lost = _DELETED_BELOW - _COPIED
        numbers = (
            f"{_TRUNCATED} at position {_COPIED}: the source starts at offset {_DELETED_BELOW} and ends at"
            f" {_COPIED + _LATER}; its {lost} offsets {_COPIED} to {_DELETED_BELOW - 1} were deleted"
        )
        if (row["state"], row["reason"]) != ("FAILED", "SOURCE_TRUNCATED") or numbers not in row["errorMessage"]:
            raise _UnexpectedError(f"{row['state']} {row['reason']}: {row['errorMessage']}, not {numbers!r}")
        self._require_event(kmirror, _TRUNCATED)
        self._expect(destination, topic, (0, _COPIED), "on b, as before")
        self.output.say("Someone must accept the loss; then the copy goes on behind it.")
        self.must(kmirror, "recover", "--mirror", MIRROR, "--topics", topic, "--accept-loss", "--yes")
        self.must(kmirror, *_caught_up(topic))
        self._expect(destination, topic, (0, _COPIED + _LATER), "on b")

    def _reset(self, kmirror: CommandRunner, source: SandboxCluster, destination: SandboxCluster) -> None:
        from kmirror_sandbox.cli.demo_traffic import delete_topic, make_topic, write_records

        topic = "reset"
        self.output.heading("Scenario 3: the source topic is deleted and created again")
        self._mirror(kmirror, source, destination, topic)
        self._pause(kmirror, topic)
        self.output.say(f"On a, {topic} is deleted, created again, and gets {_FRESH} fresh records.")
        delete_topic(source.bootstrap_servers, topic)
        make_topic(source.bootstrap_servers, topic, 1)
        write_records(source.bootstrap_servers, topic, _FRESH)
        self.must(kmirror, "resume", "--mirror", MIRROR, "--topics", topic)
        self._await_rebuilt(kmirror, topic)
        self.must(kmirror, *_caught_up(topic))
        self._require_event(kmirror, _RESET)
        self._expect(source, topic, (0, _FRESH), "on a")
        self._expect(destination, topic, (0, _FRESH), "on b")
        # after the records comes the marker of the transaction that wrote them
        self._expect(destination, f"{topic}.kmirror-archive.1", (0, _COPIED + 1), "on b, with the old records")
        self.must(kmirror, "verify", "--mirror", MIRROR, "--topics", topic)

    def _mirror(self, kmirror: CommandRunner, source: SandboxCluster, destination: SandboxCluster, topic: str) -> None:
        """Copy a new topic with records."""
        from kmirror_sandbox.cli.demo_traffic import make_topic, write_records

        make_topic(source.bootstrap_servers, topic, 1)
        write_records(source.bootstrap_servers, topic, _COPIED)
        self.must(kmirror, "add", "--mirror", MIRROR, "--topics", topic)
        self.must(kmirror, *_caught_up(topic))
        self._expect(source, topic, (0, _COPIED), "on a")
        self._expect(destination, topic, (0, _COPIED), "on b")

    def _expect(self, cluster: SandboxCluster, topic: str, ends: tuple[int, int], where: str) -> None:
        from kmirror_sandbox.cli.demo_traffic import log_ends

        found = log_ends(cluster.bootstrap_servers, topic)
        self.output.say(f"{topic} begins at offset {found[0]:,} and ends at {found[1]:,} {where}.")
        if found != ends:
            raise _UnexpectedError(f"{topic} should begin at {ends[0]:,} and end at {ends[1]:,}")

    def _pause(self, kmirror: CommandRunner, topic: str) -> None:
        self.must(kmirror, "pause", "--mirror", MIRROR, "--topics", topic)

    def _await_rebuilt(self, kmirror: CommandRunner, topic: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not any(row["rebuiltAt"] for row in kmirror.document("describe", "--mirror", MIRROR, "--topics", topic)):
            if time.monotonic() > deadline:
                raise _UnexpectedError(f"{topic} is not rebuilt")

    def _require_event(self, kmirror: CommandRunner, phrase: str) -> None:
        events = kmirror.document("events", "--mirror", MIRROR)
        if not any(phrase in str(event) for event in events):
            raise _UnexpectedError(f"no event says {phrase!r}")
        self.output.say(f"`kmirror events` says {phrase!r}.")
