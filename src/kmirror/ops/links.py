"""What to type when the link to a source is refused as a whole. Pure."""

from __future__ import annotations

from kmirror.errors import Reason

_REFUSED = (
    "`kmirror check --mirror {mirror}` says more; the copy goes on by itself when the source lets it in; to change how "
    "it logs in: kmirror config --mirror {mirror} --set KEY=VALUE, or where its secrets are kept, then "
    "kmirror run --mirror {mirror} --take-over"
)
_STEPS = {
    Reason.SOURCE_CLUSTER_CHANGED: (
        "nothing is copied from it, and the copy goes on by itself when the right one is there again; if that has "
        "moved: kmirror config --mirror {mirror} --set bootstrap.servers=HOST:PORT, then "
        "kmirror run --mirror {mirror} --take-over"
    ),
}


def refused_text(message: str | None, reason: Reason | None, mirror: str) -> str:
    """Return what is told of a link that is refused: what happened, since when where that is known, what to type."""
    step = _REFUSED if reason is None else _STEPS.get(reason, _REFUSED)
    return f"{message or 'the source refuses us'}; {step.format(mirror=mirror)}"
