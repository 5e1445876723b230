"""Files as people bring them, and files that must be refused: one line with file, row, column, rule
and way out.
"""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_svmlight_file

from dpcore.errors import InputError
from tasks.data import load, peek
from tasks.data.split import test_rows as side_of
from tasks.readers import open_chunks
from tasks.schema import Schema

COLUMNS = {
    "sector": {"kind": "categorical", "levels": ["Gov", "Private"]},
    "hours": {"kind": "numeric", "low": 0, "high": 100},
}
LABEL = {"column": "y", "positive": "yes", "negative": "no"}
ROWS = "Gov,40,yes\nPrivate,20,no\nGov,60,yes\n"


def schema_of(columns=None, label=None, **keys) -> Schema:
    base = {"schema_version": 1, "name": "table", "public": {"n": 3}, "columns": columns or COLUMNS}
    if "features" in keys:
        base.pop("columns")
    return Schema.model_validate({**base, "label": label or LABEL, **keys})


def loaded(schema: Schema, path, **settings):
    return load(
        schema, schema.encoder(normalise="none", intercept=False, sparse=False), path, **settings
    )


def write(tmp_path, text: str, name: str = "t.csv", encoding: str = "utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


EXPECTED = [[1, 0, 0.4], [0, 1, 0.2], [1, 0, 0.6]]
LAYOUTS = {
    "plain": ("sector,hours,y\n" + ROWS, {}),
    "byte order mark": ("\ufeffsector,hours,y\n" + ROWS, {}),
    "windows lines": (("sector,hours,y\n" + ROWS).replace("\n", "\r\n"), {}),
    "blank lines and blanks": (
        "sector, hours, y\n\nGov , 40 , yes \n\n Private,20,no\nGov,60,yes\n\n",
        {},
    ),
    "semicolon and decimal comma": (
        "sector;hours;y\nGov;40,0;yes\nPrivate;2,0e1;no\nGov;60,0;yes\n",
        {"text": {"separator": ";", "decimal": ","}},
    ),
    "tabs": (("sector,hours,y\n" + ROWS).replace(",", "\t"), {"text": {"separator": "\t"}}),
    "skipped lines": (
        "made by hand\nand again\nsector,hours,y\n" + ROWS,
        {"text": {"skip_lines": 2}},
    ),
    "no header": (ROWS, {"text": {"header": False}}),
    "no header, byte order mark": ("\ufeff" + ROWS, {"text": {"header": False}}),
    "names over the header": ("a,a,a\n" + ROWS, {"text": {"names": ["sector", "hours", "y"]}}),
    "quotes": ('"sector","hours","y"\n"Gov","40","yes"\n"Private",20,"no"\nGov,60,yes\n', {}),
    "undeclared ignored": (
        "id,sector,hours,y\n" + "".join(f"{i},{r}\n" for i, r in enumerate(ROWS.split())),
        {"undeclared": "ignore"},
    ),
}


@pytest.fixture(params=["fast", "careful"])
def parser(request, monkeypatch):
    """Both parsers must read, and refuse, the same."""
    if request.param == "careful":
        monkeypatch.setattr("tasks.readers.text.is_plain", lambda schema, marks: False)
    return request.param


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("packed", [False, True])
def test_layouts_of_text(tmp_path, parser, name, packed):
    text, keys = LAYOUTS[name]
    path = write(tmp_path, text)
    if packed:
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress(text.encode()))
    data = loaded(schema_of(**keys), path).train
    np.testing.assert_allclose(data.X, EXPECTED)
    assert data.y.tolist() == [1, -1, 1]


def test_quotes_after_a_blank_and_lines_inside_quotes(tmp_path, parser):
    text = (
        'name, sector, hours, y\n"a, b", "Gov", 40, yes\n"c\nd", "Private", "20", no\ne, Gov, 60, '
        '"yes"\n'
    )
    schema = schema_of({"name": {"kind": "ignore"}, **COLUMNS})
    np.testing.assert_allclose(loaded(schema, write(tmp_path, text)).train.X, EXPECTED)


def test_marks_of_missing_numbers(tmp_path, parser):
    columns = {"x": {"kind": "numeric", "low": 0, "high": 4, "missing": ["?", "n/a"], "fill": 1}}
    text = "x,y\n?,yes\n 2 ,no\n n/a,yes\nNaN,no\ninf,no\n1e400,no\n"
    data = loaded(schema_of(columns), write(tmp_path, text))
    assert data.train.X[:, 0].tolist() == [0.25, 0.5, 0.25, 0.25, 0.25, 0.25]
    assert data.report.train["filled"] == {"x": 5}


def test_thousands_and_quoted_separators(tmp_path):
    path = write(tmp_path, 'name,pay,y\n"Smith, J.","1,200.5",yes\n"Doe, ""A""",300,no\n')
    columns = {"name": {"kind": "ignore"}, "pay": {"kind": "numeric", "low": 0, "high": 2401}}
    data = loaded(schema_of(columns, text={"thousands": ","}), path).train
    np.testing.assert_allclose(data.X[:, 0], [0.5, 300 / 2401])


@pytest.mark.parametrize("encoding", ["latin-1", "cp1251"])
def test_declared_encodings(tmp_path, encoding):
    level = "Größe" if encoding == "latin-1" else "Россия"
    columns = {
        "sector": {"kind": "categorical", "levels": ["Gov", level]},
        "hours": COLUMNS["hours"],
    }
    path = write(tmp_path, f"sector,hours,y\nGov,40,yes\n{level},20,no\n", encoding=encoding)
    data = loaded(schema_of(columns, text={"encoding": encoding}), path).train
    np.testing.assert_allclose(data.X, [[1, 0, 0.4], [0, 1, 0.2]])
    with pytest.raises(
        InputError,
        match=r"t\.csv, line 3: byte 0x[0-9A-F]{2} is not utf-8; "
        r"declare text\.encoding",
    ):
        loaded(schema_of(columns), path)


REFUSED = {
    "empty file": ("", {}, "the file is empty"),
    "header alone": ("sector,hours,y\n", {}, "no data rows"),
    "duplicate names": (
        "sector,sector,y\n" + ROWS,
        {},
        "two columns are named 'sector'.*text.names",
    ),
    "missing column": (
        "sector,hour,y\n" + ROWS,
        {},
        "declared column 'hours' is missing.*did you mean 'hour'",
    ),
    "label column missing": ("sector,hours,z\n" + ROWS, {}, "the label column 'y' is missing"),
    "more columns": (
        "sector,hours,y,w\n" + ROWS.replace("\n", ",1\n"),
        {},
        "column 'w' is not declared.*ignore",
    ),
    "first row longer": (
        "sector,hours,y\n" + ROWS.replace("\n", ",1\n"),
        {},
        "data row 1 has 4 fields, the header 3",
    ),
    "a later row longer": (
        "sector,hours,y\n" + ROWS + "Gov,1,yes,1\n",
        {},
        "Expected 3 fields in line 5, saw 4",
    ),
    "text in a number": (
        "sector,hours,y\n" + ROWS + "Gov,many,no\n",
        {},
        r"t\.csv: data row 4, column 'hours': 'many' is not a number",
    ),
    "other decimal mark": (
        "sector;hours;y\nGov;40,5;yes\nPrivate;2,5;no\n",
        {"text": {"separator": ";"}},
        r"data row 1, column 'hours': '40,5' is not a number; it parses with the other decimal "
        r"mark",
    ),
    "wrong separator": (
        "sector;hours;y\nGov;40;yes\n",
        {},
        "text.separator=',', got a first line without it; declare .*: ';'",
    ),
    "wrong separator, no header": (
        "Gov;40;yes\n",
        {"text": {"header": False}},
        "declare text.separator: ';'",
    ),
    "unknown level": (
        "sector,hours,y\n" + ROWS + "Mine,1,no\n",
        {},
        "data row 4, column 'sector': 'Mine'",
    ),
    "short row": (
        "sector,hours,y\nGov,1,yes\nGov,2\n",
        {},
        "Expected 3 fields in data row 2, got 2 fields; correct",
    ),
    "short row at a number": (
        "y,sector,hours\nyes,Gov,1\n\nno\n",
        {},
        "3 fields in data row 2, got 1 field;",
    ),
    "nan": ("sector,hours,y\nGov,1,yes\nGov,nan,no\n", {}, "data row 2, column 'hours': no value"),
    "empty number": (
        "sector,hours,y\nGov,1,yes\nGov,,no\n",
        {},
        "data row 2, column 'hours': no value",
    ),
    "empty level": ("sector,hours,y\nGov,1,yes\n,1,no\n", {}, "data row 2, column 'sector': ''"),
    "one class": ("sector,hours,y\nGov,1,yes\nGov,2,yes\n", {}, "one class only"),
    "unknown encoding": (
        "sector,hours,y\n" + ROWS,
        {"text": {"encoding": "utf-9"}},
        "known text.encoding",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_text_is_refused_on_one_line(tmp_path, parser, name):
    text, keys, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as caught:
        loaded(schema_of(**keys), write(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    if name not in ("unknown encoding",):
        assert "t.csv" in str(caught.value)


def test_truncated_gzip(tmp_path):
    noise = np.random.default_rng(0).random(20_000)
    rows = "".join(f"Gov,{u},{'yes' if u > 0.5 else 'no'}\n" for u in noise)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(("sector,hours,y\n" + rows).encode())[:-2000])
    with pytest.raises(InputError, match="ends too early or is damaged"):
        loaded(schema_of(), path)


def test_missing_file_says_how_to_get_it(tmp_path):
    schema = schema_of(source={"path": "t.csv", "how": "Ask the registry."})
    with pytest.raises(InputError, match=r"does not exist; correct the path\. Ask the registry\."):
        loaded(schema, tmp_path / "absent.csv")
    with pytest.raises(InputError, match="does not exist"):
        loaded(schema, None)


def test_level_list_that_misses_rows_is_refused_or_counted(tmp_path):
    path = write(tmp_path, "sector,hours,y\n" + "Gov,1,yes\nGov,1,no\nMine,1,no\n" * 1000)
    with pytest.raises(InputError, match="and more in"):
        loaded(schema_of(), path)
    columns = {**COLUMNS, "sector": {**COLUMNS["sector"], "unknown": "zeros"}}
    assert loaded(schema_of(columns), path).report.train["unknown"] == {"sector": 1000}


def test_rows_are_numbered_through_chunks(tmp_path, monkeypatch, parser):
    monkeypatch.setattr("tasks.readers.text.chunk_rows", lambda columns: 1000)
    monkeypatch.setattr("tasks.readers.arrow.block_bytes", lambda columns: 3000)
    rows = ["Gov,1,yes"] * 2500 + ["Gov,x,no"]
    with pytest.raises(InputError, match="data row 2501, column 'hours'"):
        loaded(schema_of(), write(tmp_path, "sector,hours,y\n" + "\n".join(rows)))
    rows[2500] = "Mine,1,no"
    with pytest.raises(InputError, match="data row 2501, column 'sector'"):
        loaded(schema_of(), write(tmp_path, "sector,hours,y\n" + "\n".join(rows)))


def test_chunks_and_mapped_files_give_the_same(tmp_path, monkeypatch, parser):
    rows = "".join(
        f"{'Gov' if k % 7 else 'Private'},{k % 101},{'yes' if k % 3 else 'no'}\n"
        for k in range(5000)
    )
    path = write(tmp_path, "sector,hours,y\n" + rows)
    schema = schema_of(split={"kind": "hash", "test_share": 0.3})
    whole = loaded(schema, path)
    monkeypatch.setattr("tasks.readers.text.chunk_rows", lambda columns: 700)
    monkeypatch.setattr("tasks.readers.arrow.block_bytes", lambda columns: 3000)
    for sparse in (False, True):
        encoder = schema.encoder(normalise="none", intercept=False, sparse=sparse)
        spooled = load(schema, encoder, path, spool=tmp_path / "spool")
        for part, same in ((spooled.train, whole.train), (spooled.test, whole.test)):
            X = part.X.toarray() if sparse else part.X
            np.testing.assert_array_equal(X, same.X)
            np.testing.assert_array_equal(part.y, same.y)
        assert not list((tmp_path / "spool").iterdir())


def test_parquet_and_frames_equal_csv(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {"sector": ["Gov", "Private", "Gov"], "hours": [40, 20, 60], "y": ["yes", "no", "yes"]}
    )
    frame.to_parquet(tmp_path / "t.parquet")
    for schema in (schema_of(), schema_of(source={"format": "parquet"})):
        np.testing.assert_allclose(loaded(schema, tmp_path / "t.parquet").train.X, EXPECTED)
    np.testing.assert_allclose(loaded(schema_of(), None, frame=frame).train.X, EXPECTED)
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(InputError, match="not readable as Parquet"):
        loaded(schema_of(), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match="the data frame: the label column 'y' is missing"):
        loaded(schema_of(), None, frame=frame.drop(columns="y"))


def test_arff(tmp_path):
    text = (
        "@relation t\n@attribute sector {Gov,Private}\n@attribute hours numeric\n@attribute y "
        "{no,yes}\n@data\n"
    )
    path = write(tmp_path, text + ROWS, "t.arff")
    np.testing.assert_allclose(loaded(schema_of(source={"format": "arff"}), path).train.X, EXPECTED)
    with pytest.raises(InputError, match="not readable as ARFF"):
        loaded(
            schema_of(source={"format": "arff"}),
            write(tmp_path, "@relation t\n@attribute a\n", "b.arff"),
        )


def matrix_schema(form: str, count: int, **keys) -> Schema:
    features = keys.pop("features", [{"name": "x", "count": count}])
    label = keys.pop("label", {"positive": ["1", "+1"], "negative": ["-1", "0"]})
    return schema_of(label=label, source={"format": form}, features=features, **keys)


def test_svmlight_equals_scikit_learn(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(300):
        index = np.sort(rng.choice(20, 5, replace=False)) + 1
        pairs = " ".join(f"{i}:{v:.6f}" for i, v in zip(index, rng.random(5), strict=True))
        lines.append(f"{rng.choice(['+1', '-1'])} {pairs}")
    path = write(tmp_path, "\n".join(lines) + "\n", "t.svm")
    data = loaded(matrix_schema("svmlight", 20), path).train
    X, y = load_svmlight_file(str(path), n_features=20)
    np.testing.assert_array_equal(data.X, X.toarray())
    np.testing.assert_array_equal(data.y, y)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 1:0.5 1:0.5", "line 1: '1:0.5': indices must rise"),
        ("1 2:0.5 1:0.5", "line 1: '1:0.5': indices must rise"),
        ("1 1:0.5 x", "line 1: 'x' is not index:value"),
        ("1 1:inf", "line 1: '1:inf': the value is not a finite"),
        ("1 9:1", "line 1: '9:1': indices go from 1 to the 3"),
        ("2 1:1", "data row 1, column 'label': '2' is not a declared label"),
    ],
)
def test_bad_svmlight_lines(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        loaded(matrix_schema("svmlight", 3), write(tmp_path, f"{line}\n0 1:1\n", "t.svm"))


def test_dat_layout(tmp_path):
    path = write(tmp_path, "0.5 1 0 1 \n0.25 0 1 0 \n", "t.dat")
    data = loaded(matrix_schema("dat", 3), path).train
    assert data.X.tolist() == [[0.5, 1, 0], [0.25, 0, 1]] and data.y.tolist() == [1, -1]
    with pytest.raises(InputError, match="lines of 4 numbers, declared are 2 features"):
        loaded(matrix_schema("dat", 2), path)
    with pytest.raises(InputError, match="line 2, column 3: 'a' is not a number"):
        loaded(matrix_schema("dat", 3), write(tmp_path, "1 1 0 1\n1 0 a 0\n", "t.dat"))
    with pytest.raises(InputError, match=r"t\.dat, line 2: 3 numbers, expected 4"):
        loaded(matrix_schema("dat", 3), write(tmp_path, "1 1 0 1\n1 0 0\n", "t.dat"))


def test_many_cells_of_one_column_are_said_once(tmp_path):
    rows = "".join(f"Mine,{k},no\n" for k in range(30))
    with pytest.raises(InputError) as refused:
        loaded(schema_of(), write(tmp_path, "sector,hours,y\nGov,1,yes\n" + rows))
    text = str(refused.value)
    assert text.count("add the level") == 1
    assert (
        "data row 2, column 'sector': 'Mine'" in text
        and f"(and data rows {', '.join(map(str, range(3, 22)))})" in text
    )
    assert "and more in 1 or more cells" in text


def test_dat_takes_declared_marks_for_missing_where_there_is_a_fill(tmp_path):
    path = write(tmp_path, "0.5 NULL 0 1\n0.25 0 1 0\n", "t.dat")
    with pytest.raises(InputError, match="line 1, column 2: 'NULL' is not a number"):
        loaded(matrix_schema("dat", 3), path)
    data = loaded(
        matrix_schema(
            "dat", 3, features=[{"name": "x", "count": 3, "fill": 0.75}], missing=["NULL"]
        ),
        path,
    )
    assert data.train.X.tolist() == [[0.5, 0.75, 0], [0.25, 0, 1]]
    assert data.report.train["filled"] == {"x": 1}


def idx(array: np.ndarray) -> bytes:
    return (
        b"\0\0\x08"
        + bytes([array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


@pytest.mark.parametrize("packed", [False, True])
def test_idx_images(tmp_path, packed):
    pack = gzip.compress if packed else bytes
    end = ".gz" if packed else ""
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    (tmp_path / f"a-images-idx3-ubyte{end}").write_bytes(pack(idx(images)))
    (tmp_path / f"a-labels-idx1-ubyte{end}").write_bytes(pack(idx(np.array([2, 0, 1], np.uint8))))
    schema = matrix_schema(
        "idx",
        4,
        features=[{"name": "p", "count": 4, "high": 255}],
        label={"kind": "classes", "levels": [0, 1, 2]},
    )
    data = loaded(schema, tmp_path / f"a-images-idx3-ubyte{end}").train
    np.testing.assert_allclose(data.X * 255, images.reshape(3, 4))
    assert data.y.tolist() == [2, 0, 1]
    raw = idx(images)
    (tmp_path / f"a-images-idx3-ubyte{end}").write_bytes(pack(raw[:-1]))
    with pytest.raises(InputError, match="the file has another length"):
        loaded(schema, tmp_path / f"a-images-idx3-ubyte{end}")


def test_cifar10_batches(tmp_path):
    rng = np.random.default_rng(1)
    rows = np.column_stack([np.arange(10), rng.integers(0, 256, (10, 3072))]).astype(np.uint8)
    (tmp_path / "a.bin").write_bytes(rows.tobytes())
    (tmp_path / "b.bin").write_bytes(rows[::-1].tobytes())
    schema = matrix_schema(
        "cifar10",
        3072,
        features=[{"name": "p", "count": 3072, "high": 255}],
        label={"kind": "classes", "levels": list(range(10))},
    )
    data = loaded(schema, [tmp_path / "a.bin", tmp_path / "b.bin"]).train
    assert data.X.shape == (20, 3072) and data.y.tolist() == [*range(10), *range(9, -1, -1)]
    np.testing.assert_allclose(data.X[:10] * 255, rows[:, 1:])
    (tmp_path / "c.bin").write_bytes(rows.tobytes()[:-1])
    with pytest.raises(InputError, match="no multiple of 3073"):
        loaded(schema, tmp_path / "c.bin")


SIDES = [[False] * 3, [True, True, False], [False] * 3, [False] * 3]


def test_an_ignored_column_may_hold_anything(tmp_path, parser):
    path = write(tmp_path, "note,sector,hours,y\n1,Gov,40,yes\nx,Private,20,no\n,Gov,60,yes\n")
    schema = schema_of({"note": {"kind": "ignore"}, **COLUMNS})
    np.testing.assert_allclose(loaded(schema, path).train.X, EXPECTED)
    sides = []
    # the split goes by all cells, ignored ones too, and alike with both parsers
    for salt in "abcd":
        by_content = schema_of(
            {"note": {"kind": "ignore"}, **COLUMNS},
            split={"kind": "hash", "test_share": 0.4, "salt": salt},
        )
        [chunk] = open_chunks(by_content, [path])
        sides.append(side_of(by_content, chunk, 0).tolist())
    assert sides == SIDES


TITLES = {
    "a title with a quoted line break": '"Report\nof 2026"\nsector,hours,y\n',
    "a title and blank lines": "Report\n\n\n\nsector,hours,y\n",
    "names over two lines": 'made\nby hand\n"sector",hours,"y"\n',
}


@pytest.mark.parametrize("name", TITLES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_lines_to_skip_are_lines_in_every_encoding(tmp_path, parser, name, encoding, ends):
    text = {"skip_lines": 2, "encoding": encoding.replace("-sig", "")}
    path = tmp_path / "t.csv"
    path.write_bytes((TITLES[name] + ROWS).replace("\n", ends).encode(encoding))
    data = loaded(schema_of(text=text), path).train
    np.testing.assert_allclose(data.X, EXPECTED)
    assert data.y.tolist() == [1, -1, 1]


def test_names_are_found_in_composed_letters_and_behind_a_mark(tmp_path, parser):
    columns = {"gr\u00f6\u00dfe": COLUMNS["hours"], "sector": COLUMNS["sector"]}
    for given in ("\ufeffgro\u0308\u00dfe", " gr\u00f6\u00dfe "):
        path = write(tmp_path, f"{given},sector,y\n40,Gov,yes\n20,Private,no\n")
        assert loaded(schema_of(columns), path).train.X[:, 0].tolist() == [0.4, 0.2]
        frame = pd.DataFrame({given: [40, 20], "sector": ["Gov", "Private"], "y": ["yes", "no"]})
        frame.to_parquet(tmp_path / "t.parquet")
        for source in ({"path": tmp_path / "t.parquet"}, {"path": None, "frame": frame}):
            assert loaded(schema_of(columns), **source).train.X[:, 0].tolist() == [0.4, 0.2]


def test_a_mark_of_byte_order_hides_no_first_row(tmp_path):
    lines = "1 1:0.5\n0 1:1\n"
    schema = matrix_schema("svmlight", 3)
    plain = loaded(schema, write(tmp_path, lines, "a.svm")).train
    marked = loaded(schema, write(tmp_path, "\ufeff" + lines, "b.svm")).train
    np.testing.assert_array_equal(plain.X, marked.X)
    assert plain.y.tolist() == marked.y.tolist()
    arff = (
        "@relation t\n@attribute sector {Gov,Private}\n@attribute hours real\n@attribute y "
        "{no,yes}\n@data\n"
    )
    path = write(tmp_path, "\ufeff% made\n" + arff + ROWS, "t.arff")
    np.testing.assert_allclose(loaded(schema_of(), path).train.X, EXPECTED)


@pytest.mark.parametrize(
    ("thousands", "decimal", "cell", "value"),
    [
        (",", ".", "1,234.5", 1234.5),
        (".", ",", "1.234.567,25", 1234567.25),
        (" ", ",", "1\u00a0234", 1234),
        (" ", ".", "-12\u202f345", -12345),
        ("'", ".", "1'000e0", 1000),
        (",", ".", "12,34,567", 1234567),
        (",", ".", "7", 7),
    ],
)
def test_marks_of_thousands_stand_before_groups(tmp_path, parser, thousands, decimal, cell, value):
    columns = {"pay": {"kind": "numeric", "low": -(2**24), "high": 2**24}}
    text = {"separator": ";", "thousands": thousands, "decimal": decimal}
    path = write(tmp_path, f"pay;y\n{cell};yes\n0;no\n")
    found = loaded(schema_of(columns, text=text), path).train.X[0, 0]
    assert found == (value + 2**24) / 2**25


@pytest.mark.parametrize("cell", ["1,5", "1,23", "12,3456", "1,234,5", "1.5,000", ",123", "1_000"])
def test_a_mark_of_thousands_elsewhere_is_refused(tmp_path, parser, cell):
    columns = {"pay": {"kind": "numeric", "low": 0, "high": 9}}
    path = write(tmp_path, f'pay;y\n"{cell}";yes\n0;no\n')
    with pytest.raises(
        InputError, match=f"t.csv: data row 1, column 'pay': '{cell}' is not a number"
    ):
        loaded(schema_of(columns, text={"separator": ";", "thousands": ","}), path)


def test_all_faults_of_a_file_are_told_together(tmp_path, parser, monkeypatch):
    monkeypatch.setattr("tasks.readers.text.chunk_rows", lambda columns: 1000)
    monkeypatch.setattr("tasks.readers.arrow.block_bytes", lambda columns: 3000)
    rows = ["Gov,1,yes"] * 4000
    rows[4] = "Gov,old,yes"
    rows[1700] = "Mine,2,perhaps"
    rows[3999] = "Gov,,no"
    path = write(tmp_path, "sector,hours,y\n" + "\n".join(rows))
    for check in (
        lambda: loaded(schema_of(), path),
        lambda: peek(schema_of(), schema_of().encoder(), path),
    ):
        with pytest.raises(InputError) as refused:
            check()
        text = str(refused.value)
        for words in (
            "data row 5, column 'hours': 'old' is not a number",
            "data row 1701, column 'sector': 'Mine'",
            "data row 1701, column 'y': 'perhaps' is not a declared label",
            "data row 4000, column 'hours': no value",
        ):
            assert words in text
        assert "data row 5, column 'hours': no value" not in text and "\n" not in text


def test_arff_quotes_sparse_rows_and_faults_with_their_rows(tmp_path):
    head = (
        "% a comment\n@RELATION 'a b'\n@attribute 'the hours' REAL\n@attribute \"sector\" "
        "{'Gov','Pri\\'vate'}\n"
        '@attribute when date "yyyy-MM-dd"\n@attribute y {no,yes}\n@DATA\n'
    )
    columns = {
        "the hours": COLUMNS["hours"],
        "sector": {"kind": "categorical", "levels": ["Gov", "Pri'vate"], "fill": "Gov"},
        "when": {"kind": "ignore"},
    }
    rows = "40,'Gov',\"2026-01-01\",yes\n%\n20 , 'Pri\\'vate',?, no\n{0 60, 1 ?, 3 yes}\n"
    path = write(tmp_path, head + rows, "t.arff")
    assert loaded(schema_of(columns), path).train.X.tolist() == EXPECTED_ARFF
    path = write(tmp_path, head + rows + "many,Gov,2026-01-01,no\n", "t.arff")
    with pytest.raises(
        InputError,
        match=r"t\.arff: data row 4, column 'the hours': 'many' is not "
        r"one",
    ):
        loaded(schema_of(columns), path)
    path = write(tmp_path, head + rows + "1,Gov\n", "t.arff")
    with pytest.raises(InputError, match="Expected 4 cells in data row 4, got 2"):
        loaded(schema_of(columns), path)


EXPECTED_ARFF = [[0.4, 1, 0], [0.2, 0, 1], [0.6, 1, 0]]
