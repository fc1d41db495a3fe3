"""Java properties text, references and the search for secrets in clear."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from kmirror.cluster.security.properties import (
    is_reference,
    literal_secrets,
    parse_properties,
    read_properties,
    resolve,
    resolve_value,
)
from kmirror.errors import ExitCode, Reason, UnreachableError, UsageError

CASES = {
    "equals": ("a=b", {"a": "b"}),
    "colon": ("a:b", {"a": "b"}),
    "white space": ("a b", {"a": "b"}),
    "tab and form feed": ("a\t\fb", {"a": "b"}),
    "white space round the separator": ("  a  =  b  ", {"a": "b  "}),
    "one separator only": ("a==b", {"a": "=b"}),
    "colon after equals is value": ("a = :b", {"a": ":b"}),
    "no value": ("a", {"a": ""}),
    "no key": ("=b", {"": "b"}),
    "comments": ("# x=1\n  ! y=2\na=b # part of the value", {"a": "b # part of the value"}),
    "a comment is not continued": ("# x\\\na=b", {"a": "b"}),
    "blank lines": ("\n \t\n\r\n\fa=b\n\n", {"a": "b"}),
    "line ends": ("a=1\rb=2\r\nc=3\nd=4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
    "last one wins": ("a=1\nb=2\na=3", {"a": "3", "b": "2"}),
    "continued": ("a=b\\\n    c\\\r\n\td", {"a": "bcd"}),
    "continued key": ("ke\\\n  y=v", {"key": "v"}),
    "a continuation that looks like a comment": ("a=b\\\n#c", {"a": "b#c"}),
    "a continuation that is empty": ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    "two backslashes end the line": ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    "three continue it": ("a=b\\\\\\\n  c", {"a": "b\\c"}),
    "a backslash at the very end": ("a=b\\", {"a": "b"}),
    "escaped separators in keys": ("a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
    "escaped comment sign": ("\\#a=b", {"#a": "b"}),
    "escapes": ('a=\\t\\n\\r\\f\\\\\\q\\"', {"a": '\t\n\r\f\\q"'}),
    "escaped leading space": ("a=\\  b", {"a": "  b"}),
    "unicode": ("a=\\u00e9\\u20AC\\\\u0041", {"a": "é€\\u0041"}),
    "a pair of surrogates": ("a=\\ud83d\\ude00", {"a": "😀"}),
    "jaas over several lines": (
        'sasl.jaas.config=a.ScramLoginModule required \\\n  username="u" \\\n  password="p";',
        {"sasl.jaas.config": 'a.ScramLoginModule required username="u" password="p";'},
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES.keys())
def test_parse(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "a=\\u", "\\uxyzw=1"])
def test_malformed_unicode_is_refused_as_in_java(text: str) -> None:
    with pytest.raises(UsageError, match="four hexadecimal digits"):
        parse_properties(text)


JAVA = r"""
import java.io.*;
import java.util.*;

public class Load {
  static String hex(String text) {
    StringBuilder out = new StringBuilder();
    for (char c : text.toCharArray()) out.append(String.format("%04x", (int) c));
    return out.toString();
  }

  public static void main(String[] args) throws Exception {
    DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(args[0])));
    for (int left = in.readInt(); left > 0; left--) {
      byte[] file = new byte[in.readInt()];
      in.readFully(file);
      Properties properties = new Properties();
      try {
        properties.load(new ByteArrayInputStream(file));
      } catch (IllegalArgumentException e) {
        System.out.println("refused");
        continue;
      }
      StringBuilder line = new StringBuilder("read");
      for (String key : new TreeSet<>(properties.stringPropertyNames()))
        line.append(' ').append(hex(key)).append('=').append(hex(properties.getProperty(key)));
      System.out.println(line);
    }
  }
}
"""


def test_java_reads_the_same(tmp_path: Path) -> None:
    """Both parsers read 3,000 files made of nothing but trouble, and every case of this module."""
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else shutil.which("java")
    assert java, "Java 17 or newer is needed, as for the sandbox"
    pieces = [
        "a",
        "B",
        "=",
        ":",
        " ",
        "\t",
        "\f",
        "\n",
        "\r",
        "\r\n",
        "\\",
        "\\\\",
        "\\\n",
        "\\\r\n",
        "#",
        "!",
        "é",
        "\\u00e9",
    ]
    pieces += [
        "\\u12",
        "\\n",
        "\\=",
        "\\:",
        "\\ ",
        "key",
        "${env:A}",
        '"',
        "\\ud83d\\ude00",
        "\\#",
        "\x00",
        "\x85",
        "\x1c",
    ]
    chance = random.Random(17)
    files = ["".join(chance.choices(pieces, k=chance.randrange(40))) for _ in range(3000)]
    files += [text for text, _ in CASES.values() if text.isascii()]
    corpus = tmp_path / "corpus"
    encoded = [file.encode("iso-8859-1") for file in files]
    corpus.write_bytes(
        len(encoded).to_bytes(4, "big") + b"".join(len(file).to_bytes(4, "big") + file for file in encoded)
    )
    (tmp_path / "Load.java").write_text(JAVA)
    command = [java, "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", str(tmp_path / "Load.java"), str(corpus)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    theirs = output.splitlines()
    ours = [_as_java_prints_it(file) for file in files]
    assert [(file, line) for file, line, other in zip(files, ours, theirs, strict=True) if line != other] == []
    assert 50 < theirs.count("refused") < len(files) / 2


def _as_java_prints_it(text: str) -> str:
    def utf16(value: str) -> str:
        return value.encode("utf-16-be", "surrogatepass").hex()

    try:
        properties = parse_properties(text)
    except UsageError:
        return "refused"
    pairs = sorted((utf16(key), utf16(value)) for key, value in properties.items())
    return " ".join(["read", *(f"{key}={value}" for key, value in pairs)])


def test_files_are_latin_1_as_in_java(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_bytes(b"client.id=caf\xe9\n")
    assert read_properties(tmp_path / "client.properties") == {"client.id": "café"}


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.properties: No such file"):
        read_properties(tmp_path / "nowhere.properties")
    with pytest.raises(UsageError, match="Is a directory"):
        read_properties(tmp_path)
    (tmp_path / "bad.properties").write_text("a=\\u1")
    with pytest.raises(UsageError, match=r"bad\.properties: "):
        read_properties(tmp_path / "bad.properties")


def test_references(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("first=one\nwith\\:colon=two\nnested=${env:NAME}\n")
    (tmp_path / "token").write_text("three\n")
    properties = {
        "a": "${env:NAME}",
        "b": f"<${{file:{tmp_path}/secrets.properties:first}}-${{file:{tmp_path}/secrets.properties:with:colon}}>",
        "c": f"${{dir:{tmp_path}:token}}",
        "d": f"${{file:{tmp_path}/secrets.properties:nested}}",
        "e": "no reference: $x {y} ${z}",
    }
    assert resolve(properties, {"NAME": "value"}) == {
        "a": "value",
        "b": "<one-two>",
        "c": "three",
        "d": "${env:NAME}",
        "e": "no reference: $x {y} ${z}",
    }


def test_references_are_resolved_from_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMIRROR_TEST_SECRET", "x")
    assert resolve_value("a", "${env:KMIRROR_TEST_SECRET}") == "x"


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("${env:MISSING}", "the environment variable MISSING is not set"),
        ("${file:/nowhere/secrets:key}", "No such file"),
        ("${file:SECRETS:other}", "the file has no key other"),
        ("${file:SECRETS}", "must be written ${file:PATH:KEY}"),
        ("${dir:FOLDER:other}", "No such file"),
        ("${dir:FOLDER:../token}", "must be the name of a file in the folder"),
        ("${dir:FOLDER:binary}", "not UTF-8"),
        ("${vault:a:b}", "vault is not env, file or dir"),
    ],
)
def test_unresolved_references_are_named_and_no_value_is(reference: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("key=hunter2\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    reference = reference.replace("SECRETS", f"{tmp_path}/secrets.properties").replace("FOLDER", str(tmp_path))
    with pytest.raises(UnreachableError) as refusal:
        resolve({"ssl.key.password": f"hunter1{reference}"}, {"PRESENT": "hunter3"})
    assert refusal.value.reason is Reason.SECRET_UNRESOLVED
    assert refusal.value.exit_code is ExitCode.REFUSED
    assert refusal.value.message.startswith(f"ssl.key.password: the reference {reference} cannot be resolved: ")
    assert why in refusal.value.message
    assert "hunter" not in f"{refusal.value.message}{refusal.value.hint}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("${env:A}", True), (" ${file:/a:b} ", True), ("x${env:A}", False), ("${env:A}${env:B}", False), ("$A", False)],
)
def test_is_reference(value: str, expected: bool) -> None:
    assert is_reference(value) is expected


PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.mark.parametrize(
    ("key", "value", "is_secret"),
    [
        ("ssl.key.password", "x", True),
        ("ssl.truststore.password", "x", True),
        ("ssl.key.password", "${env:A}", False),
        ("ssl.key.password", "x${env:A}", True),
        ("ssl.key.password", "  ", False),
        ("ssl.keystore.key", PRIVATE_KEY, True),
        ("ssl.keystore.key", "${file:/run/secrets/kafka:key}", False),
        ("ssl.keystore.certificate.chain", "-----BEGIN CERTIFICATE-----", False),
        ("ssl.keystore.certificate.chain", PRIVATE_KEY, True),
        ("sasl.oauthbearer.client.credentials.client.secret", "x", True),
        ("sasl.oauthbearer.client.secret", "x", True),
        ("sasl.oauthbearer.assertion.private.key.passphrase", "x", True),
        ("sasl.oauthbearer.assertion.private.key.file", "/etc/key.pem", False),
        ("sasl.oauthbearer.token.endpoint.url", "https://login/token", False),
        ("sasl.password", "x", True),
        ("topics.include", "secret-.*,password", False),
        ("sasl.jaas.config", f'{SCRAM} username="u" password="p";', True),
        ("sasl.jaas.config", f'{SCRAM} username="u" password="${{env:P}}";', False),
        ("sasl.jaas.config", f"{SCRAM} username=u password=${{env:P}};", False),
        ("sasl.jaas.config", f'{SCRAM} username="u" password="p${{env:P}}";', True),
        ("sasl.jaas.config", f'{SCRAM} username="u" password="";', False),
        ("sasl.jaas.config", f'{SCRAM} username="u" user_admin="p";', True),
        ("sasl.jaas.config", 'a.OAuthBearerLoginModule required clientId="c" clientSecret="p";', True),
        ("sasl.jaas.config", "${file:/run/secrets/kafka:jaas}", False),
        ("sasl.jaas.config", "password=p, and otherwise no JAAS at all", True),
    ],
)
def test_literal_secrets(key: str, value: str, is_secret: bool) -> None:
    assert literal_secrets({"client.id": "me", key: value}) == ([key] if is_secret else [])


def test_a_byte_order_mark_is_no_part_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "windows.properties"
    path.write_bytes(b"\xef\xbb\xbfclient.id=a\r\nclient.rack=b\r\n")
    assert read_properties(path) == {"client.id": "a", "client.rack": "b"}
    path.write_text("client.id=a\n", encoding="utf-16")
    with pytest.raises(UsageError, match="is UTF-16 text") as refused:
        read_properties(path)
    assert "UTF-8" in str(refused.value.hint)
