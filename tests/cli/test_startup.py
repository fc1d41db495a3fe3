"""Start-up is what people wait for after pressing Tab: nothing heavy is imported before it is needed."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from typing import Any

import pytest

import kmirror as package
from kmirror import library as client
from kmirror.cli.main import guarded
from kmirror.cli.options import Session
from kmirror.cli.terminal.screen import Screen

#: As a program sees it that no type checker has looked at.
kmirror: Any = package

HEAVY = {
    "pyspark",
    "py4j",
    "confluent_kafka",
    "kafka",
    "rich",
    "re2",
    "tomli",
    "tomllib",
    "cramjam",
    "prometheus_client",
    "kmirror.ops",
}

#: After a topic there is a pattern, and the names of mirrors are asked for.
TAB = """
import os
from kmirror.cli.commands.completion import answer
from kmirror_compat.kafka_mirrors import kafka_mirrors_command
from kmirror.cli.verbs import kmirror
os.environ["COMP_WORDS"] = "kmirror\\ndescribe\\n--topics\\na,b.*\\n--mirror\\n\\n"
"""


@pytest.mark.parametrize(
    "code",
    [
        "import kmirror.cli.main",
        "from kmirror.cli.main import main; assert main(['--help']) == 0",
        "from kmirror.cli.main import main; assert main(['run', '--help']) == 0",
        "from kmirror.cli.main import main; assert main(['describe', '--help']) == 0",
        "from kmirror_compat.kafka_mirrors import main; assert main(['--help']) == 0",
        "from kmirror_compat.kafka_mirrors import main; assert main(['--promote', '--help']) == 0",
        f"{TAB}assert answer(kmirror, 'bash_complete') == 0",
        f"{TAB}assert answer(kafka_mirrors_command(), 'bash_complete') == 0",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    report = "import sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", f"{code}; {report}"], capture_output=True, text=True, check=True)
    imported = set(done.stderr.split())
    assert "kmirror.cli.verbs" in imported
    assert imported & HEAVY == set()


def modules_after(code: str) -> set[str]:
    report = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{code}; {report}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.slow
def test_the_library_is_imported_when_it_is_asked_for() -> None:
    assert {name for name in modules_after("import kmirror") if name.startswith("kmirror")} == {"kmirror"}
    asked = modules_after("from kmirror import Client, VerbResult")
    assert "kmirror.ops.base.results" in asked
    assert not {"pyspark", "confluent_kafka", "rich", "click", "prometheus_client"} & asked


def test_the_library_s_names_are_those_of_its_module() -> None:
    assert client.__all__ == sorted(client.__all__)
    assert all(getattr(kmirror, name) is getattr(client, name) for name in client.__all__)
    for other in ("client_of", "Destination"):
        with pytest.raises(AttributeError, match=f"no attribute '{other}'"):
            getattr(kmirror, other)


def test_an_error_keeps_what_was_found_on_its_way_to_another_process() -> None:
    error = client.TimedOutError("not yet", "wait", client.Reason.NO_ENGINE)
    error.result = client.VerbResult.of("wait", "m", [client.TopicResult("t", 0, client.Outcome.TIMED_OUT)])
    arrived = pickle.loads(pickle.dumps(error))
    assert (arrived.message, arrived.reason, arrived.result) == (error.message, error.reason, error.result)


def test_a_verb_imports_messages_and_none_of_kafka_python_s_clients() -> None:
    imported = modules_after("import kmirror.cluster, kafka.protocol.metadata")
    assert "kafka.protocol.metadata" in imported
    assert not {"kafka.admin", "kafka.consumer", "kafka.producer", "kafka.net"} & imported


@pytest.mark.parametrize(
    "code",
    [
        "import kmirror.cluster.client, kafka.protocol.metadata; from kafka import KafkaConsumer; KafkaConsumer.poll",
        "import kmirror.cluster, kafka; kafka.KafkaAdminClient.create_topics; assert kafka.__version__",
        "import kafka, kmirror.cluster; kafka.KafkaProducer.send",
    ],
)
def test_who_uses_kafka_python_beside_kmirror_has_all_of_it(code: str) -> None:
    assert "kafka.admin" in modules_after(code)


#: Ctrl-C arrives while a module that the command line needs is imported.
INTERRUPTED = """
import os, signal, sys

class AtImport:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, AtImport())
sys.argv = ["kmirror", "list", "--bootstrap-server", "127.0.0.1:1"]
from kmirror.cli.start import kmirror
kmirror()
"""


@pytest.mark.parametrize(
    ("module", "code", "words"),
    [("click", -signal.SIGINT, ""), ("kmirror.ops.show.listing", 130, "kmirror: interrupted\n")],
)
def test_ctrl_c_while_the_command_line_is_loaded_shows_no_traceback(module: str, code: int, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(module=module)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", words)


def test_what_fails_because_of_ctrl_c_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        try:
            raise KeyboardInterrupt
        finally:
            raise TypeError("a callback was interrupted")

    assert guarded(Session(Screen.of_this_process()), [], work) == 130
    assert capsys.readouterr().err == "kmirror: interrupted\n"
