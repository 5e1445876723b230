"""Faults in what audit, release and verify believe: a hash that is not compared, a tag that is, a
check left out.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GATE, WALK = "tests/tasks/release/test_gate_believes.py", "tests/tasks/release/test_believed.py"
BUNDLES, RUNS = (
    "tests/tasks/release/test_tampered_bundles.py",
    "tests/tasks/audit/test_tampered_runs.py",
)
SERVING, PLANNED, RECOVER = (
    "tests/tasks/record/test_serving.py",
    "tests/tasks/audit/test_planned.py",
    "tests/flows/test_recover.py",
)
SEALED = "tests/tasks/release/test_openssf.py"

MUTANTS = [
    Mutant("tasks/release/openssf.py", "if json.loads(payload) != in_toto(files, manifest):",
           "if False:", SEALED),
    Mutant("flows/commands/verify.py", 'same = to_onnx(model, arrays["weights"]) == bundle[ONNX]',
           'same = bool(to_onnx(model, arrays["weights"]))', SEALED),
    Mutant("flows/commands/verify.py", "(_run(bundle) if report.known_signer else \"\")",
           "_run(bundle)", SEALED),
    Mutant("tasks/release/verify.py", "({OPENSSF} if manifest.openssf else set())",
           "{OPENSSF}", SEALED),
    Mutant("tasks/audit/rules_derived.py", "elif digest(data) != "
                                         "committed[name]:", "elif False:", GATE),
    Mutant("tasks/audit/rules_run.py", "if known not in (None, digest(data))]",
           "if False]", RUNS),
    Mutant("tasks/audit/rules_run.py", "any(value != promise.delta for value in "
                                       "delta)", "False", WALK),
    Mutant("tasks/audit/rules_run.py", "    if facts.unkept:", "    if False:", WALK),
    Mutant("tasks/audit/rules_model.py", "yield from _compared(run.folder, "
                                         "files)", "yield from ()", WALK),
    Mutant("tasks/release/bundle.py", "if held is None:", "if False:", GATE),
    Mutant("tasks/release/verify.py", "if any(same_key(one, report.signer) for one in "
                                      "wanted):", "if wanted:", BUNDLES),
    Mutant("tasks/release/front.py", "any(same_key(one, signer) for one in trusted)", "True", WALK),
    Mutant("tasks/release/trials.py", "if found != stated.head:", "if False:", GATE),
    Mutant("flows/commands/release.py", "subject, planned_again(subject, "
                                        "asked.ledger))", "subject)", PLANNED),
    Mutant("flows/commands/release.py", "champion, secret) | shown", "champion, secret) | "
                                                                     "{'notes': []}", PLANNED),
    Mutant(
        "tasks/audit/planned.py",
        'under_new_names(planned.name, there["training"]["parameters"])',
        'there["training"]["parameters"]',
        PLANNED,
    ),
    Mutant("flows/commands/predict.py", "    if not report.ok:", "    if False:", SERVING),
    Mutant("tasks/ledger/reader.py", 'if not {schema.DRAWN, "committed"}.isdisjoint(kinds):', "if False:", RECOVER),
    Mutant("tasks/ledger/reader.py", 'if about is not None or body["releases"] == 1:', "if about is not None:", RECOVER),
    Mutant("tasks/ledger/verify.py", "head.strip().lower()", "head", "tests/tasks/ledger/test_commands.py"),
]  # fmt: skip
