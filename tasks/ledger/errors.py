"""Errors of the ledger that are not about the input or the budget: the store itself failed."""

from dpcore.errors import DPFlowsError


class LedgerUnavailable(DPFlowsError):
    """The ledger could not be read or written; the message says what happened to the budget."""


class LedgerDamaged(LedgerUnavailable):
    """The ledger can be opened but is not what was written: records are missing, or its bytes were changed."""

    exit_code = 4
