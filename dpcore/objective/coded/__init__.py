"""Rows as codes: one small number a column in place of the entries of a design matrix, and the sums
over them.
"""

from dpcore.objective.coded.codes import Columns, Layout, Table
from dpcore.objective.coded.rows import CodedRows

__all__ = ["CodedRows", "Columns", "Layout", "Table"]
