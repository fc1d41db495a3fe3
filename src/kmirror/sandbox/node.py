"""One node of a sandbox cluster: its files and its process.

node-1/  server.properties  logging.properties   what it starts from, written anew at each start
         server.log  console.log                 what it says: Kafka's log, and the JVM's own output
         process.json                            who it is, as long as it should run
         data/                                   its log directory
         tmp/                                    libraries that codecs unpack; a broker that is killed leaves them
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from kmirror.errors import KmirrorError
from kmirror.sandbox.broker_config import logging_option, logging_properties, server_properties
from kmirror.sandbox.jars import KafkaJars
from kmirror.sandbox.process import ProcessIdentity, is_alive, spawn
from kmirror.sandbox.spec import ClusterSpec, NodeSpec

_TAIL_LINES = 20
_CHECKPOINT = "bootstrap.checkpoint"


class Node:
    """A node as it lies on disk and as it runs."""

    def __init__(self, cluster: ClusterSpec, spec: NodeSpec, cluster_directory: Path) -> None:
        self.cluster = cluster
        self.spec = spec
        self.directory = cluster_directory / f"node-{spec.node_id}"
        self.data = self.directory / "data"
        self.log_file = self.directory / "server.log"
        self.console_file = self.directory / "console.log"
        self.tls = cluster_directory / "tls"
        self._properties = self.directory / "server.properties"
        self._logging = self.directory / "logging.properties"
        self._process = self.directory / "process.json"
        self._temporary = self.directory / "tmp"

    def __repr__(self) -> str:
        return f"Node({self.cluster.name}-{self.spec.node_id}, {self.spec.address}, {self.process()})"

    @property
    def title(self) -> str:
        """Return how messages name it."""
        return f"broker {self.spec.node_id} of cluster {self.cluster.name}"

    def process(self) -> ProcessIdentity | None:
        """Return the running process, None when the broker does not run."""
        try:
            process = ProcessIdentity(**json.loads(self._process.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return process if is_alive(process) else None

    def write_configuration(self, kafka_major: int) -> None:
        """Write the files the broker starts from."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._properties.touch(mode=0o600)
        text = server_properties(self.cluster, self.spec, self.data, self.tls)
        self._properties.write_text(text, encoding="utf-8")
        self._logging.write_text(logging_properties(kafka_major, self.log_file), encoding="utf-8")

    def format(self, java: Path, jars: KafkaJars, cache: Path) -> None:
        """Format the log directory: by Kafka's own tool, and after its first use as that has done it.

        A formatted directory holds meta.properties, which names node and directory (KIP-858), and bootstrap.checkpoint,
        which is the same on all nodes of a version. A copy, kept in `cache`, saves a start of Java for each.
        """
        kept = cache / f"{jars.version}.{_CHECKPOINT}"
        if not kept.exists() or "log.dirs" in self.cluster.properties:
            self._run_storage_tool(java, jars)
            cache.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.data / _CHECKPOINT, unfinished := kept.with_name(f"{kept.name}.{uuid.uuid4()}"))
            unfinished.replace(kept)
            return
        self.data.mkdir()
        shutil.copyfile(kept, self.data / _CHECKPOINT)
        directory_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        (self.data / "meta.properties").write_text(
            f"version=1\ncluster.id={self.cluster.cluster_id}\nnode.id={self.spec.node_id}\n"
            f"directory.id={directory_id}\n",
            encoding="utf-8",
        )

    def _run_storage_tool(self, java: Path, jars: KafkaJars) -> None:
        tool = ["-cp", jars.classpath, "kafka.tools.StorageTool", "format"]
        command = [str(java), "-XX:TieredStopAtLevel=1", *self.cluster.java_options, *tool]
        command += ["-t", self.cluster.cluster_id, "-c", str(self._properties)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KmirrorError(f"Kafka could not format {self.data}: {(done.stdout + done.stderr).strip()}")

    def start(self, java: Path, jars: KafkaJars, environ: Mapping[str, str]) -> None:
        """Start the broker's process, without waiting for it to answer."""
        self.write_configuration(jars.major)
        self._temporary.mkdir(exist_ok=True)
        options = [f"-Xmx{self.cluster.heap}", f"-Djava.io.tmpdir={self._temporary}", *self.cluster.java_options]
        options.append(logging_option(jars.major, self._logging))
        argv = [str(java), *options, "-cp", jars.classpath, "kafka.Kafka", str(self._properties)]
        process = spawn(argv, environ, self.console_file)
        self._process.write_text(json.dumps(asdict(process)), encoding="utf-8")

    def forget_process(self) -> None:
        """Note that the broker is stopped on purpose."""
        self._process.unlink(missing_ok=True)

    def last_words(self) -> str:
        """Return the line that says why the broker ended: the last exception, error, or line at all."""
        text = _text(self.log_file) + _text(self.console_file)
        for telling in (r"^(?:Caused by: )?[\w.$]+(?:Exception|Error):? .*$", r"^.* (?:ERROR|FATAL) .*$", r"^.*\S.*$"):
            lines = re.findall(telling, text, re.MULTILINE)
            if lines:
                return str(lines[-1])
        return "it said nothing"

    def tail(self) -> str:
        """Return the end of the broker's log and of its JVM's output."""
        lines = [
            line for file in (self.log_file, self.console_file) for line in _text(file).splitlines()[-_TAIL_LINES:]
        ]
        return "\n".join(lines)

    def found_its_port_taken(self) -> bool:
        """Tell whether it ended because another process listens on one of its ports."""
        return any("Address already in use" in _text(file) for file in (self.log_file, self.console_file))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
