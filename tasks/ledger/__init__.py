"""The budget ledger: what was promised for each data set, and every run that was charged against
it.
"""

from tasks.ledger.blocks import Blocks
from tasks.ledger.charge import Charge, charged_once
from tasks.ledger.facts import RowFacts
from tasks.ledger.ledger import Ledger
from tasks.ledger.reader import Window
from tasks.ledger.records import Dataset
from tasks.ledger.reservation import Reservation
from tasks.ledger.store import LedgerUnavailable
from tasks.ledger.verify import Verification

__all__ = [
    "Blocks",
    "Charge",
    "Dataset",
    "Ledger",
    "LedgerUnavailable",
    "Reservation",
    "RowFacts",
    "Verification",
    "Window",
    "charged_once",
]
