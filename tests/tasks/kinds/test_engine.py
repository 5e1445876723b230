"""Where rows are kept follows from public facts alone: no file is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpcore.errors import InputError
from flows.commands.train import large_words
from tasks import training
from tasks.config import load_config
from tasks.kinds import engine as kinds_engine
from tasks.kinds.base import reading_of
from tasks.kinds.engine import choose, outlook
from tasks.readers.once import glance
from tests.tasks.training.test_training import config_of

ADDRESS = {"address": "tcp://127.0.0.1:8786"}


def job_of(small: Path, n: int, **sections: Any) -> Any:
    """A training whose table is declared to have n rows."""
    small.with_name("small.csv").unlink(missing_ok=True)
    small.write_text(small.read_text().replace("n: 300", f"n: {n}"))
    values = {"privacy": {"delta": 1e-11}, "algorithm": {"name": "scaled_gd"}, **sections}
    config = config_of(small, **values)
    named = config.algorithm.model_validate(values["algorithm"])
    return training.prepare(config.model_copy(update={"algorithm": named}))


@pytest.mark.parametrize(
    ("n", "engine", "kind", "words"),
    [
        (5_000, None, "memory", "as a matrix"),
        (500_000_000, None, "shards", "a matrix of 500,000,000 rows would take"),
        (500_000_000, ADDRESS, "dask", "and tcp://127.0.0.1:8786 has workers"),
        (5_000, ADDRESS, "memory", "as a matrix"),
        (5_000, {"kind": "dask"}, "dask", "as engine.kind says"),
        (500_000_000, {"kind": "memory"}, "memory", "as a matrix"),
    ],
)
def test_memory_shards_or_workers(
    small: Path, n: int, engine: dict[str, str] | None, kind: str, words: str
) -> None:
    job = job_of(small, n, **({} if engine is None else {"engine": engine}))
    choice = choose(job)
    assert choice.kind == kind and words in choice.reason
    said = large_words(job, training.plan_training(job))
    assert bool(said) is (kind != "memory")
    assert not said or ("epsilon 1 at delta 1e-11" in said or "epsilon 0.99" in said)


def test_what_workers_cannot_keep_goes_to_shards_and_says_why(small: Path) -> None:
    small.write_text(small.read_text().replace("{kind: none}", "{kind: file, path: held.csv}"))
    choice = choose(job_of(small, 500_000_000, engine=ADDRESS))
    assert choice.kind == "shards" and "split.kind=file" in choice.reason
    with pytest.raises(InputError, match=r"no engine\.kind=dask for split\.kind=file"):
        job_of(small, 5_000, engine={"kind": "dask"})


def test_a_plan_names_columns_bytes_disk_passes_and_minutes(small: Path) -> None:
    job = job_of(small, 500_000_000)
    planned = training.plan_training(job)
    found = outlook(job, planned)
    rate = planned.parameters["sampling_rate"] or 1.0
    assert found["stored_columns"] >= 2
    assert found["passes"] == round(len(planned.events) * rate) > 4
    assert found["disk_gb"] == round(500_000_000 * found["row_bytes"] / 1e9, 3)
    coding = choose(job).storage.coding
    assert coding is not None and found["row_bytes"] == coding.layout.row_bytes + 8 + 8
    assert found["shards"] == 477 and found["minutes_about"] > found["encoding_minutes"] > 0.3


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"algorithm": {"name": "rsgd_ar"}}, "walks through all rows in an order of its own"),
        ({"algorithm": {"name": "objective_perturbation"}}, "looks at single rows"),
        ({"evaluate": {"subgroup": "city"}}, "groups of single rows are kept in memory"),
    ],
)
@pytest.mark.parametrize("kind", ["shards", "dask"])
def test_what_needs_single_rows_is_refused(
    small: Path, kind: str, section: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        job_of(small, 5_000, engine={"kind": kind}, **section)


def test_a_plan_says_what_a_split_by_every_cell_costs_and_what_costs_less(small: Path) -> None:
    text = small.read_text().replace("  city:", "  id: {kind: ignore}\n  city:")
    found = {}
    for split in ("{kind: hash}", "{kind: hash, by: [city]}", "{kind: none}"):
        small.write_text(text.replace("{kind: none}", split))
        job = job_of(small, 500_000_000)
        planned = training.plan_training(job)
        minutes = outlook(job, planned)["encoding_minutes"]
        found[split] = minutes, "split.by with one column" in large_words(job, planned)
    (every, told), *others = found.values()
    assert told and not any(words for _, words in others)
    assert every > max(minutes for minutes, _ in others) > 0


@pytest.mark.parametrize("kind", ["shards", "dask"])
def test_units_of_several_rows_are_kept_in_memory(small: Path, kind: str) -> None:
    engine = f"engine.kind={kind}"
    given = ["data.name=search", "objective.loss=listnet", "privacy.adjacency=replace_one", engine]
    with pytest.raises(InputError, match="no section engine for sessions"):
        training.prepare(load_config(None, given))
    rows = small.read_text().replace("public: {", "unit: user\npublic: {rows_per_user: 3, ")
    small.write_text(rows.replace("label:", "  patient: {kind: user}\nlabel:"))
    with pytest.raises(InputError, match=f"no engine.kind={kind} for unit user"):
        job_of(small, 5_000, engine={"kind": kind})


HERE, FAR = "tcp://127.0.0.1:8786", "tls://10.0.0.5:8786"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"kind": "memory", "address": HERE}, r"no engine\.address beside engine\.kind=memory"),
        ({"kind": "shards", "workers": 2}, r"no engine\.workers beside engine\.kind=shards"),
        ({"kind": "memory", "ca": "ca.pem"}, r"no engine\.ca beside engine\.kind=memory"),
        ({"workers": 2}, r"no engine\.workers beside engine\.kind=auto"),
        ({"kind": "dask", "workers": 2, "address": HERE}, r"no engine\.workers beside engine\.add"),
        ({"kind": "dask", "key": "k.pem"}, r"no engine\.key without engine\.address"),
        ({"kind": "dask", "address": HERE, "cert": "c.pem"}, r"no engine\.cert for tcp://127"),
        ({"address": "tcp://10.0.0.5:8786"}, "exact sums go over the network"),
        ({"address": "tls://10.0.0.5"}, "tls://HOST:PORT"),
        ({"address": "tcp://localhost:many"}, "tls://HOST:PORT"),
        ({"address": FAR}, r"engine\.ca for a tls:// scheduler"),
        ({"address": FAR, "ca": "/nowhere/ca.pem"}, r"engine\.ca, got '/nowhere/ca\.pem'"),
    ],
)
def test_a_plan_refuses_settings_of_workers_that_nothing_would_read_or_reach(
    small: Path, engine: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        job_of(small, 5_000, engine=engine)


def test_a_plan_reads_the_files_of_tls_and_names_the_wrong_one(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    made = pytest.importorskip("distributed").Security.temporary()
    other = pytest.importorskip("distributed").Security.temporary()
    texts = {"ca": made.tls_ca_file, "cert": made.tls_client_cert, "key": made.tls_client_key}
    files = {name: str(tmp_path / f"{name}.pem") for name in texts}
    for name, text in texts.items():
        Path(files[name]).write_text(text)
    assert choose(job_of(small, 5_000, engine={"address": FAR, **files})).kind == "memory"
    for name, text in (("ca", "no certificate"), ("cert", ""), ("key", other.tls_client_key)):
        Path(files[name]).write_text(text)
        with pytest.raises(InputError, match=rf"engine\.{name}=.*correct the file"):
            job_of(small, 5_000, engine={"address": FAR, **files})
        Path(files[name]).write_text(texts[name])


def test_workers_that_see_another_file_under_the_same_name_are_refused(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is charged for the file that lies here."""
    mine, other = small.with_name("small.csv"), small.with_name("other.csv")
    mine.write_text("age,city,y\n1,a,yes\n")
    other.write_text("age,city,y\n2,a,yes\n")
    job = job_of(small, 300, engine={"kind": "dask"}, data={"path": str(mine)})
    mine.write_text("age,city,y\n1,a,yes\n")
    seen: list[Path] = []
    monkeypatch.setattr(kinds_engine, "connect", lambda *_: (None, None))
    monkeypatch.setattr(
        kinds_engine, "Cluster", lambda *_: SimpleNamespace(glances={0: glance(seen[-1])})
    )
    monkeypatch.setattr(kinds_engine, "RemoteRows", {}.__getitem__)  # its rows are asked for next
    for file, expected in ((other, InputError), (mine, TypeError)):
        seen.append(file)
        with pytest.raises(expected):
            kinds_engine.on_workers(job, reading_of(job), fast=False)
