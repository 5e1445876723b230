"""The page on several machines: its commands as shown, with this machine in the places of the
others.
"""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.tasks.data.test_clusters import certificates
from tests.tasks.ledger.conftest import _fresh_schema
from tests.test_docs import DOCS, START, run_script

pytestmark = pytest.mark.slow
PAGE = (DOCS / "tutorials" / "machines.md").read_text(encoding="utf-8")
SHELL = START + 'export PATH="$(dirname "$PYTHON"):$PATH"\n'


def commands(section: str) -> list[str]:
    """The commands under a heading, without what is installed already."""
    [part] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, flags=re.S | re.M)
    [block] = re.findall(r"^```text\n(.*?)^```", part, flags=re.S | re.M)
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if not line.startswith("pip ")]


def shown(script: str, folder: Path) -> str:
    done = run_script(SHELL + script, folder)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture
def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_ledger_on_postgresql(tmp_path: Path) -> None:
    place = _fresh_schema()
    lines = commands("A ledger on PostgreSQL")
    example = "postgresql+psycopg2://dpflows:PASSWORD@db.example.org/dpflows"
    assert example in lines[0]
    script = "\n".join(lines).replace(example, next(place))
    try:
        shown(f"{script}\ndpflows ledger show visits", tmp_path)
    finally:
        next(place, None)


def test_mlflow_prefect_and_a_worker(tmp_path: Path, free_port: int) -> None:
    lines = commands("MLflow and Prefect")
    assert [line.split()[0] for line in lines] == ["export", "export", *["prefect"] * 3]
    here = "\n".join(lines[:4]).replace("https://mlflow.example.org", "sqlite:///mlflow.db")
    here = here.replace("https://prefect.example.org", f"http://127.0.0.1:{free_port}")
    server = f"""prefect server start --port {free_port} > server.txt 2>&1 &
trap 'kill %1' EXIT
for turn in $(seq 300); do
  curl -sf http://127.0.0.1:{free_port}/api/health > /dev/null && break; sleep 1
done
"""
    prepared = "dpflows init .\nexport PREFECT_HOME=$PWD/prefect\n"
    told = shown(
        f"{prepared}{server}{here}\n{lines[4]} --run-once\nprefect deployment ls", tmp_path
    )
    assert "weekly" in told


def test_cells_of_a_comparison_on_dask(tmp_path: Path) -> None:
    [line] = commands("Comparisons on many cores")
    small = " --set data=[census] --set algorithms=[auto] --set privacy.epsilon=[1.0] --json"
    told = shown(f"dpflows init .\n{line}{small}", tmp_path)
    assert json.loads(told[told.index("{") :])["cells"]["all"] > 0


def test_sums_behind_a_scheduler_of_ones_own(tmp_path: Path, free_port: int) -> None:
    made = certificates(tmp_path / "tls")
    for name in ("s", "w", "me"):
        for kind in ("cert", "key"):
            suffix = "pem" if kind == "cert" else "key"
            (tmp_path / f"{name}.{suffix}").write_text(Path(made[kind]).read_text())
    (tmp_path / "ca.pem").write_text(Path(made["ca"]).read_text())
    [engine] = re.findall(r"^engine: .*scheduler\.example\.org.*$", PAGE, flags=re.M)
    here = f"127.0.0.1:{free_port}"
    scheduler, worker = (
        line.replace("scheduler.example.org:8786", here)
        for line in commands("Sums on many machines")
    )
    rows = [f"{k % 70},{k % 7},{'yes' if k % 70 > 30 else 'no'}" for k in range(400)]
    (tmp_path / "visits.csv").write_text("\n".join(["age,visits,back", *rows]) + "\n")
    script = f"""dpflows init .
dpflows profile visits.csv --label back -o conf/data/visits.yaml
sed -i '/^drafted/d' conf/data/visits.yaml
dpflows ledger init visits --epsilon 3 --delta 1e-6
{scheduler} --host 127.0.0.1 --port {free_port} > scheduler.txt 2>&1 &
{worker} > worker.txt 2>&1 &
trap 'kill %1 %2' EXIT
sed -i '/^engine:/d' conf/train.yaml
cat >> conf/train.yaml <<'END'
{engine.replace("scheduler.example.org:8786", here)}
END
dpflows train conf/train.yaml --set data.name=visits --set data.path=visits.csv
dpflows runs"""
    assert "visits" in shown(script, tmp_path)
    assert "tls://" in (tmp_path / "worker.txt").read_text()
