"""The stored parameters of a network against the card of its model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

STATE = "state.safetensors"


def state_fault(model: Mapping[str, bytes]) -> str:
    """What is wrong with the stored state of a network; empty for none, or where the model is no network."""
    try:
        card = json.loads(model.get("model.json", b"{}")).get("network")
    except (ValueError, AttributeError):
        return ""
    if card is None:
        return ""
    data = model.get(STATE)
    if data is None:
        return f"model/{STATE} is not stored"
    stated = card.get("state_sha256") if isinstance(card, dict) else None
    if sha256(data).hexdigest() != stated:
        return f"model/{STATE} is not the file whose hash model/model.json holds"
    return ""
