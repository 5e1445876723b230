"""Rows of a view that is made of several tables: what each is made of was declared, and is said."""

from __future__ import annotations

from dpcore.train import Planned
from tasks.kinds.base import Job, Words
from tasks.options.base import Option


class Joined(Option):
    """``source.rows_by_user``: what one person moves follows from a declaration, which a statement
    names.
    """

    name = "source.rows_by_user"
    asked = "schema.source.rows_by_user"

    def words(self, job: Job, planned: Planned | None) -> Words:
        view = job.schema.source.table
        text = (
            f"The rows are those of the database view {view}, which may join and sum rows of "
            "several tables. That each of them follows from the records of the one person whom it "
            "names, and from no one else's, was declared (source.rows_by_user) and not checked; "
            "without it the guarantee does not hold."
        )
        return Words(limits=(text,), warnings=(text,) if planned is None else ())
