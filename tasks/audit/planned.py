"""A run planned again: from its stored configuration, the schema that it names and the encoder
stored with its model.

No file of the data is opened. What the plan comes to is compared with the stored mechanisms and
with the statement. Apart from the other rules, since it needs the libraries of a training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from math import isclose
from typing import Any

from dpcore.accounting.events import Events
from dpcore.accounting.limits import PriceCap
from dpcore.algorithms.base import under_new_names
from dpcore.errors import DPFlowsError
from dpcore.preprocess import encoder_from_json
from dpcore.train import Planned, replan
from dpcore.train.search import Tuned
from tasks.audit.findings import RETRAIN, Finding, Severity, note
from tasks.audit.subject import CONFIG, MECHANISMS, Subject
from tasks.config import TrainConfig, parse_config
from tasks.kinds import kind_of
from tasks.kinds.base import Job, Kind
from tasks.ledger import RowFacts
from tasks.ledger.reader import LedgerReader
from tasks.record import sources
from tasks.record.statement import RULES, Statement, Training, guarantee, software
from tasks.schema import find_schema
from tasks.training import plan_training, prepare

ENCODER = "encoder.json"
# Rounding between versions of the numerical libraries, and how close calibrated noise is to what a
# limit asks for.
ROUNDED, CALIBRATED = 1e-6, 1e-3
# A plan that was given more noise than its own target asks for took nearly all that the ledger had
# left.
FULL = 0.99
RESTORE = "Put configuration and data schema back as they were when it was trained, or train again"
WHY = "Configuration, data schema and what was charged are not of one run"
OTHERWISE = ", or version {} planned otherwise"
OTHER_ENCODER = "encoder_not_as_planned"
PLANS = f"{sources.CODE_FOLDER}/train/planning.py"
# What differs in these blocks, by whatever rules a run was planned.
DECLARED = (
    "encoder.columns",
    *(f"guarantee.{key}" for key in ("unit", "adjacency", "delta", "target_epsilon", "conversion")),
    *(f"data.{key}" for key in ("name", "public", "n_kind")),
    *(f"training.{key}" for key in ("loss", "preset", "l1")),
    "ledger",
)
Differences = Iterator[tuple[str, Any, Any]]


def plan_again(run: Subject, ledger: str) -> list[Finding]:
    """What differs between ``run`` and the plan that its own configuration leads to now; what
    cannot be planned is a note. The ledger at ``ledger`` says which facts of the rows are fixed."""
    if (found := run.statement) is None:
        return []  # a rule of the audit says so
    same = found.versions.get("dpflows") == software()["dpflows"]
    # Another version may plan otherwise.
    severity = Severity.BLOCK if same else Severity.WARN
    try:
        config = parse_config(json.loads(run.files[CONFIG]))
    except (KeyError, ValueError, RecursionError) as error:
        return [_refused(severity, error)]
    try:
        schema = find_schema(config.data.name)
    except (DPFlowsError, OSError) as error:
        return [_unplanned(f"its data schema cannot be read: {error}")]
    if missing := _missing(kind_of(config, schema)):
        return [_unplanned(missing)]
    try:
        with LedgerReader(ledger) as reader:
            reader.require_facts(schema.name, RowFacts.of(schema))
        stored = Events.from_json(run.files[MECHANISMS].decode())
        job, planned, tolerance = _plan(config, run, found, stored)
    except ImportError as error:
        return [_unplanned(f"a package is not installed: {error}")]
    except (DPFlowsError, KeyError, ValueError) as error:
        return [_refused(severity, error)]
    why = WHY if same else WHY + OTHERWISE.format(found.versions.get("dpflows"))
    differing = [
        Finding(
            code,
            severity,
            subject,
            f"planned again from the configuration {subject} is {_shown(again)}, stored is "
            f"{_shown(there)}",
            why,
            RESTORE,
        )
        for code, subject, again, there in _compared(job, planned, stored, run, found, tolerance)
    ]
    if same and _other_rules(run, found):
        differing = _by_other_rules(differing, config)
    return _brief(differing) + [_fitted()] * (tolerance == CALIBRATED)


def _brief(found: Sequence[Finding]) -> list[Finding]:
    """Of what differs in the encoder the first, all else as it is."""
    of_encoder = [one for one in found if one.code == OTHER_ENCODER]
    return [one for one in found if one not in of_encoder[1:]]


def _other_rules(run: Subject, found: Statement) -> bool:
    """Whether the run says that it was planned by other code than this: by the statement, or in
    runs before that by the list of the files that its model carries. Both are in the commit record.
    """
    stated = found.versions.get(RULES)
    if stated is not None:
        return stated != sources.rules()
    try:
        listed, _ = sources.read_inventory(run.files[sources.INVENTORY])
    except (KeyError, ValueError, TypeError):
        return False
    own = {name: one for name, one in sources.code_hashes().items() if name.endswith(".py")}
    return PLANS in listed and any(listed.get(name) != one for name, one in own.items())


def _by_other_rules(found: Sequence[Finding], config: TrainConfig) -> list[Finding]:
    """What blocks by any rules, and one warning for all that rules of planning decide."""
    asked = config.preprocess.model_dump()
    named = (*DECLARED, *(f"encoder.{key}" for key, value in asked.items() if value is not None))
    declared = [one for one in found if one.subject.startswith(named)]
    ruled = [one.what for one in found if not one.subject.startswith(named)]
    more = f" (and {len(ruled) - 1} more)" if len(ruled) > 1 else ""
    warning = Finding(
        "planned_by_other_rules",
        Severity.WARN,
        MECHANISMS,
        f"the run was planned by other rules: {''.join(ruled[:1])}{more}",
        "The price of its recorded plan is checked beside this, and what was declared; the plan "
        "itself cannot be made again",
        "Audit it with the version of dpflows that planned it, or train again",
    )
    return [*declared, warning] if ruled else declared


def _missing(kind: Kind) -> str:
    """Which packages a training of this kind needs and this interpreter has not; empty for none."""
    missing = [name for name in kind.packages if find_spec(name) is None]
    needs = f"a training of kind {kind.name} needs {' and '.join(missing)}, which is not installed"
    return needs if missing else ""


def _plan(
    config: TrainConfig, run: Subject, found: Statement, stored: Events
) -> tuple[Job, Planned, float]:
    """Job and plan as they were when the run was committed, and how close its noise must come to
    the stored one.
    """
    job, tolerance = prepare(config, here=False), ROUNDED
    if job.schema.bounds == "from_data":
        job = _encoded(job, run)
    planned = plan_training(job)
    if (
        _filled(found)
        and "noise_multiplier" not in config.algorithm.parameters
        and _differs(planned.events, stored)
    ):
        # where no noise makes it what is stored, the difference is named
        with suppress(DPFlowsError):
            planned, tolerance = plan_training(job, PriceCap(stored)), CALIBRATED
    if planned.before is not None:
        job = _encoded(job, run)
        planned = replan(planned, job.problem, "noise_multiplier" in config.algorithm.parameters)
    if isinstance(planned.algorithm, Tuned):
        job, planned = _selected(job, planned, found)
    return job, planned, tolerance


def _encoded(job: Job, run: Subject) -> Job:
    """The job in the columns of the stored encoder, where bounds or levels are not declared."""
    encoder = encoder_from_json(run.model[ENCODER].decode())
    design = encoder.design
    problem = replace(
        job.problem,
        dimension=design.dimension,
        norm_bound=design.norm_bound,
        blocks=design.blocks,
        intercept=design.intercept,
    )
    return replace(job, encoder=encoder, problem=problem)


def _selected(job: Job, planned: Planned, found: Statement) -> tuple[Job, Planned]:
    """A search with the setting that the statement says was selected, the first one where it has no
    such setting.
    """
    tuned: Any = planned.algorithm
    said = (found.training.parameters.get("tuning") or {}).get("selected")
    index = next((k for k, one in enumerate(tuned.settings) if dict(one.values) == said), 0)
    chosen = tuned.settings[index]
    own = (
        replace(job, problem=chosen.problem) if chosen.part is None else _encoded_part(job, chosen)
    )
    return own, replace(planned, algorithm=replace(tuned, selected=index))


def _encoded_part(job: Job, chosen: Any) -> Job:
    """The job of a setting with columns of its own."""
    from tasks.options.tune import varied

    own = job.kind.describe(varied(json.loads(job.config.canonical()), chosen.values), job.schema)
    return replace(job, problem=chosen.problem, encoder=own.encoder)


def _filled(found: Statement) -> bool:
    """Whether the run took what its budget had left, so that it may have more noise than it asked
    for.
    """
    limit, spent = found.ledger.limit_units, found.ledger.spent_units
    return limit is not None and max(spent.values(), default=0) >= FULL * limit


def _differs(planned: Events, stored: Events) -> bool:
    return any(
        differences(json.loads(planned.to_json()), json.loads(stored.to_json()), "", ROUNDED)
    )


def _compared(
    job: Job, planned: Planned, stored: Events, run: Subject, found: Statement, tolerance: float
) -> Iterator[tuple[str, str, Any, Any]]:
    """Code, subject and both values of what differs; of the mechanisms and the encoder the first
    difference each.
    """
    events = differences(
        json.loads(planned.events.to_json()), json.loads(stored.to_json()), "mechanisms", tolerance
    )
    for one in list(events)[:1]:
        yield "mechanisms_not_as_planned", *one
    encoder = json.loads(run.model[ENCODER]) if ENCODER in run.model else None
    if encoder is not None:
        other = list(differences(json.loads(job.encoder.to_json()), encoder, "encoder", ROUNDED))
        for one in sorted(other, key=lambda one: one[0].partition("[")[0] != "encoder.columns"):
            yield OTHER_ENCODER, *one
    training = Training.of(planned, job.problem)
    facts = {
        "name": job.schema.name,
        "public": job.public,
        "public_n": job.problem.n,
        "n_kind": "exact"
        if planned.problem.adjacency != "add_remove"
        else "declared nominal count",
        "dimension": job.problem.dimension,
        "norm_bound": job.problem.norm_bound,
    }
    again = {
        "guarantee": guarantee(planned).model_dump(mode="json"),
        "training": training.model_dump(mode="json", exclude={"reason"}),
        "data": facts,
        "ledger": {"dataset": job.schema.name, "blocks": list(job.blocks)},
    }
    there = found.model_dump(mode="json")
    there["training"]["parameters"] = under_new_names(planned.name, there["training"]["parameters"])
    for part, values in again.items():
        kept = {key: there[part][key] for key in values}
        for one in differences(values, kept, part, tolerance):
            yield "not_as_planned", *one


def differences(again: Any, there: Any, where: str, tolerance: float) -> Differences:
    """Where two plain values differ, with both; numbers may differ by ``tolerance`` of the larger
    one.
    """
    if _both(Mapping, again, there):
        for key in dict.fromkeys((*again, *there)):
            if key in again and key in there:
                yield from differences(again[key], there[key], f"{where}.{key}", tolerance)
            else:
                yield f"{where}.{key}", again.get(key, "absent"), there.get(key, "absent")
    elif _both((list, tuple), again, there):
        if len(again) != len(there):
            yield f"{where}, its length", len(again), len(there)
        for k, (one, other) in enumerate(zip(again, there, strict=False)):
            yield from differences(one, other, f"{where}[{k}]", tolerance)
    elif not _same_value(again, there, tolerance):
        yield where, again, there


def _both(kind: type | tuple[type, ...], again: Any, there: Any) -> bool:
    return isinstance(again, kind) and isinstance(there, kind)


def _same_value(again: Any, there: Any, tolerance: float) -> bool:
    if not isinstance(again, float) and not isinstance(there, float):
        return type(again) is type(there) and bool(again == there)
    plain = all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in (again, there)
    )
    return plain and isclose(again, there, rel_tol=tolerance)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _unplanned(why: str) -> Finding:
    return note(
        "not_planned_again",
        CONFIG,
        f"the run was not planned again, for {why}"[:300],
        "That its mechanisms follow from its configuration was not looked at",
        "Put back what is missing, and audit again",
    )


def _refused(severity: Severity, error: Exception) -> Finding:
    what = f"the stored configuration leads to no plan: {error}"[:300].rstrip(".")
    return Finding(
        "not_plannable",
        severity,
        CONFIG,
        what,
        "What was trained was planned from another one",
        RETRAIN,
    )


def _fitted() -> Finding:
    return note(
        "noise_for_the_ledger",
        MECHANISMS,
        "the run has more noise than its own target asks for",
        "It took what its budget had left",
        "Nothing has to be done",
    )
