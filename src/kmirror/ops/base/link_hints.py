"""What to type when the link to a source is refused as a whole. Pure."""

from __future__ import annotations

from kmirror.commands import on_mirror
from kmirror.errors import Reason

_REFUSED = (
    "`{check}` shows the cause; copying resumes automatically once the source accepts the"
    " connection; to change its credentials: {config} --set KEY=VALUE, or change where its"
    " secrets are stored; a running engine picks that up within seconds, except for environment variables"
)
_STEPS = {
    Reason.SOURCE_CLUSTER_CHANGED: (
        "nothing is copied from it, and copying resumes automatically once the right cluster is back; if its address"
        " has changed: {config} --set bootstrap.servers=HOST:PORT"
    )
}


def refused_text(message: str | None, reason: Reason | None, mirror: str) -> str:
    """Return the text on a refused link: what happened, since when if known, what to type."""
    step = _REFUSED if reason is None else _STEPS.get(reason, _REFUSED)
    what = step.format(check=on_mirror("check", mirror), config=on_mirror("config", mirror))
    return f"{message or 'the source refuses the connection'}; {what}"
