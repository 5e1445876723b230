"""What the help says beside the options of one command: options that several have, a line in the
list of commands, examples, exit codes, environment variables.
"""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

# Options that several commands have.
Config = Annotated[
    str | None,
    Argument(help="Configuration file; default: conf/train.yaml, else the built-in one."),
]
Set = Annotated[
    list[str] | None, Option("--set", metavar="KEY=VALUE", help="Override a value; repeatable.")
]
Fresh = Annotated[bool, Option("--fresh", help="Run finished cells again.")]
Model = Annotated[
    str,
    Argument(
        help="Run id, models:/... URI, folder, NAME[@ALIAS] of a registered model, or a signed "
        "bundle."
    ),
]
OfBundle = Annotated[
    bool, Option("--any-signer", help="Of a bundle: take any valid signature, whoever it is of.")
]
AsJson = Annotated[bool, Option("--json", help="One JSON object on standard output.")]
OfRun = Annotated[str | None, Option("--ledger", help="URL or file; default: that of the run.")]

# Examples by command; each is a whole line that can be copied.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "init": ("dpflows init mine",),
    "profile": (
        "dpflows profile visits.csv --label returned -o conf/data/visits.yaml",
        "dpflows profile visits.csv --private --charge visits",
    ),
    "train": (
        "dpflows train",
        "dpflows train --set data.name=adult --set privacy.epsilon=0.5",
        "dpflows train mine.yaml --json",
    ),
    "plan": ("dpflows plan --set privacy.epsilon=0.5",),
    "compare": (
        "dpflows compare conf/compare_adult.yaml",
        "dpflows compare conf/compare_adult.yaml --set 'privacy.epsilon=[0.1, 1]'",
    ),
    "crossval": ("dpflows crossval --folds 3", "dpflows crossval mine.yaml --repeats 2 --draws 3"),
    "bench": ("dpflows bench --set peers.python=/opt/peers/bin/python",),
    "retrain": (
        "dpflows retrain conf/retrain.yaml",
        "dpflows retrain --from 2026-W02 --to 2026-W06",
        "dpflows ui --prefect &  dpflows retrain --serve",
    ),
    "runs": ("dpflows runs", "dpflows runs --data visits --json"),
    "show": ("dpflows show 8283b202",),
    "algorithms": ("dpflows algorithms", "dpflows algorithms dp_sgd"),
    "config": (
        "dpflows config conf/train.yaml",
        "dpflows config --schema train > train-1.json",
    ),
    "recover": ("dpflows recover",),
    "predict": (
        "dpflows predict RUN rows.csv -o scores.csv",
        "dpflows predict runs/releases/visits/3 rows.csv",
    ),
    "explain": (
        "dpflows explain RUN -o terms.svg",
        "dpflows explain runs/releases/visits/3 --row rows.csv",
    ),
    "ui": ("dpflows ui --prefect", "dpflows ui --report"),
    "audit": ("dpflows audit RUN --replan",),
    "release": ("dpflows release RUN --to visits --approved-by 'A. Person'",),
    "verify": ("dpflows verify bundle.zip --key FINGERPRINT",),
    "key": ("dpflows key new release.pem --passphrase", "dpflows key show release.pem"),
    "move": ("dpflows move /old/runs /new/runs",),
    "ledger": (
        "dpflows ledger init visits --epsilon 3 --delta 1e-6",
        "dpflows ledger show visits",
        "dpflows ledger show --html budget.html",
    ),
}

# What stands in the list of commands; whole at 80 letters.
LINES: dict[str, str] = {
    "init": "Copy the configuration files to DIR/conf, to be edited there.",
    "profile": "Draft a schema from a file, for a person to review.",
    "train": "Train one private model, charge the ledger, record the run.",
    "compare": "Compare algorithms on folds: tables, figures, MLflow runs.",
    "crossval": "Cross-validate one training configuration.",
    "bench": "Compare with diffprivlib, Opacus and DP-EBM: quality and speed.",
    "retrain": "Train the newest period of a schedule, once, or --serve it.",
    "runs": "List the trainings of this home folder.",
    "show": "Show one training: guarantee, parameters, numbers, releases.",
    "recover": "Store in MLflow what a killed process had trained.",
    "predict": "Score a table with a trained model or a signed bundle.",
    "explain": "Say what a linear model says of columns, and of a row.",
    "plan": "Show price and noise; no record is read, nothing charged.",
    "algorithms": "List the algorithms, or show one with its parameters.",
    "config": "Show a configuration with its defaults, or a JSON schema.",
    "ui": "Open MLflow, Prefect and the budget page; report of a run.",
    "audit": "Check a run against its statement, ledger and itself.",
    "release": "Release a run: audit, policy, registry, signed bundle.",
    "verify": "Verify a bundle: signature, checksums, statement, epsilon.",
    "move": "Move a home folder, or put right one that was moved.",
    "ledger": "The budget ledger: open, show, verify.",
    "key": "The key that signs releases: new, show.",
}

EXIT_CODES = (
    ("0", "done"),
    ("1", "unexpected failure, or some cells failed"),
    ("2", "bad input or configuration: nothing was spent"),
    ("3", "refused: the budget does not allow it"),
    ("4", "audit, release or verification failed"),
    ("130", "interrupted"),
)

# Of options whose help is a line of its own.
OPENSSF_KEY = "P-256 key (PEM) for OpenSSF model signing; default: DPFLOWS_OPENSSF_KEY."
CONTACT = "Whom to ask about the model; stands in its card."
EXPORT = "onnx: the model as a graph for other runtimes, in the bundle."

ENVIRONMENT = (
    ("DPFLOWS_HOME", "folder of all that is written (./runs)"),
    ("DPFLOWS_LEDGER", "URL or file of the budget ledger"),
    ("DPFLOWS_DATA", "folder in which the tables of schemas are looked for"),
    ("DPFLOWS_SIGNING_KEY", "Ed25519 key (PEM file) of `release`; `dpflows key new`"),
    ("DPFLOWS_OPENSSF_KEY", "P-256 key (PEM file) for OpenSSF model signing"),
    ("DPFLOWS_TRUSTED_KEYS", "fingerprints that `verify` believes"),
    ("MLFLOW_TRACKING_URI", "another MLflow store or server"),
    ("PREFECT_API_URL", "a Prefect server that stays"),
)


def epilog(command: str) -> str:
    """What stands below the help of ``command``: its examples, and where the rest is said."""
    shown = "\n".join(f"  {line}" for line in EXAMPLES.get(command, ()))
    return f"\b\nExamples:\n{shown}\n\n\b\nExit codes and environment variables: dpflows --help"


def whole() -> str:
    """What stands below the help of the program: first steps, exit codes and environment
    variables.
    """
    first = ("dpflows train", "dpflows ui", "dpflows runs")
    parts = [
        ("Examples:", [f"  {line}" for line in first]),
        ("Exit codes:", [f"  {code:<4} {text}" for code, text in EXIT_CODES]),
        ("Environment:", [f"  {name:<21} {text}" for name, text in ENVIRONMENT]),
    ]
    return "\n\n".join("\b\n" + "\n".join([title, *lines]) for title, lines in parts)
