"""The answer for each path of the HTTP server of `run` and `serve`. No sockets here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Protocol

from kmirror import __version__, columns
from kmirror.columns import Column, R, Table, Type, document
from kmirror.errors import ExitCode
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.status.partition_row import PARTITIONS, PartitionRow
from kmirror.status.topic_status import TOPICS, TopicStatus
from kmirror.web.charge_answers import IN_CHARGE_PATH, all_in_charge, in_charge_answer
from kmirror.web.exposition import exposition
from kmirror.web.look import page_policy, page_text
from kmirror.web.past import HISTORY, Past
from kmirror.web.recent import Events
from kmirror.web.requests import Answer, BadRequestError, HttpRequest
from kmirror.web.run_metrics import PHASES
from kmirror.web.served import (
    CLUSTERS,
    SERVED_MIRRORS,
    WATCHING,
    ServedMirror,
    ServedStatus,
    StuckError,
    documents,
    in_clusters,
)

_HTML = "text/html; charset=utf-8"
_NOT_COPYING = "copying has not begun"


class Service(Protocol):
    """What is served: of a run, or of watched clusters. For any thread."""

    @property
    def stuck(self) -> str | None:
        """Why the service counts as stuck; None while it runs."""

    @property
    def alive(self) -> str:
        """What runs while it is not stuck, as a sentence."""

    def status(self, mirror: str | None = None, *, only_sums: bool = False) -> ServedStatus:
        """Return what is known now; others than a named mirror may be left out.

        Of all mirrors with `only_sums` it may be seconds old. Raises StuckError.
        """

    @property
    def charge(self) -> ChargeKeeper | None:
        """Who is in charge; None where that is not watched."""

    def events(self) -> Sequence[tuple[str | None, Events]]:
        """Return the recent events of each cluster, with its name; None for that of `run`."""


def _while_copying(
    run: ServedStatus, table: Table[R], rows: Callable[[ServedMirror], Iterable[R]]
) -> list[dict[str, Any]] | None:
    """Return rows of mirrors as JSON documents, with their clusters; None while the run waits."""
    found = ((one.cluster, row) for one in run.mirrors for row in rows(one))
    return documents(table, found if run.waits_for is None else None)


def _mirrors(run: ServedStatus) -> list[dict[str, Any]] | None:
    if run.waits_for is not None:
        return None
    return [SERVED_MIRRORS.document(one) for one in run.mirrors if one.status is not None]


#: The keys of /fleet.json.
FLEET: tuple[Column[ServedStatus], ...] = (
    Column("version", columns.TEXT, "the version of kmirror", lambda _: __version__),
    Column(
        "phase",
        Type("string", "phase", codes=(*PHASES, WATCHING)),
        f"what `run` is doing; {WATCHING} for `serve`",
        lambda run: run.phase,
    ),
    Column("asOf", columns.TIME, "the time of this snapshot", lambda run: run.time_ms),
    Column(
        "ready",
        columns.FLAG,
        "what /readyz answers: of `run`, whether records flow, or all topics are STOPPED, as `wait --for healthy`"
        " judges it; of `serve`, whether all clusters were read within the last 10 seconds",
        lambda run: run.missing is None,
    ),
    Column(
        "missing",
        columns.TEXT.null_when("`ready` is true"),
        "why it is not, a line for each mirror or cluster",
        lambda run: run.missing,
    ),
    Column(
        "clusters",
        CLUSTERS.type,
        "the clusters that `serve` watches; none for `run`",
        lambda run: run.clusters or (),
    ),
    Column(
        "mirrors",
        SERVED_MIRRORS.type.null_when(_NOT_COPYING),
        "the mirrors that this engine copies, or of the watched clusters, as `list` shows them",
        _mirrors,
    ),
)


def _status_keys(topic: str | None = None, *, only_sums: bool = False) -> tuple[Column[ServedStatus], ...]:
    """Return the keys of /status.json, with the rows of one topic only if it is given."""

    def is_chosen(row: PartitionRow | TopicStatus) -> bool:
        return topic in (None, row.topic)

    return (
        *FLEET,
        Column(
            "partitions",
            in_clusters(PARTITIONS).null_when(_NOT_COPYING),
            "their partitions, as `describe` shows them; none with `?partitions=false`, those of one topic with"
            " `?topic=T`",
            lambda run: _while_copying(
                run, PARTITIONS, lambda one: filter(is_chosen, () if only_sums else one.partitions)
            ),
        ),
        Column(
            "topics",
            in_clusters(TOPICS).null_when(_NOT_COPYING),
            "their topics, as `top` shows them",
            lambda run: _while_copying(run, TOPICS, lambda one: filter(is_chosen, one.topics)),
        ),
    )


STATUS = _status_keys()


def answer(service: Service, target: str, accept: str) -> Answer:
    """Return the answer for the target of a request and an Accept header."""
    request = HttpRequest.of(target, accept)
    found = ROUTES.get(request.path) or _below(request.path)
    if found is None:
        return Answer.of_text(HTTPStatus.NOT_FOUND, f"no such path; there are: {', '.join(ROUTES)}")
    is_json = request.path.endswith(".json")
    try:
        return found(service, request)
    except BadRequestError as bad:
        code = ExitCode.UNREACHABLE if bad.status is HTTPStatus.SERVICE_UNAVAILABLE else ExitCode.USAGE
        status, why = bad.status, str(bad)
    except StuckError as stuck:
        status, code, why = HTTPStatus.SERVICE_UNAVAILABLE, ExitCode.UNEXPECTED, str(stuck)
    return Answer.of_error(status, code, why) if is_json else Answer.of_text(status, why)


def _below(path: str) -> Route | None:
    """Return the route whose path ends in a slash and begins this one."""
    return next((found for prefix, found in ROUTES.items() if prefix.endswith("/") and _is_below(path, prefix)), None)


def _is_below(path: str, prefix: str) -> bool:
    return prefix != "/" and path.startswith(prefix)


def _page(service: Service, request: HttpRequest) -> Answer:
    return Answer(HTTPStatus.OK, _HTML, page_text(), {"Content-Security-Policy": page_policy()})


def _health(service: Service, request: HttpRequest) -> Answer:
    if (stuck := service.stuck) is not None:
        return Answer.of_text(HTTPStatus.SERVICE_UNAVAILABLE, stuck)
    return Answer.of_text(HTTPStatus.OK, service.alive)


def _readiness(service: Service, request: HttpRequest) -> Answer:
    status = service.status(only_sums=True)
    if status.missing is not None:
        return Answer.of_text(HTTPStatus.SERVICE_UNAVAILABLE, status.missing)
    return Answer.of_text(HTTPStatus.OK, status.well)


def _chosen(status: ServedStatus, request: HttpRequest) -> ServedStatus:
    """Return a status with only the mirrors that a request names.

    Raises:
        BadRequestError: there are none, or a cluster that may have them was never read.
    """
    cluster, mirror = request.query.get("cluster"), request.query.get("mirror")
    if (cluster is None and mirror is None) or status.waits_for is not None:
        return status
    found = tuple(one for one in status.mirrors if mirror in (None, one.name) and cluster in (None, one.cluster))
    watched = [one for one in status.clusters or () if cluster in (None, one.name)]
    is_known = found or mirror in status.not_copied or (mirror is None and watched)
    if not is_known:
        unread = [f"{one.name}: {one.missing}" for one in watched if one.as_of_ms is None]
        if unread:
            raise BadRequestError(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(unread))
        named = f"no mirror {mirror}" if mirror is not None else "no mirror"
        where = f" of cluster {cluster}" if cluster is not None else ""
        raise BadRequestError(HTTPStatus.NOT_FOUND, f"there is {named}{where} here")
    return replace(status, mirrors=found)


def _fleet(service: Service, request: HttpRequest) -> Answer:
    return Answer.of_json(document(FLEET, service.status(only_sums=True)))


def _status(service: Service, request: HttpRequest) -> Answer:
    only_sums, topic = request.query.get("partitions") == "false", request.query.get("topic")
    status = service.status(request.query.get("mirror"), only_sums=only_sums)
    keys = _status_keys(None if only_sums else topic, only_sums=only_sums)
    return Answer.of_json(document(keys, _chosen(status, request)))


def _history(service: Service, request: HttpRequest) -> Answer:
    from_ms, until_ms = request.number("from"), request.number("until")
    cluster, mirror = request.query.get("cluster"), request.query.get("mirror")
    status = _chosen(service.status(mirror, only_sums=True), request)
    events = [one for one in service.events() if cluster in (None, one[0])]
    return Answer.of_json(document(HISTORY, Past.of(status, events, mirror=mirror, from_ms=from_ms, until_ms=until_ms)))


def _metrics(service: Service, request: HttpRequest) -> Answer:
    body, content_type = exposition(service.status(only_sums=True), request.accept)
    return Answer(HTTPStatus.OK, content_type, body)


Route = Callable[[Service, HttpRequest], Answer]
#: A path that ends in a slash is that of all below it, except the first.
ROUTES: Mapping[str, Route] = {
    "/": _page,
    "/healthz": _health,
    "/readyz": _readiness,
    "/fleet.json": _fleet,
    "/status.json": _status,
    "/history.json": _history,
    "/in-charge.json": lambda service, _: all_in_charge(service.charge),
    IN_CHARGE_PATH: lambda service, request: in_charge_answer(service.charge, request),
    "/metrics": _metrics,
}
