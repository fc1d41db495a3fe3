"""An HTTP server in this process that answers as a token endpoint may, well or badly."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: A status and what is sent with it, a document or just text.
Answer = tuple[int, Any]


@dataclass(slots=True)
class Endpoint:
    """What it answers, one after the other and the last for ever; what it was asked."""

    url: str
    answers: list[Answer]
    asked: list[tuple[dict[str, str], str]] = field(default_factory=list)

    def next_answer(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def endpoint(*answers: Answer, certificate: Path | None = None) -> Iterator[Endpoint]:
    """Serve the answers, over TLS where a file with key and certificate is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            made.asked.append((dict(self.headers), body))
            status, reported = made.next_answer()
            sent = (reported if isinstance(reported, str) else json.dumps(reported)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            if status == 302:
                self.send_header("Location", made.url)
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "https" if certificate else "http"
    made = Endpoint(f"{scheme}://127.0.0.1:{server.server_address[1]}/token", list(answers))
    thread = threading.Thread(target=lambda: server.serve_forever(0.01))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
