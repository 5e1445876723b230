"""From raw tables and raw matrices to design matrices, by declaration alone."""

from __future__ import annotations

import json

from dpcore.features import Column, FeatureGroup
from dpcore.preprocess.design import EncodingReport
from dpcore.preprocess.encoder import Encoder
from dpcore.preprocess.matrix import MatrixEncoder

__all__ = [
    "Column",
    "Encoder",
    "EncodingReport",
    "FeatureGroup",
    "MatrixEncoder",
    "encoder_from_json",
]


def encoder_from_json(text: str) -> Encoder | MatrixEncoder:
    """The encoder that ``to_json`` of either kind stored."""
    return (MatrixEncoder if json.loads(text).get("encoder") == "matrix" else Encoder).from_json(
        text
    )
