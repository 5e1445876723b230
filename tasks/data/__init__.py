"""Load declared data: rows to design matrix, labels, split, counts."""

from tasks.data.load import Loaded, Report, load

__all__ = ["Loaded", "Report", "load"]
