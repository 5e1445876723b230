"""A reservation: budget that is already on disk, waiting for the run that draws noise against it."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from dpcore.errors import DPFlowsError, InputError
from tasks.ledger.owner import this_process

if TYPE_CHECKING:
    from tasks.ledger.ledger import Ledger


class Reservation:
    """Charged budget of one run. ``on_charge`` must be called before each release draws anything.

    It ends in exactly one of: ``commit`` (the result exists), ``forfeit`` (charged in full, no result), ``cancel``
    (gives the budget back; only by the process that reserved, and only before the first ``on_charge``). Used as a
    context manager it cancels or forfeits what was left open. A process that dies leaves it charged.
    """

    def __init__(self, ledger: Ledger, entry_id: str, dataset: str, head: str, notes: tuple[str, ...] = ()) -> None:
        self.entry_id = entry_id
        self.dataset = dataset
        self.head = head  # hash of the reserving record, for the statement
        self.notes = notes
        self.state = "reserved"
        self._ledger = ledger
        self._owner = this_process()
        self._draws = 0
        self._open = True
        self._lock = Lock()

    @property
    def draws(self) -> int:
        """How many releases were charged so far in this process."""
        return self._draws

    def on_charge(self) -> None:
        """Count one release, before its rows are drawn. Raises when the reservation is closed or another process's.

        The first one is a record of its own, on disk when this returns: the entry cannot be cancelled from there on.
        """
        self._require_owner("draw on")
        with self._lock:
            if not self._open:
                raise DPFlowsError(
                    f"Expected an open reservation, got {self._words()}; reserve again: a retry is a new charge."
                )
            if not self._draws:
                self._ledger._note_draw(self.entry_id, self.dataset)
            self._draws += 1

    def commit(self, hashes: dict[str, str] | None = None) -> str:
        """Record that the run ended, with the SHA-256 of its ``weights``, ``statement``, ...; return the new head."""
        self._require_owner("commit")
        self._shut()
        return self._close("committed", {"hashes": _checked(hashes), "draws": self._draws})

    def forfeit(self, reason: str) -> str:
        """Record that the run gave no result; it stays charged in full. Return the new head."""
        self._require_owner("forfeit")
        self._shut()
        return self._close("forfeited", {"reason": reason, "by": "owner", "draws": self._draws})

    def cancel(self, reason: str = "cancelled before the first release") -> str:
        """Give the budget back: nothing was drawn. Raises when a release was charged. Return the new head."""
        self._require_owner("cancel")
        with self._lock:
            if self._draws:
                raise DPFlowsError(
                    f"Expected no charged release for a cancellation, got {self._words()} after {self._draws}; what "
                    "was drawn stays charged: forfeit it."
                )
            self._open = False  # from here on nothing can be drawn, even if the write below fails
        return self._close("cancelled", {"reason": reason})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.state != "reserved":
            return
        reason = f"ended by {kind.__name__}" if kind else "left without a result"
        try:
            if self._draws:
                self.forfeit(reason)
            else:
                self.cancel(reason)
        except DPFlowsError as failed:
            # The budget stays reserved, which is charged in full; the first error says why the run ended.
            if error is None:
                raise
            error.add_note(str(failed))

    def __reduce__(self) -> Any:
        raise TypeError("A reservation belongs to the process that made it and cannot be pickled.")

    def _shut(self) -> None:
        with self._lock:
            self._open = False

    def _close(self, kind: str, body: dict[str, Any]) -> str:
        head = self._ledger._close_entry(self.entry_id, self.dataset, kind, body)
        self.state = kind
        return head

    def _require_owner(self, verb: str) -> None:
        if this_process() != self._owner:
            raise DPFlowsError(
                f"Expected the process that reserved {self.entry_id} to {verb} it, got process "
                f"{this_process()['pid']}; run the training in the process that reserves (pid {self._owner['pid']})."
            )

    def _words(self) -> str:
        return f"entry {self.entry_id} of {self.dataset!r} ({self.state})"


def _checked(hashes: dict[str, str] | None) -> dict[str, str]:
    for name, value in (hashes or {}).items():
        if len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise InputError(f"Expected the SHA-256 of {name!r} as 64 hex digits, got hashes[{name!r}]={value!r}.")
    return dict(hashes or {})
