"""Fill a ledger with many entries in one transaction, in the form in which single reservations
write them.
"""

from __future__ import annotations

from uuid import UUID

from dpcore.accounting import Events
from tasks.ledger import Ledger, chain, schema
from tasks.ledger.ledger import _charge
from tasks.ledger.records import next_record
from tasks.ledger.reservation import this_process


def fill(ledger: Ledger, dataset: str, mixes: list[Events], entries: int) -> None:
    """Add ``entries`` reserved and committed entries of the one block, taking ``mixes`` in turn."""
    target = ledger.dataset(dataset)
    charges = [_charge(target, mix, ("all",), True) for mix in mixes]
    owner = this_process()
    records, balances, spent = [], [], 0
    with ledger.store.writing() as connection:
        last = chain.newest(connection)
        for mix, (body, _) in zip(mixes, charges, strict=True):
            chain.store_events(connection, body["events"], mix.to_json())
        for number in range(entries):
            body, units = charges[number % len(charges)]
            entry = UUID(int=number).hex
            reserved = next_record(
                last, "reserved", dataset, body | {"hashes": {}, "owner": owner}, entry
            )
            before = (reserved.seq, reserved.hash)
            committed = next_record(before, "committed", dataset, {"hashes": {}, "draws": 1}, entry)
            last = (committed.seq, committed.hash)
            spent += units
            records += [reserved._asdict(), committed._asdict()]
            balances.append(
                {
                    "dataset": dataset,
                    "block": "all",
                    "ordinal": number + 1,
                    "seq": reserved.seq,
                    "units": spent,
                }
            )
        connection.execute(schema.records.insert(), records)
        connection.execute(schema.balances.insert(), balances)
