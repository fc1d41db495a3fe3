"""A real name server (BIND) with one zone, and deploy/dns/follow-in-charge.sh, which keeps a record of it."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.debian import library_path, unpacked
from tests.support.ending import terminated
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).parent.parent.parent / "deploy" / "dns" / "follow-in-charge.sh"
RECORD = "kafka.example.com."
#: BIND and its tools, with the libraries that they need on top of a minimal Debian.
_PACKAGES = (
    *(
        "bind9",
        "bind9-libs",
        "bind9-dnsutils",
        "libfstrm0",
        "libjemalloc2",
        "libmaxminddb0",
        "libprotobuf-c1",
        "libuv1",
    ),
    *("libnghttp2-14", "libxml2", "libicu72", "libjson-c5", "liblmdb0", "libedit2", "libbsd0", "libmd0", "libcap2"),
    *("libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0", "libkeyutils1", "libssl3"),
)
_ZONE = """$TTL 300
@ IN SOA ns1 admin 1 3600 600 86400 5
@ IN NS ns1
ns1 IN A 127.0.0.1
"""
_CONFIG = """include "{folder}/key";
options {{
    directory "{folder}";
    pid-file none;
    session-keyfile none;
    listen-on port {port} {{ {host}; }};
    listen-on-v6 {{ none; }};
    recursion no;
}};
controls {{ }};
zone "example.com" {{
    type primary;
    file "zone";
    update-policy {{ grant kmirror name {record} CNAME; }};
}};
"""


class NameServer:
    """A running server for example.com; the key in `key` may change `RECORD`."""

    def __init__(self, folder: Path, port: int, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = port
        self.key = folder / "key"
        self._environment = environment

    def answer(self) -> str:
        """Return the record as the server has it, `NAME TTL IN CNAME TARGET`, or nothing."""
        line = ["dig", f"@{LOOPBACK}", "-p", str(self.port), "+noall", "+answer", RECORD, "CNAME"]
        done = subprocess.run(line, env=self._environment, capture_output=True, text=True, check=True, timeout=60)
        return " ".join(done.stdout.split())

    @contextmanager
    def followed(self, serve: str, mirror: str, sites: Mapping[str, str]) -> Iterator[None]:
        """Have the script keep the record; `sites` are names of clusters, each with that of its brokers."""
        environment = {
            **self._environment,
            "SERVE": f"http://{serve}",
            "MIRROR": mirror,
            "RECORD": RECORD,
            "SITES": " ".join(f"{cluster}={target}" for cluster, target in sites.items()),
            "TTL": "5",
            "DNS": f"{LOOPBACK} {self.port}",
            "DNS_KEY": str(self.key),
        }
        with (self.folder / "script").open("ab") as log:
            process = subprocess.Popen([SCRIPT], env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
            assert process.poll() is None, (self.folder / "script").read_text()
        finally:
            terminated(process)


@contextmanager
def name_server() -> Iterator[NameServer]:
    """Run a server until the end of the block."""
    environment = _environment()
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="dns-") as name:
        folder = Path(name)
        secret = b64encode(secrets.token_bytes(32)).decode()
        (folder / "key").write_text(f'key "kmirror" {{ algorithm hmac-sha256; secret "{secret}"; }};\n')
        (folder / "zone").write_text(_ZONE)
        (folder / "config").write_text(_CONFIG.format(folder=folder, port=port, host=LOOPBACK, record=RECORD))
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                ["named", "-g", "-c", folder / "config"], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        server = NameServer(folder, port, environment)

        def has_started() -> bool:
            log = (folder / "log").read_text()
            assert process.poll() is None, log
            return log.endswith(" running\n")

        try:
            wait_until(has_started)
            yield server
        finally:
            terminated(process)


def _environment() -> dict[str, str]:
    """Return an environment in which the programs are found: installed ones, or else Debian's."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    if all(shutil.which(program, path=path) for program in ("named", "nsupdate", "dig")):
        return {**os.environ, "PATH": path}
    root = unpacked("bind9", "bind9 and bind9-dnsutils", _PACKAGES)
    return {**os.environ, "PATH": f"{root / 'usr/bin'}:{root / 'usr/sbin'}:{path}", **library_path(root)}
