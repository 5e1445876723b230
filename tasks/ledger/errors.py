"""Errors of the ledger that are not about the input or the budget: the store itself failed."""

from dpcore.errors import DPFlowsError


class LedgerUnavailable(DPFlowsError):
    """The ledger could not be read or written; the message says what happened to the budget."""
