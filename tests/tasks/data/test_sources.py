"""Bounds and levels that are not declared: estimated at a price, or read from the rows and never
releasable.
"""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
import yaml

from dpcore.accounting import Target
from dpcore.errors import BudgetExceeded, InputError
from dpcore.preprocess.estimate import (
    MOST_LEVELS,
    Columns,
    EstimateColumns,
    calibrated,
    estimate_columns,
)
from dpcore.problem import Adjacency
from tasks.data import FileReading, Reading, load
from tasks.options.bounds import plan_estimate, private_schema, schema_from_data, widest
from tasks.profile import draft_private, draft_schema, outward
from tasks.schema import Schema, find_schema

RNG = np.random.default_rng(0)
ROWS = 20_000
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(18, 90, ROWS),
        "sector": RNG.choice(["Gov", "Private", "Größe"], ROWS, p=[0.3, 0.6, 0.1]),
        "y": RNG.choice(["yes", "no"], ROWS),
    }
)


def schema_of(bounds: str) -> Schema:
    return Schema.model_validate(
        {
            "schema_version": 1,
            "name": "t",
            "public": {"n": ROWS},
            "bounds": bounds,
            "columns": {"age": {"kind": "numeric"}, "sector": {"kind": "categorical"}},
            "label": {"column": "y", "positive": "yes", "negative": "no"},
        }
    )


def test_undeclared_bounds_need_a_source():
    with pytest.raises(ValueError, match="Expected declared bounds"):
        schema_of("declared")
    schema = schema_of("private")
    assert schema.undeclared_columns == ("age", "sector")
    with pytest.raises(InputError, match="set the source of bounds to private"):
        schema.encoder()


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_private_estimates_are_charged_and_complete(adjacency):
    schema, target = schema_of("private"), Target(10.0, 1e-5)
    estimate = plan_estimate(schema, target, adjacency)
    assert schema.bounds_share == 0.1
    assert 0.99 < Target(1.0, 1e-6).ratio(estimate.events()) <= 1.0
    charges = []
    done = private_schema(
        schema,
        estimate,
        Reading(schema, frame=FRAME),
        on_charge=lambda: charges.append(1),
        fixed_noise_seed=1,
    )
    assert len(charges) == len(estimate.plan()) == 2 + estimate.longest
    age, sector = done.schema.columns["age"], done.schema.columns["sector"]
    assert age.low <= 20 and 80 <= age.high <= 500
    assert sector.levels == ("Gov", "Größe", "Private") and sector.unknown == "zeros"
    assert done.events.adjacency is Adjacency(adjacency)
    assert done.schema.releasable[0]
    data = load(done.schema, done.schema.encoder(), frame=FRAME)
    assert data.train.n == ROWS


def test_estimates_are_for_records_and_unordered_columns_only():
    values = schema_of("private").model_dump(exclude_unset=True)
    for kind in ("ordinal", "date"):
        with pytest.raises(ValueError, match="declare its levels in their order, or low and high"):
            Schema.model_validate({**values, "columns": {"size": {"kind": kind}}})
    columns = {**values["columns"], "id": {"kind": "user"}}
    person = Schema.model_validate({**values, "columns": columns, "unit": "user"})
    with pytest.raises(InputError, match="got unit='user'"):
        plan_estimate(person, Target(1, 1e-6), "add_remove")
    with pytest.raises(InputError, match="set bounds: declared"):
        plan_estimate(find_schema("census"), Target(1, 1e-6), "add_remove")


def test_rare_levels_stay_hidden():
    frame = FRAME.copy()
    frame.loc[0, "sector"] = "the one and only"
    estimate = plan_estimate(schema_of("private"), Target(10.0, 1e-5), "add_remove")
    for seed in range(5):
        done = private_schema(
            schema_of("private"),
            estimate,
            Reading(schema_of("private"), frame=frame),
            fixed_noise_seed=seed,
        )
        assert "the one and only" not in done.schema.columns["sector"].levels


def test_a_column_without_a_frequent_level_is_left_out_and_said():
    estimate = plan_estimate(schema_of("private"), Target(0.01, 1e-5), "add_remove")
    done = private_schema(
        schema_of("private"),
        estimate,
        Reading(schema_of("private"), frame=FRAME),
        fixed_noise_seed=0,
    )
    assert done.schema.columns["sector"].kind == "ignore"
    assert done.schema.encoder().design.names == ("age", "intercept")
    assert (
        len(done.notes) == 1
        and "no level of column 'sector'" in done.notes[0]
        and "bounds_share" in done.notes[0]
    )


def test_estimates_see_the_rows_of_the_charged_blocks_alone():
    values = schema_of("private").model_dump(exclude_unset=True)
    values["public"] = {"rows_per_block": ROWS // 2}
    values["columns"] |= {"year": {"kind": "block"}}
    schema = Schema.model_validate({**values, "block": {"column": "year"}})
    frame = FRAME.assign(year=np.where(np.arange(ROWS) % 2, "2025", "2026"))
    frame.loc[frame.year == "2026", "sector"] = "later"
    estimate = plan_estimate(schema, Target(10.0, 1e-5), "add_remove")
    done = private_schema(
        schema, estimate, Reading(schema, frame=frame, blocks=("2025",)), fixed_noise_seed=1
    )
    assert estimate.n == ROWS // 2
    assert done.schema.columns["sector"].levels == ("Gov", "Größe", "Private")
    both = private_schema(
        schema, estimate, Reading(schema, frame=frame, blocks=("2025", "2026")), fixed_noise_seed=1
    )
    assert "later" in both.schema.columns["sector"].levels


def test_a_schema_with_stand_ins_is_the_widest_and_refuses_what_the_estimate_would():
    schema = schema_of("private")
    design = widest(schema).encoder(normalise="none").design
    assert design.dimension == 1 + MOST_LEVELS + 1 and widest(find_schema("census")) == find_schema(
        "census"
    )
    estimate = plan_estimate(schema, Target(10.0, 1e-5), "add_remove")
    done = private_schema(schema, estimate, Reading(schema, frame=FRAME), fixed_noise_seed=1)
    assert done.schema.encoder(normalise="none").design.norm_bound == design.norm_bound
    values = schema.model_dump(exclude_unset=True)
    values["columns"]["sector"]["unknown"] = "other"
    other = Schema.model_validate(values)
    estimate = plan_estimate(other, Target(10.0, 1e-5), "add_remove")
    done = private_schema(other, estimate, Reading(other, frame=FRAME), fixed_noise_seed=1)
    assert (
        widest(other).columns["sector"].unknown == done.schema.columns["sector"].unknown == "other"
    )
    blank = FRAME.assign(age=FRAME.age.astype(float))
    blank.loc[3, "age"] = np.nan
    with pytest.raises(InputError, match=r"column 'age'.*no value"):
        load(widest(schema), widest(schema).encoder(), frame=blank)


class Tape:
    """A door without noise that records what was asked: values of neighbours can be compared."""

    def __init__(self, columns: Columns, outputs: list | None = None) -> None:
        self.columns, self.asked, self.outputs = columns, [], outputs

    def release(self, mechanism, query):
        value = query(self.columns)
        self.asked.append((mechanism, value))
        if self.outputs is not None:
            return self.outputs[len(self.asked) - 1]
        return int(np.argmax(value)) if mechanism.kind == "exponential" else value


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
def test_one_record_moves_each_query_by_at_most_its_sensitivity(adjacency):
    numbers = np.array([1.0, 5.0, 20.0, 20.0, -3.0, 1000.0])
    texts = [b"aa", b"ab", b"b", b"aa", b"c", b"abc"]
    estimate = EstimateColumns(
        numeric=("v",),
        texts=("t",),
        n=6,
        adjacency=adjacency,
        noise_multiplier=0.05,
        longest=4,
        threshold=0.1,
    )
    first = Tape(Columns({"v": numbers}, {"t": texts}, 6))
    found = estimate.fit(first)
    outputs = [int(np.argmax(v)) if m.kind == "exponential" else v for m, v in first.asked]
    largest = dict.fromkeys(("exponential", "gaussian"), 0.0)
    for k in range(6):
        other_numbers, other_texts = np.delete(numbers, k), texts[:k] + texts[k + 1 :]
        if adjacency is Adjacency.REPLACE_ONE:
            other_numbers, other_texts = np.append(other_numbers, -999.0), [*other_texts, b"zz"]
        second = Tape(Columns({"v": other_numbers}, {"t": other_texts}, len(other_texts)), outputs)
        assert estimate.fit(second) == found
        for (mechanism, value), (same, other) in zip(first.asked, second.asked, strict=True):
            assert mechanism == same
            ratio = mechanism.distance(value, other) / mechanism.sensitivity
            largest[mechanism.kind] = max(largest[mechanism.kind], ratio)
            assert ratio <= 1 + 1e-12
    assert min(largest.values()) > 0.99


def test_calibration_fits_and_refuses():
    estimate = EstimateColumns(numeric=("v",), n=10)
    target = Target(0.5, 1e-5)
    least = calibrated(estimate, target)
    assert target.ratio(least.events()) <= 1
    cheaper = EstimateColumns(numeric=("v",), n=10, noise_multiplier=0.99 * least.noise_multiplier)
    assert target.ratio(cheaper.events()) > 1
    with pytest.raises(BudgetExceeded):
        calibrated(estimate, Target(1e-12, 1e-300))


def test_estimates_repeat_with_a_fixed_seed_only():
    columns = Columns({"v": np.arange(100.0)}, {}, 100)
    estimate = EstimateColumns(numeric=("v",), n=100, noise_multiplier=1.0)
    first = estimate_columns(estimate, columns, fixed_noise_seed=3)
    assert estimate_columns(estimate, columns, fixed_noise_seed=3) == first


def test_from_data_is_never_releasable():
    done = schema_from_data(schema_of("from_data"), Reading(schema_of("from_data"), frame=FRAME))
    assert (done.schema.columns["age"].low, done.schema.columns["age"].high) == (18, 89)
    assert done.schema.columns["sector"].levels == ("Gov", "Größe", "Private")
    assert done.schema.releasable[0] is False and "from_data" in done.schema.releasable[1]
    assert done.events is None
    with pytest.raises(InputError, match="Expected bounds: from_data"):
        schema_from_data(schema_of("private"), Reading(schema_of("private"), frame=FRAME))


def test_from_data_reads_training_rows_only():
    split = {"kind": "hash", "by": "age", "test_share": 0.5}
    schema = Schema.model_validate(
        {**schema_of("from_data").model_dump(exclude_unset=True), "split": split}
    )
    done = schema_from_data(schema, Reading(schema, frame=FRAME))
    data = load(done.schema, done.schema.encoder(normalise="none"), frame=FRAME)
    assert "clipped" in data.report.train and data.report.train["clipped"] == {}
    X = data.train.X.toarray() if hasattr(data.train.X, "toarray") else data.train.X
    assert X[:, 0].min() == 0 and X[:, 0].max() == 1


QUIRKS = """\
id;when;same;pay;kind;const;mixed;empty;y
{rows}"""


def quirky(tmp_path):
    rows = "".join(
        f"{1000 + k};2024-01-{k % 28 + 1:02d};{'yes' if k % 3 == 0 else 'no'};{k % 50},5;{'ab'[k % 2]};1;"
        f"{'n/k' if k == 7 else k % 20};;{'bad' if k % 3 == 0 else 'good'}\n"
        for k in range(100)
    )
    path = tmp_path / "quirks.csv"
    path.write_bytes(QUIRKS.format(rows=rows).encode("utf-8-sig"))
    return path


def test_draft_finds_the_quirks(tmp_path):
    draft = draft_schema(quirky(tmp_path))
    notes = "\n".join(draft.notes)
    for words in (
        "byte order mark", "text.decimal: ','", "id: a value of its "
                                            "own", "const: constant", "empty: empty",
        "when: dates as %Y-%m-%d", "same: says the same as the label",
        "mixed: mixed types, mostly numbers but also 'n/k'",
        "label y: by its name, values and place; it could be same (2 values), kind (2 values)",
    ):  # fmt: skip
        assert words in notes, words
    assert "reading private rows" in draft.text
    values = yaml.safe_load(draft.text)
    assert values["text"] == {"separator": ";", "decimal": ","}
    assert values["columns"]["pay"] == {"kind": "numeric", "low": 0.0, "high": 50.0}
    assert values["columns"]["const"] == {"kind": "ignore"}
    assert values["label"] == {"column": "y", "positive": "bad", "negative": "good"}


def test_a_draft_is_a_schema_that_loads(tmp_path):
    path = quirky(tmp_path)
    draft = draft_schema(path)
    draft.values["columns"]["mixed"] = {"kind": "ignore"}
    (tmp_path / "draft.yaml").write_text(draft.text)
    schema = find_schema(tmp_path / "draft.yaml")
    data = load(schema, schema.encoder())
    assert data.train.n + data.test.n == 100


def test_outward():
    assert outward(17, 90) == (17, 90)
    assert outward(0, 99_999) == (0, 100_000)
    assert outward(-8019, 102_127) == (-10_000, 110_000)
    assert outward(0.634, 5.045) == (0.6, 5.1)
    assert outward(0, 0) == (0, 0)


def paying(charges: list):
    @contextmanager
    def pay(events):
        before = len(charges)
        yield lambda: charges.append(1)
        assert len(charges) - before == len(events)

    return pay


def test_private_draft_is_charged_and_within_its_target(tmp_path):
    path = tmp_path / "rows.csv"
    FRAME.to_csv(path, index=False)
    target, charges = Target(2.0, 1e-6), []
    draft = draft_private(FileReading(path), "y", target, pay=paying(charges), fixed_noise_seed=0)
    assert len(charges) == len(draft.events)
    assert target.ratio(draft.events) <= 1.0
    assert draft.values["columns"]["age"]["kind"] == "numeric"
    assert draft.values["columns"]["sector"]["levels"] == ["Gov", "Größe", "Private"]
    assert draft.values["label"] == {"column": "y", "positive": ["yes"], "negative": ["no"]}
    assert abs(draft.values["public"]["n"] - 0.8 * ROWS) < 500
    assert "charged private estimates" in draft.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("a,b\n", "no data rows"),
        ("a,b\n1,2\n", "Expected a label column"),
    ],
)
def test_profile_refuses(tmp_path, text, message):
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        draft_schema(path, label="z")
    with pytest.raises(InputError, match="does not exist"):
        draft_schema(tmp_path / "absent.csv")
