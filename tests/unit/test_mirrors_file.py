"""The file of `apply`: what it may say, what it includes, its variables, and what is wrong with one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomli
import yaml
from jsonschema import Draft202012Validator

from kmirror.errors import ExitCode, KmirrorError, RefusedError, UsageError
from kmirror.ops.declare.declared import ADD_KEYS, MIRROR_KEYS, DeclaredMirror, DeclaredTopics
from kmirror.ops.declare.mirrors_file import read_mirrors_file
from kmirror.settings.value_types import StartFrom
from tests.support.mirrors_schema import mirrors_schema

SOURCE = 'source = { "bootstrap.servers" = "a:9092" }\n'
MIRROR = f"[mirrors.m]\n{SOURCE}"
WHOLE = r"""
[variables]
region = "eu"
lanes = 3
enforced = true

[mirrors.orders]
topics = ["orders", 'payments\..*']
exclude = ["test-.*"]
paused = true
copying-topics = ["{{region}}.orders"]

[mirrors.orders.source]
"bootstrap.servers" = "kafka.{{region}}.example.com:9093"
"security.protocol" = "SSL"
"ssl.key.password" = "${file:/etc/kmirror/{{region}}.properties:key}"
"request.timeout.ms" = 5000

[mirrors.orders.settings]
"topic.prefix" = "{{region}}."
"tasks.max" = "{{lanes}}"
"groups.exclude" = ["a", 'b\.{1,3}']
"follow.log.start" = "{{enforced}}"

[[mirrors.orders.add]]
topics = ["clicks"]
start-from = "latest"
adopt = true
config = { "retention.ms" = 1000 }
"""


def write(folder: Path, **files: str) -> Path:
    """Write files, and return the one called mirrors."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder / "mirrors.toml"


def read(folder: Path, text: str) -> DeclaredMirror:
    """Return the one mirror of a file."""
    (found,) = read_mirrors_file(write(folder, mirrors=text)).mirrors
    return found


def test_a_mirror_is_what_its_table_says(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE) == DeclaredMirror(
        "orders",
        {
            "bootstrap.servers": "kafka.eu.example.com:9093",
            "security.protocol": "SSL",
            "ssl.key.password": "${file:/etc/kmirror/eu.properties:key}",
            "request.timeout.ms": "5000",
        },
        {"topic.prefix": "eu.", "copy.lanes": "3", "groups.exclude": r"a,b\.{1,3}", "follow.log.start": "true"},
        (
            DeclaredTopics(("orders", r"payments\..*")),
            DeclaredTopics(("clicks",), True, False, StartFrom("latest"), {"retention.ms": "1000"}),
        ),
        ("test-.*",),
        True,
        frozenset({"eu.orders"}),
    )


def test_a_key_that_is_missing_decides_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, MIRROR) == DeclaredMirror("m", {"bootstrap.servers": "a:9092"})
    assert read(tmp_path, MIRROR + "paused-topics = []").paused is False


def test_included_files_are_relative_and_read_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", common='include = ["other.toml"]\n[variables]\na = "common"\nb = "common"')
    write(tmp_path / "sub", other=f'[variables]\na = "other"\nc = "other"\n[mirrors.x]\n{SOURCE}')
    found = read_mirrors_file(
        write(
            tmp_path,
            mirrors='include = ["sub/common.toml", "sub/other.toml"]\n[variables]\nb = "own"\n'
            '[mirrors.m]\nsource = { "bootstrap.servers" = "{{a}} {{ b }} {{c}}" }',
        )
    )
    assert [one.name for one in found.mirrors] == ["x", "m"]
    # the including file counts
    assert found.mirrors[1].source == {"bootstrap.servers": "common own other"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"mirrors": 'include = ["b.toml"]', "b": 'include = ["mirrors.toml"]'}, "{0}/b.toml: include is a circle: "),
        ({"mirrors": 'include = ["none.toml"]'}, "cannot read {0}/none.toml: No such file or directory"),
        (
            {"mirrors": f'include = ["b.toml"]\n{MIRROR}', "b": MIRROR},
            "{0}/mirrors.toml: mirrors.m is also in {0}/b.toml",
        ),
        ({"mirrors": 'include = "b.toml"'}, "{0}/mirrors.toml: include is not a list of strings"),
        ({"mirrors": 'include = ["b.toml"]', "b": "[mirror.m]"}, "{0}/b.toml: unknown key mirror"),
        ({"mirrors": "a = "}, "{0}/mirrors.toml is not valid TOML: "),
        ({"mirrors": "[variables]\na = 1"}, "{0}/mirrors.toml declares no mirror"),
    ],
)
def test_what_is_wrong_with_files(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match="^" + re.escape(message.format(tmp_path))) as error:
        read_mirrors_file(write(tmp_path, **files))
    assert error.value.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[mirrors.m]", "mirrors.m.source has no bootstrap.servers", "bootstrap.servers"),
        (MIRROR + "topic = []", "unknown key mirrors.m.topic", "did you mean topics?"),
        ('[mirrors."a b"]\n' + SOURCE, "mirrors.a b: 'a b' is not a valid mirror name", "letters"),
        (MIRROR + "topics = ['(a']", "mirrors.m.topics: the pattern (a is not understood at character 1", "syntax"),
        (MIRROR + "topics = 'a'", "mirrors.m.topics is not a list of strings", "write it as"),
        (MIRROR + "topics = ['a', 'b', 'a']\n[[mirrors.m.add]]\ntopics = ['b']", "mirrors.m has b twice", "keep one"),
        (MIRROR + "topics = ['a']\nexclude = ['a']", "mirrors.m: topics and exclude both contain a", "remove it"),
        (MIRROR + "paused = 'no'", "mirrors.m.paused is not true or false", "paused = true"),
        (MIRROR + "paused = true\npaused-topics = ['a']", "mirrors.m.paused-topics has no meaning", "paused = false"),
        (MIRROR + "copying-topics = ['a']", "mirrors.m.copying-topics has no meaning", "paused = true"),
        (MIRROR + "paused-topics = ['a.*']", "mirrors.m.paused-topics: a.* is not the name of a topic", "by name"),
        (MIRROR + "[[mirrors.m.add]]\nadopt = true", "mirrors.m.add[1] has no topics", "topics = "),
        (MIRROR + "[[mirrors.m.add]]\ntopics = ['a']\nadopts = true", "unknown key mirrors.m.add[1].adopts", "adopt?"),
        (
            MIRROR + "[[mirrors.m.add]]\ntopics = ['a']\nstart-from = 'x'",
            "mirrors.m.add[1]: invalid value start-from=x",
            "latest",
        ),
        (MIRROR + "add = {}", "mirrors.m.add is not a list of tables", "[[mirrors.m.add]]"),
        (
            MIRROR + "settings = { retry.timeout.ms = 1 }",
            "mirrors.m.settings.retry is a table",
            'quotes: "retry.timeout.ms" = …',
        ),
        (
            MIRROR + 'settings = { "retry.timeout" = 1 }',
            "mirrors.m.settings: unknown setting retry.timeout",
            "did you mean retry.timeout.ms?",
        ),
        (MIRROR + 'settings = { "copy.lanes" = 1.5 }', "mirrors.m.settings.copy.lanes is not a string", "one of these"),
        (MIRROR + 'settings = { "copy.lanes" = 0 }', "mirrors.m: copy.lanes=0 is not a whole number", "range"),
        (MIRROR + 'settings = { "topics" = ["a"] }', "mirrors.m.settings: topics is not written", "topics = […]"),
        (
            MIRROR + 'settings = { "client.id" = "a" }',
            "mirrors.m.settings: client.id is a client",
            "[mirrors.m.source]",
        ),
        (
            MIRROR + 'settings = { "cluster.link.paused" = true }',
            "mirrors.m.settings: cluster.link.paused is not a setting of a mirror",
            "kmirror pause",
        ),
        (
            '[mirrors.m]\nsource = { "bootstrap.servers" = "a", "copy.lanes" = 1 }',
            "mirrors.m.source: copy.lanes is not a Kafka client property",
            "[mirrors.m.settings]",
        ),
        (
            '[mirrors.m]\nsource = { "bootstrap.server" = "a" }',
            "mirrors.m.source: bootstrap.server is not a Kafka client property",
            "did you mean bootstrap.servers?",
        ),
        (
            MIRROR + 'settings = { "group.prefix.enable" = true }',
            "mirrors.m: group.prefix.enable=true requires topic.prefix",
            "topic.prefix",
        ),
        (
            MIRROR + 'topics = ["a.*"]\nsettings = { "auto.create.mirror.topics.enable" = true, '
            '"auto.create.mirror.topics.filters" = \'{"topicFilters":[{"name":"*","patternType":"LITERAL",'
            '"filterType":"INCLUDE"}]}\' }',
            "mirrors.m: topics.include and auto.create.mirror.topics.enable=true exclude each other",
            "remove",
        ),
        ("[variables]\nx = 1.5\n" + MIRROR, "variables.x is not a string", "write it"),
        ('[variables]\n"a b" = 1\n' + MIRROR, "variables.a b is not a name", "letters"),
        (MIRROR + "topics = ['{{x}}']", "mirrors.m.topics: there is no variable x", "x = …"),
        (
            "[variables]\nxs = 'a'\n" + MIRROR + "topics = ['{{x}}']",
            "mirrors.m.topics: there is no",
            "did you mean xs?",
        ),
        (
            '[mirrors.m]\nsource = { "bootstrap.servers" = "{{x" }',
            "mirrors.m.source.bootstrap.servers: {{ is not closed",
            "{{name}}",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_table(tmp_path: Path, text: str, message: str, hint: str) -> None:
    file = write(tmp_path, mirrors=text)
    with pytest.raises(UsageError) as error:
        read_mirrors_file(file)
    assert error.value.message.startswith(f"{file}: {message}")
    assert hint in (error.value.hint or "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"ssl.key.password" = "{{word}}"', "mirrors.m: ssl.key.password: plaintext secrets are not stored"),
        (
            '"client.id" = "${env:HOME}"',
            "mirrors.m: client.id: a reference counts only in properties that hold a secret",
        ),
    ],
)
def test_secrets_are_references_where_they_count(tmp_path: Path, text: str, message: str) -> None:
    file = write(
        tmp_path,
        mirrors=f'[variables]\nword = "hunter2"\n[mirrors.m.source]\n"bootstrap.servers" = "a"\n{text}',
    )
    with pytest.raises(RefusedError) as error:
        read_mirrors_file(file)
    assert error.value.message.startswith(f"{file}: {message}")
    assert error.value.exit_code is ExitCode.REFUSED
    assert "hunter2" not in f"{error.value.message} {error.value.hint}"


def test_what_looks_like_a_variable_can_be_written(tmp_path: Path) -> None:
    found = read(tmp_path, '[variables]\nb = "{{"\n[mirrors.m]\nsource = { "bootstrap.servers" = "{{b}}{x}}" }')
    assert found.source["bootstrap.servers"] == "{{{x}}"


def test_editors_know_what_may_be_written(tmp_path: Path) -> None:
    validator = Draft202012Validator(mirrors_schema())
    assert not list(validator.iter_errors(tomli.loads(WHOLE)))
    mirror = mirrors_schema()["properties"]["mirrors"]["additionalProperties"]["properties"]
    assert tuple(mirror) == MIRROR_KEYS
    assert tuple(mirror["add"]["items"]["properties"]) == ADD_KEYS
    for wrong in (
        "topic = []",
        "settings = { retry.timeout.ms = 1 }",
        'settings = { "retry.timeout" = 1 }',
        "paused = 1",
        "[[mirrors.m.add]]\nadopt = true",
    ):
        assert list(validator.iter_errors(tomli.loads(MIRROR + wrong))), wrong
        with pytest.raises(KmirrorError):
            read(tmp_path, MIRROR + wrong)


def test_the_example_in_the_docs_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "gitops.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (found,) = read_mirrors_file(write(tmp_path, mirrors=example, common="")).mirrors
    assert (found.name, found.patterns) == ("orders", ("orders", r"payments\..*", "clicks"))
    assert found.source["bootstrap.servers"] == "kafka.eu.example.com:9093"
    assert not list(Draft202012Validator(mirrors_schema()).iter_errors(tomli.loads(example)))
    (workflow,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert set(yaml.safe_load(workflow)["jobs"]) == {"plan", "apply"}
