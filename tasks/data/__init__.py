"""Load declared data: rows to design matrix, labels, split, counts."""

from tasks.data.load import Loaded, Report, load
from tasks.data.reading import Reading, peek

__all__ = ["Loaded", "Reading", "Report", "load", "peek"]
