"""The files of conf/deploy and the page on operation: parsed, and every command in them exists."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from flows.cli import build, run
from flows.help import ENVIRONMENT
from tests.ledger_fixtures import DeclaredLedger
from tests.tasks.retraining.test_schedule import RUN

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "conf" / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def options_of(words: list[str]) -> set[str]:
    """The options of a command of ours, of a group too."""
    command: Any = typer.main.get_command(build(words[0]))
    for word in words:
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        command = inner
    return {name for parameter in command.params for name in parameter.opts}


def known(words: list[str]) -> None:
    """Raise where a command or one of its options does not exist."""
    command: Any = typer.main.get_command(build(words[0]))
    assert words[0] in command.commands, words
    for option in (word for word in words if word.startswith("--")):
        assert option in options_of(words), (words, option)


def test_the_image_copies_what_exists_and_runs_as_nobody_of_weight() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    kinds = [kind for kind, _ in steps]
    assert kinds[0] == "FROM" and kinds.index("USER") > kinds.index("RUN")
    for kind, rest in steps:
        if kind == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    assert "root" not in dict(steps)["USER"]
    assert not re.search(r"(?i)password|secret", " ".join(rest for _, rest in steps))


def test_services_know_each_other_and_keep_to_this_machine() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"database", "prefect", "mlflow", "worker"}
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} listens to others"
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source.startswith((".", "$")) or source in COMPOSE["volumes"], volume
    assert (DEPLOY / services["worker"]["build"]["context"]).resolve() == ROOT
    assert (DEPLOY / "databases.sql").is_file()
    assert (ROOT / services["worker"]["build"]["dockerfile"]).is_file()
    known(services["worker"]["command"])
    ours = {name for name in services["worker"]["environment"] if name.startswith("DPFLOWS")}
    assert ours <= {name for name, _ in ENVIRONMENT}
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    for url in re.findall(r"postgresql\+\w+://dpflows:([^@]+)@", text):
        assert url.startswith("${DPFLOWS_DB_PASSWORD"), "a password stands in the file"
    databases = set(re.findall(r"@database/(\w+)", text))
    made = {services["database"]["environment"]["POSTGRES_DB"]} | set(
        re.findall(r"CREATE DATABASE (\w+);", (DEPLOY / "databases.sql").read_text())
    )
    assert databases == made


@pytest.mark.parametrize("service", ["mlflow", "prefect"])
def test_servers_take_the_options_that_they_are_given(service: str) -> None:
    given = COMPOSE["services"][service]
    words = [*given["entrypoint"], *given["command"]]
    wanted = {word for word in words if word.startswith("--")}
    if service == "mlflow":
        from mlflow.cli import server

        assert wanted <= {name for parameter in server.params for name in parameter.opts}
    else:
        from prefect.cli.server import start

        text = " ".join(map(str, getattr(start, "__annotations__", {}))) + str(start)
        assert wanted <= {"--host", "--port"}, text


def test_the_unit_starts_a_command_that_exists_and_lets_a_training_end() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "dpflows.service").read_text(encoding="utf-8"))
    assert unit.sections() == ["Unit", "Service", "Install"]
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/dpflows")
    known(words)
    assert unit["Service"]["KillSignal"] == "SIGTERM"
    assert int(unit["Service"]["TimeoutStopSec"]) >= 60
    assert unit["Service"]["UMask"] == "0077"
    documented = unit["Unit"]["Documentation"].removeprefix("file:/opt/dpflows/")
    assert (ROOT / documented).is_file()


def test_systemd_itself_takes_the_unit(tmp_path: Path) -> None:
    """As its own checker reads it, with a program and a page that are there."""
    checker = shutil.which("systemd-analyze")
    if checker is None:
        pytest.skip("no systemd-analyze here")
    text = (DEPLOY / "dpflows.service").read_text(encoding="utf-8")
    text = text.replace("/opt/dpflows/venv/bin/dpflows", sys.executable)
    copy = tmp_path / "dpflows.service"

    def said(unit: str) -> tuple[int, str]:
        copy.write_text(unit, encoding="utf-8")
        done = subprocess.run(
            [checker, "verify", str(copy)], capture_output=True, text=True, timeout=300
        )
        return done.returncode, done.stderr

    code, words = said(text)
    assert code == 0 and "dpflows.service:" not in words, words
    assert "ProtectSytem" in said(text.replace("ProtectSystem", "ProtectSytem"))[1]


def test_commands_of_the_page_on_operation_exist() -> None:
    text = (ROOT / "docs" / "operation.md").read_text(encoding="utf-8")
    found = re.findall(r"(?:`|\$ )dpflows ([^`\n]+)", text)
    assert len(found) > 10
    for line in found:
        known(shlex.split(line.split(":")[0]))


def test_automations_expect_events_that_are_sent_about_data_sets() -> None:
    """As Prefect's own client reads the file; its triggers match what ``story`` sends."""
    from prefect.events import AutomationCore, Resource

    from flows.story import EVENTS, resource

    text = (DEPLOY / "automations.yaml").read_text(encoding="utf-8")
    found = [AutomationCore.model_validate(one) for one in yaml.safe_load(text)["automations"]]
    about = Resource.model_validate(resource("Visits 2026"))
    for one in found:
        trigger: Any = one.trigger
        assert one.enabled and trigger.match.matches(about), one.name
        assert {event.removeprefix("dpflows.") for event in trigger.expect} <= set(EVENTS)
        assert [action.type for action in one.actions] == ["pause-deployment"]
    named = set(re.findall(r"dpflows\.([a-z-]+)", text.split("automations:")[0]))
    assert named >= {"trained", "data"} and len(found) == 2


def test_a_backup_is_restored_and_an_older_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the page on operation says it: archive, put back elsewhere, verify against the hash that
    was kept.
    """
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir(mode=0o700)
    monkeypatch.delenv("DPFLOWS_LEDGER", raising=False)
    monkeypatch.setenv("DPFLOWS_HOME", str(home))

    def ask(*words: str) -> tuple[int, dict[str, Any]]:
        code = run(["ledger", *words])
        out = capsys.readouterr().out
        return code, json.loads(out) if "--json" in words and out.strip() else {}

    with DeclaredLedger(f"sqlite:///{home / 'ledger.db'}") as ledger:
        ledger.init("visits", 3.0, 1e-4, "add_remove")
        ledger.reserve("visits", RUN).commit()
        old = ledger.head()
        assert ask("export", "-o", str(tmp_path / "ledger.jsonl"))[0] == 0
        backup = shutil.make_archive(str(tmp_path / "backup"), "gztar", home)
        ledger.reserve("visits", RUN).commit()
        new = ledger.head()
    assert ask("verify", "--json")[1]["ok"] is True
    assert ask("verify", "--file", str(tmp_path / "ledger.jsonl"))[0] == 0
    shutil.unpack_archive(backup, other)
    monkeypatch.setenv("DPFLOWS_HOME", str(other))
    assert ask("verify", "--head", old)[0] == 0
    assert ask("verify", "--head", new)[0] == 4, "a copy of before the last run"
    # Put back over a newer one, its own head file tells it.
    shutil.copy(other / "ledger.db", home / "ledger.db")
    for name in ("ledger.db-wal", "ledger.db-shm"):
        (home / name).unlink(missing_ok=True)
    monkeypatch.setenv("DPFLOWS_HOME", str(home))
    assert ask("verify")[0] == 4
