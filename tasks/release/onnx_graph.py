"""A released model as ONNX: encoder, weights and answer in one graph, for runtimes that know no
dpflows.

One input a column of a table ((rows, 1); numbers as double, levels as text), or ``features``
(rows, columns) of numbered ones; outputs ``label``, ``probability`` and ``score`` as the scorer
gives them (``tasks.record.scoring``). No value is NaN, or an empty text. A graph cannot refuse a
row: where the scorer does (an undeclared level, a gap without a fill), score and probability are
NaN and the label is empty. Texts are taken as declared: blanks around them and other spellings of
a number are undeclared levels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from dpcore.errors import InputError
from dpcore.features import MISSING, ZEROS, Column, signed_log
from dpcore.identity import canonical, canonical_marks
from dpcore.preprocess import Encoder, MatrixEncoder, encoder_from_json
from dpcore.preprocess.column_encoders import (
    UNKNOWN,
    ColumnEncoder,
    LevelPart,
    NumberPart,
    RankPart,
)
from dpcore.preprocess.parts import CrossPart, DateLevelPart, DatePart, HashPart

OPSET, ML_OPSET = 17, 3


def require_exportable(encoder: Encoder | MatrixEncoder, card: Mapping[str, Any]) -> None:
    """Raise ``InputError`` for a model that no graph of this module stands for."""
    ranker = card.get("ranker", {"scorer": "linear", "features": ["raw"]})
    plain = ranker["scorer"] == "linear" and list(ranker["features"]) == ["raw"]
    if "network" in card or "outputs" in card or not plain:
        raise InputError(
            "Expected a linear or additive model for --export onnx (a ranking with raw features), "
            f"got a {'network' if 'network' in card else 'model with scores of its own'}; leave "
            "--export out."
        )
    for part in encoder.parts if isinstance(encoder, Encoder) else ():
        if isinstance(part, HashPart | DatePart | DateLevelPart):
            kind = "hashed levels" if isinstance(part, HashPart) else "dates"
            raise InputError(
                f"Expected columns of numbers and listed levels for --export onnx, got {kind} in "
                f"{part.column.name!r}; leave --export out, or train without the column."
            )


class Graph:
    """Nodes and constants of a graph under way; what ``op`` and ``constant`` give are names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.refused: list[str] = []  # (rows, 1), true where the scorer would refuse the row

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, value: Any, kind: Any = np.float64) -> str:
        from onnx import TensorProto, helper, numpy_helper

        name, array = f"constant_{len(self.constants)}", np.asarray(value, dtype=kind)
        if kind is object:
            made = helper.make_tensor(
                name, TensorProto.STRING, array.shape, array.astype(str).ravel().tolist()
            )
        else:
            made = numpy_helper.from_array(array, name)
        self.constants.append(made)
        return name

    def input(self, name: str, text: bool, width: int = 1) -> str:
        from onnx import TensorProto, helper

        kind = TensorProto.STRING if text else TensorProto.DOUBLE
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["rows", width]))
        return name

    def whole(self, name: str) -> str:
        """As int64, towards 0."""
        from onnx import TensorProto

        return self.op("Cast", name, to=TensorProto.INT64)

    def double(self, name: str) -> str:
        from onnx import TensorProto

        return self.op("Cast", name, to=TensorProto.DOUBLE)


Slots = tuple[str, str]  # columns of a part (rows, slots) as int64, and their values as double


class TableGraph:
    """The encoder of a table: points of columns, slots of parts."""

    def __init__(self, graph: Graph, encoder: Encoder) -> None:
        self.graph, self.strip = graph, bool(encoder.strip)
        self.read: dict[str, str] = {}
        self.points: dict[tuple[str, str], tuple[str, str | None]] = {}

    def slots(self, part: ColumnEncoder) -> Slots:
        """Columns and values of a part; zeros where its cell has no value."""
        if isinstance(part, CrossPart):
            return self.product(part)
        points, blank = self.point(part)
        index, value = (
            self.level(part, points) if isinstance(part, LevelPart) else self.basis(part, points)
        )
        zero = self.graph.constant(0.0)
        return index, value if blank is None else self.graph.op("Where", blank, zero, value)

    def product(self, part: CrossPart) -> Slots:
        g = self.graph
        (i, a), (j, b) = self.slots(part.one), self.slots(part.other)
        last, first, flat = (g.constant(one, np.int64) for one in ([2], [1], [0, part.slots]))
        width = g.constant(part.other.width, np.int64)
        rows = g.op("Mul", g.op("Unsqueeze", i, last), width)
        index = g.op("Add", rows, g.op("Unsqueeze", j, first))
        value = g.op("Mul", g.op("Unsqueeze", a, last), g.op("Unsqueeze", b, first))
        return g.op("Reshape", index, flat), g.op("Reshape", value, flat)

    def point(self, part: ColumnEncoder) -> tuple[str, str | None]:
        """The place of a level or a finite number, and where there is no value to encode."""
        column, text = part.column, isinstance(part, LevelPart | RankPart)
        key = (column.name, "text" if text else "number")
        if key not in self.points:
            if column.name not in self.read:
                self.read[column.name] = self.graph.input(column.name, text)
            cells = self.read[column.name]
            self.points[key] = self.places(column, cells) if text else self.number(column, cells)
        return self.points[key]

    def places(self, column: Column, cells: str) -> tuple[str, str | None]:
        """Places of levels; refused, or without value, as the column declares it."""
        g = self.graph
        known = {canonical(level, self.strip): code for code, level in enumerate(column.levels)}
        fill = MISSING
        if column.fill is not None:
            fill = known.get(canonical(column.fill, self.strip), MISSING)
        codes = dict.fromkeys((*canonical_marks(column.missing, self.strip), ""), fill)
        codes |= {str(level): code for code, level in enumerate(column.levels)} | known
        other = len(column.levels) if column.unknown == "other" else UNKNOWN
        found = g.op(
            "LabelEncoder", cells, domain="ai.onnx.ml", keys_strings=list(codes),
            values_int64s=list(codes.values()), default_int64=other,
        )  # fmt: skip
        if column.unknown == "refuse":
            g.refused.append(g.op("Equal", found, g.constant(UNKNOWN, np.int64)))
        if column.fill is None:
            g.refused.append(g.op("Equal", found, g.constant(MISSING, np.int64)))
        zero = g.constant(0, np.int64)
        return g.op("Max", found, zero), g.op("Less", found, zero)

    def number(self, column: Column, cells: str) -> tuple[str, str | None]:
        """Numbers with the declared fill for what is none."""
        g = self.graph
        bad = g.op("Or", g.op("IsNaN", cells), g.op("IsInf", cells))
        low = 0.0 if column.kind == "flag" else float(column.low or 0.0)
        if column.fill is None:
            g.refused.append(bad)
        filled = low if column.fill in (None, ZEROS) else float(column.fill or 0.0)
        numbers = g.op("Where", bad, g.constant(filled), cells)
        return numbers, bad if column.fill == ZEROS else None

    def level(self, part: LevelPart, places: str) -> Slots:
        g, zero = self.graph, self.graph.constant(0, np.int64)
        place = g.op("Sub", places, g.constant(int(part.column.drop_first), np.int64))
        on = g.op("GreaterOrEqual", place, zero)
        return g.op("Max", place, zero), g.double(on)

    def basis(self, part: ColumnEncoder, points: str) -> Slots:
        """Columns and values of a number's map (``NumberPart.basis``)."""
        assert isinstance(part, NumberPart)
        g = self.graph
        u = self.unit(part, g.double(points) if isinstance(part, RankPart) else points)
        none = g.op("Mul", g.whole(u), g.constant(0, np.int64))
        if part.map == "hats":
            scaled = g.op("Mul", u, g.constant(part.count - 1.0))
            j = g.op("Min", g.whole(scaled), g.constant(part.count - 2, np.int64))
            right = g.op("Sub", scaled, g.double(j))
            left = g.op("Sub", g.constant(1.0), right)
            following = g.op("Add", j, g.constant(1, np.int64))
            return g.op("Concat", j, following, axis=1), g.op("Concat", left, right, axis=1)
        if part.map == "bins":
            place = g.whole(g.op("Mul", u, g.constant(float(part.count))))
            one = g.op("Add", g.double(none), g.constant(1.0))
            return g.op("Min", place, g.constant(part.count - 1, np.int64)), one
        if part.map == "centred":
            u = g.op("Sub", g.op("Mul", u, g.constant(2.0)), g.constant(1.0))
        return none, u

    def unit(self, part: NumberPart, points: str) -> str:
        """``unit_interval`` of the part's bounds."""
        g, low, high = self.graph, part.low, part.high
        if high <= low:
            return g.op("Mul", points, g.constant(0.0))
        value = g.op("Clip", points, g.constant(low), g.constant(high))
        if part.log:
            shifted = g.op("Sub", value, g.constant(max(low, 0.0)))
            size = g.op("Log", g.op("Add", g.op("Abs", shifted), g.constant(1.0)))
            value = g.op("Mul", g.op("Sign", shifted), size)
            low, high = map(float, signed_log(np.array([low, high]), low))
        share = g.op("Div", g.op("Sub", value, g.constant(low)), g.constant(high - low))
        return g.op("Clip", share, g.constant(0.0), g.constant(1.0))


def table_scores(graph: Graph, encoder: Encoder, weights: np.ndarray) -> str:
    """Scores (rows, outputs) of the columns of a table; ``weights`` (outputs, d)."""
    table, sums, squares = TableGraph(graph, encoder), [], []
    for part in encoder.parts:
        index, value = table.slots(part)
        own = graph.constant(weights[:, part.start : part.start + part.width].T)
        sums.append((index, value, own))
        squares.append(value)
    divisor = norms(graph, squares, encoder)
    terms = [
        term(graph, index, scaled(graph, value, divisor, encoder), own)
        for index, value, own in sums
    ]
    if encoder.intercept:
        terms.append(constant_term(graph, divisor, encoder, weights))
    return graph.op("Sum", *terms)


def constant_term(graph: Graph, divisor: str, encoder: Any, weights: np.ndarray) -> str:
    one = graph.op("Add", graph.op("Mul", divisor, graph.constant(0.0)), graph.constant(1.0))
    constant = scaled(graph, one, divisor, encoder)
    return graph.op("Mul", constant, graph.constant(weights[:, -1][None, :]))


def term(graph: Graph, index: str, value: str, weights: str) -> str:
    """Sum over slots of value times the weight of the slot's column, (rows, outputs)."""
    chosen = graph.op("Gather", weights, index)  # (rows, slots, outputs)
    last, slots = graph.constant([2], np.int64), graph.constant([1], np.int64)
    product = graph.op("Mul", graph.op("Unsqueeze", value, last), chosen)
    return graph.op("ReduceSum", product, slots, keepdims=0)


def norms(graph: Graph, values: list[str], encoder: Encoder | MatrixEncoder) -> str:
    """What each row is divided by, (rows, 1): 1, its norm, or its norm where that is above 1."""
    axis, one = graph.constant([1], np.int64), graph.constant(1.0)
    squared = [
        graph.op("ReduceSum", graph.op("Mul", value, value), axis, keepdims=1) for value in values
    ]
    whole = graph.op(
        "Add", graph.op("Sum", *squared), graph.constant(float(bool(encoder.intercept)))
    )
    if encoder.normalise == "none":
        return graph.op("Add", graph.op("Mul", whole, graph.constant(0.0)), one)
    norm = graph.op("Sqrt", whole)
    if encoder.normalise == "cap":
        return graph.op("Max", norm, one)
    return graph.op("Where", graph.op("Greater", norm, graph.constant(0.0)), norm, one)


def scaled(graph: Graph, value: str, divisor: str, encoder: Encoder | MatrixEncoder) -> str:
    """Values over the norms of their rows, in the encoder's own precision."""
    from onnx import TensorProto

    found = graph.op("Div", value, divisor)
    if encoder.dtype == "float64":
        return found
    found = graph.op("Mul", found, graph.constant(1.0 - 5e-7))
    return graph.double(graph.op("Cast", found, to=TensorProto.FLOAT))


def matrix_scores(graph: Graph, encoder: MatrixEncoder, weights: np.ndarray) -> str:
    """Scores (rows, outputs) of numbered columns; ``weights`` (outputs, d)."""
    cells = graph.input("features", False, encoder.width)
    bad = graph.op("Or", graph.op("IsNaN", cells), graph.op("IsInf", cells))
    each = [group.fill for group in encoder.groups for _ in group.names]
    fills = [np.nan if fill is None else fill for fill in each]
    filled = graph.op("Where", bad, graph.constant(fills), cells)
    gap = graph.op("Cast", graph.op("IsNaN", filled), to=7)
    graph.refused.append(graph.op("Cast", graph.op("ReduceMax", gap, axes=[1], keepdims=1), to=9))
    body = matrix_body(graph, encoder, filled)
    divisor = norms(graph, [body], encoder)
    own = graph.constant(weights[:, : encoder.width].T)
    score = graph.op("MatMul", scaled(graph, body, divisor, encoder), own)
    if not encoder.intercept:
        return score
    return graph.op("Add", score, constant_term(graph, divisor, encoder, weights))


def matrix_body(graph: Graph, encoder: MatrixEncoder, filled: str) -> str:
    """Columns in [0, 1] or [-1, 1] before rows are shortened (``MatrixEncoder._encode_dense``)."""
    each = [group for group in encoder.groups for _ in group.names]
    rows = graph.constant([1], np.int64)
    low, high = (np.array([getattr(group, end) for group in each]) for end in ("low", "high"))
    clean = graph.op("Where", graph.op("IsNaN", filled), graph.constant(low), filled)
    cut = graph.op("Min", graph.op("Max", clean, graph.constant(low)), graph.constant(high))
    span = np.where(high > low, high - low, 1.0)
    unit = graph.op("Div", graph.op("Sub", cut, graph.constant(low)), graph.constant(span))
    start, parts = 0, []
    for group in encoder.groups:
        ends = [graph.constant([one], np.int64) for one in (start, start + group.count)]
        part = graph.op("Slice", unit, *ends, rows)
        if group.kind == "one_hot":
            total = graph.op("ReduceSum", part, rows, keepdims=1)
            part = graph.op("Div", part, graph.op("Max", total, graph.constant(1.0)))
        elif group.kind == "numeric" and encoder.numeric == "centred":
            part = graph.op("Sub", graph.op("Mul", part, graph.constant(2.0)), graph.constant(1.0))
        parts.append(part)
        start += group.count
    return graph.op("Concat", *parts, axis=1)


def to_onnx(model: Mapping[str, bytes], weights: np.ndarray) -> bytes:
    """The graph of a model's files (``encoder.json``, ``model.json``) with its ``weights``."""
    import onnx
    from onnx import TensorProto, helper

    encoder, card = read(model)
    require_exportable(encoder, card)
    label = card["label"]
    outputs = len(label["levels"]) if label["kind"] == "classes" else 1
    by_class = np.asarray(weights, dtype=np.float64).reshape(outputs, -1)
    graph = Graph()
    if isinstance(encoder, Encoder):
        scores = table_scores(graph, encoder, by_class)
    else:
        scores = matrix_scores(graph, encoder, by_class)
    answer = answered(graph, scores, card)
    types = dict.fromkeys(answer, TensorProto.DOUBLE)
    if label["kind"] != "regression":
        types["label"] = TensorProto.STRING
    for name, made in answer.items():
        flat = graph.constant([-1], np.int64)
        graph.nodes.append(helper.make_node("Reshape", [made, flat], [name], name=f"answer {name}"))
    shown = [helper.make_tensor_value_info(name, types[name], ["rows"]) for name in answer]
    whole = helper.make_graph(graph.nodes, str(card["data"]), graph.inputs, shown, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    made = helper.make_model(whole, opset_imports=opsets, producer_name="dpflows", ir_version=8)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString(deterministic=True))


def answered(g: Graph, scores: str, card: Mapping[str, Any]) -> dict[str, str]:
    """Names of label, probability and score (rows, 1), from scores (rows, outputs)."""
    label = card["label"]
    refused = reduce(lambda one, other: g.op("Or", one, other), g.refused) if g.refused else None
    if label["kind"] == "regression":
        (low, high), (first, last) = label["bounds"], label["scaled_to"]
        moved = g.op(
            "Mul", g.op("Sub", scores, g.constant(first)), g.constant((high - low) / (last - first))
        )
        value = blanked(g, g.op("Add", moved, g.constant(low)), refused)
        return {"label": value, "score": value}
    if label["kind"] == "relevance":
        return {"score": blanked(g, scores, refused)}
    several = label["kind"] == "classes"
    if several:
        place = g.op("ArgMax", scores, axis=1, keepdims=1)
        score = g.op("ReduceMax", scores, axes=[1], keepdims=1)
        names = list(label["levels"])
    else:
        place = g.whole(g.op("GreaterOrEqual", scores, g.constant(0.0)))
        score, names = scores, [label["negative"], label["positive"]]
    if refused is not None:
        place = g.op("Where", refused, g.constant(len(names), np.int64), place)
    found = {"label": g.op("Gather", g.constant([*names, ""], object), place)}
    if stated := card.get("probability"):
        found["probability"] = blanked(g, chances(g, scores, stated["from"]), refused)
    return found | {"score": blanked(g, score, refused)}


def blanked(g: Graph, value: str, refused: str | None) -> str:
    return value if refused is None else g.op("Where", refused, g.constant(np.nan), value)


def chances(g: Graph, scores: str, stated: str) -> str:
    """As ``tasks.record.scoring.chances``."""
    if stated == "logistic":
        return g.op("Sigmoid", scores)
    if stated == "softmax":
        return g.op("ReduceMax", g.op("Softmax", scores, axis=1), axes=[1], keepdims=1)
    each = g.op("Max", g.op("Sigmoid", scores), g.constant(1e-300))
    whole = g.op("ReduceSum", each, g.constant([1], np.int64), keepdims=1)
    return g.op("Div", g.op("ReduceMax", each, axes=[1], keepdims=1), whole)


def read(model: Mapping[str, bytes]) -> tuple[Encoder | MatrixEncoder, dict[str, Any]]:
    """Encoder and card of a model's files."""
    encoder = encoder_from_json(model["encoder.json"].decode())
    return encoder, json.loads(model["model.json"])
