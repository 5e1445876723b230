"""From raw tables and raw matrices to design matrices, by declaration alone."""

from dpcore.features import Column
from dpcore.preprocess.encoder import Encoder
from dpcore.preprocess.tally import Tally

__all__ = ["Column", "Encoder", "Tally"]
