"""Functions of a test as processes of their own; what most of them need is imported once, in a server that forks.

Spawned, each of them would take a second of a processor to import it.
"""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "confluent_kafka.admin", "kmirror.ops.add.add", "tests.support.clusters"])
