"""What kafka-python sets up when it is first used is set up by whichever thread comes first: never by two at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kmirror

SOURCES = sorted(Path(kmirror.__file__).parent.parent.rglob("*.py"))
#: Twelve threads import kafka-python's packages, each in an order of its own.
PROGRAM = """
import importlib, random, sys, threading
from kmirror.cluster import KAFKA_IMPORTS

NAMES = ["kafka.protocol.metadata", "kafka.protocol.admin", "kafka.protocol.producer", "kafka.protocol.consumer",
    "kafka.protocol.sasl", "kafka.net.sasl.plain", "kafka.net.sasl.scram"]
sys.setswitchinterval(1e-6)
together, failed = threading.Barrier(12), []

def import_all(seed):
    names = random.Random(seed).sample(NAMES, len(NAMES))
    together.wait()
    for name in names:
        try:
            with KAFKA_IMPORTS:
                importlib.import_module(name)
        except BaseException as error:
            failed.append(repr(error))

threads = [threading.Thread(target=import_all, args=(seed,)) for seed in range(12)]
for one in threads:
    one.start()
for one in threads:
    one.join()
sys.exit("; ".join(failed) or 0)
"""

#: Eight threads decode the first answers of some requests at the same time, and then the next ones. kafka-python takes
#: a while to write the code for it.
ANSWERS = """
import random, sys, threading, time
from kafka.protocol import admin
from kafka.protocol.schemas.fields import struct
from kmirror.cluster.connection import exchange_of

class Written(struct.CodegenContext):
    def __init__(self):
        time.sleep(random.random() / 1000)
        super().__init__()

struct.CodegenContext = Written

KINDS = ["DescribeProducers", "DescribeTransactions", "ListTransactions", "DescribeGroups", "DescribeAcls",
    "CreateAcls", "DeleteAcls", "DescribeConfigs", "CreateTopics", "DeleteTopics", "DescribeClientQuotas"]
sys.setswitchinterval(1e-6)
together, failed = threading.Barrier(8), []

def decode_all():
    for name in KINDS:
        request, answer = getattr(admin, name + "Request"), getattr(admin, name + "Response")
        for version in range(answer.max_version + 1):
            message = answer(version=version)
            message.with_header(correlation_id=1)
            frame = memoryview(bytes(message.encode(header=True)))
            exchange = exchange_of(request(version=version))
            together.wait()
            for _ in range(3):
                try:
                    exchange.encode(1, version, "c")
                    exchange.decode(frame, version)
                except BaseException as error:
                    failed.append(f"{name} {version}: {error!r}")
                together.wait()

threads = [threading.Thread(target=decode_all) for _ in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
sys.exit("; ".join(sorted(set(failed))) or 0)
"""


def imports_of_kafka(tree: ast.AST, guarded: bool = False) -> Iterator[tuple[int, bool]]:
    """Yield the line of each import of kafka-python, and whether the lock is held there."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if any(name.split(".")[0] == "kafka" for name in names):
                yield node.lineno, guarded
        holds = isinstance(node, ast.With) and any(
            isinstance(item.context_expr, ast.Name) and item.context_expr.id == "KAFKA_IMPORTS" for item in node.items
        )
        yield from imports_of_kafka(node, guarded or holds)


@pytest.mark.slow
def test_every_import_of_kafka_python_holds_the_lock() -> None:
    found = {(path, *one) for path in SOURCES for one in imports_of_kafka(ast.parse(path.read_text()))}
    assert [f"{path}:{line}" for path, line, guarded in sorted(found) if not guarded] == []


def test_kafka_python_is_imported_in_few_places() -> None:
    found = {path.name for path in SOURCES if any(imports_of_kafka(ast.parse(path.read_text())))}
    assert found <= {"sasl.py"}, found


@pytest.mark.slow
def test_threads_import_kafka_python_one_after_the_other() -> None:
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_threads_may_decode_the_first_answers_of_brokers_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", ANSWERS], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
