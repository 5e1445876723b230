"""Private training algorithms, one family a file. Importing this package fills the registry."""

from importlib import import_module
from pkgutil import iter_modules

from dpcore.algorithms.base import Algorithm, check_assumptions, make, register, registry

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Algorithm", "check_assumptions", "make", "register", "registry"]
