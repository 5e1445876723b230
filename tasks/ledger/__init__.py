"""The budget ledger: what each data set was promised, what was charged to it, where it is kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dpcore.errors import DPFlowsError, InputError
from tasks.home import Home
from tasks.ledger.blocks import Blocks
from tasks.ledger.charge import Charge, charged_once
from tasks.ledger.facts import RowFacts
from tasks.ledger.ledger import Ledger
from tasks.ledger.reader import Window
from tasks.ledger.records import Dataset
from tasks.ledger.reservation import Reservation
from tasks.ledger.store import LedgerUnavailable
from tasks.ledger.verify import Verification

if TYPE_CHECKING:
    from tasks.config import TrainConfig
    from tasks.schema import Schema

__all__ = [
    "Blocks",
    "Charge",
    "Dataset",
    "Ledger",
    "LedgerUnavailable",
    "Reservation",
    "RowFacts",
    "Verification",
    "Window",
    "charged_once",
    "ledger_for",
    "ledger_of_run",
    "ledger_url",
]


def ledger_url(config: TrainConfig, schema: Schema, home: Home) -> str:
    """Where the budget is kept: data schema, configuration, ``DPFLOWS_LEDGER``, else the file in
    the home folder.

    Raises ``InputError`` where a configuration names another ledger than the schema: the budget
    goes with the data.
    """
    if schema.ledger and config.ledger.url and config.ledger.url != schema.ledger:
        raise InputError(
            f"Expected the ledger of data set {schema.name!r}, {schema.ledger}, got "
            f"ledger.url={config.ledger.url!r}: a second ledger would be a second budget; leave "
            "ledger.url out, or move the budget in the data schema."
        )
    return ledger_for(schema, home, config.ledger.url)


def ledger_for(schema: Schema | None, home: Home, otherwise: str | None = None) -> str:
    """Where the budget is kept without a configuration: ``otherwise`` speaks where the data schema
    names no ledger.
    """
    declared = schema.ledger if schema is not None else None
    return declared or otherwise or os.environ.get("DPFLOWS_LEDGER") or home.ledger_url


def ledger_of_run(values: dict[str, Any], home: Home) -> str:
    """Where the budget of a run is kept whose stored configuration is ``values``.

    A schema that is gone, or a configuration that no longer reads, names none: then as for no
    schema.
    """
    from tasks.config import parse_config
    from tasks.schema import find_schema

    try:
        config = parse_config(values)
        return ledger_url(config, find_schema(config.data.name), home)
    except DPFlowsError:
        return ledger_for(None, home)
