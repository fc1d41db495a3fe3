"""Clusters with a policy for the settings of topics, as managed services have (tests/apps/java/HousePolicy)."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from kmirror_sandbox.jars import kafka_jars
from tests.support.java_programs import compile_source

#: What the policy allows at most.
LARGEST_BATCH, LONGEST_RETENTION_MS = 8_000_000, 30 * 86_400_000
#: The settings of a broker and controller that has the policy.
POLICY: Mapping[str, str] = {
    "create.topic.policy.class.name": "HousePolicy$Create",
    "alter.config.policy.class.name": "HousePolicy$Alter",
}


def policy_option(folder: Path) -> str:
    """Compile the policy into a jar in this folder; return the Java option that makes a broker see it."""
    compile_source("HousePolicy", kafka_jars(None, os.environ, lambda line: None), folder / "classes")
    jar = folder / "policy.jar"
    with zipfile.ZipFile(jar, "w") as packed:
        packed.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\nPremain-Class: HousePolicy\n")
        for found in (folder / "classes").glob("*.class"):
            packed.write(found, found.name)
    return f"-javaagent:{jar}"
