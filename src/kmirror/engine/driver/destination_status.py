"""Whether a mirror's destination answers, as who follows its state finds out; changes are announced."""

from __future__ import annotations

from kmirror.cluster.connection import WrongClusterError
from kmirror.engine.status.health import LANE_SILENCE_SECONDS
from kmirror.engine.status.journal import MirrorJournal, Level
from kmirror.errors import KmirrorError, OutcomeUnknown


class DestinationStatus:
    """Follow the status of one mirror's destination."""

    def __init__(self, mirror: str, journal: MirrorJournal) -> None:
        self._mirror = mirror
        self._journal = journal
        self._error: KmirrorError | OutcomeUnknown | None = None
        self._since = 0.0
        self._is_announced = False

    def take(self, error: KmirrorError | OutcomeUnknown | None, at: float) -> None:
        """Take why it did not answer at a time; None if it did."""
        if error is not None and self._error is None:
            self._since = at
        self._error = error
        if error is None and self._is_announced:
            self._is_announced = False
            self._journal.note(f"the destination of {self._mirror} answers again")
        elif error is not None and not self._is_announced and self.trouble(at) is not None:
            self._is_announced = True
            is_wrong = isinstance(error, WrongClusterError)
            self._journal.note(
                f"the destination of {self._mirror} does not answer: {error}",
                Level.ERROR if is_wrong else Level.WARNING,
            )

    def trouble(self, at: float) -> str | None:
        """Return why nothing is known of the lanes; None if the destination answers, or has just stopped to."""
        if self._error is None:
            return None
        lasts = isinstance(self._error, WrongClusterError) or at - self._since > LANE_SILENCE_SECONDS
        return str(self._error) if lasts else None
