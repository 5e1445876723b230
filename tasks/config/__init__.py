"""Configurations: the sections of a training, and one loader for all of them."""

from tasks.config.read import load_config, parse_config
from tasks.config.train import TrainConfig

__all__ = ["TrainConfig", "load_config", "parse_config"]
