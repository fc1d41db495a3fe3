"""Log directories of a stopped broker, made by hand: segments, and everything that a broker stores with them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.log_batches import LogBatch, VisibleRecord, encode

CLUSTER_ID = "UvhIUx9rRKeGYyP8ZJ35fA"
TOPIC_ID = "NANxui0sRqGcaE7G9dmrvg"
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")

_TIME = 1_700_000_000_000
_LOCKER = """\
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("taken", flush=True)
    else:
        print("locked", flush=True)
        sys.stdin.read()
"""


def batch(base_offset: int, records: int, *, magic: int = 2) -> LogBatch:
    """Return a batch of so many records."""
    made = tuple(VisibleRecord(base_offset + n, _TIME, b"key-%d" % n, b"value" * 5) for n in range(records))
    return LogBatch(base_offset, base_offset + records - 1, made, _TIME, magic=magic)


def make_log_dir(path: Path, *, node_id: int = 1, cluster_id: str = CLUSTER_ID) -> Path:
    """Make the log directory of a broker that was stopped cleanly and has no partition."""
    path.mkdir(parents=True)
    (path / "meta.properties").write_text(f"version=1\nnode.id={node_id}\ncluster.id={cluster_id}\n")
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":11}')
    for name in CHECKPOINTS:
        (path / name).write_text("0\n0\n")
    return path


def add_partition(
    log_dir: Path,
    name: str,
    segments: Mapping[int, Sequence[LogBatch]],
    *,
    log_start: int | None = None,
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
    topic_id: str = TOPIC_ID,
) -> Path:
    """Add a partition with these segments; a snapshot at the start of each but the first, and at the end."""
    folder = log_dir / name
    folder.mkdir()
    topic, _, partition = name.rpartition("-")
    end = 0
    for number, (base_offset, batches) in enumerate(segments.items()):
        data = b"".join(encode(one) for one in batches)
        (folder / f"{base_offset:020d}.log").write_bytes(data)
        (folder / f"{base_offset:020d}.index").write_bytes(b"index of %d" % base_offset)
        (folder / f"{base_offset:020d}.timeindex").write_bytes(b"times of %d" % base_offset)
        if number:
            (folder / f"{base_offset:020d}.snapshot").write_bytes(b"producers at %d" % base_offset)
        end = batches[-1].next_offset if batches else base_offset
    (folder / f"{end:020d}.snapshot").write_bytes(b"producers at %d" % end)
    lines = "".join(f"{epoch} {start}\n" for epoch, start in epochs)
    (folder / "leader-epoch-checkpoint").write_text(f"0\n{len(epochs)}\n{lines}")
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    for checkpoint in CHECKPOINTS[:2]:
        add_entry(log_dir / checkpoint, f"{topic} {partition} {end}")
    if log_start is not None:
        add_entry(log_dir / CHECKPOINTS[2], f"{topic} {partition} {log_start}")
    return folder


def add_entry(checkpoint: Path, entry: str) -> None:
    """Add a line to a checkpoint file."""
    entries = [*checkpoint.read_text().splitlines()[2:], entry]
    checkpoint.write_text("\n".join(["0", str(len(entries)), *entries, ""]))


def entries(checkpoint: Path) -> list[str]:
    """Return the entries of a checkpoint file."""
    return checkpoint.read_text().splitlines()[2:]


def contents(log_dir: Path) -> dict[str, bytes]:
    """Return what a broker finds below a log directory."""
    return {
        str(path.relative_to(log_dir)): path.read_bytes()
        for path in sorted(log_dir.rglob("*"))
        if path.is_file() and path.name != ".lock" and not path.name.startswith("kmirror-cut-")
    }


def own_files(log_dir: Path) -> list[str]:
    """Return the names of the files that kmirror keeps in a log directory."""
    return sorted(path.name for path in log_dir.glob("kmirror-cut-*"))


@contextmanager
def locked_by_another(log_dir: Path) -> Iterator[str]:
    """Have another process lock a log directory as a broker does, and return the outcome: `locked` or `taken`."""
    (log_dir / ".lock").touch()
    command = [sys.executable, "-c", _LOCKER, str(log_dir / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()
