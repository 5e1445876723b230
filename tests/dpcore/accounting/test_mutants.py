"""The mutation script stays in step with the sources: every fault it plants still has exactly one
place to go.
"""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS
from tests.mutate import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_applies_once_and_names_tests_that_exist(mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert (ROOT / mutant.tests).is_file()
