"""A parameter that got another name: the old one is taken for a while, and both are one setting."""

from __future__ import annotations

import warnings
from dataclasses import fields

import pytest

from dpcore.algorithms import make, registry
from dpcore.algorithms.base import under_new_names
from dpcore.errors import InputError

RENAMED = [(name, old, new) for name, cls in registry.items() for old, new in cls.renamed.items()]
OTHER = {"step_rule": "paper", "mutation_size": 3.0}


@pytest.mark.parametrize(("name", "old", "new"), RENAMED)
def test_the_old_name_is_taken_with_a_warning(name: str, old: str, new: str) -> None:
    names = {field.name for field in fields(registry[name])}
    assert new in names and old not in names
    with pytest.warns(DeprecationWarning, match=f"{old} of '{name}' is called {new}"):
        found = make(name, {old: OTHER[new]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found == make(name, {new: OTHER[new]}) != make(name, {})
    assert under_new_names(name, {old: 1, "other": 2}) == {new: 1, "other": 2}


@pytest.mark.parametrize(("name", "old", "new"), RENAMED)
def test_both_names_at_once_are_refused(name: str, old: str, new: str) -> None:
    with pytest.raises(InputError, match=f"leave {old} out"):
        make(name, {old: OTHER[new], new: OTHER[new]})


def test_what_is_no_algorithm_has_no_old_names() -> None:
    assert under_new_names("auto", {"pace": 1}) == {"pace": 1}
    assert ("output_gd", "pace", "step_rule") in RENAMED and (
        "privgene",
        "reach",
        "mutation_size",
    ) in RENAMED
