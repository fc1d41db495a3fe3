"""Hooks: how a command is read, what is kept of its output, and how real processes are run and ended."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from kmirror.errors import UsageError
from kmirror.ops.base.hook_process import hook_command, run_hook
from kmirror.ops.base.hook_runs import HookCommand, HookOutcome, HookOutput, HookRun, When, split_command, trouble_text
from tests.support.hook_scripts import is_running, script
from tests.support.waiting import wait_until


def command(text: str, limit_ms: int | None = None) -> HookCommand:
    return hook_command(When.BEFORE, text, limit_ms)


def run(text: str, document: bytes = b"", limit_ms: int | None = None) -> HookRun:
    return run_hook(command(text, limit_ms), document)


def test_a_command_is_split_as_in_a_shell_and_nothing_is_expanded() -> None:
    found = split_command("--before", "/opt/dns 'to b' --name=\"a b\" ~/x $HOME * >file")
    assert found == ("/opt/dns", "to b", "--name=a b", "~/x", "$HOME", "*", ">file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--before is empty"),
        ("  ", "--before is empty"),
        ("''", "--before is empty"),
        ("say 'hello", '--before: "say \'hello": no closing quotation'),
        ("no-such-program-at-all x", "--before: there is no program no-such-program-at-all"),
        ("~/no-such-file", "--before: there is no program ~/no-such-file"),
        ("/tmp", "--before: there is no program /tmp"),
        ("/etc/passwd", "--before: /etc/passwd is not executable"),
    ],
)
def test_what_cannot_be_run_is_a_usage_error(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        command(text)
    assert (refused.value.message, bool(refused.value.hint)) == (message, True)


def test_a_time_limit_is_positive() -> None:
    with pytest.raises(UsageError, match="--hook-timeout is not positive"):
        command("true", 0)


def test_a_program_may_be_named_relative_to_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "mine", "echo here")
    monkeypatch.chdir(tmp_path)
    assert run("./mine").output == "here"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command("mine").program == str(tmp_path / "mine")


def test_of_long_output_the_start_and_the_end_are_kept() -> None:
    output = HookOutput()
    for number in range(10_000):
        output.take(f"line {number}\n".encode())
    text = output.text()
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("\nline 9999")
    assert f"\n… {output.omitted:,} bytes omitted …\n" in text
    assert output.omitted == sum(len(f"line {number}\n") for number in range(10_000)) - 2 * 16_384
    short = HookOutput()
    short.take(b"x" * 32_768)
    assert (short.omitted, short.text()) == (0, "x" * 32_768)


def test_it_is_given_its_document_and_its_output_is_shown_without_control_characters(tmp_path: Path) -> None:
    document = json.dumps({"topics": ["t" * 1000] * 1000}).encode()
    given = tmp_path / "given"
    hook = script(tmp_path / "hook", f"cat > {given}; printf 'a\\033[31mb\\r\\nc'; printf '\\377' >&2; exit 7")
    done = run(f"{hook} 'one two'", document)
    assert given.read_bytes() == document
    assert (done.outcome, done.exit_code, done.output) == (HookOutcome.FAILED, 7, "a\\x1b[31mb\nc�")
    assert done.command == f"{hook} 'one two'"
    assert trouble_text(command(str(hook)), done) == "the --before command exited with 7: c�"


def test_it_need_not_read_its_input_and_inherits_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "from outside")
    done = run(f"{sys.executable} -c 'import os; print(os.environ[\"HOOK_SECRET\"])'", b"x" * 1_000_000)
    assert (done.outcome, done.exit_code, done.output) == (HookOutcome.DONE, 0, "from outside")


def test_a_signal_that_ends_it_is_named(tmp_path: Path) -> None:
    hook = script(tmp_path / "hook", "kill -TERM $$")
    done = run(str(hook))
    assert (done.outcome, done.exit_code) == (HookOutcome.FAILED, 143)
    assert trouble_text(command(str(hook)), done) == "the --before command exited with 143 (SIGTERM)"


def test_what_cannot_be_started_has_failed(tmp_path: Path) -> None:
    file = tmp_path / "hook"
    file.write_bytes(b"\x7fELF but not really")
    file.chmod(0o755)
    done = run(str(file))
    assert (done.outcome, done.exit_code, done.output) == (HookOutcome.FAILED, None, "Exec format error")
    assert trouble_text(command(str(file)), done) == "the --before command could not be started: Exec format error"


def test_at_its_limit_it_is_killed() -> None:
    done = run("sleep 600", limit_ms=1)
    assert (done.outcome, done.exit_code) == (HookOutcome.TIMED_OUT, None)
    assert trouble_text(command("sleep 600", 1), done) == "the --before command was killed after 1ms"


def test_all_its_processes_are_killed_when_it_must_end(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    hook = script(tmp_path / "hook", f"sleep 600 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait")
    done = run_hook(command(str(hook)), b"", pids.exists)
    assert (done.outcome, done.exit_code) == (HookOutcome.INTERRUPTED, None)
    wait_until(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))


def test_an_exception_kills_it_too(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hook = script(tmp_path / "hook", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600")

    def interrupt() -> bool:
        if pid.exists():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run_hook(command(str(hook)), b"", interrupt)
    assert not is_running(int(pid.read_text()))


def test_what_it_leaves_running_does_not_hold_it_up(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hook = script(tmp_path / "hook", f"sleep 600 & echo $! > {pid}; echo done")
    done = run(str(hook))
    assert (done.outcome, done.output) == (HookOutcome.DONE, "done")
    left = int(pid.read_text())
    assert is_running(left)
    os.kill(left, 9)
