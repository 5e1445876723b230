"""What a training is of: one file a kind of model, and one entry here."""

from __future__ import annotations

from tasks.config import TrainConfig
from tasks.kinds.base import Kind
from tasks.kinds.network import Network
from tasks.kinds.sessions import Ranking
from tasks.kinds.table import Table
from tasks.schema import Schema

KINDS: tuple[Kind, ...] = (Network(), Ranking(), Table())


def kind_of(config: TrainConfig, schema: Schema) -> Kind:
    """The first kind that fits a training; a table does in the end."""
    return next(kind for kind in KINDS if kind.fits(config, schema))
