"""Invalid state, configuration, key stores and tokens: an error that says so, never a crash."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from kmirror.cluster.security import pkcs12
from kmirror.cluster.security.jaas import parse_jaas
from kmirror.cluster.security.jks import MAGIC, key_entry, trusted_certificates
from kmirror.cluster.security.keystores import KeyEntry, StoreError
from kmirror.cluster.security.properties import literal_secrets, parse_properties, resolve
from kmirror.cluster.security.tokens import expiry_of
from kmirror.config_file import read_config_file
from kmirror.errors import KmirrorError, Reason, UnreachableError, UsageError
from kmirror.state.event_records import Event, decode_event, encode_event
from kmirror.state.record_kinds import Removed, Unknown, decode, encode
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State
from tests.support.hostile import AMOUNTS, corrupted, explore
from tests.support.key_stores import STORE_PASSWORD, unprotected_pkcs12

# -- state -------------------------------------------------------------------------------------------------------------

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "support" / "older_state.jsonl").read_text().splitlines()
]
STORED = [(one["key"].encode(), one["value"].encode()) for one in LINES if one["topic"] == "__kmirror_state"]
EVENTS = [one["value"].encode() for one in LINES if one["topic"] == "__kmirror_events"]
#: Values that the C library of JSON accepts, but that cannot be stored again, printed or used in arithmetic.
ODD_VALUES = (b"NaN", b"-Infinity", b"1e999", b'"\\ud800"', b"9" * 400, b"[" * 900 + b"]" * 900)


def check_state(given: tuple[bytes, bytes | None]) -> None:
    """A record that is read can be stored again with the same content; an unreadable one is an error of one line."""
    found = decode(*given)
    if isinstance(found, Removed):
        return
    if isinstance(found, Unknown):
        assert len(f"{found.key} {found.problem}".encode()) < 600 + 6 * len(given[0])
        return
    State.of([found])
    key, value = encode(found)
    assert decode(key, value) == found


@AMOUNTS
def test_a_stored_record_is_read_or_reported_as_unreadable(amount: int) -> None:
    for key, value in STORED:
        check_state((key, value))
    keys, values = [key for key, _ in STORED], [value for _, value in STORED]

    def values_of(pair: tuple[bytes, bytes]) -> st.SearchStrategy[Any]:
        return st.tuples(st.just(pair[0]), corrupted([pair[1]]) | st.none())

    explore(amount * 2, st.sampled_from(STORED).flatmap(values_of), check_state)
    explore(amount, st.tuples(corrupted(keys), st.sampled_from(values)), check_state)


@st.composite
def odd_records(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Return a stored record of which one value is odd."""
    key, value = draw(st.sampled_from(STORED))
    parts = value.split(b":")
    at = draw(st.integers(1, len(parts) - 1))
    _, comma, rest = parts[at].partition(b",")
    parts[at] = draw(st.sampled_from(ODD_VALUES)) + comma + rest
    return key, b":".join(parts)


@AMOUNTS
def test_values_that_no_kmirror_stores_are_unreadable(amount: int) -> None:
    explore(amount, odd_records(), check_state)


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_odd_value_in_a_field_of_a_newer_version_is_not_carried_along(value: bytes) -> None:
    record = MirrorRecord("m", {}, {}, None, "eve@ops", 0)
    key, stored = encode(record)
    found = decode(key, stored.replace(b'"v":1', b'"v":1,"zoo":' + value))
    assert not isinstance(found, Removed)
    assert isinstance(found, Unknown) or encode(found)[1]


def test_a_huge_value_is_reported_in_one_line() -> None:
    found = decode(b'["mirror","m"]', b'{"v":1,"source":"' + b"x" * 1_000_000 + b'"}')
    assert isinstance(found, Unknown)
    assert found.problem.startswith("its field 'source' is 'xxx")
    assert len(found.problem) < 200


@AMOUNTS
def test_an_event_is_read_or_reported_as_unreadable(amount: int) -> None:
    def check(value: bytes) -> None:
        event = decode_event(b"m\xff", value, 7)
        assert isinstance(event, Event)
        assert encode_event(event)

    explore(amount, corrupted(EVENTS), check)


# -- what operators write ----------------------------------------------------------------------------------------------

PROPERTIES = [
    b"bootstrap.servers=a:1,b:2\nsasl.jaas.config=org.x.PlainLoginModule required username=\"u\" password='p';\n",
    b"# a comment\\\nkey\\ with\\=signs : value\\\n   goes on\\u00e9\\t\nssl.keystore.key=${file:/nowhere:key}\n",
]


@AMOUNTS
def test_properties_are_read_or_a_usage_error(amount: int) -> None:
    def check(data: bytes) -> None:
        with suppress(KmirrorError):
            found = parse_properties(data.decode("iso-8859-1"))
            literal_secrets(found)
            resolve(found, {})

    explore(amount, corrupted(PROPERTIES), check)


@AMOUNTS
def test_a_jaas_line_is_read_or_a_usage_error(amount: int) -> None:
    def check(data: bytes) -> None:
        with suppress(UsageError):
            parse_jaas(data.decode("iso-8859-1"))

    explore(amount, corrupted([b"a.B required x=\"y\\n\" z='q' w=${env:A}; c.D optional; /* e */"]), check)


@AMOUNTS
def test_a_kmirror_toml_is_read_or_a_usage_error(amount: int, tmp_path: Path) -> None:
    path = tmp_path / "kmirror.toml"

    def check(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(UsageError):
            read_config_file(path)

    sound = b'[clusters.prod]\nbootstrap-server = "a:1"\ncommand-config = "p"\n[defaults]\ncluster = "prod"\n'
    explore(amount, corrupted([sound, b"a = " + b"[" * 3000]), check)


# -- key stores and tokens ---------------------------------------------------------------------------------------------


def text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def block(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def sealed(body: bytes) -> bytes:
    """Return a JKS store with the digest that belongs to it, under the password `pw`."""
    return body + hashlib.sha1("pw".encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


PROTECTED = bytes.fromhex("3045300d060b2a060104012a0211010105000434") + bytes(52)
STORE = b"".join(
    [
        MAGIC,
        struct.pack(">II", 2, 2),
        struct.pack(">I", 2) + text(b"ca") + bytes(8) + text(b"X.509") + block(b"0certificate"),
        struct.pack(">I", 1) + text(b"key") + bytes(8) + block(PROTECTED),
        struct.pack(">I", 1) + text(b"X.509") + block(b"0own"),
    ]
)


@AMOUNTS
def test_a_key_store_is_read_or_refused(amount: int) -> None:
    assert trusted_certificates(sealed(STORE), "pw") == (b"0certificate", b"0own")

    def check(body: bytes) -> None:
        for data in (sealed(body), body):
            with suppress(StoreError):
                assert isinstance(trusted_certificates(data, "pw"), tuple)
            with suppress(StoreError):
                assert isinstance(key_entry(data, "pw", None), KeyEntry | None)

    explore(amount, corrupted([STORE]), check)


def overwritten(store: bytes) -> st.SearchStrategy[bytes]:
    """Return the store with one byte of another value."""
    byte = st.tuples(st.integers(0, len(store) - 1), st.binary(min_size=1, max_size=1))
    return byte.map(lambda at: store[: at[0]] + at[1] + store[at[0] + 1 :])


def check_pkcs12(data: bytes) -> None:
    for read in (pkcs12.trusted_certificates, pkcs12.key_entry):
        with suppress(StoreError):
            read(data, STORE_PASSWORD)
    with suppress(StoreError):
        pkcs12.trusted_certificates(data, None)


@AMOUNTS
def test_a_pkcs12_store_is_read_or_refused(amount: int) -> None:
    stores = unprotected_pkcs12()
    for store in stores[:2]:
        found = pkcs12.key_entry(store, STORE_PASSWORD)
        assert found is not None
        assert len(found.chain) == 2
    explore(amount, corrupted(stores), check_pkcs12)
    # the same lengths: the inside is reached
    explore(amount, st.sampled_from(stores).flatmap(overwritten), check_pkcs12)


@pytest.mark.parametrize(
    ("sound", "spoilt", "why"),
    [
        pytest.param("a003020102", "a00302010b", "a certificate in it is damaged", id="no version of X.509"),
        pytest.param(
            "310d300b06035504030c04", "310d300b06035504031d04", "a certificate in it is damaged", id="no name"
        ),
        pytest.param("0201010420", "0201010466", "a key in it is damaged", id="a key that is too long"),
    ],
)
def test_a_pkcs12_store_that_is_damaged_inside_is_refused(sound: str, spoilt: str, why: str) -> None:
    store = unprotected_pkcs12()[0]
    assert bytes.fromhex(sound) in store
    with pytest.raises(StoreError, match=why):
        pkcs12.key_entry(store.replace(bytes.fromhex(sound), bytes.fromhex(spoilt)), STORE_PASSWORD)


def test_a_pkcs12_store_that_is_odd_is_read_without_a_word() -> None:
    store = unprotected_pkcs12()[0]
    entry = pkcs12.key_entry(store, STORE_PASSWORD)
    # of indefinite length, as BER may have it
    assert pkcs12.key_entry(b"\x30\x80" + store[4:] + bytes(2), STORE_PASSWORD) == entry
    # certificates whose number is 0
    assert pkcs12.key_entry(store.replace(bytes.fromhex("020107300506"), bytes.fromhex("020100300506")), STORE_PASSWORD)


@pytest.mark.parametrize(
    "claims", [b"NaN", b"Infinity", b"1e999", b"9" * 500, b"true", b'"soon"', b"[" * 100_000, b"null", b"9" * 20]
)
def test_a_token_whose_end_is_no_time_is_refused(claims: bytes) -> None:
    payload = base64.urlsafe_b64encode(b'{"exp":' + claims + b"}").decode().rstrip("=")
    with pytest.raises(UnreachableError, match="has no expiry time") as error:
        expiry_of(f"e30.{payload}.sig", "the endpoint")
    assert error.value.reason is Reason.AUTHENTICATION_FAILED


@AMOUNTS
def test_any_text_is_a_token_with_an_end_or_refused(amount: int) -> None:
    payload = base64.urlsafe_b64encode(b'{"exp":1700000000,"iat":1}')

    def check(data: bytes) -> None:
        with suppress(UnreachableError):
            assert expiry_of(data.decode("latin-1"), "the endpoint") < 1e12

    explore(amount, corrupted([b"e30." + payload + b".sig"]), check)
