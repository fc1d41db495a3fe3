"""One Java process of a sandbox cluster: its directory, its logs, and its identity. Two kinds besides brokers.

NAME/  logging.properties  server.log  console.log   Kafka's own log, and the JVM's output
       process.json                                  the process's identity, while it should run; null while it starts
       tmp/                                          libraries that codecs unpack; a killed process leaves them

The token endpoint, for clusters whose clients log in with OAUTHBEARER, is mock-oauth2-server, a stand-in for an
identity provider: it issues a token to any client under the client's own name, without checking a secret. Brokers fetch
its keys and check signature, issuer, audience and time of every token. ZooKeeper, for brokers before Kafka 3.3, is one
process from Kafka's own jars.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from kmirror_sandbox.broker_config import (
    TOKEN_AUDIENCE,
    TOKEN_ISSUER,
    logging_option,
    logging_properties,
    zookeeper_properties,
)
from kmirror_sandbox.cluster_spec import ClusterSpec, TokenSpec
from kmirror_sandbox.jars import KafkaJars, token_server_jars
from kmirror_sandbox.ports import LOOPBACK
from kmirror_sandbox.process import ProcessIdentity, find_process, is_alive, spawn

_TAIL_LINES = 20


class JavaServer:
    """A Java server on disk and as a process; `title` names it in messages."""

    def __init__(self, cluster: ClusterSpec, directory: Path, title: str) -> None:
        self.cluster = cluster
        self.directory = directory
        self.title = title
        self.data = directory / "data"
        self.log_file = directory / "server.log"
        self.console_file = directory / "console.log"
        self._logging = directory / "logging.properties"
        self._process = directory / "process.json"
        self._temporary = directory / "tmp"

    def process(self) -> ProcessIdentity | None:
        """Return the running process, None if it is not running.

        Whoever launched it may have been killed before it knew the identity: such a process has our option.
        """
        try:
            stored = json.loads(self._process.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:  # empty, after the machine lost its power
            stored = None
        process = find_process(self._own_option) if stored is None else ProcessIdentity(**stored)
        return process if process is not None and is_alive(process) else None

    def launch(
        self, java: Path, jars: KafkaJars, environ: Mapping[str, str], options: Sequence[str], program: Sequence[str]
    ) -> None:
        """Start a main class with its arguments and these JVM options, without waiting until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._logging.write_text(logging_properties(jars.major, self.log_file), encoding="utf-8")
        self._temporary.mkdir(exist_ok=True)
        own = [self._own_option, logging_option(jars.major, self._logging)]
        self._store_process(None)
        process = spawn([str(java), *options, *own, "-cp", jars.classpath, *program], environ, self.console_file)
        self._store_process(process)

    def forget_process(self) -> None:
        """Record that the process was stopped on purpose."""
        self._process.unlink(missing_ok=True)

    @property
    def _own_option(self) -> str:
        """An option of the JVM that no other process has."""
        return f"-Djava.io.tmpdir={self._temporary}"

    def _store_process(self, process: ProcessIdentity | None) -> None:
        unfinished = self._process.with_suffix(".new")
        unfinished.write_text(json.dumps(process and asdict(process)), encoding="utf-8")
        unfinished.replace(self._process)

    def exit_cause(self) -> str:
        """Return the log line that says why it exited: the last exception, else the last error, else the last line."""
        text = _text(self.log_file) + _text(self.console_file)
        for pattern in (r"^(?:Caused by: )?[\w.$]+(?:Exception|Error):? .*$", r"^.* (?:ERROR|FATAL) .*$", r"^.*\S.*$"):
            lines = re.findall(pattern, text, re.MULTILINE)
            if lines:
                return str(lines[-1])
        return "it logged nothing"

    def tail(self) -> str:
        """Return the end of its log and of its JVM's output."""
        lines = [
            line for file in (self.log_file, self.console_file) for line in _text(file).splitlines()[-_TAIL_LINES:]
        ]
        return "\n".join(lines)

    def found_port_in_use(self) -> bool:
        """Return whether it exited because another process listens on one of its ports."""
        return any("Address already in use" in _text(file) for file in (self.log_file, self.console_file))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


_TOKENS_CLASS = "no.nav.security.mock.oauth2.StandaloneMockOAuth2ServerKt"
_TOKENS_OPTIONS = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class TokenServer(JavaServer):
    """The token endpoint of one cluster."""

    def __init__(self, cluster: ClusterSpec, tokens: TokenSpec, cluster_directory: Path) -> None:
        super().__init__(cluster, cluster_directory / "tokens", f"token endpoint of cluster {cluster.name}")
        self._tokens = tokens

    @property
    def port(self) -> int:
        """Return the port to which clients and brokers connect."""
        return self._tokens.port

    def start(self, java: Path, environ: Mapping[str, str]) -> None:
        """Start it without waiting until it answers."""
        claims = {"sub": "${clientId}", "aud": [TOKEN_AUDIENCE]}
        every_client = {"requestParam": "grant_type", "match": "*", "claims": claims}
        answers = {"issuerId": TOKEN_ISSUER, "tokenExpiry": self._tokens.seconds, "requestMappings": [every_client]}
        settings = {
            "JSON_CONFIG": json.dumps({"tokenCallbacks": [answers]}),
            "SERVER_HOSTNAME": LOOPBACK,
            "SERVER_PORT": str(self.port),
        }
        self.launch(java, token_server_jars(environ), {**environ, **settings}, _TOKENS_OPTIONS, [_TOKENS_CLASS])


_ZOOKEEPER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_ZOOKEEPER_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ZooKeeper(JavaServer):
    """The ZooKeeper of one cluster."""

    def __init__(self, cluster: ClusterSpec, cluster_directory: Path) -> None:
        super().__init__(cluster, cluster_directory / "zookeeper", f"ZooKeeper of cluster {cluster.name}")
        self._properties = self.directory / "zookeeper.properties"

    @property
    def port(self) -> int:
        """Return the port to which brokers connect."""
        return self.cluster.zookeeper_port

    def start(self, java: Path, jars: KafkaJars, environ: Mapping[str, str]) -> None:
        """Start it without waiting until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(zookeeper_properties(self.port, self.data), encoding="utf-8")
        self.launch(java, jars, environ, _ZOOKEEPER_OPTIONS, [_ZOOKEEPER_CLASS, str(self._properties)])
