"""One node of a sandbox cluster: its files and its process.

node-1/  server.properties   written at each start
         data/               its log directory
         …                   the files of every `JavaServer`
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from kmirror.errors import KmirrorError
from kmirror_sandbox.broker_config import keys_option, server_properties
from kmirror_sandbox.cluster_spec import ClusterSpec, NodeSpec, release_of
from kmirror_sandbox.jars import KafkaJars
from kmirror_sandbox.java_server import JavaServer

#: Where the storage tool writes how the cluster begins: from Kafka 4.4 on, and before.
_CHECKPOINTS = ("__cluster_metadata-0/00000000000000000000-0000000000.checkpoint", "bootstrap.checkpoint")


class Node(JavaServer):
    """A node on disk and as a process."""

    def __init__(self, cluster: ClusterSpec, spec: NodeSpec, cluster_directory: Path) -> None:
        directory = cluster_directory / f"node-{spec.node_id}"
        super().__init__(cluster, directory, f"broker {spec.node_id} of cluster {cluster.name}")
        self.spec = spec
        self.tls = cluster_directory / "tls"
        self._store = cluster_directory / "store"
        self._properties = self.directory / "server.properties"

    def __repr__(self) -> str:
        return f"Node({self.cluster.name}-{self.spec.node_id}, {self.spec.address}, {self.process()})"

    def write_configuration(self) -> None:
        """Write server.properties."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._properties.touch(mode=0o600)
        text = server_properties(self.cluster, self.spec, self.data, self.tls, self._store)
        self._properties.write_text(text, encoding="utf-8")

    def stored_cluster_id(self) -> str | None:
        """Return the cluster id in the log directory, None if the broker has not joined a cluster yet."""
        stored = self.data / "meta.properties"
        lines = stored.read_text(encoding="utf-8").splitlines() if stored.exists() else ()
        return next((value for key, _, value in (line.partition("=") for line in lines) if key == "cluster.id"), None)

    def format(self, java: Path, jars: KafkaJars, cache: Path) -> None:
        """Format the log directory: with Kafka's tool the first time, then by copying what that tool wrote.

        A formatted directory has meta.properties, which names node and directory (KIP-858), and a checkpoint, which
        is the same on all nodes of a version. A copy in `cache` saves a start of Java for each node.
        """
        later, earlier = _CHECKPOINTS
        checkpoint = self.data / (earlier if release_of(jars.version) < (4, 4) else later)
        kept = cache / f"{jars.version}.{earlier}"
        if not kept.exists() or "log.dirs" in self.cluster.properties:
            self._run_storage_tool(java, jars)
            cache.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint, unfinished := kept.with_name(f"{kept.name}.{uuid.uuid4()}"))
            unfinished.replace(kept)
            return
        checkpoint.parent.mkdir(parents=True)
        shutil.copyfile(kept, checkpoint)
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
            raise KmirrorError(f"cannot format {self.data}: {(done.stdout + done.stderr).strip()}")

    def start(self, java: Path, jars: KafkaJars, environ: Mapping[str, str]) -> None:
        """Start the broker's process without waiting until it answers."""
        self.write_configuration()
        options = [f"-Xmx{self.cluster.heap}", *self.cluster.java_options]
        if self.cluster.security and self.cluster.security.tokens:
            options.append(keys_option(self.cluster.security.tokens))
        self.launch(java, jars, environ, options, ["kafka.Kafka", str(self._properties)])
