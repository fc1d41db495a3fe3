"""One Kafka cluster as we see it: connections, record batches, and the requests we make of brokers."""

from __future__ import annotations

import importlib.util
import sys
import threading
from typing import Any

#: Held while something of kafka-python is imported. Its packages import each other: threads that import different ones
#: would wait for each other, which Python ends with an error, and what was imported by half never works again.
KAFKA_IMPORTS = threading.RLock()


def _import_kafka_when_it_is_used() -> None:
    """Have `import kafka.protocol…` not import all of kafka-python's clients too: that is a third of a verb's start.

    The package runs as soon as something is asked of it itself, as by `from kafka import KafkaConsumer`.
    """
    spec = importlib.util.find_spec("kafka") if "kafka" not in sys.modules else None
    if spec is None or spec.loader is None:
        return
    package, run = importlib.util.module_from_spec(spec), spec.loader.exec_module

    def __getattr__(name: str) -> Any:  # noqa: N807 - as PEP 562 has it
        if name.startswith("__"):
            raise AttributeError(name)
        del vars(package)["__getattr__"]
        run(package)
        return getattr(package, name)

    vars(package)["__getattr__"] = __getattr__
    sys.modules["kafka"] = package


_import_kafka_when_it_is_used()
