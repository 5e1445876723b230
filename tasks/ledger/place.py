"""Where the budget of a data set is kept: the one source of a ledger's address."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dpcore.errors import InputError
from tasks.home import Home

if TYPE_CHECKING:
    from tasks.config import TrainConfig
    from tasks.schema import Schema


def ledger_url(config: TrainConfig, schema: Schema, home: Home) -> str:
    """Where the budget is kept: data schema, configuration, ``DPFLOWS_LEDGER``, else the file in the home folder.

    Raises ``InputError`` where a configuration names another ledger than the schema: the budget goes with the data.
    """
    if schema.ledger and config.ledger.url and config.ledger.url != schema.ledger:
        raise InputError(
            f"Expected the ledger of data set {schema.name!r}, {schema.ledger}, got ledger.url={config.ledger.url!r}: "
            "a second ledger would be a second budget; leave ledger.url out, or move the budget in the data schema."
        )
    return schema.ledger or config.ledger.url or os.environ.get("DPFLOWS_LEDGER") or home.ledger_url
