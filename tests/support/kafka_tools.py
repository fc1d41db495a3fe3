"""Kafka's own command-line tools, run one after the other in one JVM of this test process.

A JVM per run of a tool would cost more CPU time than the tool's own work.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION, KafkaJars, kafka_jars
from tests.support import kafka_tool_client
from tests.support.class_archive import java

#: By their well-known names.
TOOLS = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-dump-log.sh": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-share-groups.sh": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-application-reset.sh": "org.apache.kafka.tools.StreamsResetter",
    "kafka-streams-groups.sh": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
_JAVA_OPTIONS = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF"]

_starting = threading.Lock()


class Printed(NamedTuple):
    """A tool's exit code and output."""

    exit_code: int
    out: bytes
    err: bytes


def kafka_tool(tool: str, *arguments: str) -> bytes:
    """Run one of Kafka's own tools and return what it printed; fail when the tool does."""
    done = _tools().run(tool, arguments)
    assert done.exit_code == 0, f"{tool} {arguments}: {done.out[-2000:]!r} {done.err.decode()[-4000:]}"
    return done.out


def put_kafka_tools_into(folder: Path) -> None:
    """Write a script for each of Kafka's tools, for the PATH of a shell.

    The console consumer has its own JVM: pipes show what it reads while it runs.
    """
    client = f"{sys.executable} -I -S {kafka_tool_client.__file__} {_tools().address}"
    jvm = f"{java()} {' '.join(_JAVA_OPTIONS)} -cp '{_jars().classpath}'"
    for tool, main_class in TOOLS.items():
        command = f"{jvm} {main_class}" if tool == "kafka-console-consumer.sh" else f"{client} {tool}"
        script = folder / tool
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        script.chmod(0o755)


def _jars() -> KafkaJars:
    return kafka_jars(DEFAULT_KAFKA_VERSION, os.environ, lambda line: None, ["kafka-tools"])


def _tools() -> _Tools:
    with _starting:  # several threads may ask first
        return _started()


@cache
def _started() -> _Tools:
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs a tool's exit as an error of its own
    tools = _Tools()
    atexit.register(tools.close)
    return tools


class _Exit:
    """What tools call instead of `System.exit`: record the code, and end the tool by an exception."""

    def __init__(self) -> None:
        self.code: int | None = None

    def execute(self, code: int, message: str | None) -> None:
        if self.code is None:
            self.code = code
        raise SystemError(message)

    class Java:
        implements = ("org.apache.kafka.common.utils.Exit$Procedure",)


class _ShutdownHooks:
    """The hooks that tools leave for the end of the JVM, run at the end of the tool here."""

    def __init__(self) -> None:
        self._hooks: list[Any] = []

    def addShutdownHook(self, name: str | None, hook: Any) -> None:  # noqa: N802 - Java's name
        self._hooks.append(hook)

    def run(self) -> None:
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.run()

    class Java:
        implements = ("org.apache.kafka.common.utils.Exit$ShutdownHookAdder",)


class _Tools:
    """A JVM with Kafka's tools, started for the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-tools-"))
        self.address = self._folder / "socket"
        self._exit = _Exit()
        self._hooks = _ShutdownHooks()
        self._process, self._gateway = self._start()
        self._server = _serve(self)

    def run(self, tool: str, arguments: Sequence[str], stdin: Path | None = None) -> Printed:
        """Run a tool's `main` with its input and output in files."""
        with self._lock:
            jvm, system = self._gateway.jvm, self._gateway.jvm.java.lang.System
            main_class = jvm
            for name in TOOLS[tool].split("."):
                main_class = getattr(main_class, name)
            words = self._gateway.new_array(jvm.java.lang.String, len(arguments))
            for place, argument in enumerate(arguments):
                words[place] = argument
            out, err = self._folder / "out", self._folder / "err"
            system.setIn(jvm.java.io.FileInputStream(str(stdin or os.devnull)))
            system.setOut(jvm.java.io.PrintStream(str(out)))
            system.setErr(jvm.java.io.PrintStream(str(err)))
            self._exit.code = None
            failure = ""
            try:
                main_class.main(words)
            except Py4JJavaError as error:
                failure = str(error) if self._exit.code is None else ""
            self._hooks.run()
            getattr(system, "in").close()
            system.out.close()
            system.err.close()
            code = 1 if failure else self._exit.code or 0
            return Printed(code, out.read_bytes(), err.read_bytes() + failure.encode())

    def close(self) -> None:
        """End the JVM."""
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            self._gateway.shutdown()
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
        shutil.rmtree(self._folder)

    def _start(self) -> tuple[subprocess.Popen[bytes], JavaGateway]:
        (py4j_jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
        port, token, process = launch_gateway(
            jarpath=str(py4j_jar),
            classpath=_jars().classpath,
            javaopts=[*_JAVA_OPTIONS, f"-Djava.io.tmpdir={self._folder}"],
            java_path=str(java()),
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token),
            callback_server_parameters=CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True),
        )
        server = gateway.java_gateway_server
        callback_port = gateway.get_callback_server().get_listening_port()
        server.resetCallbackClient(server.getCallbackClient().getAddress(), callback_port)
        gateway.jvm.java.util.logging.LogManager.getLogManager().reset()
        kafka_exit = gateway.jvm.org.apache.kafka.common.utils.Exit
        kafka_exit.setExitProcedure(self._exit)
        kafka_exit.setShutdownHookAdder(self._hooks)
        return process, gateway


def _serve(tools: _Tools) -> socketserver.ThreadingUnixStreamServer:
    """Run tools for the scripts of `put_kafka_tools_into`."""

    class Request(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            tool, arguments, typed = json.loads(self.rfile.readline())
            with tempfile.NamedTemporaryFile(prefix="typed-") as stdin:
                stdin.write(typed.encode())
                stdin.flush()
                done = tools.run(tool, arguments, Path(stdin.name))
            self.wfile.write(json.dumps([done.exit_code, done.out.decode(), done.err.decode()]).encode())

    server = socketserver.ThreadingUnixStreamServer(str(tools.address), Request)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
