"""Rules for runs of this tool: statement, ledger, hashes, model and price have to agree."""

from __future__ import annotations

import json
from collections.abc import Iterator

from dpcore.accounting.events import Events
from dpcore.errors import DPFlowsError
from tasks.audit.findings import RETRAIN, Finding, block, note
from tasks.audit.recompute import UPPER_BOUND, agrees, close, independent_epsilon, price_of
from tasks.audit.subject import CONFIG, MECHANISMS, STATEMENT, LedgerFacts, Subject, digest
from tasks.record.statement import Guarantee, Statement

FILES = {"statement": STATEMENT, "config": CONFIG, "mechanisms": MECHANISMS}
MODEL_FILES = {"weights": "weights.npz", "encoder": "encoder.json", "model": "model.json"}
TEST_SEED = "unsafe_fixed_noise_seed"


def statement(run: Subject) -> Iterator[Finding]:
    """The statement is there, has its schema, and says itself that the run may leave."""
    if STATEMENT not in run.files:
        yield block(
            "statement_missing",
            STATEMENT,
            "the run has no privacy statement",
            "Nothing is promised",
            RETRAIN,
        )
        return
    found = run.statement
    if found is None:
        yield block(
            "statement_schema",
            STATEMENT,
            "the statement does not follow its schema",
            "It cannot be checked",
            RETRAIN,
        )
        return
    for reason in found.reasons:
        yield block(
            "not_releasable",
            STATEMENT,
            reason,
            "The statement itself says that the run must not be released",
            "Train again",
        )
    if not found.releasable and not found.reasons:
        yield block(
            "not_releasable",
            STATEMENT,
            "the statement says no",
            "It must not be released",
            "Train again",
        )
    if found.guarantee.delta >= 1 / found.data.public_n:
        yield block(
            "delta_too_large",
            "delta",
            f"delta = {found.guarantee.delta:g} is not below 1/n = {1 / found.data.public_n:.3g}",
            "Publishing one record at random would satisfy such a guarantee",
            "Train with a delta well below 1/n",
        )
    if "fixed seed" in found.noise_source or "fixed seed" in found.noise:
        yield block(
            "fixed_noise_seed",
            "noise",
            "the noise came from a fixed seed",
            "It can be computed and removed",
            "Train again",
        )
    if "from_data" in found.data.bounds:
        yield block(
            "bounds_from_data",
            "bounds",
            found.data.bounds,
            "Epsilon does not cover them",
            "Declare bounds, train again",
        )


def config(run: Subject) -> Iterator[Finding]:
    """The configuration names no seed of noise and no password."""
    text = run.files.get(CONFIG)
    if text is None:
        yield block(
            "config_missing",
            CONFIG,
            "the run has no configuration",
            "It cannot be checked",
            RETRAIN,
        )
        return
    try:
        stored = json.loads(text)
        seed, url = stored.get(TEST_SEED), str((stored.get("ledger") or {}).get("url") or "")
    except (ValueError, AttributeError):
        yield block(
            "config_unreadable",
            CONFIG,
            "the configuration is no JSON",
            "It cannot be checked",
            RETRAIN,
        )
        return
    if seed is not None:
        yield block(
            "fixed_noise_seed",
            TEST_SEED,
            "the configuration fixes the seed of the noise",
            "It can be removed",
            "Train again",
        )
    if stored.get("audit") is not None:
        yield block(
            "canaries_added",
            "audit.canaries",
            "the configuration adds canaries to the records",
            "The model learned from records that are none",
            "Train again without the section audit",
        )
    if "@" in url and ":" in url.split("://", 1)[-1].split("@")[0]:
        yield block(
            "password_in_config",
            "ledger.url",
            "the configuration holds a password",
            "Configurations travel with a release",
            "Give the URL through DPFLOWS_LEDGER, change the password, and train again",
        )


def hashes(run: Subject) -> Iterator[Finding]:
    """Files of the run and of the model are those whose hashes closed the ledger's entry and stand
    in the statement.
    """
    committed = dict(run.ledger.hashes) if run.ledger is not None else {}
    found = run.statement
    stated = {} if found is None else _stated_hashes(found)
    for key, path, data in _hashed_files(run):
        if data is None:
            yield block(
                f"{key}_missing", path, f"{path} is not stored", "It cannot be checked", RETRAIN
            )
            continue
        held = {"the ledger": committed.get(key), "the statement": stated.get(key)}
        if other := [who for who, known in held.items() if known not in (None, digest(data))]:
            yield block(
                f"{key}_changed",
                path,
                f"{path} is not the file whose hash {other[0]} holds",
                "It was changed or exchanged after the training",
                RETRAIN,
            )
    if found is not None and MECHANISMS in run.files:
        yield from _mechanisms(run, found)


def _hashed_files(run: Subject) -> Iterator[tuple[str, str, bytes | None]]:
    """Key, path and bytes of each file that has a hash; None for one that is not stored."""
    for key, path in FILES.items():
        yield key, path, run.files.get(path)
    for key, name in MODEL_FILES.items():
        yield key, f"model/{name}", run.model.get(name)


def _stated_hashes(found: Statement) -> dict[str, str]:
    return {
        "config": found.config_sha256,
        "weights": found.weights_sha256,
        "mechanisms": found.mechanisms_sha256,
    }


def _mechanisms(run: Subject, found: Statement) -> Iterator[Finding]:
    try:
        same = json.loads(run.files[MECHANISMS]) == found.mechanisms
    except ValueError:
        same = False
    if not same:
        yield block(
            "mechanisms_changed",
            MECHANISMS,
            "mechanisms and statement differ",
            "One was changed afterwards",
            RETRAIN,
        )


def ledger(run: Subject) -> Iterator[Finding]:
    """The entry is committed in an intact chain, for the same data and the same mechanisms."""
    found = run.statement
    yield from entry_of(run.ledger, "ledger")
    facts = run.ledger
    if facts is None or found is None or "reserved" not in facts.states:
        return
    if facts.dataset != found.ledger.dataset:
        yield block(
            "ledger_dataset",
            "ledger",
            f"the entry was charged to {facts.dataset!r}, the statement names "
            f"{found.ledger.dataset!r}",
            "The budget of the data that were read was not charged",
            RETRAIN,
        )
    if found.data.public and facts.private_as:
        yield block(
            "data_not_public",
            "data.public",
            "the statement says that the data are public, and the ledger knows them as the "
            f"private {facts.private_as[0]!r}",
            "Exact numbers of the run are about people whom a budget protects",
            "Declare `public: false`, and train again on that budget",
        )
    if facts.events_sha256 != found.mechanisms_sha256:
        yield block(
            "ledger_mechanisms",
            "ledger",
            "the entry was charged for other mechanisms than the statement lists",
            "What was paid is not what ran",
            RETRAIN,
        )
    if not facts.head_found:
        yield block(
            "ledger_head",
            "ledger",
            "the head that the statement names is not in the chain",
            "Records were removed or rewritten, or it is another ledger",
            "Restore a copy of the ledger that holds the head",
        )
    if run.tags.get("dpflows.ledger_entry") != found.ledger.entry:
        yield block(
            "ledger_entry_tag",
            "dpflows.ledger_entry",
            "the tag names another entry",
            "It was changed",
            RETRAIN,
        )


def entry_of(facts: LedgerFacts | None, subject: str) -> Iterator[Finding]:
    if facts is None:
        yield block(
            "ledger_missing",
            subject,
            "there is no ledger to ask",
            "Whether the budget was charged cannot be checked",
            "Name it with DPFLOWS_LEDGER",
        )
        return
    if not facts.ok:
        yield block(
            "ledger_chain",
            subject,
            f"the chain of {facts.shown} is broken: {'; '.join(facts.problems[:2])}",
            "Records were changed after they were written",
            "Restore a copy of the ledger that holds your last head",
        )
    if facts.unkept:
        yield block(
            "ledger_head_gone",
            subject,
            f"of {facts.shown} {facts.unkept}",
            "A shortened ledger gives budget back",
            "Keep the head anew once the ledger is known to be whole",
        )
    if facts.states != ("reserved", "committed"):
        states = " -> ".join(facts.states) or "unknown"
        yield block(
            "ledger_entry",
            subject,
            f"the entry is {states}",
            "Only a committed entry stands for a run that was charged and ended",
            RETRAIN,
        )


def price(run: Subject) -> Iterator[Finding]:
    """Epsilon from the mechanisms is the stated one, by this library and by other code."""
    found = run.statement
    if found is None:
        return
    yield from price_of(found)
    try:
        facts = Events.from_json(json.dumps(found.mechanisms))
        other = independent_epsilon(facts, found)
    except (DPFlowsError, ValueError, TypeError):
        return
    if other is None:
        yield note(
            "price_not_independent",
            "epsilon",
            "other code knows no price for these mechanisms",
            "Epsilon was recomputed by this library alone",
            "Nothing to do",
        )
    elif not agrees(*other, facts):
        yield block(
            "price_independent",
            "epsilon",
            f"{other[0]} gives {other[2]:.6g}, this library {other[1]:.6g}",
            "Two accountants must agree on the same mechanisms",
            "Report it; do not release",
        )
    elif other[0] == UPPER_BOUND:
        yield note(
            "price_not_independent",
            "epsilon",
            f"other code has only an upper bound for batches without replacement: {other[2]:.6g}, "
            f"ours {other[1]:.6g}",
            "Epsilon was recomputed by this library alone",
            "Nothing to do",
        )


def shown(run: Subject) -> Iterator[Finding]:
    """What MLflow shows is what the statement says: MLflow can be edited after the fact."""
    found = run.statement
    if found is None:
        return
    promise = found.guarantee
    pairs = {
        "privacy.epsilon": str(promise.target_epsilon),
        "privacy.delta": str(promise.delta),
        "privacy.adjacency": str(promise.adjacency),
        "config.sha256": found.config_sha256,
    }
    for name, value in pairs.items():
        seen = run.param(name) or "nothing"
        if seen != value:
            yield block(
                "shown_differs",
                name,
                f"{name} shows {seen}, the statement says {value}",
                "It was changed",
                RETRAIN,
            )
    tag = run.tags.get("dpflows.releasable", "nothing")
    if tag != ("yes" if found.releasable else "no"):
        yield block(
            "shown_differs",
            "dpflows.releasable",
            f"the tag says {tag}",
            "The statement says otherwise",
            RETRAIN,
        )
    yield from _shown_spent(run, promise)


def _shown_spent(run: Subject, promise: Guarantee) -> Iterator[Finding]:
    delta = run.metrics.get("spent.delta", ())
    if any(value != promise.delta for value in delta):
        yield block(
            "shown_differs",
            "spent.delta",
            f"the metric shows {', '.join(f'{value:g}' for value in delta)}, the statement says "
            f"{promise.delta:g}",
            "It was changed",
            RETRAIN,
        )
    spent = run.metrics.get("spent.epsilon", ())
    if spent and (
        not close(spent[-1], promise.epsilon) or max(spent) > promise.epsilon * (1 + 1e-6)
    ):
        yield block(
            "shown_differs",
            "spent.epsilon",
            f"the metric ends at {spent[-1]:.6g}, the statement says {promise.epsilon:.6g}",
            "A value was logged after the training",
            RETRAIN,
        )


RULES = (statement, config, hashes, ledger, price, shown)
