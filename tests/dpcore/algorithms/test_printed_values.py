"""Presets of the papers hold what the papers print: each number is read from the text itself."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from dpcore.algorithms import registry

THESIS = "000"
BLSGD = ("dp_blsgd", "dp_blgd", "dp_blsgd_ac")
NETWORK = r"For neural network models, we set subsampling rate \$q = "
# (algorithms, preset, parameter, what stands before the number)
PRINTED = [
    (("rsgd_ar",), "paper", "batch_size", r"mini-batch size is fixed to "),
    (("ssadmm",), "paper", "penalty_parameter", r"we set penalty term \$\\rho = "),
    (("mpadmm",), "paper", "penalty_parameter", r"for ssADMM and \$\\rho = "),
    (("dp_admm",), "paper", "parties", r"For DP-ADMM, we assume there are "),
    (BLSGD, "paper", "iterations", r"\\epsilon_\{iter\} = \\epsilon / \(2 \\times "),
    (("dp_blsgd", "dp_blsgd_ac"), "paper", "sampling_rate", r"sampling rate is set to \$q = "),
    ((*BLSGD, "dp_sgd:paper_ch5"), "paper", "clip_norm", r"set as \$C_\{grad\} = "),
    (BLSGD, "paper", "clip_loss", r"C_\{grad\} = 3\$ and \$C_\{obj\} = "),
    (BLSGD, "paper", "growth", r"\\xi = "),
    (BLSGD, "paper", "armijo", r"as follows: \$\\alpha = "),
    (BLSGD, "paper", "backtrack", r"as follows: \$\\alpha = 0.5, \\beta = "),
    (BLSGD, "paper", "reset_every", r"\\beta = 0.8, \\tau = "),
    (BLSGD, "paper", "reset_factor", r"\\varsigma = "),
    (BLSGD, "paper", "angle_high", r"\\phi_\{max\} = "),
    (BLSGD, "paper", "angle_low", r"\\phi_\{min\} = "),
    (BLSGD, "paper", "angle_memory", r"\\psi = "),
    (("dp_blsgd_ac",), "paper", "clip_decay", r"\\zeta = "),
    (("dp_blsgd", "dp_sgd"), "paper_network", "sampling_rate", NETWORK),
    (("dp_adam",), "paper", "sampling_rate", NETWORK),
    (("dp_blsgd", "dp_sgd"), "paper_network", "clip_norm", NETWORK + r"1/200, C_\{grad\} = "),
    (("dp_blsgd",), "paper_network", "clip_loss", r"C_\{grad\} = 3\$, and \$C_\{obj\} = "),
    (("dp_blsgd",), "paper_network", "armijo", r"NOISYBTLs as \$\\alpha = "),
    (("dp_blsgd",), "paper_network", "backtrack", r"\\alpha = 0.001\$ and \$\\beta = "),
    (("dp_sgd",), "paper_network", "learning_rate", r"after tuning, we set \$\\eta = "),
    (("privbr",), "paper", "batch_size", r"The mini-batch size was fixed to "),
    (("privbr",), "paper", "steps", r"each experiment is trained for "),
    (("privbr",), "paper", "learning_rate", r"initial learning rate η_0 of "),
]


SLIDES, ZHANG = "001", "003"  # the public code on the slides of Lee & Kifer (2018); Zhang et al.
ELSEWHERE = [
    (SLIDES, "dp_agd", "rounds", r"gamma=0\.1, splits="),
    (SLIDES, "dp_agd", "growth", r"\bgamma="),
    (SLIDES, "dp_agd", "max_step", r"max_step_size = "),
    (SLIDES, "dp_agd", "candidates", r"n_candidate = "),
    (SLIDES, "dp_agd", "update_every", r"\(t % "),
    (ZHANG, "sgd_adv", "batch_size", r"with batch size  \$m = "),
]


def only_number(text: str, before: str) -> float:
    """The number that stands in ``text`` after ``before``, the same at each place."""
    found = re.findall(before + r"(\d[\d,]*(?:\.\d+)?(?:/\d+)?)", text)
    [value] = {float(Fraction(number.rstrip(",").replace(",", ""))) for number in found}
    return value


@pytest.fixture(scope="module")
def thesis(shared: Path) -> str:
    [path] = (shared / "papers").glob(f"{THESIS}_*.txt")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("names", "preset", "parameter", "before"), PRINTED, ids=[f"{p[0][0]}-{p[2]}" for p in PRINTED]
)
def test_a_preset_has_the_number_that_the_text_prints(
    thesis: str, names: tuple[str, ...], preset: str, parameter: str, before: str
) -> None:
    value = only_number(thesis, before)
    for name in names:
        algorithm, _, other = name.partition(":")
        assert registry[algorithm].presets[other or preset][parameter] == pytest.approx(value)


@pytest.mark.parametrize(
    ("source", "name", "parameter", "before"), ELSEWHERE, ids=[f"{p[1]}-{p[2]}" for p in ELSEWHERE]
)
def test_a_preset_has_the_number_of_its_other_source(
    shared: Path, source: str, name: str, parameter: str, before: str
) -> None:
    [path] = (shared / "papers").glob(f"{source}_*.txt")
    value = only_number(path.read_text(encoding="utf-8"), before)
    assert registry[name].presets["paper"][parameter] == pytest.approx(value)


def test_batches_of_root_n_are_left_to_the_data(thesis: str) -> None:
    assert r"For ssADMM and DP-SGD, we set mini-batch size $m = \sqrt{n}$" in thesis
    assert r"\sqrt{n} for SGD-MA" in thesis or r"$\sqrt{n}$ for SGD-MA" in thesis
    for name, preset in (("ssadmm", "paper"), ("dp_sgd", "paper"), ("dp_sgd", "sgd_ma")):
        assert registry[name].presets[preset]["sampling_rate"] is None
