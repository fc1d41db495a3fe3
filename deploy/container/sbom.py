"""Print the bill of materials of the image's Python libraries, as CycloneDX: `sbom.py constraints.txt`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)")
_HASH = re.compile(r"--hash=sha256:(?P<hash>[0-9a-f]{64})")


def bill(locked: str) -> dict[str, Any]:
    """Return the bill of a lock file: each library with its version and the hashes of the files that were accepted."""
    components: list[dict[str, Any]] = []
    for line in locked.splitlines():
        if found := _PINNED.match(line):
            name = re.sub(r"[-_.]+", "-", found["name"]).lower()
            package = f"pkg:pypi/{name}@{found['version']}"
            components.append(
                {
                    "type": "library",
                    "name": name,
                    "version": found["version"],
                    "purl": package,
                    "externalReferences": [{"type": "distribution", "url": package}],
                }
            )
        elif found := _HASH.search(line):
            (reference,) = components[-1]["externalReferences"]
            reference.setdefault("hashes", []).append({"alg": "SHA-256", "content": found["hash"]})
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bill(Path(sys.argv[1]).read_text(encoding="utf-8")), indent=1) + "\n")
