"""Drafts of schemas: ``draft_schema`` reads the rows and says so, ``draft_private`` pays for what
it learns.
"""

from tasks.profile.draft import Draft, checked, draft_schema, outward
from tasks.profile.private import draft_private

__all__ = ["Draft", "checked", "draft_private", "draft_schema", "outward"]
