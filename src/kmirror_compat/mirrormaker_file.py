"""MirrorMaker 2's configuration files, `connect-mirror-maker.properties`: clusters, and flows between them. Pure.

    clusters = A, B
    A.bootstrap.servers = a:9092        how to reach a cluster; also A.consumer.…, A.admin.…
    A->B.enabled = true                 a flow, and keys of this flow only
    replication.factor = 3              keys of all flows, unless a flow has its own

For keys that are not in the file MirrorMaker 2's defaults apply; each that differs from kmirror's has a row: it is
taken over if it decides what is mirrored, otherwise the row says what kmirror does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kmirror.errors import UsageError
from kmirror.ops.base.converted_keys import KeyOutcome, KeyResult
from kmirror.settings.client_keys import is_client_key
from kmirror.settings.other_tools import DEFAULT_POLICY, IDENTITY_POLICY
from kmirror_compat.conversion import Conversion, Given, convert, not_taken_over

_NOTE = ": MirrorMaker 2's default, not set in the file"
_NOT_EMITTED = "false here, true in MirrorMaker 2; offsets are equal, and --config sets it for old clients"
#: Defaults that differ and are taken over: what is mirrored.
_DEFAULTS = {
    "topics": (("topics", "mirror.topics.include", "topics.include"), ".*"),
    "topics.exclude": (("topics.exclude", "topics.blacklist"), r"mm2.*\.internal,.*\.replica,__.*"),
    "sync.group.offsets.enabled": (("sync.group.offsets.enabled",), "false"),
}
#: Defaults that differ and are not taken over, with what kmirror does. ACLs are rights: a conversion never grants any
#: that the file does not ask for, and kmirror syncs more of them than MirrorMaker 2.
_DIFFERENCES = {
    "sync.topic.acls.enabled": "false here, true in MirrorMaker 2; --config sync.topic.acls.enabled=true syncs the ACLs"
    " of topics, their groups and producers. With topic.prefix that is not possible: grant rights on mirror topics with"
    " kafka-acls",
    "replication.factor": "the destination brokers' default here, 2 in MirrorMaker 2",
    "config.properties.exclude": "message.timestamp.type and message.timestamp.difference.max.ms are the source's here"
    " once mirroring stops, the destination brokers' in MirrorMaker 2",
    "refresh.topics.interval.seconds": "every 10 s here, every 600 s in MirrorMaker 2",
    "sync.group.offsets.interval.seconds": "every 10 s here, every 60 s in MirrorMaker 2",
    "tasks.max": "as many lanes as suit the machine here, one task in MirrorMaker 2",
    "isolation.level": "committed records only here, all in MirrorMaker 2",
    "emit.offset-syncs.enabled": _NOT_EMITTED,
    "emit.checkpoints.enabled": _NOT_EMITTED,
    "emit.heartbeats.enabled": _NOT_EMITTED,
}
_POLICY, _SEPARATOR = "replication.policy.class", "replication.policy.separator"
#: The consumer's keys take precedence: it reads the records.
_SOURCE_CLIENTS = ("source.consumer.", "consumer.", "source.cluster.", "source.admin.", "admin.", "source.")
_TARGET_CLIENTS = ("target.", "producer.", "source.producer.")
_ALIASES = ("source.cluster.alias", "target.cluster.alias")
#: Keys whose names begin with a client's prefix but are not a client's.
_OWN = ("consumer.auto.offset.reset", "consumer.poll.timeout.ms", *_ALIASES)


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of a file; `why_not` says why it does not become a mirror, None if it does."""

    source: str
    target: str
    why_not: str | None = None

    @property
    def name(self) -> str:
        """The flow's name in the file."""
        return f"{self.source}->{self.target}"

    @property
    def mirror(self) -> str:
        """The default name of its mirror."""
        return f"{self.source}-to-{self.target}"


@dataclass(frozen=True, slots=True)
class MirrorMakerFile:
    """The properties of one file."""

    properties: Mapping[str, str]

    @property
    def clusters(self) -> tuple[str, ...]:
        """The aliases of its clusters.

        Raises:
            UsageError: there are none; it is another kind of file.
        """
        found = tuple(name for part in self.properties.get("clusters", "").split(",") if (name := part.strip()))
        if not found:
            raise UsageError(
                "clusters is missing: this is not a MirrorMaker 2 file",
                "give the file that connect-mirror-maker.sh is started with; to convert a connector's file, add"
                " clusters, A.bootstrap.servers and A->B.enabled to it",
            )
        return found

    @property
    def flows(self) -> tuple[Flow, ...]:
        """The flows that the file has keys for, in the order of its clusters."""
        pairs = [Flow(source, target) for source in self.clusters for target in self.clusters if source != target]
        named = [flow for flow in pairs if any(key.startswith(f"{flow.name}.") for key in self.properties)]
        return tuple(
            flow if self._of(flow, "enabled") == "true" else replace(flow, why_not=f"{flow.name}.enabled is not true")
            for flow in named
        )

    def login(self, alias: str) -> dict[str, str]:
        """Return the client properties of a cluster."""
        return dict(convert(one for one in self._given(Flow(alias, "")) if is_client_key(one.key)).properties)

    def conversion(self, flow: Flow) -> Conversion:
        """Return the mirror that a flow describes, and what became of each of its keys."""
        given = list(self._given(flow))
        written = {one.key for one in given}
        for key, (names, value) in _DEFAULTS.items():
            if not written & set(names):
                given.append(Given(key, key, value, _NOTE))
        given += [
            Given("clusters", key, alias)
            for key, alias in (("source.cluster.alias", flow.source), ("target.cluster.alias", flow.target))
            if key not in written
        ]
        naming = {one.key: one for one in given if one.key in (_POLICY, _SEPARATOR)}
        found = convert(one for one in given if one.key not in naming)
        prefix, named = self._prefix(flow, naming)
        enabled = KeyResult(f"{flow.name}.enabled", KeyOutcome.TAKEN, "this mirror")
        differing = not_taken_over(written, _DIFFERENCES)
        key_results = (enabled, *found.key_results, *named, *differing, *self._left_out(flow))
        return Conversion({**found.properties, **prefix}, found.at_creation, key_results)

    def without(self, flow: Flow, why: str) -> Iterator[KeyResult]:
        """Yield what became of the keys of a flow that does not become a mirror."""
        for written in self.properties:
            if written.startswith(f"{flow.name}."):
                yield KeyResult(written, KeyOutcome.NO_MEANING, f"{flow.name} is left out: {why}")

    def _of(self, flow: Flow, key: str) -> str | None:
        value = self.properties.get(f"{flow.name}.{key}")
        return None if value is None else value.strip().lower()

    def _given(self, flow: Flow) -> Iterator[Given]:
        """Yield the keys that apply to a flow, each once, by its name without prefixes."""
        ranked: dict[str, tuple[int, Given]] = {}
        for written, value in self.properties.items():
            key, rank = self._meaning(written, flow)
            if key is not None and (key not in ranked or rank < ranked[key][0]):
                ranked[key] = (rank, Given(written, key, value))
        chosen = {one.written for _, one in ranked.values()}
        for written in self.properties:
            if written in chosen:
                yield next(one for _, one in ranked.values() if one.written == written)

    def _left_out(self, flow: Flow) -> Iterator[KeyResult]:
        """Yield what became of keys that a more specific key overrides, and of keys of clients that are not needed."""
        chosen = {one.key: one.written for one in self._given(flow)}
        for written in self.properties:
            key, _ = self._meaning(written, flow)
            if key is not None and chosen[key] != written:
                yield KeyResult(written, KeyOutcome.NO_MEANING, f"{chosen[key]} overrides it")
            elif key is None and written.startswith(f"{flow.source}."):
                yield KeyResult(written, KeyOutcome.NO_MEANING, "nothing is written to the source")
            elif key is None and self._is_of_target(written, flow):
                yield KeyResult(
                    written, KeyOutcome.NO_MEANING, "--bootstrap-server and --command-config name the destination"
                )

    def _is_of_target(self, written: str, flow: Flow) -> bool:
        ours = written.removeprefix(f"{flow.name}.")
        return written.startswith(f"{flow.target}.") or ("->" not in ours and ours.startswith(_TARGET_CLIENTS))

    def _meaning(self, written: str, flow: Flow) -> tuple[str | None, int]:
        """Return a key without prefixes, None if it does not apply to the flow, and its rank: the lower one counts."""
        if written == "clusters":
            return None, 0
        if "->" in written:
            ours = written.removeprefix(f"{flow.name}.")
            return (None, 0) if ours in {written, "enabled"} else self._client(ours, 0)
        owner = next((alias for alias in self.clusters if written.startswith(f"{alias}.")), None)
        if owner is None:
            return self._client(written, 20)
        return self._client(written.removeprefix(f"{owner}."), 10) if owner == flow.source else (None, 0)

    @staticmethod
    def _client(key: str, rank: int) -> tuple[str | None, int]:
        if key in _OWN:
            return key, rank
        if key.startswith(_TARGET_CLIENTS):
            return None, 0
        for place, begin in enumerate(_SOURCE_CLIENTS):
            if key.startswith(begin):
                inner = key.removeprefix(begin)
                return ("consumer.auto.offset.reset" if inner == "auto.offset.reset" else inner), rank + place
        return key, rank + len(_SOURCE_CLIENTS) // 3

    def _prefix(self, flow: Flow, naming: Mapping[str, Given]) -> tuple[dict[str, str], list[KeyResult]]:
        """Return the prefix of mirror topics' names, and what became of the keys that determine it."""
        policy, separator = naming.get(_POLICY), naming.get(_SEPARATOR)
        name = policy.value.strip() if policy else DEFAULT_POLICY[0]
        if name not in DEFAULT_POLICY:
            return {}, [
                key_result
                for one in naming.values()
                for key_result in _policy_key_result(one, is_identity=name in IDENTITY_POLICY)
            ]
        prefix = f"{flow.source}{separator.value.strip() if separator else '.'}"
        message = f"topic.prefix={prefix}"
        key_results = [
            KeyResult(one.written, KeyOutcome.TAKEN, message, properties=("topic.prefix",)) for one in naming.values()
        ]
        if policy is None:
            key_results.append(KeyResult(_POLICY, KeyOutcome.TAKEN, message + _NOTE, properties=("topic.prefix",)))
        return {"topic.prefix": prefix}, key_results


def _policy_key_result(given: Given, *, is_identity: bool) -> Iterator[KeyResult]:
    if is_identity:
        yield KeyResult(given.written, KeyOutcome.DEFAULT, "mirror topics have the names of their source topics")
    else:
        yield from convert([given]).key_results
