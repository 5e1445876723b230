"""What the ledger says about a run: replayed as a whole, then its entry is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tasks.audit.subject import METRICS, STATEMENT, LedgerFacts
from tasks.ledger.chain import history
from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import GENESIS
from tasks.ledger.schema import DRAWN
from tasks.ledger.second_names import Others, others
from tasks.ledger.verify import Verification


def ledger_facts(files: Mapping[str, bytes], url: str | None) -> tuple[LedgerFacts | None, LedgerFacts | None]:
    """What the ledger says about the run's entry, and about the entry of its noisy metrics."""
    try:
        stated = json.loads(files[STATEMENT])["ledger"]
        entry, head = str(stated["entry"]), str(stated["head"])
    except (KeyError, ValueError, TypeError):
        return None, None
    if url is None:
        return None, None
    with LedgerReader(url) as ledger:
        report = ledger.check()
        facts = entry_facts(ledger, report, entry, head)
        try:
            metric = json.loads(files[METRICS])["ledger_entry"]
        except (KeyError, ValueError, TypeError):
            return facts, None
        return facts, entry_facts(ledger, report, str(metric), "")


def entry_facts(ledger: LedgerReader, report: Verification, entry: str, head: str) -> LedgerFacts:
    """One entry of a ledger whose replay gave ``report``."""
    with ledger.store.reading() as connection:
        records = [] if connection is None else history(connection, entry)
        also = Others() if connection is None else others(connection, records)
    hashes: dict[str, str] = {}
    body: dict[str, Any] = {}
    for record in records:
        stored = json.loads(record.body)
        if record.kind == "reserved":
            body = stored
        hashes |= stored.get("hashes", {})
    opened = None if not records else ledger.dataset(records[0].dataset)
    heads = {record.hash for record in records if record.kind == "reserved"}
    return LedgerFacts(
        shown=ledger.store.shown,
        ok=report.ok,
        problems=tuple(report.problems),
        states=tuple(record.kind for record in records if record.kind != DRAWN),
        dataset=records[0].dataset if records else "",
        adjacency=str(body.get("adjacency", "")),
        events_sha256=str(body.get("events", "")),
        hashes=hashes,
        head_found=head in heads and head != GENESIS,
        blocks=tuple(body.get("blocks", ())),
        seq=records[0].seq if records else 0,
        unpaid=also.unpaid,
        public_names=also.public,
        limited=opened is not None and opened.limited,
        private_as=ledger.private_as(entry),
    )
