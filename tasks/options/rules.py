"""What goes with what: one table, from which every refusal is made and ``docs/options.md`` is
written.

A rule is about a fact of the configuration, of the data's declaration or of the command, so it is
decided before a file is opened and before anything is spent. What a table cannot say (at most so
many columns, a metric's name) is a check of the option itself.

``python -c "from tasks.options.rules import page; print(page(), end='')"`` prints the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from pydantic import BaseModel

from dpcore.errors import InputError
from tasks.config import TrainConfig
from tasks.schema import Schema

PRESENT, ABSENT, DECLARED = "present", "absent", "declared"
ENCODED = "preprocess"  # of tune.grid: it varies how rows are encoded


class Rule(NamedTuple):
    """``option`` goes with ``allowed`` values of ``fact`` alone, ``because`` ...; with a way out.

    ``option`` is what a person wrote: a section or field, or NAME=VALUE for one value of a fact.
    ``because`` may name facts in braces.
    """

    option: str
    fact: str
    allowed: tuple[str, ...]
    because: str

    def broken(self, facts: Mapping[str, str]) -> bool:
        """Whether ``facts`` break it; what they leave out is not looked at."""
        name, _, value = self.option.partition("=")
        found = facts.get(name, ABSENT)
        asked = found == value if value else found not in (ABSENT, DECLARED)
        return asked and self.fact in facts and facts[self.fact] not in self.allowed


# In this order: of several that are broken the first one is said.
RULES = (
    Rule("bounds", "undeclared", ("some",), "its words would be untrue; set bounds: declared"),
    Rule("model", "label", ("binary", "classes"),
         "it scores classes; leave section model out, or name other data"),
    Rule("model", "unit", ("record",),
         "its gradients are clipped one record each; leave section model out, or use dp_sgd on a "
         "linear model"),
    Rule("model", "bounds", (DECLARED,),
         "its layers follow from the columns; declare them, `dpflows profile` drafts them"),
    Rule("evaluate.goal=auc", "kind", ("table",),
         "it is a rule for the clip of linear scores; leave it out"),
    Rule("evaluate.goal=probability", "kind", ("table",),
         "it is a rule for the clip and a calibration of linear scores; leave it out"),
    Rule("ranking", "label", ("relevance",),
         "its features and metrics are those of ranked lists; leave it out, or name data with a "
         "label of kind relevance"),
    Rule("label=relevance", "unit", ("session",),
         "documents of a query are protected together; privacy.adjacency says whether a session's "
         "labels or the whole session are protected"),
    Rule("label=relevance", "bounds", (DECLARED,),
         "an estimate would be one for single rows; declare them"),
    Rule("kind=table", "unit", ("record", "user"),
         "its rows are records; declare unit record, or unit user with a column of kind user"),
    Rule("unit=user", "label", ("binary", "regression"),
         "the rows of a user are one term of a single score; declare such a label, or unit record "
         "where each person has one row"),
    Rule("privacy.adjacency=replace_labels", "label", ("relevance",),
         "it is the relation of sessions, whose documents are public; use add_remove or "
         "replace_one"),
    Rule("bounds=private", "unit", ("record",),
         "a person with several rows would move a count by more than its sensitivity; declare the "
         "bounds and levels"),
    Rule("command=compare", "unit", ("record", "session"),
         "folds are cut by rows, and the rows of a user would lie in several; use `dpflows train`"),
    Rule("command=compare", "bounds", (DECLARED,),
         "each fold would have columns of its own; declare them, `dpflows profile` drafts a "
         "schema"),
    Rule("select", "label", ("binary", "regression", "classes"),
         "only columns of a table are selected; leave it out, or use algorithm.name=best_feature"),
    Rule("select", "kind", ("table",), "it is for linear scores; leave it out"),
    Rule("select", "unit", ("record",),
         "its noisy correlations go by single rows, of which a user has several; leave it out"),
    Rule("select", "command", ("train",), "columns are selected in a training alone; leave it out"),
    Rule("tune", "label", ("binary", "classes"),
         "a score is a count of right predictions, which a label of kind {label} has not; fix the "
         "parameters"),
    Rule("tune", "kind", ("table",),
         "right predictions are counted for linear scores; leave it out"),
    Rule("tune", "unit", ("record",),
         "the score's noise is for one record, and the unit is {unit}; fix the parameters"),
    Rule("tune", "bounds", (DECLARED,),
         "bounds and levels must be declared before the search; declare them"),
    Rule("tune", "select", (ABSENT,),
         "a selection of columns is planned by itself; use algorithm.name=two_phase and tune its "
         "parameters"),
    Rule("tune", "algorithm.noise_multiplier", (ABSENT,),
         "algorithm.noise_multiplier follows from the budget; leave it out"),
    Rule("tune", "privacy.accountant", ("auto", "rdp", "pure"),
         "selection among trials is proved for Rényi curves; use accountant='auto'"),
    Rule("tune", "command", ("train",), "its search would run in every fold; leave it out"),
    Rule("tune.grid=preprocess", "champion.data", (ABSENT,),
         "champion and challenger need the same columns; fix the encoding, or leave champion.data "
         "out"),
    Rule("audit", "kind", ("table", "network"),
         "sessions of a ranking are no single records; leave the section audit out, or use "
         "`dpflows audit RUN --empirical`"),
    Rule("audit", "kind", ("table",),
         "a network's canaries would need gradients of their own; leave the section audit out"),
    Rule("audit", "label", ("binary",),
         "the attack scores one margin, so it needs a binary label; leave the section audit out, "
         "or use `dpflows audit RUN --empirical`"),
    Rule("audit", "unit", ("record",),
         "a canary is a record and the unit is another; leave the section audit out, or use "
         "`dpflows audit RUN --empirical`"),
    Rule("audit", "tune", (ABSENT,),
         "a search (tune) splits the records before it trains; leave the section audit out, or use "
         "`dpflows audit RUN --empirical`"),
    Rule("audit", "bounds", (DECLARED,),
         "an estimate would be made without the canaries; declare them, or leave the section audit "
         "out"),
    Rule("audit", "evaluate.release", (ABSENT,),
         "evaluate.release would pay for a metric of a model that is never released; leave one of "
         "them out"),
    Rule("audit", "command", ("train",),
         "canaries are no rows of a fold; leave the section audit out"),
    Rule("evaluate.release", "label", ("binary", "classes"),
         "its noise is for counts of right predictions, which a label of kind {label} has not; "
         "leave it out, or measure on data that are declared public"),
    Rule("evaluate.release", "kind", ("table",),
         "its counts are those of linear scores; leave it out, or compare on a public set"),
    Rule("evaluate.release", "unit", ("record",),
         "its noise is for one row in one cell; leave it out, or compare on a public set"),
    Rule("evaluate.release", "command", ("train",),
         "its counts would be drawn in every fold; leave it out: numbers of held out rows are "
         "internal"),
    Rule("evaluate.subgroup", "command", ("train",),
         "groups are told apart in a training alone; leave it out"),
    Rule("evaluate.release.metric=balanced_accuracy", "label", ("binary",),
         "its counts are those of two classes; release accuracy"),
    Rule("evaluate.release.against", "bounds", (DECLARED,),
         "two models are compared by the same columns; declare them, or leave it out"),
    Rule("evaluate.release.against", "tune", (ABSENT,),
         "a search may choose other columns; leave one out"),
    Rule("drift.epsilon", "bounds", (DECLARED,),
         "the cells of the histograms would differ between retrainings; declare them, or leave "
         "drift.epsilon out"),
    Rule("drift.epsilon", "unit", ("record",),
         "a count's noise is for one record, not for one of unit '{unit}'; leave drift.epsilon "
         "out"),
    Rule("drift.epsilon", "label", ("binary",), "it counts two classes; leave drift.epsilon out"),
    Rule("champion.data", "bounds", (DECLARED,),
         "the columns would differ between retrainings; declare them, or leave champion.data out"),
    Rule("champion.data", "label", ("binary",),
         "both models are measured by two classes; leave champion.data out"),
    Rule("engine", "kind", ("table",),
         "it keeps rows of declared columns; leave section engine out"),
    Rule("engine.kind=shards", "unit", ("record",),
         "all rows of a unit are needed side by side; leave it out"),
    Rule("engine.kind=shards", "bounds", (DECLARED,),
         "rows would be encoded twice; declare them"),
    Rule("engine.kind=shards", "tune", (ABSENT,),
         "a search splits the rows in memory; leave one out"),
    Rule("engine.kind=shards", "select", (ABSENT,),
         "a selection looks at single rows; leave one out"),
    Rule("engine.kind=shards", "audit", (ABSENT,),
         "canaries are rows in memory; leave one out"),
    Rule("engine.kind=shards", "evaluate.subgroup", (ABSENT,),
         "groups of single rows are kept in memory; leave one out"),
    Rule("engine.kind=dask", "unit", ("record",),
         "all rows of a unit are needed side by side; leave it out"),
    Rule("engine.kind=dask", "bounds", (DECLARED,),
         "rows would be encoded twice; declare them"),
    Rule("engine.kind=dask", "tune", (ABSENT,),
         "a search splits the rows in memory; leave one out"),
    Rule("engine.kind=dask", "select", (ABSENT,),
         "a selection looks at single rows; leave one out"),
    Rule("engine.kind=dask", "audit", (ABSENT,),
         "canaries are rows in memory; leave one out"),
    Rule("engine.kind=dask", "evaluate.subgroup", (ABSENT,),
         "groups of single rows are kept in memory; leave one out"),
    Rule("engine.kind=dask", "label", ("binary",),
         "quality is read from counts of two classes; use engine.kind=shards"),
    Rule("engine.kind=dask", "evaluate.release", (ABSENT,),
         "its counts would need every row here; leave it out"),
)  # fmt: skip


def declared(schema: Schema) -> dict[str, str]:
    """The facts that a schema declares."""
    undeclared = "some" if schema.undeclared_columns else "none"
    facts = {"data": schema.name, "label": schema.label.kind, "unit": schema.unit}
    return facts | {"bounds": schema.bounds, "undeclared": undeclared}


def facts_of(
    config: TrainConfig, schema: Schema, kind: str, command: str, options: Iterable[str]
) -> dict[str, str]:
    """Every fact that a rule looks at, by name: of the schema, of the ``kind`` and the command, the
    others by their path in ``config``.

    ``command``: train (with plan and retrain), or compare (with crossval and bench). ``options``:
    the names of those that are asked for.
    """
    facts = {**declared(schema), "kind": kind, "command": command}
    names = {name for rule in RULES for name in (rule.option.partition("=")[0], rule.fact)}
    return (
        {name: value_at(config, name) for name in names} | dict.fromkeys(options, PRESENT) | facts
    )


def value_at(config: BaseModel, path: str) -> str:
    """What stands at ``path``: a value as text, ``present`` for a section, ``absent`` for nothing."""
    try:
        found: Any = attrgetter(path)(config)
    except AttributeError:
        return ABSENT
    if found is None:
        return ABSENT
    return PRESENT if isinstance(found, BaseModel) else str(found)


def check_rules(
    config: TrainConfig, schema: Schema, kind: str, command: str, options: Iterable[str]
) -> None:
    """Raise ``InputError`` with the sentence of the first rule that a training breaks."""
    check_facts(facts_of(config, schema, kind, command, options))


def check_facts(facts: Mapping[str, str], where: str = "") -> None:
    """Raise ``InputError`` for the first rule that these facts break; rules about others are not
    looked at.
    """
    broken = next((rule for rule in RULES if rule.broken(facts)), None)
    if broken is not None:
        raise InputError(where + refusal(broken, facts))


# What cannot be left out, in words: of such an option the fact is at fault.
GIVEN = {
    "model": "for a network",
    "label=relevance": "for a label of kind relevance",
    "kind=table": "for a linear model",
    "unit=user": "for unit user",
    "bounds=private": "to estimate bounds",
    "command=compare": "to compare",
}
# Facts that are named as what is wrong, and what is asked of them.
WANTED = {
    "bounds": "declared bounds and levels",
    "undeclared": "columns without bounds or levels",
    "label": "a label of kind {allowed}",
    "unit": "unit {allowed}",
    "privacy.accountant": "accountant {allowed}",
}
GOT = {
    "bounds": "got bounds: {bounds} in schema {data!r}",
    "undeclared": "but every column of {data!r} is declared",
    "label": "got label.kind={label!r} in schema {data!r}",
    "unit": "got unit={unit!r} in schema {data!r}",
    "privacy.accountant": "got accountant={fact!r}",
}
# Where an option stands that is named as what is wrong.
CIRCUMSTANCE = {
    "kind=network": "beside model",
    "kind=sessions": "for sessions",
    "label": "for data set {data!r}, whose label is of kind {label}",
    "unit": "for unit {unit} in {data!r}",
    "command=compare": "to compare or cross-validate",
}
SHOWN = {
    "model": "section model",
    "tune.grid=preprocess": "preprocess in training.tune.grid",
    "tune": "section tune",
    "select": "section select",
    "ranking": "section ranking",
    "audit": "section audit",
    "engine": "section engine",
}
FOR = {
    "bounds": "for bounds: {bounds}",
    "tune": "for a tuned training",
    "audit": "for audit.canaries",
    "champion.data": "for a comparison with a champion",
}


def refusal(rule: Rule, facts: Mapping[str, str]) -> str:
    """The sentence of a broken rule, on one line: what was expected, what was found, why, and the
    way out.
    """
    because = rule.because.format_map(facts)
    if rule.fact in WANTED and (
        rule.option in GIVEN or rule.fact in ("bounds", "undeclared", "privacy.accountant")
    ):
        wanted = WANTED[rule.fact].format(allowed=any_of(rule.allowed))
        found = GOT[rule.fact].format_map({**facts, "fact": facts[rule.fact]})
        what = GIVEN.get(rule.option) or FOR.get(rule.option) or f"for {rule.option}"
        return f"Expected {wanted} {what.format_map(facts)}, {found}: {because}."
    where = circumstance(rule.fact, facts[rule.fact])
    shown = SHOWN.get(rule.option, rule.option)
    found = "" if "=" in rule.option else ", got one"
    return f"Expected no {shown} {where.format_map(facts)}{found}: {because}."


def circumstance(fact: str, value: str) -> str:
    """Where an option stands that does not belong there; another option is named with its value."""
    beside = f"beside {fact}" if value == PRESENT else f"beside {fact}={value!r}"
    return CIRCUMSTANCE.get(f"{fact}={value}") or CIRCUMSTANCE.get(fact) or beside


def any_of(words: tuple[str, ...]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


HEAD = """# What goes with what

Options of a training, and the facts that they go with. A configuration that breaks a rule is refused before a file is
opened and before anything is spent, with the reason that stands here. Made from the table in `tasks/options/rules.py`,
whose first lines say how; words in ‹› are those of the configuration at hand.

| option | goes with | because; way out |
|---|---|---|
"""


def page() -> str:
    """The table for readers, as Markdown."""
    names = {name: f"‹{name}›" for rule in RULES for name in ("data", rule.fact)}
    rows = [
        f"| `{rule.option}` | {allowed(rule)} | {rule.because.format_map(names)} |"
        for rule in RULES
    ]
    return HEAD + "\n".join(rows) + "\n"


def allowed(rule: Rule) -> str:
    """The values that a rule allows, in words."""
    if rule.allowed == (ABSENT,):
        return f"no `{rule.fact}`"
    return f"`{rule.fact}` {any_of(rule.allowed)}"
