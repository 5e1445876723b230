"""The command line: exit codes, one-line errors, and the default run as a user's first command in
an empty folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from math import exp
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from dpcore.errors import DPFlowsError
from flows import exit_codes
from flows import server as server_module
from flows.cli import run, write_anything
from tasks.home import Home
from tasks.ledger import Ledger, schema
from tasks.record.tracking import tracking_client

# Written to a file named by DPFLOWS_TEST_SOCKETS by every Python process of the default run: whom
# it talks to.
GUARD = """\
import os, sys

def _watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        address = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[0]
        host = address[0] if isinstance(address, tuple) else address
        with open(os.environ["DPFLOWS_TEST_SOCKETS"], "a") as file:
            file.write(f"{event} {host}\\n")

sys.addaudithook(_watch)
"""
OURSELVES = {"127.0.0.1", "localhost", "::1", "None"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", *arguments]


@pytest.fixture(scope="module")
def first_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, dict[str, Any], str, set[str]]]:
    """``dpflows train --json`` in an empty folder: the folder, the answer, standard error, the
    hosts it talked to.
    """
    folder, guard = tmp_path_factory.mktemp("empty"), tmp_path_factory.mktemp("guard")
    (guard / "sitecustomize.py").write_text(GUARD)
    ours = ("PREFECT", "MLFLOW", "DPFLOWS", "MPLCONFIGDIR", "PYTEST")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(guard), str(Path(__file__).resolve().parents[2])]),
        "DPFLOWS_TEST_SOCKETS": str(guard / "hosts"),
        "HOME": str(guard),
    }
    done = subprocess.run(
        command("train", "--json"),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    hosts = {line.split(maxsplit=1)[1] for line in (guard / "hosts").read_text().splitlines()}
    assert [
        path.name
        for path in guard.iterdir()
        if path.name not in ("sitecustomize.py", "hosts", "__pycache__")
    ] == []
    yield folder, json.loads(done.stdout), done.stderr, hosts


def test_default_run_trains_a_useful_model_and_says_so(
    first_run: tuple[Path, dict[str, Any], str, set[str]],
) -> None:
    _, summary, stderr, _ = first_run
    assert summary["data"] == "census"
    assert summary["internal"]["accuracy"] > summary["internal"]["majority_accuracy"] + 0.03
    assert summary["epsilon_spent"] <= summary["epsilon_asked"]
    assert "fit" in summary["seconds"]
    assert stderr == ""


def test_default_run_writes_one_folder_for_its_owner_alone(
    first_run: tuple[Path, dict[str, Any], str, set[str]],
) -> None:
    folder = first_run[0]
    assert [path.name for path in folder.iterdir()] == ["runs"]
    assert stat.S_IMODE((folder / "runs").stat().st_mode) == 0o700
    written = [
        folder / "runs" / name
        for name in ("ledger.db", "mlflow.db", "prefect/prefect.db", "prefect/server.log")
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}


def test_default_run_talks_to_nobody_outside(
    first_run: tuple[Path, dict[str, Any], str, set[str]],
) -> None:
    hosts = first_run[3]
    assert "127.0.0.1" in hosts
    assert {host for host in hosts if not host.startswith("/")} <= OURSELVES


def test_default_run_can_be_scored(
    first_run: tuple[Path, dict[str, Any], str, set[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, summary, _, _ = first_run
    for name in [name for name in os.environ if name.startswith(("DPFLOWS", "MLFLOW"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(folder)
    rows = tmp_path / "rows.csv"
    head = "age,hours,commute,children,savings,dividends,education,sector,occupation,marital,region,sex\n"
    rows.write_text(head + "50,45,30,2,100000,500,master,private,manager,married,north,male\n")
    assert (
        run(["predict", summary["run_id"], str(rows), "--output", str(tmp_path / "scores.csv")])
        == 0
    )
    header, line = (tmp_path / "scores.csv").read_text().splitlines()
    assert header == "label,probability,score"
    label, chance, score = line.split(",")
    assert label in ("high", "low")
    score = float(score)
    assert 1.0 / (1.0 + exp(-score)) == pytest.approx(float(chance))
    assert "probability: of 'high': not calibrated" in capsys.readouterr().out
    picture = tmp_path / "terms.svg"
    asked = ["explain", summary["run_id"], "--json"]
    assert run([*asked, "--row", str(rows), "--output", str(picture)]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert row["constant"] + sum(term["adds"] for term in row["terms"]) == pytest.approx(score)
    assert {"age", "sex"} <= {term["term"] for term in row["terms"]}
    assert picture.read_text().startswith("<svg")
    assert run(["explain", summary["run_id"]]) == 0
    assert "importance" in capsys.readouterr().out


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and its one line on standard error."""
    code = run(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return code, captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nowhere.yaml"], "got 'nowhere.yaml'"),
        (
            ["train", "--set", "data.name=adult", "--set", "data.path=nowhere.csv"],
            "data.path='nowhere.csv'",
        ),
        (["train", "--set", "data.name=censu"], "did you mean 'census'"),
        (["train", "--set", "privacy.epsilon=0"], "got 0"),
        (["train", "--set", "privacy.epsilon=.inf"], "got inf"),
        (["train", "--set", "privacy.delta=1.5"], "got 1.5"),
        (["train", "--set", "privacy.delta=0.001"], "below 1/n"),
        (["train", "--set", "algorithm.name=dp_sdg"], "did you mean 'dp_sgd'"),
        (["train", "--set", "algorithm.stepz=3"], "did you mean 'steps'"),
        (["train", "--set", "data.name=small.yaml", "--set", "privacy.delta=1e-4"], "ledger init"),
        (["train", "--sett", "a=1"], "No such option"),
        (["train", "--sett", "a=1"], "; see `dpflows train --help`.\n"),
        (["trian"], "No such command"),
        (
            ["crossval", "--folds", "0"],
            "Expected a number >= 1 for --folds, got 0; see `dpflows crossval --help`.\n",
        ),
        (
            ["crossval", "--folds", "2.5"],
            "Expected a whole number for --folds, got 2.5; see `dpflows crossval --help`",
        ),
        (["ui", "--port", "0"], "Expected a number >= 1 for --port, got 0"),
        (
            ["ledger", "init", "visits", "--epsilon", "abc"],
            "a number for --epsilon, got abc; see `dpflows ledger init",
        ),
        (["audit", "nowhere.json"], "got 'nowhere.json', which is missing"),
        (
            ["plan", "--set", "algorithm.name=dp_sgd", "--set", "algorithm.steps=1e9"],
            "exponent: 1000000000.",
        ),
        (["predict", "nothing", "nowhere.csv"], "got 'nowhere.csv'"),
        (["plan", "--set", "preprocess.numeric=hat"], "hat"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, home: Home, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = refused(arguments, capsys)
    assert code == 2
    assert words in line
    assert not small.with_name("ledger.db").exists()


@pytest.mark.parametrize("arguments", [[], ["ledger"]])
def test_without_a_command_the_help_keeps_its_lines(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Usage: dpflows") and "Commands:" in lines
    assert max(map(len, lines)) <= 80


SMALL = [
    "--set",
    "data.name=small.yaml",
    "--set",
    "privacy.delta=1e-4",
    "--set",
    "algorithm.steps=8",
]

BAD_ROWS = [
    ("age,city\n40,north\n", "the label column 'paid' is missing"),
    ("age,city,paid\n40,north,perhaps\n", "'perhaps' is not a declared label"),
    ("age,city,paid\nnan,north,yes\n", "column 'age': no value; a number is needed"),
    ("age,city,paid\ninf,north,yes\n", "inf"),
    ("age,city,paid\n40,west,yes\n", "'west' is not a declared level"),
    ("age,town,paid\n40,north,yes\n", "'city' is missing"),
    ("", "the file is empty"),
    # further down than the look at the first rows goes: the flow finds it, before anything is
    # reserved
    (
        "age,city,paid\n" + "40,north,yes\n50,south,no\n" * 1500 + "9,west,yes\n",
        "data row 3001, column 'city': 'west'",
    ),
]


@pytest.mark.parametrize(("text", "words"), BAD_ROWS, ids=[case[1] for case in BAD_ROWS])
def test_bad_rows_are_one_line_and_exit_code_2(
    text: str,
    words: str,
    server: str,
    home: Home,
    small: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server)
    ledger = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    ledger.init("small", 1.0, 1e-4, "add_remove")
    head = ledger.head()
    small.with_name("small.csv").write_text(text)
    code, line = refused(
        ["train", *SMALL, "--set", "tracking.experiment=bad rows of the CLI"], capsys
    )
    assert code == 2
    assert words in line
    assert "small.csv" in line
    assert ledger.head() == head
    client = tracking_client(home)
    experiment = client.get_experiment_by_name("bad rows of the CLI")
    assert (experiment is not None) == text.startswith("age,city,paid\n40,north,yes\n50"), (
        "no server, no store"
    )
    assert experiment is None or client.search_runs([experiment.experiment_id]) == []


def test_unaffordable_run_is_exit_code_3_and_opens_nothing(
    home: Home, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    ledger.init("small", 0.5, 1e-4, "add_remove")
    small.with_name("small.csv").unlink()
    code, line = refused(["train", *SMALL], capsys)
    assert code == 3
    assert "is left" in line
    assert "was asked" in line


def test_plan_shows_price_and_what_is_left_without_the_table(
    home: Home, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    ledger.init("small", 2.0, 1e-4, "add_remove")
    head = ledger.head()
    small.with_name("small.csv").unlink()
    assert run(["plan", *SMALL, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["epsilon"] <= report["epsilon_asked"] == 1.0
    assert report["ledger_left_after"] == pytest.approx(
        report["ledger_left"] - report["ledger_cost"]
    )
    assert ledger.head() == head


def test_plan_counts_the_released_metric_too(
    home: Home, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    ledger.init("small", 2.0, 1e-4, "add_remove")
    assert run(["plan", *SMALL, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    noisy = ["--set", "evaluate.release.epsilon=0.1"]
    assert run(["plan", *SMALL, *noisy, "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["ledger_cost"] > alone["ledger_cost"]
    assert "epsilon 0.1 more" in both["released_metric"][0]
    assert run(["plan", *SMALL, "--set", "evaluate.release.epsilon=9"]) == 3
    assert "evaluate.release" in capsys.readouterr().err


@pytest.mark.parametrize(("terminal", "expected"), [(False, "Rényi ü"), (True, "R\\xe9nyi \\xfc")])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_no_letter_of_an_output_is_an_error(terminal: bool, expected: str, errors: str) -> None:
    class Raw(BytesIO):
        def isatty(self) -> bool:
            return terminal

    raw = Raw()
    stream = TextIOWrapper(raw, encoding="ascii", errors=errors)
    write_anything(stream)
    stream.write("Rényi ü")
    stream.flush()
    assert raw.getvalue().decode("utf-8") == expected


@pytest.mark.parametrize(
    "call",
    [
        ["plan", "x" * 3000],
        ["plan", "--set", "data.name=" + "x" * 3000],
        ["predict", "m", "x" * 3000],
    ],
)
def test_a_name_longer_than_any_file_has_is_one_line(
    call: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(call) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import sys; from flows.cli import run; run(['--help']); print([m for m in HEAVY if m in "
        "sys.modules])"
    )
    heavy = "HEAVY = ['prefect', 'mlflow', 'pandas', 'sklearn', 'scipy', 'sqlalchemy', 'numpy']; "
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", heavy + code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(name in done.stdout for name in ("init", "train", "predict", "plan", "ui", "ledger"))


def test_init_copies_the_configuration_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(tmp_path)]) == 0
    assert (tmp_path / "conf" / "train.yaml").is_file()
    assert (tmp_path / "conf" / "data" / "census.yaml").is_file()
    assert run(["init", str(tmp_path)]) == 0
    assert "Nothing was written" in capsys.readouterr().out
    edited = tmp_path / "conf" / "train.yaml"
    edited.write_text("schema_version: 1\n", encoding="utf-8")
    assert run(["init", str(tmp_path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert edited.read_text(encoding="utf-8") == "schema_version: 1\n"
    assert run(["init", str(tmp_path), "--force"]) == 0
    assert len(edited.read_text(encoding="utf-8")) > 100


@pytest.mark.slow
def test_a_swallowed_interrupt_spends_nothing(
    server: str,
    home: Home,
    small: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An exception that a signal raises inside a callback is lost there; the reservation notices
    that it came.
    """
    monkeypatch.chdir(small.parent)
    ledger = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    ledger.init("small", 2.0, 1e-4, "add_remove")
    monkeypatch.setattr(exit_codes, "_asked", [signal.SIGINT])
    assert run(["train", *SMALL, "--set", "tracking.experiment=swallowed"]) == 130
    said = capsys.readouterr().err
    assert "nothing was drawn, so nothing was spent" in said
    assert "Traceback" not in said
    assert ledger.open_entries() == []


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_the_local_server_ends_with_a_process_that_is_killed_outright(tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path; from flows.server import _start, free_port; "
        f"print(_start(free_port(), Path({str(tmp_path / 'server.log')!r})).pid, flush=True); "
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        server_pid = int(process.stdout.readline())
        time.sleep(0.5)
        assert not is_over(server_pid)
        process.kill()
    give_up = time.monotonic() + 300
    while not is_over(server_pid) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert is_over(server_pid)


def drawn(ledger: Ledger) -> bool:
    """Whether noise of an entry was drawn."""
    with ledger.store.reading() as connection:
        assert connection is not None
        found = select(schema.records.c.seq).where(schema.records.c.kind == schema.DRAWN)
        return connection.scalar(found) is not None


def is_over(pid: int) -> bool:
    """Whether no process has this number, but for one that waits to be collected."""
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return listed.strip() in ("", "Z", "Zs")


def test_a_full_disk_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LEAST_FREE", 10**18)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    words = "MB free .* in .*; free some, or name another folder in DPFLOWS_HOME"
    with (
        pytest.raises(DPFlowsError, match=words),
        server_module.LocalServer(Home(tmp_path / "new" / "home")),
    ):
        pass
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_first_runs_at_once_share_a_new_store(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    """Each would create the tables of MLflow's database; one at a time does."""
    code = (
        "from flows.steps import open_store; from tasks.config import load_config; "
        "print(open_store(load_config(None, []).tracking.experiment).experiment)"
    )
    environment = {**clean_environment, "DPFLOWS_HOME": str(tmp_path / "home")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    answers = [process.communicate(timeout=300)[0].strip().splitlines()[-1] for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert len(set(answers)) == 1


def test_termination_closes_the_run_and_says_what_was_spent(
    server: str, home: Home, small: Path, clean_environment: dict[str, str]
) -> None:
    ledger = Ledger(f"sqlite:///{small.with_name('ledger.db')}")
    ledger.init("small", 2.0, 1e-4, "add_remove")
    environment = {**clean_environment, "DPFLOWS_HOME": str(home.root), "PREFECT_API_URL": server}
    endless = ["--set", "algorithm.steps=300000", "--set", "tracking.experiment=terminated"]
    with subprocess.Popen(
        command("train", *SMALL, *endless),
        cwd=small.parent,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        give_up = time.monotonic() + 300
        while not drawn(ledger) and time.monotonic() < give_up and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert "stays charged in full" in stderr
    assert stderr.splitlines()[-1].startswith("dpflows: interrupted; ")
    assert "Traceback" not in stderr
    assert ledger.open_entries() == []
    client = tracking_client(home)
    [run_] = client.search_runs([client.get_experiment_by_name("terminated").experiment_id])
    assert run_.info.status == "KILLED"
