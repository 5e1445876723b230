"""Drafts of schemas: ``draft_schema`` reads the rows and says so, ``draft_private`` pays for what
it learns.
"""

from tasks.profile.draft import Draft, checked, draft_schema
from tasks.profile.private import draft_private
from tasks.profile.reasons import outward

__all__ = ["Draft", "checked", "draft_private", "draft_schema", "outward"]
