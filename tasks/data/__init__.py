"""Load declared data: rows to design matrix, labels, split, counts."""

from tasks.data.load import Loaded, Report, load, peek
from tasks.data.reading import Reading

__all__ = ["Loaded", "Reading", "Report", "load", "peek"]
