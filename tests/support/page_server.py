"""The page of a running engine with made-up documents, and ways to view it without an engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

from kmirror.ops.show.events import EVENTS
from kmirror.status.mirror_status import MIRRORS
from kmirror.status.partition_row import PARTITIONS
from kmirror.status.topic_status import TOPICS
from kmirror.web.look import page_policy, page_text
from tests.support.report_facts import NOW, events, report_facts

#: What is at each path, or at each path and query.
Bodies = Mapping[str, bytes] | Callable[[str, str], bytes | None]


def status(topics: int = 3, **changes: object) -> dict[str, Any]:
    """Return what /status.json says of a mirror one of whose topics FAILED, and another of which is stopped."""
    facts = report_facts(topics, 2)
    return {
        "version": "0.1.0",
        "phase": "copying",
        "asOf": NOW,
        "ready": True,
        "missing": None,
        "mirrors": [MIRRORS.document(facts.status.row)],
        "topics": [TOPICS.document(topic) for topic in facts.status.topics],
        "partitions": [PARTITIONS.document(row) for row in facts.status.partitions],
        **changes,
    }


def point(minute: float, **changes: object) -> dict[str, object]:
    """Return a point of the last hour, as /history.json says it."""
    known = {"timeMs": NOW - 3_600_000 + int(minute * 60_000), "lag": 5, "timeLagMs": 7, "bytesPerSecond": 9}
    return {**known, **changes}


def history(**changes: object) -> dict[str, Any]:
    """Return what /history.json says."""
    points = [point(minute, lag=None if 20 <= minute < 25 else minute) for minute in range(60)]
    return {
        "asOf": NOW,
        "mirrors": [{"mirror": "dr", "points": points}],
        "events": [EVENTS.document(event) for event in events()],
        "eventsTrouble": None,
        **changes,
    }


@contextmanager
def serving(bodies: Bodies, posted: Queue[bytes] | None = None) -> Iterator[str]:
    """Answer with these bodies, by path, or by path and query; dated as the documents are. Yield the address.

    What is posted there, to any path, goes into `posted`.
    """
    body_of = bodies if callable(bodies) else lambda path, _: bodies.get(path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            body = body_of(path, query)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "application/json" if path.endswith(".json") else "text/html")
            if body == page_text():
                # its policy, but that it may be looked at in a frame
                self.send_header(
                    "Content-Security-Policy", page_policy().replace("frame-ancestors 'none'", "frame-ancestors 'self'")
                )
            self.end_headers()
            self.wfile.write(body or b"")

        def do_POST(self) -> None:
            if posted is not None:
                posted.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(NOW / 1000 if timestamp is None else timestamp)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def json_body(document: object) -> bytes:
    return json.dumps(document).encode()
