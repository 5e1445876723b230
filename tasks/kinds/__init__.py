"""What a training is of: one file a kind of model, and one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from runpy import run_path
from typing import Any

from dpcore.errors import unknown_name
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


def own_scores(card: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The scores of the kind that a stored model's card names, by the kind's own file; None for
    those that the stored scorer has itself.

    Raises ``InputError`` for a kind that is not registered here.
    """
    if "kind" not in card:
        return None
    files = {kind.name: kind.scores for kind in KINDS if kind.scores is not None}
    if card["kind"] not in files:
        raise unknown_name("kind of model with own scores", card["kind"], files)
    scored: Callable[..., Any] = run_path(str(files[card["kind"]]))["scored"]
    return scored
