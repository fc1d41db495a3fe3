"""What a thread beside the main one does not expect is handed on."""

from __future__ import annotations

from kmirror.engine.threads import guarded_thread


def test_what_a_thread_raises_is_handed_on() -> None:
    broken: list[Exception] = []

    def run() -> None:
        raise TypeError("unhashable")

    thread = guarded_thread(run, "looks", broken.append)
    thread.start()
    thread.join()
    assert [repr(error) for error in broken] == ["TypeError('unhashable')"]
    assert (thread.name, thread.daemon) == ("looks", True)
