"""Reports of one run: its figure of the budget, and one self-contained page for the operator."""

from tasks.drawing.curves import budget_figure, changing

__all__ = ["budget_figure", "changing"]
