"""A mirror is stored only when it could work, and bad input changes nothing."""

from __future__ import annotations

import uuid

import pytest

from kmirror.errors import ExitCode, KmirrorError, Reason, RefusedError, UnreachableError
from kmirror.ops.base.context import Destination
from kmirror.ops.base.results import VerbResult
from kmirror.ops.mirrors.config import change_config, show_config
from kmirror.ops.mirrors.create import create
from kmirror_compat.creating import create_from_link, create_from_mm2
from kmirror_sandbox.ports import free_ports
from tests.support.clusters import ClusterPair, MakeCluster
from tests.support.mirrors import outcomes, properties_of

PASSWORD = "hunter2-in-clear"


@pytest.fixture
def source(cluster_pair: ClusterPair) -> dict[str, str]:
    return properties_of(cluster_pair.source)


def test_create_stores_references_settings_and_the_sources_cluster_id(
    destination: Destination,
    source: dict[str, str],
    name: str,
    cluster_pair: ClusterPair,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KM_KEY_PASSWORD", "mirror-key")
    given = {**source, "ssl.key.password": "${env:KM_KEY_PASSWORD}", "topic.prefix": "a.", "copy.lanes": "3"}
    assert outcomes(create(destination, name, given, {"copy.lanes": "5"})) == {None: "DONE"}
    stored = destination.state().mirror(name)
    assert stored is not None
    assert stored.source == {**source, "ssl.key.password": "${env:KM_KEY_PASSWORD}"}
    assert stored.settings == {"topic.prefix": "a.", "copy.lanes": "5"}
    assert stored.source_cluster_id == cluster_pair.source.cluster_id
    (event,) = destination.store.read_events(name)
    assert (event.what, event.result, event.actor) == ("create", "OK", stored.created_by)


@pytest.mark.slow
def test_the_brokers_limit_for_batches_is_none_for_the_state(
    make_cluster: MakeCluster, source: dict[str, str], name: str
) -> None:
    narrow = make_cluster("narrow", properties={"message.max.bytes": "1500"})
    many = ",".join(uuid.uuid4().hex for _ in range(200))
    with Destination.open(properties_of(narrow)) as destination:
        assert outcomes(create(destination, name, source, {"topics.exclude": many})) == {None: "DONE"}
        stored = destination.state().mirror(name)
    assert stored is not None
    assert stored.settings == {"topics.exclude": many}


@pytest.mark.slow
def test_brokers_with_an_older_message_format_are_refused(
    make_cluster: MakeCluster, source: dict[str, str], name: str
) -> None:
    old = make_cluster("old", kafka_version="2.8.2", properties={"log.message.format.version": "0.10.2"})
    with (
        Destination.open(properties_of(old)) as destination,
        pytest.raises(RefusedError, match="UNSUPPORTED_FOR_MESSAGE_FORMAT") as refused,
    ):
        create(destination, name, source)
    assert "log.message.format.version" in str(refused.value.hint)


def test_a_file_of_mirrormaker_2_becomes_the_mirrors_that_lead_here(
    destination: Destination, source: dict[str, str], name: str
) -> None:
    here, there = f"{name}-here", f"{name}-there"
    file = {
        "clusters": f"{there}, {here}, gone",
        f"{there}.bootstrap.servers": source["bootstrap.servers"],
        f"{here}.bootstrap.servers": destination.bootstrap_server,
        "gone.bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}",
        **{f"{flow}.enabled": "true" for flow in (f"{there}->{here}", f"{here}->{there}", f"{there}->gone")},
        f"{there}->{here}.topics": "orders.*",
        "tasks.max": "4",
        "offset.lag.max": "7",
    }

    def keys(done: VerbResult) -> dict[str, tuple[str | None, str]]:
        return {row.key_result.key: (row.mirror, row.key_result.became) for row in done.keys}

    refused = create_from_mm2(destination, {**file, f"{there}.ssl.key.password": PASSWORD, "transforms": "x"}, {})
    assert refused.exit_code == ExitCode.REFUSED
    assert {key for key, (_, became) in keys(refused).items() if became == "REFUSED"} == {
        "transforms",
        f"{there}.ssl.key.password",
    }
    assert PASSWORD not in str(refused.to_json())
    dry = create_from_mm2(destination, file, {}, dry_run=True)
    assert (dry.exit_code, dry.mirror) == (0, f"{there}-to-{here}")
    assert destination.state().mirror(dry.mirror) is None
    done = create_from_mm2(destination, file, {"topic.prefix": ""}, mirror=name)
    assert outcomes(done) == {None: "DONE"}
    assert keys(done)["tasks.max"] == (name, "TAKEN")
    assert keys(done)["offset.lag.max"] == (name, "NO_MEANING")
    # --config goes before what the file and its defaults say
    assert keys(done)["replication.policy.class"] == (name, "NO_MEANING")
    assert {keys(done)[f"{flow}.enabled"] for flow in (f"{here}->{there}", f"{there}->gone")} == {(None, "NO_MEANING")}
    assert "whether gone is this destination is unknown" in str(done.to_json())
    stored = destination.state().mirror(name)
    assert stored is not None
    assert stored.source == source
    assert (stored.settings["topics.include"], stored.settings["copy.lanes"]) == ("orders.*", "4")
    with pytest.raises(RefusedError, match=f"its target is not {there}") as caught:
        create_from_mm2(destination, {**file, f"{here}->{there}.enabled": "false"}, {}, target=there)
    assert "--target ALIAS" in str(caught.value.hint)


def test_a_file_of_a_cluster_link_becomes_a_mirror_of_the_clusters_it_names(
    destination: Destination, source: dict[str, str], name: str, cluster_pair: ClusterPair
) -> None:
    file = {**source, "link.mode": "DESTINATION", "cluster.link.paused": "true"}
    ids = {"source.cluster.id": cluster_pair.source.cluster_id, "dest.cluster.id": cluster_pair.destination.cluster_id}
    for wrong in ids:
        other = create_from_link(destination, name, {**file, **ids, wrong: "other"}, {})
        assert other.exit_code == ExitCode.REFUSED
        assert f"but {wrong}=other" in str(other.error)
    assert outcomes(create_from_link(destination, name, {**file, **ids}, {})) == {None: "DONE"}
    stored = destination.state().mirror(name)
    assert stored is not None
    assert (stored.paused, stored.settings) == (True, {"sync.group.offsets.enabled": "false"})


def test_a_dry_run_of_create_changes_nothing(destination: Destination, source: dict[str, str], name: str) -> None:
    result = create(destination, name, source, dry_run=True)
    assert (result.exit_code, result.dry_run) == (0, True)
    assert destination.state().mirror(name) is None
    assert destination.store.read_events(name) == ()


def test_if_not_exists_is_content_with_the_same_and_names_what_differs(
    destination: Destination, source: dict[str, str], name: str
) -> None:
    create(destination, name, {**source, "copy.lanes": "3"})
    with pytest.raises(RefusedError, match="already exists"):
        create(destination, name, {**source, "copy.lanes": "3"})
    again = create(destination, name, {**source, "copy.lanes": "3"}, if_not_exists=True)
    assert outcomes(again) == {None: "NOOP"}
    with pytest.raises(RefusedError, match=r"differs in copy\.lanes, topic\.prefix$"):
        create(destination, name, {**source, "topic.prefix": "b."}, if_not_exists=True)


def test_if_not_exists_is_content_with_filters_that_grew(
    destination: Destination, source: dict[str, str], name: str
) -> None:
    create(destination, name, {**source, "topics.include": "a.*"})
    change_config(destination, name, {"topics.include": "a.*,b.*"})
    again = create(destination, name, {**source, "topics.include": "a.*"}, if_not_exists=True)
    assert outcomes(again) == {None: "NOOP"}


BAD_INPUT = {
    "a setting no one knows": ({"retry.timeout": "5"}, ExitCode.USAGE, "unknown setting retry.timeout"),
    "a bad pattern": ({"topics.include": "a[b"}, ExitCode.USAGE, "not understood at character 2"),
    "a negative duration": ({"retry.timeout.ms": "-1"}, ExitCode.USAGE, "retry.timeout.ms=-1"),
    "an absurd duration": ({"refresh.interval.seconds": "99999999"}, ExitCode.USAGE, "from 1 to 86400"),
    "filters that contradict each other": (
        {"topics.include": "x", "topics.exclude": "x"},
        ExitCode.USAGE,
        "topics.include and topics.exclude contradict",
    ),
    "a password in clear": ({"ssl.key.password": PASSWORD}, ExitCode.REFUSED, "ssl.key.password: plaintext secrets"),
    "a secret that is not there": (
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "${env:KM_NO_SUCH}"},
        ExitCode.REFUSED,
        "KM_NO_SUCH is not set",
    ),
    "a reference where none counts": (
        {"client.id": "${env:KM_NO_SUCH}"},
        ExitCode.REFUSED,
        "client.id: a reference counts only in properties that hold a secret or name a file",
    ),
    "no address": ({"bootstrap.servers": ""}, ExitCode.USAGE, "bootstrap.servers is missing or empty"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_a_sentence_with_a_hint_and_changes_nothing(
    destination: Destination, source: dict[str, str], name: str, case: str
) -> None:
    given, code, sentence = BAD_INPUT[case]
    with pytest.raises(KmirrorError) as caught:
        create(destination, name, {**source, **given})
    assert caught.value.exit_code == code
    assert sentence in caught.value.message
    assert caught.value.hint
    assert PASSWORD not in f"{caught.value.message} {caught.value.hint}"
    assert destination.state().mirror(name) is None


@pytest.mark.parametrize("name_given", ["", ".", "a/b", "x" * 201, "a b"])
def test_names_that_cannot_name_a_mirror(destination: Destination, source: dict[str, str], name_given: str) -> None:
    with pytest.raises(KmirrorError) as caught:
        create(destination, name_given, source)
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_source_that_does_not_answer_is_reported_at_once(destination: Destination, name: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError) as caught:
        create(destination, name, {"bootstrap.servers": f"127.0.0.1:{port}"})
    assert caught.value.reason is Reason.SOURCE_UNREACHABLE
    assert caught.value.message == f"the source: cannot connect to 127.0.0.1:{port}: connection refused"
    assert destination.state().mirror(name) is None


def test_a_destination_that_does_not_answer_is_reported_at_once() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError) as caught:
        Destination.open({"bootstrap.servers": f"127.0.0.1:{port}"})
    assert caught.value.reason is Reason.DESTINATION_UNREACHABLE
    assert caught.value.exit_code == ExitCode.UNREACHABLE


def test_source_and_destination_have_to_be_two_clusters(destination: Destination, name: str) -> None:
    with pytest.raises(RefusedError) as caught:
        create(destination, name, destination.properties)
    assert caught.value.reason is Reason.LOOP
    assert destination.state().mirror(name) is None


def test_the_wrong_destination_is_refused(cluster_pair: ClusterPair) -> None:
    here, there = properties_of(cluster_pair.destination), cluster_pair.source.cluster_id
    with pytest.raises(RefusedError, match=f"is cluster {cluster_pair.destination.cluster_id}, not {there}"):
        Destination.open(here, expect_cluster_id=there)
    Destination.open(here, expect_cluster_id=cluster_pair.destination.cluster_id).close()


def test_config_shows_and_changes_settings(destination: Destination, source: dict[str, str], name: str) -> None:
    create(destination, name, source)
    before = {row.key: row for row in show_config(destination, name)}
    assert (before["retry.timeout.ms"].value, before["retry.timeout.ms"].is_default) == ("300000", True)
    assert before["bootstrap.servers"].value == source["bootstrap.servers"]
    dry = change_config(destination, name, {"retry.timeout.ms": "1000"}, dry_run=True)
    assert dry.results[0].message == "would change retry.timeout.ms from its default to 1000"
    assert outcomes(change_config(destination, name, {"retry.timeout.ms": "1000"})) == {None: "DONE"}
    assert outcomes(change_config(destination, name, {"retry.timeout.ms": "1000"})) == {None: "NOOP"}
    stored = destination.state().mirror(name)
    assert stored is not None
    assert stored.settings == {"retry.timeout.ms": "1000"}
    change_config(destination, name, {"client.id": "me"}, ["retry.timeout.ms"])
    stored = destination.state().mirror(name)
    assert stored is not None
    assert (stored.settings, stored.source) == ({}, {**source, "client.id": "me"})
    assert [event.what for event in destination.store.read_events(name)] == ["create", "config", "config"]


@pytest.mark.parametrize(
    ("assignments", "unset", "code", "sentence"),
    [
        ({"topic.prefix": "x."}, [], ExitCode.REFUSED, "topic.prefix cannot be changed"),
        ({"retry.timeout": "5"}, [], ExitCode.USAGE, "unknown setting retry.timeout"),
        ({}, ["nothing.like.it"], ExitCode.USAGE, "unknown setting nothing.like.it"),
        ({"copy.lanes": "2"}, ["copy.lanes"], ExitCode.USAGE, "copy.lanes: both set and unset"),
        (
            {"sasl.oauthbearer.client.credentials.client.secret": "x"},
            [],
            ExitCode.REFUSED,
            "plaintext secrets are not stored",
        ),
        ({"bootstrap.servers": "DESTINATION"}, [], ExitCode.REFUSED, "the same cluster"),
        ({}, ["bootstrap.servers"], ExitCode.USAGE, "bootstrap.servers is missing"),
    ],
)
def test_config_refuses_what_create_would(
    destination: Destination,
    source: dict[str, str],
    name: str,
    assignments: dict[str, str],
    unset: list[str],
    code: ExitCode,
    sentence: str,
) -> None:
    create(destination, name, source)
    before = destination.state().mirror(name)
    given = {k: v.replace("DESTINATION", destination.bootstrap_server) for k, v in assignments.items()}
    with pytest.raises(KmirrorError) as caught:
        change_config(destination, name, given, unset)
    assert caught.value.exit_code == code
    assert sentence in caught.value.message
    assert destination.state().mirror(name) == before


def test_a_mirror_no_one_knows_names_the_nearest(destination: Destination, source: dict[str, str], name: str) -> None:
    create(destination, name, source)
    with pytest.raises(RefusedError) as caught:
        show_config(destination, f"{name}x")
    assert caught.value.hint == f"did you mean {name}?"
