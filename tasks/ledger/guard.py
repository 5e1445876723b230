"""What each opening of a ledger asks: does it hold the head that was kept beside it, and did it go on honestly?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, select

from tasks.ledger import chain, files, schema
from tasks.ledger.records import Record
from tasks.ledger.witness import Damaged, Head, Witness, key_digest

RESTORE = "restore the file that holds it (`dpflows ledger verify --head HASH` tells which one does)"


def kept(witness: Witness) -> tuple[Head | None, str]:
    """The head that is kept, and what is wrong with its file. Read it before the view of the ledger is taken."""
    try:
        return witness.read(), ""
    except Damaged as error:
        return None, (
            f"its head file {witness.path} is damaged ({error}): check the ledger with `dpflows ledger verify --head "
            "HASH` and a head from a statement or bundle, then remove that file"
        )


def compare(connection: Connection | None, witness: Witness, head: Head | None) -> str:
    """What is wrong with a ledger (None: there is none) whose kept head is ``head``; empty for nothing.

    Records behind the head are those of a process that was killed before it kept it, or of somebody who wrote them by
    hand: their hashes and what they give back are looked at here, everything else by ``verify``.
    """
    if head is None:
        return ""
    last = None if connection is None else newest(connection)
    if connection is None or last is None or last[0] < head.seq:
        return _ends(witness, head, last[0] if last else 0)
    if last == (head.seq, head.hash):
        return ""
    table = schema.records
    rows = connection.execute(select(table).where(table.c.seq >= head.seq).order_by(table.c.seq))
    return next(_faults(connection, head, [Record(*row) for row in rows], last[0]), "")


def compare_key(connection: Connection, head: Head | None) -> str:
    """What is wrong with the key of the fingerprints, which no record holds; empty for nothing."""
    if head is None or key_digest(files.key_of(connection)) == head.key:
        return ""
    return f"the key of its fingerprints was changed: files are not known again; {RESTORE}"


def newest(connection: Connection) -> tuple[int, str] | None:
    """``chain.newest`` in plain SQL: each transaction asks twice."""
    row = connection.exec_driver_sql("SELECT seq, hash FROM ledger_records ORDER BY seq DESC LIMIT 1").one_or_none()
    return None if row is None else (row[0], row[1])


def _ends(witness: Witness, head: Head, seq: int) -> str:
    return (
        f"it ends at record {seq}, but its head file {witness.path} holds record {head.seq} ({head.hash[:16]}): "
        f"records were lost, or an older copy was put back; {RESTORE}, or remove that file where it is lost for good: "
        "what was charged since then is not counted any more"
    )


def _faults(connection: Connection, head: Head, records: Sequence[Record], last: int) -> Iterator[str]:
    at = records[0] if records else None
    if at is None or at.seq != head.seq or at.hash != head.hash:
        yield f"record {head.seq} is not the one whose hash {head.hash[:16]} was kept when it was written; {RESTORE}"
        return
    previous = head.hash
    for record in records[1:]:
        if record.previous != previous or record.hash != record.expected_hash():
            yield f"record {record.seq} does not follow from the one before it; {RESTORE}"
            return
        previous = record.hash
        if record.kind == "cancelled" and chain.drawn_at(connection, record.entry):
            yield given_back(record, chain.drawn_at(connection, record.entry))
    if len(records) != last - head.seq + 1:
        yield f"records between {head.seq} and {last} are missing; {RESTORE}"


def given_back(record: Record, drawn: int) -> str:
    """What is wrong with a cancellation after the first draw."""
    return (
        f"record {record.seq} cancels entry {record.entry} of {record.dataset!r}, whose first draw is record {drawn}: "
        "what was drawn stays charged, and the units that it gave back are not there"
    )
