"""The one door from the core to the packages beside it: they import the core, and it imports none of them.

`kmirror_compat` speaks as other tools do: Kafka's `kafka-mirrors`, the files and topics of MirrorMaker 2, cluster
links. `kmirror_sandbox` runs Kafka clusters on this machine, for trying, the demo and the tests; its commands are
loaded by `kmirror.cli.verbs`. So are those of `kmirror_plan`, which plans migrations, and of `kmirror_rehearse`, which
rehearses failovers.
"""

from __future__ import annotations

import importlib
from typing import Any

#: All that the core uses of them, by the name that it uses: the module and what is taken from it.
USED = {
    "kafka_mirrors": ("kmirror_compat.kafka_mirrors", "entry_point"),
    "kafka_success": ("kmirror_compat.kafka_flags", "success_of"),
    "create_from_link": ("kmirror_compat.creating", "create_from_link"),
    "create_from_mm2": ("kmirror_compat.creating", "create_from_mm2"),
    "mirrormaker_jobs": ("kmirror_compat.mirrormaker_jobs", "jobs_of"),
    "plan": ("kmirror_plan.planning", "plan_document"),
    "plan_in": ("kmirror_plan.plan_files", "read_plan"),
    "plan_outcomes": ("kmirror_plan.outcomes", "outcomes_table"),
    "mirrormaker_topics": ("kmirror_compat.mirrormaker_records", "own_topics"),
}


def beside(name: str) -> Any:
    """Import and return one of what is `USED`."""
    module, attribute = USED[name]
    return getattr(importlib.import_module(module), attribute)
