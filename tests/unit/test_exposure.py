"""Files of secrets that everybody can read are found; those in private folders, and those without secrets, are not."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kmirror.cli.main import main
from kmirror.cli.terminal.screen import Screen
from kmirror.cluster.security.exposure import exposed_files
from tests.support.wire import closed_port


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that all users of this machine may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def written(file: Path, text: str, mode: int = 0o644) -> str:
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_what_everybody_can_read(folder: Path, tmp_path: Path) -> None:
    clear = {"ssl.key.password": "hunter2"}
    config = written(folder / "config", "")
    assert exposed_files(config, clear) == [Path(config)]
    assert exposed_files(config, {"ssl.truststore.location": written(folder / "ca.pem", "")}) == []
    assert exposed_files(written(folder / "config", "", 0o640), clear) == []
    assert exposed_files(written(tmp_path / "config", ""), clear) == [], "no one else enters this folder"
    assert exposed_files(str(folder / "gone"), clear) == []


def test_files_that_are_named_count_too(folder: Path) -> None:
    files = [written(folder / name, "") for name in ("a", "b", "client.jks")]
    hidden = written(folder / "c", "", 0o600)
    properties = {
        "sasl.jaas.config": f'x required username="u" password="${{file:{files[0]}:k}}";',
        "ssl.key.password": f"${{dir:{folder}:b}}",
        "ssl.truststore.password": f"${{file:{hidden}:k}}${{env:HOME}}",
        "ssl.keystore.location": files[2],
    }
    assert exposed_files(str(folder / "none"), properties) == [Path(file) for file in files]


def test_keytabs_ticket_caches_and_token_files_are_secrets(folder: Path) -> None:
    keytab, tickets, token = (written(folder / name, "") for name in ("a.keytab", "b.cc", "c"))
    for properties, file in (
        ({"sasl.jaas.config": f'Krb5LoginModule required keyTab="{keytab}";'}, keytab),
        ({"sasl.jaas.config": f'Krb5LoginModule required ticketCache="{tickets}";'}, tickets),
        ({"sasl.oauthbearer.token.endpoint.url": f"file://{token}"}, token),
    ):
        assert exposed_files(str(folder / "none"), properties) == [Path(file)]


def test_a_command_warns_once_of_each(folder: Path) -> None:
    text = f"bootstrap.servers=127.0.0.1:{closed_port()}\nssl.key.password=hunter2\n"
    a, b = written(folder / "a b", text), written(folder / "b", text, 0o640)
    err = io.StringIO()
    line = ["check", "--command-config", a, "--mirror-config", a]
    assert main(line, Screen(io.StringIO(), err, io.StringIO())) != 0
    warning = f"kmirror: warning: any local user can read the secrets in {a}: chmod o-rwx '{a}'\n"
    assert err.getvalue().count("kmirror: warning") == err.getvalue().count(warning) == 1
    quiet = io.StringIO()
    main(["list", "--command-config", b], Screen(io.StringIO(), quiet, io.StringIO()))
    assert "kmirror: warning" not in quiet.getvalue()
    assert "hunter2" not in err.getvalue() + quiet.getvalue()
