"""`pack`: a Python for workers whose machines have none that fits."""

from __future__ import annotations

import platform

from kmirror.cli.commands.evidence_files import AtomicFile
from kmirror.cli.options import Call, file_option, verb
from kmirror.commands import command_line
from kmirror.words import byte_count

_FLAG = "--output"
_GZIP = b"\x1f\x8b"
#: The folder into which workers unpack the archive.
_FOLDER = "environment"


@verb(
    "pack",
    "Pack this Python for Spark's workers.\n\nWrites an archive with the interpreter that runs kmirror, for a cluster"
    " whose machines lack this minor version of Python, and prints the options of `run` that use it. The machines need"
    " the same platform. The archive stays valid when kmirror is upgraded. Overwrites an earlier archive, but no other"
    " file.",
    file_option(_FLAG, "Archive to write. Default: kmirror-pythonVERSION-MACHINE.tar.gz in this directory."),
    examples=("kmirror pack", "kmirror pack --output /srv/kmirror/python.tar.gz"),
    destination=False,
    documents=False,
)
def pack_verb(call: Call, output: str | None) -> int:
    from kmirror.engine.spark.python_pack import pack_python

    minor = ".".join(platform.python_version_tuple()[:2])
    file = AtomicFile.at(output or f"kmirror-python{minor}-{platform.machine()}.tar.gz", _FLAG, "the archive")
    file.require_own(_FLAG, "an archive of this command", len(_GZIP), lambda head: head == _GZIP)
    packed = pack_python(file.path.absolute())
    say = call.output.screen.line
    say(f"wrote {file.path} ({byte_count(packed.size_in_bytes)}): Python {packed.python} for {packed.platform}")
    archive = f"{packed.path}#{_FOLDER}"
    for masters, key in (("on YARN", "spark.yarn.dist.archives"), ("on another cluster", "spark.archives")):
        options = (f"{key}={archive}", f"spark.pyspark.python=./{_FOLDER}/bin/python")
        say(f"\nadd to `kmirror run` {masters}:")
        say("  " + command_line(*(word for option in options for word in ("--spark-conf", option))))
    return 0
