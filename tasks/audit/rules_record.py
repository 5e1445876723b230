"""Rules that hold for any run record, by the names and values in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite

from tasks.audit.findings import Finding, block, warn
from tasks.audit.subject import Subject, repeated

# An SQL store keeps infinity as the largest double, which then compares and plots as a number.
LARGEST = 1e300

# A seed of anything secret: noise, batches, permutations. Splits and starts have a public seed of
# another name.
SECRET_SEED = re.compile(
    r"(noise|dp|secret|sampl\w*|batch|perm\w*|shuffle|mechanism|privacy)[-_. "
    r"]*seed|rng|random_?state"
)
BARE_SEED = re.compile(r"(^|[._])seed$")
STATE_FILE = re.compile(r"rng|random_?state|(^|[/_.-])seeds?([/_.-]|$)|generator_state")
CLEAR_FILE = re.compile(
    r"clean|without_noise|noiseless|no_noise|exact_grad|raw_grad|per_(example|record)|(^|[/_.-])gradients?[._-]"
)
EXAMPLE_FILE = re.compile(r"input_example|serving_input|sample_rows|head\.(csv|json|parquet)")
ROWS_FILE = re.compile(
    r"\.(csv|tsv|parquet|feather|arff|svmlight|libsvm|letor)(\.gz|\.bz2|\.xz|\.zip)?$|(^|/)(train|data|rows|records)\.(json|npy|npz)$"
)
PICKLE_FILE = re.compile(r"\.(pkl|pickle|joblib|skops|pt|pth|dill)$")
CLEAR_METRIC = re.compile(
    r"without_noise|noiseless|no_noise|clean|non_?private|exact|(^|[_./-])train(ing)?[_./-]|grad(ient)?_norm|clip_?frac"
)
QUALITY = re.compile(r"accuracy|auc|loss|error|precision|recall|f1|ndcg|map\b|mse|brier")
DATA_BOUND = re.compile(
    r"(feature|column|data|x|norm|label|target)\w*[._](min|max|low|high|bounds?|range)s?$|^(min|max)_"
)
FROM_DATA = ("data", "from_data", "observed", "fitted", "private")
DECLARED_SET = ("public", "held-out", "held_out", "holdout", "declared", "synthetic")


def closed(run: Subject) -> Iterator[Finding]:
    """Status FINISHED with an end time."""
    if run.status != "FINISHED" or not run.ended:
        ended = "" if run.ended else " with no end time"
        yield block(
            "run_not_finished",
            "status",
            f"the run is {run.status}{ended}",
            "It never closed properly, so what it spent and what it stored may be incomplete",
            "Close it, and release a run that finished",
        )


def finite(run: Subject) -> Iterator[Finding]:
    """No metric is infinite or NaN."""
    for name, values in run.metrics.items():
        if any(value != value for value in values):
            yield block(
                "metric_nan",
                name,
                f"metric {name} is NaN",
                "Some stores keep it as 0 with a flag, so that a filter such as 'loss < 0.1' picks "
                "such a run",
                "Refuse such a value, or write an explicit tag that it is undefined",
            )
        elif any(not isfinite(value) or abs(value) >= LARGEST for value in values):
            spent = re.search("epsilon|eps", name)
            yield block(
                "epsilon_infinite" if spent else "metric_infinite",
                name,
                f"metric {name} is infinite",
                "An SQL store turns it into about 1.8e308, which then compares and plots as a "
                "number",
                "Write it as a tag" + (", and release a run with a guarantee" if spent else ""),
            )


def single_valued(run: Subject) -> Iterator[Finding]:
    """Every parameter has one value; so has every metric that is not a curve."""
    for name, values in run.params.items():
        if repeated(values):
            yield block(
                "param_changed",
                name,
                f"parameter {name} has several values ({', '.join(values)})",
                "A parameter cannot change within a run; each attempt is a run of its own and "
                "counts in the ledger",
                "Train again as one run, and charge every attempt",
            )


def seeds(run: Subject) -> Iterator[Finding]:
    """No seed of noise, batches or permutations, no generator state."""
    why = "With it anyone can draw the noise again and subtract it"
    for name in (*run.params, *run.tags):
        value = run.setting(name)
        if SECRET_SEED.search(name.lower()) and value not in (None, "", "None", "null"):
            yield block(
                "seed_recorded",
                name,
                f"{name} is recorded",
                why,
                "Train with noise from the operating system",
            )
        elif BARE_SEED.search(name.lower()) and not run.own:
            yield warn(
                "seed_unexplained",
                name,
                f"{name} is recorded and nothing says what it feeds",
                "A seed of splits is public, a seed of noise gives the noise away",
                "Name what it seeds",
            )
    for path in run.artifacts:
        if STATE_FILE.search(path.lower()):
            yield block(
                "rng_state_stored",
                path,
                f"{path} holds a generator's state",
                why,
                "Delete it and train again",
            )


def files(run: Subject) -> Iterator[Finding]:
    """No clear gradients, no rows, no pickles among the artifacts."""
    for path in run.artifacts:
        name = path.lower()
        if CLEAR_FILE.search(name):
            yield block(
                "clear_values_stored",
                path,
                f"{path} holds values from before the noise",
                "They are exact functions of private rows, which no epsilon covers",
                "Delete the file; what it showed cannot be taken back",
            )
        elif EXAMPLE_FILE.search(name) and not run.own:
            yield block(
                "input_example_stored",
                path,
                f"{path} is an input example",
                "Tracking servers write real rows of the training data there",
                "Store a synthetic example made from the declared schema",
            )
        elif PICKLE_FILE.search(name):
            yield block(
                "pickle_stored",
                path,
                f"{path} is a pickle",
                "Loading it runs whatever code it holds",
                "Store weights as NPZ and everything else as JSON",
            )
        elif ROWS_FILE.search(name):
            yield block(
                "rows_stored",
                path,
                f"{path} looks like rows of a table",
                "Raw rows have no guarantee",
                "Delete the file",
            )


def _clear(plain: str) -> bool:
    """Whether a metric of that name is an exact number on private rows."""
    charged = plain.startswith(("released.", "spent."))
    return CLEAR_METRIC.search(plain) is not None and not charged


def exact_metrics(run: Subject) -> Iterator[Finding]:
    """Exact answers about private rows; a metric on a declared public or held-out set is none."""
    evaluated = run.setting("evaluated_on", "test_set", "evaluate.set") or ""
    declared = any(word in evaluated.lower() for word in DECLARED_SET)
    internal = ("internal.",) if run.own else ()
    for name in run.metrics:
        plain = name.lower()
        if plain.startswith(internal):
            continue
        if _clear(plain):
            yield block(
                "exact_metric",
                name,
                f"metric {name} is an exact number on private rows",
                "Nothing was charged for it, and epsilon does not cover it",
                "Remove it from what leaves, release it with noise that is charged, or measure on "
                "a public set",
            )
        elif not run.own and QUALITY.search(plain) and not declared:
            yield warn(
                "metric_set_unnamed",
                name,
                f"metric {name} does not say on which records it was computed",
                "On private records it would be an exact answer",
                "Name the public or held-out set in the tag evaluated_on",
            )


def bounds(run: Subject) -> Iterator[Finding]:
    """Bounds are declared, not read from the rows."""
    source = (run.setting("bounds_source", "bounds", "data.bounds") or "").lower()
    if source not in FROM_DATA:
        return
    derived = [name for name in run.params if DATA_BOUND.search(name.lower())]
    named = f" ({', '.join(derived)})" if derived else ""
    yield block(
        "bounds_from_data",
        ", ".join([*derived, "bounds_source"]),
        f"bounds come from the data{named}",
        "A bound read from private rows is an exact answer that epsilon does not cover",
        "Declare bounds from the documentation of the data, or estimate them with a charged "
        "mechanism",
    )


def stated(run: Subject) -> Iterator[Finding]:
    """Conversion and delta are there, delta is below 1/n."""
    conversion = run.setting("conversion", "privacy.conversion")
    if not conversion:
        yield block(
            "conversion_missing",
            "conversion",
            "the record does not say how Rényi was turned into (epsilon, delta)",
            "An epsilon without its conversion cannot be computed again",
            "Record the conversion, for example cks",
        )
    yield from _delta(run)
    yield from _relation(run)


def _delta(run: Subject) -> Iterator[Finding]:
    delta, n = run.setting("delta", "privacy.delta"), run.setting("n_train", "n", "data.n")
    try:
        if delta is not None and n is not None and float(delta) >= 1 / float(n):
            yield block(
                "delta_too_large",
                "delta",
                f"delta = {delta} is not below 1/n = {1 / float(n):.3g}",
                "Publishing one record at random would satisfy such a guarantee",
                "Train with a delta well below 1/n",
            )
    except (ValueError, ZeroDivisionError):
        yield block(
            "delta_unreadable",
            "delta",
            f"delta = {delta!r}, n = {n!r}",
            "They are no numbers",
            "Correct them",
        )


def _relation(run: Subject) -> Iterator[Finding]:
    adjacency = run.adjacency or run.setting("privacy.adjacency") or ""
    if not adjacency:
        yield block(
            "adjacency_missing",
            "adjacency",
            "the record does not say which tables are neighbours",
            "An epsilon without its adjacency is not a guarantee",
            "Record add_remove, replace_one or replace_labels",
        )
    sampler = run.setting("sampler") or ""
    if adjacency == "replace_one" and sampler == "poisson" and not run.own:
        yield warn(
            "sampler_and_adjacency",
            "sampler",
            "Poisson batches under replace_one",
            "The usual amplification lemma is for add_remove; replace_one needs the bound over "
            "three points",
            "Name the lemma, or sample without replacement",
        )


RULES = (closed, finite, single_valued, seeds, files, exact_metrics, bounds, stated)
