"""Load declared data: rows to design matrix, labels, split, counts."""

from tasks.data.load import Loaded, Report, load
from tasks.data.peek import peek

__all__ = ["Loaded", "Report", "load", "peek"]
