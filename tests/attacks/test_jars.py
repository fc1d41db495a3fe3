"""Kafka's jars from a repository that sends other bytes than it says."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kmirror.errors import UnreachableError
from kmirror_sandbox import jars
from kmirror_sandbox.jars import artifact_jars, cache_directory

PLACE = "/org/example/server/1.0/server-1.0"
POM = b"""<project><modelVersion>4.0.0</modelVersion>
<groupId>org.example</groupId><artifactId>server</artifactId><version>1.0</version></project>"""


def jar(text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("Main.class", text)
    return made.getvalue()


@contextmanager
def repository(files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve files as Maven's repositories do."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = files.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        do_HEAD = do_GET  # noqa: N815 - the library's name

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize("is_sound", [True, False])
def test_a_jar_with_another_checksum_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_sound: bool
) -> None:
    published = jar("published")
    files = {
        f"{PLACE}.pom": POM,
        f"{PLACE}.pom.sha1": hashlib.sha1(POM).hexdigest().encode(),
        f"{PLACE}.jar": published if is_sound else jar("replaced"),
        f"{PLACE}.jar.sha1": hashlib.sha1(published).hexdigest().encode(),
    }
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    run = jars._run

    with repository(files) as address:
        settings = tmp_path / "settings.xml"
        settings.write_text(
            '<ivysettings><settings defaultResolver="r"/><resolvers>'
            f'<ibiblio name="r" m2compatible="true" root="{address}"/></resolvers></ivysettings>'
        )

        def from_there(
            command: Sequence[str | Path], environ: Mapping[str, str], title: str, progress: Callable[[], None]
        ) -> tuple[int, str]:
            words = [word for word in command if word != "-m2compatible"]
            return run([*words, "-settings", settings], environ, title, progress)

        monkeypatch.setattr(jars, "_run", from_there)
        if is_sound:
            found = artifact_jars("org.example", "server", "1.0", 1, environ)
            assert (found.directory / "server-1.0.jar").read_bytes() == published
            return
        with pytest.raises(UnreachableError, match="invalid sha1"):
            artifact_jars("org.example", "server", "1.0", 1, environ)
    assert not [path for path in cache_directory(environ).rglob("*.jar") if path.read_bytes() != published]
