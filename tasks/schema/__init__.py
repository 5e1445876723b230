"""Schemas: what is declared about a data set, and where schemas are found."""

from tasks.schema.files import find_schema, known_schemas
from tasks.schema.model import ColumnSpec, LabelSpec, Schema

__all__ = ["ColumnSpec", "LabelSpec", "Schema", "find_schema", "known_schemas"]
