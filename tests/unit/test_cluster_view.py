"""What a command has asked in the background when it ends."""

from __future__ import annotations

import subprocess
import sys

_LATE = """
import time
from concurrent.futures import ThreadPoolExecutor, thread
from kmirror.ops.show.cluster_view import BackgroundQuery

pool = ThreadPoolExecutor(2)

def ask(client):
    while not thread._shutdown:  # Python is ending
        time.sleep(0.01)
    pool.submit(print, "asked")

query = BackgroundQuery({"bootstrap.servers": "127.0.0.1:1"}, None)
query.start(ask)
pool.submit(query._thread.join)  # Python has ended after this
CLOSE
print("shown")
"""


def run(script: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout, done.stderr


def test_a_question_that_outlives_its_command_says_nothing() -> None:
    assert run(_LATE.replace("CLOSE", "query.close()")) == ("shown\n", "")
    # while someone waits for the answer, an error of ours is not hidden
    assert "RuntimeError" in run(_LATE.replace("CLOSE", ""))[1]
