"""The operator's kmirror.toml: where it is looked for, what it may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmirror.config_file import ConfigFile, NamedCluster, TrustEntries, load_config_file, read_config_file
from kmirror.errors import UsageError

GOOD = """
[clusters.prod]
bootstrap-server = "kafka1:9092,kafka2:9092"
command-config = "secrets/prod.properties"

[clusters."dr site"]
bootstrap-server = "dr:9092"

[defaults]
cluster = "prod"
output = "json"
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_read(tmp_path: Path) -> None:
    path = write(tmp_path / "kmirror.toml", GOOD)
    assert read_config_file(path) == ConfigFile(
        path=path,
        clusters={
            "prod": NamedCluster("kafka1:9092,kafka2:9092", tmp_path / "secrets" / "prod.properties"),
            "dr site": NamedCluster("dr:9092"),
        },
        default_cluster="prod",
        default_output="json",
    )


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "kmirror.toml", "")
    assert read_config_file(path) == ConfigFile(path=path)


def test_command_config_may_be_absolute_or_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    for written, meant in {"/etc/p": "/etc/p", "~/p": "/home/ann/p", "../p": f"{tmp_path}/../p"}.items():
        path = write(tmp_path / "kmirror.toml", f'[clusters.a]\nbootstrap-server="a:1"\ncommand-config="{written}"')
        assert read_config_file(path).cluster("a").command_config == Path(meant)


def test_the_operators_file_is_the_one_that_is_named_or_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, xdg, nowhere = tmp_path / "home", tmp_path / "xdg", tmp_path / "nowhere"

    def found(**environ: str) -> Path | None:
        return load_config_file({"HOME": str(home), **environ}, nowhere).path

    # others may write into the folder in which a command is typed
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "kmirror.toml", GOOD)
    assert found() is None
    at_home = write(home / ".config" / "kmirror" / "kmirror.toml", GOOD)
    assert found() == at_home
    in_xdg = write(xdg / "kmirror" / "kmirror.toml", GOOD)
    assert found(XDG_CONFIG_HOME=str(xdg)) == in_xdg
    named = write(tmp_path / "named.toml", GOOD)
    assert found(KMIRROR_CONFIG=str(named)) == named
    assert found(KMIRROR_CONFIG="") == at_home
    # a home that is not known is no folder of that name here
    write(tmp_path / "~" / ".config" / "kmirror" / "kmirror.toml", GOOD)
    assert found(HOME="~") is None
    assert load_config_file({"HOME": "~"}, nowhere).writable == nowhere
    with pytest.raises(UsageError, match=r"KMIRROR_CONFIG: the home directory in ~nobody-here/k\.toml is unknown"):
        found(KMIRROR_CONFIG="~nobody-here/k.toml")


def test_what_the_operators_file_does_not_say_is_taken_from_the_machines(tmp_path: Path) -> None:
    machine = write(
        tmp_path / "machine.toml",
        GOOD + '[trust]\npaths = ["/etc/kmirror", "~/x"]\nsources = ["a.example.com"]\nenv = []\n',
    )
    environ = {"HOME": str(tmp_path)}
    assert load_config_file(environ, machine).path == machine
    own = write(
        tmp_path / ".config" / "kmirror" / "kmirror.toml",
        '[clusters.prod]\nbootstrap-server = "mine:9092"\n[defaults]\noutput = "table"\n[trust]\nenv = ["X"]\n',
    )
    both = load_config_file(environ, machine)
    assert (both.path, both.files, both.writable) == (own, (own, machine), own)
    assert {name: cluster.bootstrap_server for name, cluster in both.clusters.items()} == {
        "prod": "mine:9092",
        "dr site": "dr:9092",
    }
    assert (both.default_cluster, both.default_output) == ("prod", "table")
    assert both.trust["env"] == TrustEntries(own, ("X",))
    assert both.trust["sources"] == TrustEntries(machine, ("a.example.com",))
    assert both.trust["paths"].entries == ("/etc/kmirror", str(Path("~/x").expanduser()))
    assert "token_urls" not in both.trust


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.toml: No such file") as refusal:
        load_config_file({"KMIRROR_CONFIG": str(tmp_path / "nowhere.toml")}, tmp_path)
    assert "KMIRROR_CONFIG" in str(refusal.value.hint)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("a = 1\nb = = 2\n", "is not valid TOML: Invalid value (at line 2, column 5)", "correct that line"),
        ("[cluster.a]", "unknown key cluster", "did you mean clusters?"),
        ("frobnicate = 1", "unknown key frobnicate", "known here: clusters, defaults, trust"),
        (
            '[clusters.a]\nbootstrap_servers = "a:1"',
            "unknown key clusters.a.bootstrap_servers",
            "did you mean bootstrap-server?",
        ),
        ('[clusters.a]\npassword = "hunter2"', "unknown key clusters.a.password", "bootstrap-server, command-config"),
        ("[clusters.a]", "clusters.a has no bootstrap-server", "kafka1:9092"),
        (
            '[clusters.a]\nbootstrap-server = "a:1"\ncommand-config = "~nobody-here/f"',
            "clusters.a.command-config: the home directory in ~nobody-here/f is unknown",
            "full path",
        ),
        ('[trust]\npaths = ["~x/y"]', "trust.paths: the home directory in ~x/y is unknown", "full path"),
        ("[clusters.a]\nbootstrap-server = 9092", "clusters.a.bootstrap-server is not a string", "in quotes"),
        ("clusters = 1", "clusters is not a table", "[clusters]"),
        ('[clusters]\na = "a:1"', "clusters.a is not a table", "[clusters.a]"),
        ('[defaults]\ncluster = "a"', "defaults.cluster names a, which is not among the clusters", "[clusters.a]"),
        ('[defaults]\noutput = "xml"', "defaults.output is 'xml'", "it is one of table, json"),
        ("[trust]\npath = []", "unknown key trust.path", "did you mean paths?"),
        ("[trust]\nsources = 1", "trust.sources is not a list of strings", '["…", "…"]'),
        ("[trust]\nenv = [1]", "trust.env is not a list of strings", '["…", "…"]'),
        ('[trust]\npaths = ["etc"]', "trust.paths: etc is not an absolute path", "full path"),
        ('[defaults]\noutpt = "json"', "unknown key defaults.outpt", "did you mean output?"),
    ],
)
def test_files_that_are_refused(text: str, message: str, hint: str, tmp_path: Path) -> None:
    path = write(tmp_path / "kmirror.toml", text)
    with pytest.raises(UsageError) as refusal:
        read_config_file(path)
    assert refusal.value.message.startswith(str(path))
    assert refusal.value.message.endswith(message)
    assert hint in str(refusal.value.hint)
    assert "hunter2" not in f"{refusal.value.message}{refusal.value.hint}"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "kmirror.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"cannot read .*: it is not UTF-8 text"):
        read_config_file(path)


def test_unknown_clusters(tmp_path: Path) -> None:
    config = read_config_file(write(tmp_path / "kmirror.toml", GOOD))
    with pytest.raises(UsageError, match=r"^cluster pord is unknown$") as refusal:
        config.cluster("pord")
    assert refusal.value.hint == f"{tmp_path}/kmirror.toml names: dr site, prod"
    with pytest.raises(UsageError, match=r"there is no kmirror\.toml") as refusal:
        ConfigFile().cluster("prod")
    assert refusal.value.hint == "write [clusters.prod] in ~/.config/kmirror/kmirror.toml or /etc/kmirror/kmirror.toml"


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "kmirror.toml"
    path.write_bytes(b'\xef\xbb\xbf[defaults]\r\noutput = "json"\r\n')
    assert read_config_file(path).default_output == "json"
