"""The configuration: defaults, overrides, and one-line errors that name field, value, rule and way
out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from dpcore.accounting.curves import CONVERSIONS
from dpcore.accounting.limits import ACCOUNTANTS
from dpcore.errors import InputError
from tasks.compare import load_compare
from tasks.config import TrainConfig, load_config, parse_config
from tasks.config.train import PrivacySection
from tasks.retraining import load_retraining

CONF = Path(__file__).resolve().parents[3] / "conf"

BAD = [
    ("privacy.epsilon=0", "a number > 0 for privacy.epsilon, got 0"),
    ("privacy.epsilon=-1", "a number > 0 for privacy.epsilon, got -1"),
    ("privacy.epsilon=.inf", "a finite number for privacy.epsilon, got inf"),
    ("privacy.epsilon=.nan", "a finite number for privacy.epsilon, got nan"),
    ("privacy.epsilon=inf", "a finite number for privacy.epsilon, got 'inf'"),
    ("privacy.epsilon=true", "a number for privacy.epsilon, got True"),
    ("privacy.epsilon=much", "a number for privacy.epsilon, got 'much'"),
    ("privacy.epsilon=", "a number for privacy.epsilon, got None"),
    ("privacy.delta=0", "a number > 0 for privacy.delta, got 0"),
    ("privacy.delta=1", "a number < 1 for privacy.delta, got 1"),
    ("privacy.adjacency=add", "for privacy.adjacency, got 'add'"),
    ("privacy.epsilo=1", "Unknown key 'privacy.epsilo'; did you mean 'privacy.epsilon'"),
    ("privcy.epsilon=1", "Unknown key 'privcy'; did you mean 'privacy'?"),
    ("preprocess.normalise=units", "for preprocess.normalise, got 'units'"),
    ("objective.l2=-1", "a number >= 0 for objective.l2, got -1"),
    ("objective.loss_parameters.h=a", "a number for objective.loss_parameters.h, got 'a'"),
    ("data=5", "a section with keys for data, got 5"),
    ("seed=1.5", "a whole number for seed, got 1.5"),
    ("schema_version=2", "Expected 1 for schema_version, got 2"),
    ("data.name.x=1", "Expected a section at 'data.name'"),
    ("penalty.kind=scad", "--set penalty.kind: Unknown key 'penalty'; choose one of algorithm,"),
    ("trackng=3", "did you mean 'tracking'"),
    ("privacy.epsilon", "Expected --set key=value"),
    (".=1", "Expected --set key=value"),
    ("data.name=[a", "not readable as YAML"),
]


@pytest.mark.parametrize(("override", "words"), BAD, ids=[case[0] for case in BAD])
def test_bad_values_are_refused_on_one_line(override: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        load_config(None, [override])
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_built_in_configuration_is_valid_and_its_values_are_the_defaults() -> None:
    config = load_config()
    assert config.data.name == "census"
    assert config == TrainConfig()


def test_overrides_are_read_as_yaml_and_reach_parameters_of_the_algorithm() -> None:
    config = load_config(
        None,
        ["privacy.delta=1e-5", "algorithm.steps=12", "algorithm.clip_norm=1e-2", "data.path=x.csv"],
    )
    assert config.privacy.delta == 1e-5
    assert config.algorithm.parameters == {"steps": 12, "clip_norm": 0.01}
    assert config.data.path == "x.csv"


def test_file_in_working_directory_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text("schema_version: 1\nprivacy: {epsilon: 3.0}\n")
    assert load_config().privacy.epsilon == 3.0


def test_missing_file_and_repeated_key_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'nowhere\.yaml', which is none"):
        load_config("nowhere.yaml")
    twice = tmp_path / "twice.yaml"
    twice.write_text("seed: 1\nseed: 2\n")
    with pytest.raises(InputError, match=r"the key .seed. stands there twice"):
        load_config(str(twice))


def test_a_file_may_extend_another_beside_it(tmp_path: Path) -> None:
    """Sections are merged, a null removes a key, and the file next to it wins over one of that name
    elsewhere.
    """
    (tmp_path / "mnist_mlp.yaml").write_text("privacy: {epsilon: 0.25, delta: 1e-7}\nseed: 3\n")
    (tmp_path / "mine.yaml").write_text(
        "extends: mnist_mlp.yaml\nprivacy: {delta: null}\nobjective: {l2: 0.5}\n"
    )
    config = load_config(str(tmp_path / "mine.yaml"), ["privacy.epsilon=0.5"])
    assert (config.privacy.epsilon, config.privacy.delta) == (0.5, TrainConfig().privacy.delta)
    assert (config.seed, config.objective.l2) == (3, 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: loop.yaml", "loop.yaml: extends itself by way of"),
        ("extends: ghost.yaml", "got 'ghost.yaml'"),
    ],
)
def test_what_cannot_be_extended_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "loop.yaml"
    path.write_text(text)
    for load in (load_config, load_compare, load_retraining):
        with pytest.raises(InputError, match=words) as caught:
            load(str(path))
        assert "\n" not in str(caught.value)


def test_several_faults_are_counted() -> None:
    with pytest.raises(InputError, match=r"\(1 more fault\)"):
        parse_config({"privacy": {"epsilon": -1, "delta": 2}})


def test_hash_depends_on_values_alone() -> None:
    assert parse_config({"seed": 0}).sha256 == parse_config({}).sha256
    assert parse_config({"seed": 1}).sha256 != parse_config({}).sha256


def test_choices_are_those_of_the_accounting() -> None:
    fields = PrivacySection.model_fields
    assert set(get_args(fields["conversion"].annotation)) == set(CONVERSIONS)
    assert set(get_args(fields["accountant"].annotation)) == set(ACCOUNTANTS)


def test_a_bad_override_is_blamed_on_the_override() -> None:
    with pytest.raises(InputError, match=r"^--set privacy\.epsilon: Expected a number > 0"):
        load_config(None, ["seed=1", "privacy.epsilon=-1"])
    with pytest.raises(InputError, match=r"^--set privacy: .*did you mean .privacy.epsilon"):
        load_config(None, ["privacy={epsilonn: 1}"])


@pytest.mark.parametrize(
    ("load", "name", "wanted"),
    [
        (load_compare, "train.yaml", "dpflows train"),
        (load_retraining, "train.yaml", "dpflows train"),
        (load_config, "compare_adult.yaml", "dpflows compare"),
        (load_config, "bench.yaml", "dpflows bench"),
        (load_compare, "retrain.yaml", "dpflows retrain"),
    ],
)
def test_a_file_for_another_command_is_named_as_such(
    load: Callable[[str], object], name: str, wanted: str
) -> None:
    with pytest.raises(InputError, match=f"this looks like a configuration for `{wanted}`"):
        load(str(CONF / name))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "algorithms=[]",
            "Expected a list with 1 or more items for algorithms, got []; names, or sections",
        ),
        ("data=[]", "Expected a list with 1 or more items for data, got []; name the data"),
        (
            "peers.libraries=[]",
            "Expected a list with 1 or more items for peers.libraries, got []; names, or sections",
        ),
        ("privacy.epsilon=[0]", "a number > 0 for privacy.epsilon.0, got 0; for example [0.1, 1]"),
        ("protocol.folds=5", "--set 'protocol={folds: 5}'"),
        ("algorithms.0.name=auto", "--set 'algorithms=[...]'"),
        ("select.keep=3", "--set select.keep: Unknown key 'select'; choose one of"),
        (
            "algorithms=[{preprocess: {numerc: log}}]",
            "did you mean 'algorithms.0.preprocess.numeric'?",
        ),
    ],
)
def test_faults_of_lists_and_protocols_are_in_our_words(override: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        load_compare(str(CONF / "compare_adult.yaml"), [override])
    assert words in str(raised.value)


def test_algorithms_and_libraries_may_be_bare_names() -> None:
    config = load_compare(
        None, ["algorithms=[dp_sgd, {name: auto, preset: paper}]", "peers.libraries=opacus"]
    )
    assert [(entry.name, entry.preset) for entry in config.algorithms] == [
        ("dp_sgd", None),
        ("auto", "paper"),
    ]
    assert config.peers is not None
    assert [entry.name for entry in config.peers.libraries] == ["opacus"]
