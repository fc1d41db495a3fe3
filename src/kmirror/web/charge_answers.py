"""The answers that say which cluster is in charge: for the health checks of balancers, and for scripts.

A balancer asks once for each cluster behind it, and sends clients where the answer is 200. A wrong yes would divide the
clients, so whatever is unclear about a question is a no, too.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import unquote

from kmirror.ops.show.charge_keeper import IN_CHARGE, ChargeKeeper
from kmirror.web.requests import Answer, BadRequestError, HttpRequest

#: Below it are the mirrors, each a path.
IN_CHARGE_PATH = "/in-charge/"
_PARAMETERS = frozenset({"cluster", "topic", "unsure"})
_LAST = "last"


def in_charge_answer(keeper: ChargeKeeper | None, request: HttpRequest) -> Answer:
    """Answer 200 if a cluster is in charge of a mirror's topics, 503 if it is not or that is not certain.

    Raises BadRequestError: the question is not clear, or nothing is watched here.
    """
    watched = _watched(keeper)
    if unknown := sorted(request.query.keys() - _PARAMETERS):
        raise BadRequestError(HTTPStatus.BAD_REQUEST, f"no such parameter: {', '.join(unknown)}")
    if (unsure := request.query.get("unsure", _LAST)) != _LAST:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, f"unsure={unsure}: there is only unsure={_LAST}")
    names, name = watched.names, request.query.get("cluster")
    if name is None and len(names) > 1:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, f"say which cluster: cluster= one of {', '.join(names)}")
    name = name or names[0]
    if name not in names:
        raise BadRequestError(HTTPStatus.NOT_FOUND, f"no cluster {name} is watched here, but {', '.join(names)}")
    mirror = unquote(request.path.removeprefix(IN_CHARGE_PATH))
    found = watched.answer(mirror, name, request.query.get("topic"), or_last="unsure" in request.query)
    status = HTTPStatus.OK if found.in_charge else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer.of_json(IN_CHARGE.document(found), status)


def all_in_charge(keeper: ChargeKeeper | None) -> Answer:
    """Answer with both ends of each mirror. Raises BadRequestError: nothing is watched here."""
    return Answer.of_json([IN_CHARGE.document(found) for found in _watched(keeper).answers()])


def _watched(keeper: ChargeKeeper | None) -> ChargeKeeper:
    if keeper is None:
        why = "an engine does not know which cluster is in charge; `kmirror serve` answers that"
        raise BadRequestError(HTTPStatus.NOT_FOUND, why)
    return keeper
