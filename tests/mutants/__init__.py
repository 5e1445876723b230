"""The faults that ``mutate.py`` plants: one line of one file each, and the tests that must
notice.
"""

from __future__ import annotations

from importlib.util import find_spec

from tests.mutants import (
    accounting,
    additive,
    audit,
    charged,
    comparisons,
    home,
    identity,
    kinds,
    large,
    learning,
    ledger,
    mechanisms,
    networks,
    options,
    prices,
    release,
    rounding,
    tables,
    tuning,
)
from tests.mutants.mutant import Mutant

# Tests of networks skip without torch, and what skips kills nothing.
ALWAYS = (
    mechanisms,
    accounting,
    prices,
    tuning,
    large,
    learning,
    additive,
    audit,
    home,
    rounding,
    tables,
    charged,
    identity,
    ledger,
    comparisons,
    kinds,
    release,
    options,
)
MODULES = (*ALWAYS, *([networks] if find_spec("torch") else []))
MUTANTS = [mutant for module in MODULES for mutant in module.MUTANTS]

__all__ = ["MUTANTS", "Mutant"]
