"""The changes of `apply` as rows: what was planned for which mirror, and how it ended."""

from __future__ import annotations

from enum import StrEnum

from kmirror.columns import REASON, TEXT, Table, columns_of, one_of, shown, table_row
from kmirror.errors import Reason
from kmirror.ops.base.topic_results import OUTCOME, Outcome
from kmirror.words import one_line


class ChangeAction(StrEnum):
    """What a change does, by the command that does the same."""

    CREATE = "CREATE"
    CONFIG = "CONFIG"
    ADD = "ADD"
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    REMOVE = "REMOVE"
    DELETE = "DELETE"
    #: The file asks for it, and it cannot be done, or not without being named.
    REFUSE = "REFUSE"


@table_row
class ChangeRow:
    """One change of a mirror, or one line of it."""

    mirror: str = shown(TEXT, "the mirror", "MIRROR")
    action: ChangeAction = shown(one_of("action", ChangeAction), "what it does")
    change: str = shown(TEXT, "the change as people review it", "CHANGE", of_row=lambda row: one_line(row.change))
    result: Outcome = shown(OUTCOME, "how it ended", "RESULT")
    reason: Reason | None = shown(REASON.null_when("there is no code for it"), "why, as a code", default=None)
    message: str | None = shown(
        TEXT.null_when("there is nothing to report"), "what is wrong, as a sentence", default=None
    )
    hint: str | None = shown(TEXT.null_when("there is nothing to do"), "what to type, or to do", default=None)


CHANGES: Table[ChangeRow] = Table(columns_of(ChangeRow), "MIRROR RESULT CHANGE")
