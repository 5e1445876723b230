"""The pages under ``docs``: what they show runs as shown, what they list is what the code says,
and their links lead somewhere.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", flags=re.S | re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

# What a reader has to put in: the run that was trained last, and the key of this page.
START = """set -e
dpflows() { "$PYTHON" -m flows.cli "$@"; }
python() { "$PYTHON" "$@"; }
RUN() { dpflows runs --json | "$PYTHON" -c \
'import json, sys; print(json.load(sys.stdin)["runs"][0]["run_id"])'; }
FINGERPRINT() { dpflows key show; }
"""


def script_of(text: str) -> str:
    """A page as one shell script: files with a title are written, commands run in their order."""
    lines = [START]
    for language, title, body in FENCE.findall(text):
        if title:
            lines += [f"mkdir -p {shlex.quote(os.path.dirname(title) or '.')}"]  # noqa: PTH120
            lines += [f"cat > {shlex.quote(title)} <<'END_OF_FILE'\n{body}END_OF_FILE"]
        elif language == "python":
            lines += [f"python - <<'END_OF_FILE'\n{body}END_OF_FILE"]
        elif language == "console":
            for line in body.splitlines():
                assert line.startswith("$ "), f"a line of a console block is no command: {line}"
                lines += [re.sub(r"\b(RUN|FINGERPRINT)\b", r'"$(\1)"', line[2:])]
    return "\n".join(lines) + "\n"


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    ours = ("DPFLOWS", "MLFLOW", "PREFECT")  # a reader has set none of these
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "COLUMNS": "80"}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True
    )


def runs_something(path: Path) -> bool:
    return any(
        language == "console" or (language == "python" and not title)
        for language, title, _ in FENCE.findall(path.read_text(encoding="utf-8"))
    )


def reference() -> Any:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_pages_are_what_the_code_says() -> None:
    """``python docs/reference.py`` makes them anew."""
    for path, text in reference().pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: make it anew"


def findings(name: str = "findings") -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_findings_are_what_the_cells_say() -> None:
    """``python docs/findings.py`` makes the pages anew; every table of cells is used, and has a
    command.
    """
    made = findings()
    assert (DOCS / "findings.md").read_text(encoding="utf-8") == made.page()
    assert (DOCS / "grids.md").read_text(encoding="utf-8") == made.grids()
    stored = {path.stem for path in (DOCS / "data").glob("*.csv")}
    claimed = yaml.safe_load((DOCS / "data" / "claims.yaml").read_text(encoding="utf-8"))
    used = {claim["run"] for claim in claimed["claims"]} | claimed["grids"].keys()
    assert stored == used == set(claimed["runs"])
    for command in claimed["runs"].values():
        named = re.search(r"dpflows compare (\S+\.yaml)", command)
        assert named is not None and (ROOT / named[1]).is_file()


def test_the_table_of_speed_is_what_its_file_says() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    lines = json.loads((ROOT / "docs/data/speed.json").read_text())["lines"]
    for one in lines:
        ratio = "" if one["ratio"] is None else one["ratio"]
        assert f"| {one['what']} | {one['to']} | {ratio} | {one['ns_a_row']} |" in page
    assert len(lines) >= 20


def test_marked_tables_of_the_benchmarks_are_what_their_cells_say() -> None:
    """``python docs/benchmarks.py`` makes them anew; every table stands on the page and every file
    of cells in one of them.
    """
    made = findings("benchmarks")
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert text == made.page()
    specs = yaml.safe_load((made.DATA / "tables.yaml").read_text(encoding="utf-8"))
    assert [found[2] for found in made.MARKED.finditer(text)] == list(specs)
    assert {path.stem for path in made.DATA.glob("*.csv")} == {s["cells"] for s in specs.values()}
    assert all(re.search(r"\d ± \d", made.table(spec)) for spec in specs.values())


def test_cells_of_another_run_are_further_draws_and_draws_of_a_fold_are_one_pair() -> None:
    made = findings()
    words = {"data": "adult", "loss": "logistic", "adjacency": "add_remove"}
    base = dict.fromkeys((*made.PLACE, *made.CELL), 0) | words | {"epsilon": None}
    before = pd.DataFrame(
        [base | {"label": "a", "epsilon": 1.0, "map": 0.2}, base | {"label": "ceiling", "map": 0.9}]
    ).assign(noise_multiplier=float("nan"))
    again = before.assign(map=[0.4, 0.9])
    new = again.assign(fold=1)
    added = pd.concat([again, new])
    kept = pd.concat([before, made.further(added, before)])
    found = kept[["label", "fold", "draw", "map"]].to_records(index=False).tolist()
    assert sorted(found) == [
        ("a", 0, 0, 0.2),
        ("a", 0, 1, 0.4),
        ("a", 1, 0, 0.4),
        ("ceiling", 0, 0, 0.9),
        ("ceiling", 1, 0, 0.9),
    ]
    values = made.of_label(kept, "a", "map", {"epsilon": 1.0})
    assert values.tolist() == pytest.approx([0.3, 0.4])


def test_a_verdict_follows_from_the_interval_of_paired_differences() -> None:
    made = findings()
    assert made.verdict(0.02, 0.003, 10, "accuracy") == "reproduced"
    assert made.verdict(0.02, 0.003, 10, "objective") == "contradicted"
    assert made.verdict(-0.02, 0.003, 10, "accuracy") == "contradicted"
    # of three pairs the interval is 4.3 errors wide on either side, of ten 2.3
    assert made.verdict(0.01, 0.003, 3, "accuracy") == "undecided"
    assert made.verdict(0.01, 0.003, 10, "accuracy") == "reproduced"
    very_small = {"run": "line_search_grid", "where": {"data": "a9a-all"}, "at": [0.05, 0.2],
                  "first": "DP-AGD", "second": "SGD-MA", "metrics": ["accuracy"]}  # fmt: skip
    assert [line["level"] for line in made.lines_of(very_small)] == ["eps 0.05", "eps 0.2"]
    said = [{"verdict": word} for word in ("reproduced", "undecided")]
    assert made.together(said) == "reproduced in part"
    assert made.together([*said, {"verdict": "contradicted"}]) == "one way and the other"
    assert made.together(said[:1] * 2) == "reproduced"


def keys_in(schema: dict[str, Any], whole: dict[str, Any], prefix: str = "") -> set[str]:
    """Every key that a JSON schema takes by its full name, entries of lists and maps as ``[]``."""
    found: set[str] = set()
    parts = [schema, *schema.get("anyOf", []), *schema.get("allOf", []), *schema.get("oneOf", [])]
    for part in parts:
        if "$ref" in part:
            found |= keys_in(whole["$defs"][part["$ref"].rsplit("/", 1)[1]], whole, prefix)
        elif part is not schema:
            found |= keys_in(part, whole, prefix)
        for many in (part.get("items"), part.get("additionalProperties")):
            if isinstance(many, dict):
                found |= keys_in(many, whole, f"{prefix.removesuffix('.')}[].")
        for name, inner in part.get("properties", {}).items():
            found |= {prefix + name} | keys_in(inner, whole, f"{prefix}{name}.")
    return found


def test_every_algorithm_preset_and_key_is_in_the_reference() -> None:
    """Keys as the JSON schemas that check configurations list them, to the innermost; algorithms
    with their parameters, and the values of presets, as the registry has them."""
    from dpcore.algorithms import registry
    from flows.commands.about import _models

    algorithms = (DOCS / "reference" / "algorithms.md").read_text(encoding="utf-8")
    found = set(re.findall(r"^## (\w+)", algorithms, flags=re.M))
    assert found == set(registry)
    presets = (DOCS / "reference" / "presets.md").read_text(encoding="utf-8")
    for name, one in registry.items():
        [part] = re.findall(rf"^## {name}\b.*?(?=^## |\Z)", algorithms, flags=re.M | re.S)
        assert all(f"| `{field.name}` |" in part for field in dataclasses.fields(one)), name
        for preset, values in one.presets.items():
            [part] = re.findall(rf"^## {name}\n.*?(?=^## |\Z)", presets, flags=re.M | re.S)
            assert all(f"| `{preset}` | `{key}` |" in part for key in values), (name, preset)
    configuration = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    for kind, make in _models().items():
        [part] = re.findall(rf"^## {kind}\n.*?(?=^## |\Z)", configuration, flags=re.M | re.S)
        schema = make().model_json_schema()
        keys = keys_in(schema, schema)
        assert len(keys) >= 5
        assert {key for key in keys if f"| `{key}` |" not in part} == set(), kind


def anchors(text: str) -> set[str]:
    """Names of the headings of a page, as they stand in links."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    headings = re.findall(r"^#+ (.+)$", plain, flags=re.M)
    return {re.sub(r"[^\w -]", "", one).strip().lower().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in LINK.findall(re.sub(r"`[^`]*`", "", text)):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        other = (path.parent / name).resolve() if name else path
        assert other.is_file(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(other.read_text(encoding="utf-8")), f"{path.name}: {target}"


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "conf" / "mkdocs.yml").read_text(), re.M))
    assert listed == {path.relative_to(DOCS).as_posix() for path in PAGES}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in PAGES if runs_something(path)], ids=lambda path: path.stem
)
def test_pages_run_as_shown(path: Path, tmp_path: Path) -> None:
    script = script_of(path.read_text(encoding="utf-8"))
    if path.stem == "networks":
        pytest.importorskip("torch")
    done = run_script(script, tmp_path)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


# Where each is, and the label, which a draft leaves to its reader where several columns may be it.
TABLES = {
    "bank": ("bank/bank-full.csv.gz", "y"),
    "credit": ("credit/credit-card-clients.csv.gz", "default payment"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_the_tutorials_commands_bring_an_unknown_table_to_a_release(
    name: str, tmp_path: Path
) -> None:
    """The reviewer takes every bound of the draft as it is: what is tested is the way, not the
    privacy of the draft."""
    shared = Path(os.environ.get("DPFLOWS_SHARED", str(ROOT.parent / "shared")))
    place, label = TABLES[name]
    table = (shared / "data" / place).resolve()
    if not table.is_file():
        pytest.skip("the data are not here")
    commands = [
        "dpflows init .",
        f"dpflows profile {table} --label '{label}' --name mine -o conf/data/mine.yaml",
        "sed -i /^drafted/d conf/data/mine.yaml",
        "dpflows ledger init mine --epsilon 3 --delta 1e-6",
        "dpflows plan --set data.name=mine",
        "dpflows train --set data.name=mine",
        "dpflows runs",
        "dpflows audit $(RUN)",
        "dpflows key new release.pem",
        "export DPFLOWS_SIGNING_KEY=$PWD/release.pem",
        "dpflows release $(RUN) --to mine --approved-by 'A. Person'",
        "dpflows verify runs/releases/mine/1 --key $(FINGERPRINT)",
        f"dpflows predict runs/releases/mine/1 {table} -o scores.csv",
    ]
    assert len(commands) <= 15
    done = run_script(START + "\n".join(commands), tmp_path)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    assert (tmp_path / "scores.csv").stat().st_size > 1000


@pytest.mark.slow
def test_the_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q"]
    command += ["-f", str(ROOT / "conf" / "mkdocs.yml"), "-d", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "reference" / "algorithms.html").is_file()
