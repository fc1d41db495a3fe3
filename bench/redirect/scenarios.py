"""Moves of clients from one cluster to another, under load.

* `planned`: `promote --block-producers`, and then a restart of the old cluster, all of its brokers at once, for clients
  let go of it only when none of its brokers answers.
* `back`: the same in the other direction, after a failback.
* `killed` and `frozen`: the brokers of the old cluster are killed, or stopped with SIGSTOP, and the topics failed over.
* `impatient`: as `frozen`, but with clients that have settings for it.
* `split`: as `planned`, but every other client is at a door that still leads to the old cluster for a while. These come
  there again after the restart, so that it is restarted once more when the door has followed.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.clusters import Pair
from bench.measure import CopyFailedError
from bench.processes import REPOSITORY, Running, carry_out
from bench.redirect.clients import IMPATIENT, Client, Kind
from bench.redirect.door import LateDoor, leads_to, opened_door
from bench.redirect.outcome import Outcome, outcome
from bench.redirect.site import NEW, OLD, USERS, RedirectSite
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.haproxy import Door

RATE = 50
PARTITIONS = 2
_LOADED_S = 10.0
_SETTLE_S = 90.0
#: A client that is frozen out waits for `request.timeout.ms`, and for `metadata.recovery.rebootstrap.trigger.ms`.
_FROZEN_S = 150.0
_LATE_S = 30.0
#: From the loss of the old cluster until someone types the command.
_NOTICED_S = 5.0
_TIMEOUT = "300s"
_HOOK = REPOSITORY / "docs" / "examples" / "restart-hook.sh"
#: More than the 45 s that a group waits for a member by default.
_MEMBERS_S = 120.0

#: The outcomes of the moves that one site makes, by scenario.
Outcomes = Iterator[tuple[str, list[Outcome]]]


def planned_and_back(site: RedirectSite) -> Outcomes:
    """Move the clients to the new cluster, and back those that have come there."""
    running = site.mirror()
    try:
        with opened_door(site, site.folder) as door:
            site.start_clients([door.address] * len(site.clients), RATE)
            began = _began()
            _promote(site, NEW)
            found = _outcomes(site, NEW, began, _SETTLE_S)
            yield "planned", found
            site.leave_out({one.client for one in found if one.seconds_without_write is None})
            running.kill()
            _fail_back(site)
            running = site.run_engine(OLD)
            began = _now_ms()
            _promote(site, OLD)
            yield "back", _outcomes(site, OLD, began, _SETTLE_S)
    finally:
        running.kill()


def killed(site: RedirectSite) -> Outcomes:
    """Lose the old cluster to SIGKILL."""
    yield "killed", _disaster(site, signal.SIGKILL, _SETTLE_S)


def frozen(site: RedirectSite) -> Outcomes:
    """Lose the old cluster to SIGSTOP: its connections stay open, and nothing answers."""
    yield "frozen", _disaster(site, signal.SIGSTOP, _FROZEN_S)


def impatient(site: RedirectSite) -> Outcomes:
    """Lose the old cluster as in `frozen`."""
    yield IMPATIENT, _disaster(site, signal.SIGSTOP, _FROZEN_S)


def split(site: RedirectSite) -> Outcomes:
    """Move the clients while the door of every other one still leads to the old cluster."""
    running = site.mirror()
    try:
        with opened_door(site, site.folder) as door, _late_door(site, door) as late:
            doors = [(late if number % 2 else door).address for number in range(len(site.clients))]
            site.start_clients(doors, RATE)
            began = _began()
            _promote(site, NEW)
            time.sleep(_LATE_S)
            site.clusters[OLD].stop()
            site.clusters[OLD].start()
            yield "split", _outcomes(site, NEW, began, _SETTLE_S)
    finally:
        running.kill()


SCENARIOS: dict[str, Callable[[RedirectSite], Outcomes]] = {
    "planned": planned_and_back,
    "killed": killed,
    "frozen": frozen,
    IMPATIENT: impatient,
    "split": split,
}


def run(name: str, kinds: Sequence[Kind], folder: Path, brokers: int) -> Outcomes:
    """Run a scenario with clients of these kinds on a fresh pair of clusters."""
    with Pair(folder, brokers, USERS) as pair:
        clients = [Client(kind, folder, PARTITIONS) for kind in kinds]
        try:
            yield from SCENARIOS[name](RedirectSite(pair, folder, clients))
        finally:
            for client in clients:
                client.close()


def _disaster(site: RedirectSite, signum: int, seconds: float) -> list[Outcome]:
    running: Running = site.mirror()
    try:
        with opened_door(site, site.folder) as door:
            site.start_clients([door.address] * len(site.clients), RATE)
            began = _began()
            lost = site.clusters[OLD]
            for broker in lost.brokers:
                lost.signal(broker.node_id, signum)
            time.sleep(_NOTICED_S)
            site.document(NEW, "failover", "--yes")
            _say("failed over")
            return _outcomes(site, NEW, began, seconds)
    finally:
        running.kill()


def _promote(site: RedirectSite, at: str) -> None:
    """Promote at a cluster, and restart the other one by a hook, all of its brokers at once."""
    (old,) = site.clusters.keys() - {at}
    line = shlex.join([str(_HOOK), _brokers(site.clusters[old], "stop"), _brokers(site.clusters[old], "start")])
    options = ("--block-producers", "--timeout", _TIMEOUT, "--after", line, "--hook-timeout", _TIMEOUT, "--yes")
    carry_out(site.command(at, "promote", *options))
    _say(f"promoted at the {at}, and the {old} restarted")


def _brokers(cluster: SandboxCluster, verb: str) -> str:
    """Return a command line that stops or starts all brokers of a cluster."""
    program = (
        "from pathlib import Path; from kmirror_sandbox.cluster import SandboxCluster; "
        f"SandboxCluster({cluster.name!r}, Path({str(cluster.directory)!r})).{verb}()"
    )
    return shlex.join([sys.executable, "-c", program])


def _fail_back(site: RedirectSite) -> None:
    """Make the old cluster a mirror, once the members of its groups, which could not leave them, have timed out."""
    deadline = time.monotonic() + _MEMBERS_S
    while True:
        try:
            carry_out(site.command(OLD, "failback", "--mirror-config", site.link(NEW), "--yes"))
        except CopyFailedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_NOTICED_S)
        else:
            _say("the old cluster is a mirror")
            return


def _outcomes(site: RedirectSite, at: str, began_ms: int, seconds: float) -> list[Outcome]:
    """Wait until the clients are back, and compare what they printed with the log at this cluster."""
    settled_ms = site.settle(seconds, 3 * RATE)
    _say("comparing what they printed with the log")
    found = []
    for client in site.clients:
        events = client.events()
        log = client.kept(site.clusters[at])
        found.append(outcome(client.kind.key, events, log, began_ms, settled_ms))
    return found


@contextmanager
def _late_door(site: RedirectSite, door: Door) -> Iterator[LateDoor]:
    """Yield a door that follows another one, late."""
    seen: list[tuple[float, str | None]] = [(time.monotonic() - _LATE_S, OLD)]

    def check() -> str | None:
        seen.append((time.monotonic(), leads_to(door)))
        return [name for at, name in seen if at <= time.monotonic() - _LATE_S][-1]

    with LateDoor({name: site.brokers(name) for name in site.clusters}, check) as late:
        yield late


def _began() -> int:
    """Wait a while, and return the present time in epoch milliseconds."""
    time.sleep(_LOADED_S)
    _say("the clients write and read")
    return _now_ms()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _say(line: str) -> None:
    print(f"{time.strftime('%X')}  {line}", file=sys.stderr, flush=True)
