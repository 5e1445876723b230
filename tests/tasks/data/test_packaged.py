"""The schemas that come with the project: each has a design, and loads its file or one of the same
layout.
"""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from dpcore.errors import InputError, UnknownName
from dpcore.synthetic import census, sparse_linear, sparse_model
from tasks.data import load
from tasks.readers import source_paths
from tasks.schema import Schema, find_schema, known_schemas


def test_generated_census_is_as_described():
    frame = pd.DataFrame(census(20_000))
    assert frame.shape == (20_000, 13)
    schema = find_schema("census")
    data = load(schema, schema.encoder(normalise="none"), adjacency="replace_one")
    assert data.train.n == schema.public.n == 32_000 and data.test.n == 8_000
    assert data.report.train == {
        k: {} for k in ("clipped", "filled", "unknown", "capped", "dropped")
    }
    assert abs((data.train.y > 0).mean() - 0.24) < 0.01
    model = LogisticRegression(C=10, fit_intercept=False, max_iter=500).fit(
        data.train.X.tocsr(), data.train.y
    )
    assert abs(model.score(data.test.X.tocsr(), data.test.y) - 0.85) < 0.01


def test_generated_sparse_problem_is_the_papers():
    table = sparse_linear(20_000, seed=1)
    X = np.column_stack([table[f"x{j + 1}"] for j in range(100)])
    covariance = X.T @ X / len(X)
    expected = 0.5 ** np.abs(np.subtract.outer(np.arange(100), np.arange(100)))
    assert np.abs(covariance - expected).max() < 0.06  # 8 standard errors
    assert abs((np.sign(X @ sparse_model()) == table["y"]).mean() - 0.97) < 0.01
    schema, first = find_schema("sparse-linear"), sparse_linear()
    data = load(schema, schema.encoder(numeric="centred", intercept=False, normalise="none"))
    np.testing.assert_allclose(
        data.train.X[0] * 10, [first[f"x{j + 1}"][0] for j in range(100)], atol=1e-12
    )


WIDTHS = {  # name: columns without the intercept
    "adult": 104, "a9a": 123, "bank": 51, "bank-42": 42, "bank-dat": 32, "credit": 33, "wine": 11, "bike": 61,
    "kddcup99": 122, "ipums": 52, "ipums-us": 57, "mq2007": 46, "mq2008": 46, "mnist": 784, "fashion-mnist": 784,
    "cifar10": 3072, "sparse-linear": 100, "census": 44,
}  # fmt: skip


@pytest.mark.parametrize("name", known_schemas())
def test_every_packaged_schema_has_a_design_before_any_file_is_opened(name):
    schema = find_schema(name)
    design = schema.encoder(normalise="none").design
    assert design.dimension == WIDTHS.get(name, design.dimension - 1) + 1
    assert schema.licence and schema.description
    assert schema.public.public == (not name.startswith(("ipums", "example")))
    if schema.source.kind == "file":
        assert schema.source.how


def test_adult_has_the_published_width_and_norm_bound():
    design = find_schema("adult").encoder(normalise="none").design
    assert design.dimension == 105 and design.norm_bound == pytest.approx(np.sqrt(14))
    assert sum(len(b.columns) for b in design.blocks if b.kind == "one_hot") == 99


SHARED = {  # name: path below the shared data
    "adult": "adult/adult.data.gz", "adult-train": "adult", "a9a": "adult/a9a.gz", "bank": "bank/bank-full.csv.gz",
    "bank-42": "bank", "bank-dat": "bank", "bank-additional": "bank", "credit": "credit", "wine": "wine",
    "wine-colour": "wine", "wine-good": "wine", "bike": "bike/hour.csv.gz", "bike-dates": "bike", "compas": "awkward",
    "german-credit": "awkward", "titanic": "awkward", "telco-churn": "awkward", "hr-attrition": "awkward",
    "employee-turnover": "awkward", "mq2008": "letor/MQ2008",
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_real_files_load_with_the_declared_count(shared, name):
    schema = find_schema(name)
    drops = schema.label.undeclared == "drop"
    data = load(
        schema,
        schema.encoder(),
        shared / "data" / SHARED[name],
        adjacency="add_remove" if drops else "replace_one",
    )
    assert data.train.n == schema.public.n
    assert data.report.rows_test > 0
    assert data.report.train["unknown"] == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "folder"), [("mnist", "mnist"), ("kddcup99", "kdd99")])
def test_large_real_files_load_with_the_declared_count(shared, name, folder):
    schema = find_schema(name)
    data = load(
        schema, schema.encoder(dtype="float32"), shared / "data" / folder, adjacency="replace_one"
    )
    assert data.train.n == schema.public.n and data.report.rows_test > 0


def test_every_schema_of_a_file_at_hand_is_loaded_here(shared):
    """The others have a generated file of their layout, or a download."""
    files = {name for name in known_schemas() if find_schema(name).source.kind == "file"}
    # the example has a test of its own
    generated = {
        "example",
        "ipums",
        "ipums-us",
        "mq2007",
        "cifar10",
        "kddcup99-full",
        "fashion-mnist",
        # files of the others above, together or in part
        "a9a-all",
        "bank-dat-all",
        "kddcup99-50k",
        "kddcup99-100k",
        "kddcup99-150k",
        "kddcup99-200k",
        "kddcup99-250k",
    }
    assert files == {*SHARED, "mnist", "kddcup99"} | generated


def test_declared_files_are_found_where_packages_put_them(tmp_path, monkeypatch):
    """The Debian package dataset-fashion-mnist needs no data.path; a folder of one's own comes
    first.
    """
    schema, own, system = find_schema("fashion-mnist"), tmp_path / "own", tmp_path / "system"
    monkeypatch.setattr("tasks.readers.SYSTEM_DATA", system)
    for root in (system, own):
        (root / "fashion-mnist").mkdir(parents=True)
        for name in schema.source.path:
            (root / name).write_bytes(b"")
    assert source_paths(schema, None, schema.source.path) == [
        system / name for name in schema.source.path
    ]
    monkeypatch.setenv("DPFLOWS_DATA", str(own))
    assert source_paths(schema, None, schema.source.path) == [
        own / name for name in schema.source.path
    ]


def test_fashion_mnist_layout_on_generated_files(tmp_path):
    schema, rng = find_schema("fashion-mnist"), np.random.default_rng(0)
    for part, rows in (("train", 20), ("t10k", 6)):
        images = rng.integers(0, 256, (rows, 28, 28)).astype(np.uint8)
        for kind, array in (
            ("images-idx3", images),
            ("labels-idx1", np.arange(rows, dtype=np.uint8) % 10),
        ):
            head = (
                b"\0\0\x08"
                + bytes([array.ndim])
                + b"".join(n.to_bytes(4, "big") for n in array.shape)
            )
            (tmp_path / f"{part}-{kind}-ubyte.gz").write_bytes(
                gzip.compress(head + array.tobytes())
            )
    data = load(schema, schema.encoder(normalise="none", intercept=False), tmp_path)
    assert data.train.X.shape == (20, 784) and data.test.n == 6


def test_damaged_labels_of_the_hr_file_are_named(shared):
    schema = find_schema("hr-attrition")
    strict = schema.model_copy(
        update={"label": schema.label.model_copy(update={"undeclared": "refuse"})}
    )
    with pytest.raises(
        InputError,
        match=r"data row 1, column 'Attrition': '=N\(TRUE\)'.*data row "
        r"2",
    ):
        load(strict, strict.encoder(), shared / "data/awkward")


def test_turnover_file_needs_its_encoding(shared):
    schema = find_schema("employee-turnover")
    plain = schema.model_copy(update={"text": schema.text.model_copy(update={"encoding": "utf-8"})})
    with pytest.raises(
        InputError,
        match=r"employee_turnover\.csv, line \d+: byte 0xF1 is not "
        r"utf-8",
    ):
        load(plain, plain.encoder(), shared / "data/awkward")


def test_compas_without_names_is_refused(shared):
    schema = find_schema("compas")
    plain = schema.model_copy(update={"text": schema.text.model_copy(update={"names": ()})})
    with pytest.raises(InputError, match="two columns are named 'decile_score'"):
        load(plain, plain.encoder(), shared / "data/awkward")


def test_adult_accuracy_without_privacy(shared):
    schema = find_schema("adult")
    data = load(schema, schema.encoder(normalise="none"), shared / "data/adult/adult.data.gz")
    assert data.report.train["filled"] == {
        "workclass": 1836,
        "occupation": 1843,
        "native-country": 583,
    }
    model = LogisticRegression(C=10, fit_intercept=False, max_iter=300).fit(
        data.train.X.tocsr(), data.train.y
    )
    assert model.score(data.test.X.tocsr(), data.test.y) == pytest.approx(0.852, abs=0.003)


def generated(schema: Schema, rows: int, rng: np.random.Generator) -> np.ndarray:
    return rng.random((rows, schema.encoder().width)).round(3)


@pytest.mark.parametrize("name", ["ipums", "ipums-us"])
def test_ipums_layout_on_a_generated_file(tmp_path, name):
    schema, rng = find_schema(name), np.random.default_rng(0)
    X, y = generated(schema, 50, rng), rng.integers(0, 2, 50)
    path = tmp_path / "extract.dat"
    path.write_text(
        "".join(" ".join(map(str, row)) + f" {label} \n" for row, label in zip(X, y, strict=True))
    )
    data = load(schema, schema.encoder(normalise="none"), path)
    np.testing.assert_allclose(data.train.X[:, :-1], X)
    np.testing.assert_array_equal(data.train.y, 2 * y - 1)


def test_mq2007_layout_on_generated_files(tmp_path):
    schema, rng = find_schema("mq2007"), np.random.default_rng(0)
    for part in range(1, 6):
        rows = [
            f"{rng.integers(0, 3)} qid:{part}{q} "
            + " ".join(f"{j + 1}:{v:.6f}" for j, v in enumerate(rng.random(46)))
            + f" #docid = GX{q} inc = 1 prob = 0.5"
            for q in range(4)
            for _ in range(3)
        ]
        (tmp_path / f"S{part}.txt").write_text("\r\n".join(rows) + "\r\n")
    data = load(schema, schema.encoder(intercept=False), tmp_path)
    assert data.train.n == 12 and data.test.n == 4
    assert data.train.documents.X.shape == (36, 46)


def test_cifar10_layout_on_generated_files(tmp_path):
    schema, rng = find_schema("cifar10"), np.random.default_rng(0)
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        rows = np.column_stack([rng.integers(0, 10, 5), rng.integers(0, 256, (5, 3072))]).astype(
            np.uint8
        )
        (tmp_path / name).write_bytes(rows.tobytes())
    data = load(schema, schema.encoder(), tmp_path)
    assert data.train.X.shape == (25, 3073) and data.test.n == 5


def test_full_kdd_layout_on_a_generated_file(tmp_path):
    schema = find_schema("kddcup99-full")
    fields = [["0", "tcp", "http", "SF"], ["1", "udp", "http_8001", "REJ"]]
    lines = [
        ",".join([*head, *["0"] * 37, label])
        for head, label in zip(fields * 40, ["normal.", "smurf."] * 40, strict=True)
    ]
    path = tmp_path / "kddcup.data"
    path.write_text("\n".join(lines) + "\n")
    data = load(schema, schema.encoder(), path)
    assert data.train.n + data.test.n == 80 and data.train.X.shape[1] == 123


class Fetched:
    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame


def test_openml_source_with_a_stub(monkeypatch, tmp_path):
    """The table is as OpenML gives it: no marks but NaN, categories, the label called class."""
    asked = []
    rows = 300
    levels = find_schema("adult").columns
    frame = pd.DataFrame(
        {
            name: pd.Categorical([spec.levels[k % len(spec.levels)] for k in range(rows)])
            if spec.levels
            else np.arange(rows) % 16 + 1
            for name, spec in levels.items()
        }
    )
    frame.loc[3, "workclass"] = np.nan
    frame["class"] = pd.Categorical(np.where(np.arange(rows) % 4, "<=50K", ">50K"))

    def fetch_openml(**arguments):
        asked.append(arguments)
        return Fetched(frame)

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch_openml)
    monkeypatch.setenv("DPFLOWS_HOME", str(tmp_path))
    schema = find_schema("adult-openml")
    data = load(schema, schema.encoder())
    assert data.train.X.shape[1] == 105 and data.train.n + data.test.n == rows
    assert asked[0]["data_id"] == 1590 and asked[0]["data_home"] == str(tmp_path / "data")


def test_mnist_and_kdd_by_download_with_stubs(monkeypatch):
    rng = np.random.default_rng(0)
    pixels = pd.DataFrame(
        rng.integers(0, 256, (40, 784)), columns=[f"pixel{k + 1}" for k in range(784)]
    )
    pixels["class"] = pd.Categorical([str(k % 10) for k in range(40)])
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **arguments: Fetched(pixels))
    schema = find_schema("mnist-openml")
    data = load(schema, schema.encoder(normalise="none", intercept=False))
    np.testing.assert_allclose(data.train.X * 255, pixels.drop(columns="class"))
    assert data.train.y.tolist() == [k % 10 for k in range(40)]

    schema = find_schema("kddcup99-sklearn")
    rows = 60
    table = {name: np.zeros(rows) for name in schema.columns}
    table |= {"protocol_type": [b"tcp"] * rows, "service": [b"http"] * rows, "flag": [b"SF"] * rows}
    frame = pd.DataFrame(table).assign(
        labels=[b"normal." if k % 2 else b"smurf." for k in range(rows)]
    )
    monkeypatch.setattr("sklearn.datasets.fetch_kddcup99", lambda **arguments: Fetched(frame))
    data = load(schema, schema.encoder())
    assert data.train.n + data.test.n == rows and data.train.X.shape[1] == 123


def test_failed_download_is_a_clear_error(monkeypatch):
    def fetch_openml(**arguments):
        raise OSError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch_openml)
    schema = find_schema("adult-openml")
    with pytest.raises(
        InputError,
        match=r"could not be downloaded.*no route to host.*or give "
        r"data\.path",
    ):
        load(schema, schema.encoder())


def test_unknown_data_set_names_near_misses():
    with pytest.raises(UnknownName, match="Unknown data set 'adlt'; did you mean 'adult'"):
        find_schema("adlt")
