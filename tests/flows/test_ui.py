"""The UIs: they answer on 127.0.0.1, a training beside them uses their server, and they end when
told to.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from flows.commands.ui import experiment_links, usable
from flows.server import running_address
from tasks.home import Home
from tasks.record.tracking import ensure_experiment, tracking_client


def test_links_go_straight_to_the_curves(home: Home) -> None:
    experiment = ensure_experiment(tracking_client(home), home, "linked")
    link = experiment_links(home, "http://127.0.0.1:5000")["linked"]
    assert link.startswith(f"http://127.0.0.1:5000/#/experiments/{experiment}/runs?")
    assert "compareRunsMode=CHART" in link


def test_a_port_in_use_is_replaced() -> None:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        assert usable(taken) != taken


@pytest.mark.slow
def test_both_servers_start_answer_and_end(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    call = [sys.executable, "-m", "flows.cli", "ui", "--prefect", "--json"]
    with subprocess.Popen(
        call, cwd=tmp_path, env=clean_environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        links = json.loads(process.stdout.readline())
        for name in ("mlflow", "prefect"):
            assert links[name].startswith("http://127.0.0.1:")
            with urlopen(links[name], timeout=300) as answer:
                assert answer.status == 200
        home = Home(tmp_path / "runs")
        assert running_address(home) == f"{links['prefect']}/api"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 130
    assert running_address(home) is None
