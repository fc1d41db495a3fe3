"""Time what an operator types over a link: `python -m bench.far link --far destination -- python -m bench.far.verbs`.

Runs at the near end, with the source; the destination, to which every command connects, is far. Mirrors a number of
partitions, 4 to a topic, and prints the seconds of each command, the start of Python included: the median of three
where the command may be repeated.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

_A_TOPIC = 4
_RECORDS = 100
_NEW_TOPICS = 50
_TIMEOUT_SECONDS = "300s"


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the commands; return 0 if each of them ended as it should."""
    parser = argparse.ArgumentParser(prog="python -m bench.far.verbs", description=__doc__)
    parser.add_argument("--partitions", type=int, default=200, metavar="N", help="default: %(default)s")
    options = parser.parse_args(arguments)
    source = os.environ["SOURCE"]
    topics = max(1, options.partitions // _A_TOPIC)
    _fill(source, [f"t{number}" for number in range(topics)])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "source.properties")
        file.write_text(f"bootstrap.servers={source}\nrefresh.interval.seconds=600\n", encoding="utf-8")
        return 0 if _time_all(str(file), topics) else 1


def _time_all(file: str, topics: int) -> bool:
    ended = [_timed("check", "--mirror-config", file)]
    ended += [_timed("create", "--mirror", "m", "--mirror-config", file)]
    ended += [_timed("add", "--mirror", "m", "--topics", "t.*", f"({topics} topics)")]
    ended += [_timed("run", "--mirror", "m", "--until-caught-up", "--timeout", _TIMEOUT_SECONDS)]
    engine = subprocess.Popen(_argv("run", "--mirror", "m"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ended += [_timed("wait", "--mirror", "m", "--for", "caught-up", "--timeout", _TIMEOUT_SECONDS)]
        ended += [_timed("list", times=3), _timed("describe", "--mirror", "m", times=3)]
        ended += [_timed("events", "--mirror", "m", times=3), _timed("config", "--mirror", "m", times=3)]
        ended += [_timed("pause", "--mirror", "m"), _timed("resume", "--mirror", "m")]
        _fill(os.environ["SOURCE"], [f"new{number}" for number in range(_NEW_TOPICS)])
        ended += [_timed("add", "--mirror", "m", "--topics", "new.*", f"({_NEW_TOPICS} topics)")]
        ended += [_timed("failover", "--mirror", "m", "--dry-run", times=3)]
        ended += [_timed("failover", "--mirror", "m", "--yes")]
    finally:
        engine.terminate()
        engine.wait()
    return all(ended)


def _argv(*arguments: str) -> list[str]:
    words = [argument for argument in arguments if not argument.startswith("(")]
    return [str(Path(sys.executable).with_name("kmirror")), *words, "--bootstrap-server", os.environ["DESTINATION"]]


def _timed(*arguments: str, times: int = 1) -> bool:
    """Run a command, print what it took, and return whether it ended with 0. Words in parentheses are only printed."""
    seconds: list[float] = []
    for _ in range(times):
        began = time.monotonic()
        ran = subprocess.run(_argv(*arguments), capture_output=True, text=True, check=False)
        seconds.append(time.monotonic() - began)
    shown = " ".join(word for word in arguments if word not in {"--mirror", "m"} and "/" not in word)
    print(f"{statistics.median(seconds):6.1f} s  {shown}", flush=True)
    if ran.returncode:
        print(f"        ended with {ran.returncode}: {ran.stderr.strip()[-400:]}", flush=True)
    return ran.returncode == 0


def _fill(source: str, topics: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": source})
    for future in admin.create_topics([NewTopic(topic, _A_TOPIC, 1) for topic in topics]).values():
        future.result()
    producer = Producer({"bootstrap.servers": source, "linger.ms": 50})
    for topic in topics:
        for number in range(_RECORDS * _A_TOPIC):
            producer.produce(topic, str(number), partition=number % _A_TOPIC)
        producer.poll(0)
    producer.flush()


if __name__ == "__main__":
    sys.exit(main())
