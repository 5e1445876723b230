"""What a training charges, from its public side: files, blocks, division and reading; no file is
opened.
"""

from __future__ import annotations

from typing import Any

from tasks.data import Reading
from tasks.kinds.base import Job, reading_of
from tasks.ledger import Blocks, Charge, RowFacts
from tasks.ledger.reader import LedgerReader
from tasks.profile.private import budgets_of
from tasks.readers import source_paths, test_files
from tasks.readers.once import AsRead
from tasks.readers.parts import Part


def require_files(job: Job) -> list[Part]:
    """The files of the training table, which may be none; raises ``InputError`` for one that is not
    there.

    Nothing is opened.
    """
    found: list[Part] = []
    if job.config.data.path is not None or job.schema.source.stands:
        found = source_paths(job.schema, job.config.data.path, job.schema.source.path)
    if job.config.data.test_path is not None:
        source_paths(job.schema, job.config.data.test_path, job.schema.split.path, "data.test_path")
    return found


def all_files(job: Job) -> list[Part]:
    """The files of the training and the test part; raises ``InputError`` for one that is not
    there.
    """
    found = require_files(job)
    return [*found, *test_files(job.schema, found, job.config.data.test_path)] if found else []


def require_public(job: Job, ledger: LedgerReader) -> None:
    """Raise ``InputError`` where the data are declared public and the ledger knows their name or a
    file as private.
    """
    if job.public:
        ledger.require_public(job.schema.name, all_files(job))


def require_declared(job: Job, ledger: LedgerReader) -> None:
    """Raise ``InputError`` where the ledger fixed other facts of the rows, or delta is not below
    1/n; reads no file.
    """
    ledger.require_facts(job.schema.name, RowFacts.of(job.schema), job.problem.n)


def charge_of(job: Job, reading: Reading | None = None, as_read: AsRead | None = None) -> Charge:
    """What a release of this job charges: the blocks that it reads, or those of another ``reading``
    of its data; ``as_read``, for files that were read by now, refuses others.
    """
    rows = reading_of(job) if reading is None else reading
    files, all_of_them = require_files(job), all_files(job)
    charge = Charge(
        dataset=job.schema.name,
        unit=job.problem.unit,
        adjacency=job.problem.adjacency,
        noise=job.config.privacy.noise,
        blocks=rows.blocks or ("all",),
        public=job.public,
        division=Blocks.of(job.schema),
        files=tuple(all_of_them),
        test_files=tuple(file for file in all_of_them if file not in files),
        config_sha256=job.config.sha256,
        facts=RowFacts.of(job.schema),
        reading=described_reading(job),
        as_read=as_read,
    )
    for file in charge.test_files:
        charge.require_own_test(budgets_of(file))
    return charge


def described_reading(job: Job) -> dict[str, Any]:
    """What a reservation records of what is read: public counts, the split and where test rows come
    from.
    """
    public, split = job.schema.public, job.schema.split
    stated = {
        "n": job.problem.n,
        "rows_per_block": public.rows_per_block,
        "rows_per_user": public.rows_per_user,
    }
    test = (
        "a file of its own"
        if job.config.data.test_path is not None or split.kind == "file"
        else split.kind
    )
    drawn = (
        {"by": list(split.by), "test_share": split.test_share, "salt": split.salt}
        if split.kind == "hash"
        else {}
    )
    known = {key: value for key, value in stated.items() if value is not None}
    return known | {"split": {"kind": split.kind, **drawn}, "test": test}
