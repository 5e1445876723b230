"""The ledger as JSON lines: everything that a replay needs, and nothing that keys the fingerprints of files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import select

from dpcore.errors import InputError
from tasks.ledger import schema
from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import Record, canonical
from tasks.ledger.verify import Verification, replay

FORMAT = 1


def export_lines(ledger: LedgerReader) -> Iterator[str]:
    """Yield a heading, each list of mechanisms, then each record of the chain, one JSON object a line."""
    with ledger.store.reading() as connection:
        yield canonical({"type": "ledger", "schema_version": FORMAT})
        if connection is None:
            return
        for row in connection.execute(select(schema.events).order_by(schema.events.c.sha256)):
            yield canonical({"type": "events", **row._mapping})
        for row in connection.execute(select(schema.records).order_by(schema.records.c.seq)):
            yield canonical({"type": "record", **row._mapping})


def verify_lines(lines: Iterable[str], head: str | None = None) -> Verification:
    """Replay an export without the database; raises InputError for lines that are no export."""
    texts: dict[str, str] = {}
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        item = _item(number, line)
        kind = item.pop("type")
        try:
            if kind == "events":
                texts[item["sha256"]] = item["text"]
            elif kind == "record":
                records.append(Record(**item))
            elif kind != "ledger" or item.get("schema_version") != FORMAT:
                raise InputError(
                    f"Expected an export of version {FORMAT}, got {kind!r} in line {number}; export it again."
                )
        except (KeyError, TypeError) as error:
            raise InputError(
                f"Expected all fields of {kind!r} in line {number}, got {error}; export it again."
            ) from None
    return replay(records, texts.get, None, head)


def _item(number: int, line: str) -> dict[str, Any]:
    try:
        item = json.loads(line)
        if isinstance(item, dict) and "type" in item:
            return item
    except json.JSONDecodeError:
        pass
    raise InputError(
        f"Expected JSON lines of `dpflows ledger export`, got line {number}: {line[:40]!r}; export it again."
    )
