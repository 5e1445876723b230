"""Schemas: what is declared about a data set, and where schemas are found."""

from tasks.schema.files import find_schema, known_schemas
from tasks.schema.model import Schema
from tasks.schema.sections import ColumnSpec, LabelSpec

__all__ = ["ColumnSpec", "LabelSpec", "Schema", "find_schema", "known_schemas"]
