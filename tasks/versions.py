"""The version of a stored format: the number itself, and nothing that Python takes for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator


def _plain(value: Any) -> Any:
    """JSON's true is no number, though it compares equal to 1."""
    if isinstance(value, bool):
        raise ValueError("expected the number 1, got a truth value")
    return value


First = Annotated[Literal[1], BeforeValidator(_plain)]
