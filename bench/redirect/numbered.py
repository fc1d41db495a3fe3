"""What the client programs in Python share: their settings, the lines they print, the numbers they write.

Like every client program they write numbered records at a steady rate, and read them in a group. They print a JSON line
for each acknowledged write, each read, each error and each new client. What was refused is sent again, and a client
that has failed for good is replaced, as a service manager would restart the application.
"""

from __future__ import annotations

import json
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.security.properties import read_properties

_AGAIN_S = 1.0
_PREFIX, _LIBRDKAFKA = "numbered.", "librdkafka."


@dataclass(frozen=True, slots=True)
class Settings:
    """What a client program does: `rate` in records a second; `properties` as for a Java client."""

    topic: str
    partitions: int
    rate: int
    group: str
    properties: Mapping[str, str]

    @property
    def config(self) -> ClientConfig:
        """Return the connection settings."""
        return client_config({key: value for key, value in self.properties.items() if not key.startswith(_LIBRDKAFKA)})

    @property
    def librdkafka(self) -> dict[str, str]:
        """Return the settings that are librdkafka's own, by its names."""
        own = (one for one in self.properties.items() if one[0].startswith(_LIBRDKAFKA))
        return {key.removeprefix(_LIBRDKAFKA): value for key, value in own}


class Program:
    """One client program: a writer and a reader, each in a thread of its own, until SIGTERM."""

    def __init__(self, arguments: list[str]) -> None:
        found = read_properties(Path(arguments[1]))
        own = {key.removeprefix(_PREFIX): value for key, value in found.items() if key.startswith(_PREFIX)}
        rest = {key: value for key, value in found.items() if not key.startswith(_PREFIX)}
        self.settings = Settings(own["topic"], int(own["partitions"]), int(own["rate"]), own["group"], rest)
        self.ended = threading.Event()
        self._again: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._next = 0
        self._printing = threading.Lock()

    def run(self, write: Callable[[Program], None], read: Callable[[Program], None]) -> None:
        """Run both until SIGTERM, each again when it raises."""

        def end(_: int, __: FrameType | None) -> None:
            self.ended.set()

        signal.signal(signal.SIGTERM, end)
        threads = [threading.Thread(target=self._repeat, args=one) for one in (("writer", write), ("reader", read))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, side: str, work: Callable[[Program], None]) -> None:
        while not self.ended.is_set():
            self._print(what="started", side=side, text="")
            try:
                work(self)
            except Exception as error:
                self.failed(side, f"{type(error).__name__}: {error}")
                self.ended.wait(_AGAIN_S)

    def numbers(self) -> Iterator[int]:
        """Yield at the steady rate the numbers to write, refused ones first."""
        began = time.monotonic()
        sent = 0
        while not self.ended.is_set():
            try:
                number = self._again.get_nowait()
            except queue.Empty:
                number, self._next = self._next, self._next + 1
            yield number
            sent += 1
            self.ended.wait(max(0.0, began + sent / self.settings.rate - time.monotonic()))

    def refused(self, number: int, text: str) -> None:
        """Report that a record was refused; it is sent again."""
        self._again.put(number)
        self.failed("writer", text)

    def acknowledged(self, number: int, partition: int, offset: int) -> None:
        """Report an acknowledged write."""
        self._print(what="acknowledged", number=number, partition=partition, offset=offset)

    def was_read(self, number: int, partition: int, offset: int) -> None:
        """Report a record that was read."""
        self._print(what="read", number=number, partition=partition, offset=offset)

    def failed(self, side: str, text: str) -> None:
        """Report an error."""
        self._print(what="error", side=side, text=text)

    def _print(self, **fields: str | int) -> None:
        with self._printing:
            sys.stdout.write(json.dumps({"at": time.time_ns() // 1_000_000, **fields}) + "\n")
            sys.stdout.flush()
