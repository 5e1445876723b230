"""Tamperings that the table of what is believed gives rise to, each with the hashes that its author
can compute.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tasks.ledger.records import Record, canonical
from tasks.record.sources import INVENTORY as LIST
from tasks.release.keys import load_key, sign
from tasks.release.manifest import MANIFEST, SIGNATURE
from tests.tasks.release.believed import (
    BUNDLE_FIELDS,
    BUNDLE_FILES,
    CONFIG_FIELDS,
    MODEL_FILES,
    RUN_FIELDS,
    RUN_FILES,
    STATEMENT_FIELDS,
)
from tests.tasks.release.scene import Scene

KINDS = ("edit", "swap", "remove", "link", "duplicate", "downgrade")


@dataclass(frozen=True)
class Tampering:
    """``apply`` changes the scene and says whether anything is different now."""

    label: str
    apply: Callable[[Scene], bool]
    bundle: bool = False  # seen by verify, where all others are seen by an audit of the name


def change(kind: str, path: Path, other: Path, root: Path) -> bool:
    """One tampering of a file; False where it would change nothing."""
    if not path.is_file():
        return False
    data = path.read_bytes()
    if kind == "edit":
        path.write_bytes(
            data + b"\n<script>x()</script>\n" if path.suffix in (".md", ".html") else edited(data)
        )
    elif kind == "swap":
        if not other.is_file() or other.read_bytes() == data:
            return False
        shutil.copyfile(other, path)
    elif kind == "remove":
        path.unlink()
    elif kind == "link":
        path.rename(path.with_name(f"{path.name}.kept"))
        path.symlink_to(f"{path.name}.kept")
    elif kind == "duplicate":
        (root / "decoy").mkdir()
        (root / "decoy" / path.name).write_bytes(edited(data))
    else:
        path.write_bytes(downgraded(data))
    return True


def edited(data: bytes) -> bytes:
    """A digit of a text moved by one, that of an epsilon or of the Python of a model; a byte of
    anything else.

    The first digits of a model's card are those of places, which nothing believes.
    """
    start = max(data.find(b'"epsilon": '), data.find(b"python_version: "), 0)
    for index in (*range(start, len(data)), *range(start)):
        if data[index : index + 1].isdigit():
            return data[:index] + str((data[index] - 48 + 1) % 10).encode() + data[index + 1 :]
    return data + b" "


def downgraded(data: bytes) -> bytes:
    """As an older version wrote it: without a field, or shorter."""
    try:
        stored = json.loads(data)
    except ValueError:
        return data[: len(data) // 2]
    if isinstance(stored, dict) and stored:
        stored.pop("of" if "of" in stored else sorted(stored)[-1])
        return json.dumps(stored, indent=1, sort_keys=True).encode()
    return b"[]"


def recompute(scene: Scene) -> None:
    """All hashes that stand outside the ledger, made to fit what is there now."""
    root, model = scene.files_of(scene.run), scene.model_of(scene.run)
    if (root / LIST).is_file():
        text = (root / LIST).read_bytes()
        try:
            stored = json.loads(text)
            for path in stored["files"]:
                if (model / path).is_file():
                    stored["files"][path] = digest(model / path)
            if (new := json.dumps(stored, indent=1, sort_keys=True).encode()) != text:
                (root / LIST).write_bytes(new)
        except (ValueError, KeyError, TypeError):
            pass
    statement = root / "privacy/statement.json"
    try:
        stored = json.loads(statement.read_bytes())
        pairs = {
            "config_sha256": root / "config.json",
            "mechanisms_sha256": root / "privacy/mechanisms.json",
            "weights_sha256": model / "artifacts/model/weights.npz",
        }
        new = {**stored, **{key: digest(path) for key, path in pairs.items() if path.is_file()}}
        if new != stored:
            statement.write_text(json.dumps(new, indent=1, sort_keys=True, ensure_ascii=False))
            sql(
                scene,
                "update params set value = ? where run_uuid = ? and \"key\" = 'config.sha256'",
                new["config_sha256"],
            )
    except (OSError, ValueError, TypeError):
        pass


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def sql(scene: Scene, text: str, *values: object) -> bool:
    with sqlite3.connect(scene.database) as connection:
        return connection.execute(text, (*values, scene.run)).rowcount > 0


def stored_files() -> Iterator[Tampering]:
    """Files of the run and of its model."""
    for one in (*RUN_FILES, *MODEL_FILES):
        where = f"{one.where}/errors.py" if one.where == "code/dpcore" else one.where
        # Who makes no hash fit leaves the list of files as it was.
        for kind, plain in (*((kind, False) for kind in KINDS), ("edit", True)):

            def apply(
                scene: Scene,
                where: str = where,
                kind: str = kind,
                of_run: bool = one.kind == "run",
                plain: bool = plain,
            ) -> bool:
                find = scene.files_of if of_run else scene.model_of
                root = find(scene.run)
                before = content(root / where)
                done = change(kind, root / where, find(scene.other) / where, root)
                if not plain:
                    recompute(scene)
                return done and (kind in ("link", "duplicate") or content(root / where) != before)

            yield Tampering(f"{one.kind} {'plain ' if plain else ''}{kind} {one.where}", apply)


# JSON files whose single fields are changed, each with all hashes outside the ledger made to fit,
# or unsigned.
FIELD_FILES = (
    "config.json",
    "privacy/statement.json",
    "privacy/metrics.json",
    "privacy/trace.json",
    MANIFEST,
)


def stored_fields() -> Iterator[Tampering]:
    """One field of a file after the other: by another value of the same type, and left out."""
    for one in (*STATEMENT_FIELDS, *CONFIG_FIELDS, *RUN_FIELDS, *BUNDLE_FIELDS):
        place = next(
            (place for place in FIELD_FILES if place.rpartition("/")[2] == one.holder), None
        )
        for name in one.each if place is not None and one.names != "*" else ():
            for kind in ("edit", "remove"):

                def apply(
                    scene: Scene, name: str = name, kind: str = kind, place: str = str(place)
                ) -> bool:
                    path = (
                        scene.bundle if place == MANIFEST else scene.files_of(scene.run)
                    ) / place
                    before = path.read_bytes()
                    stored = json.loads(before)
                    *parents, last = name.split(".")
                    holder = stored
                    for parent in parents:
                        holder = holder.get(parent) if isinstance(holder, dict) else None
                    if not isinstance(holder, dict) or last not in holder:
                        return False
                    if kind == "edit":
                        holder[last] = another(holder[last])
                    else:
                        del holder[last]
                    path.write_text(
                        json.dumps(stored, indent=1, sort_keys=True, ensure_ascii=False)
                    )
                    if place != MANIFEST:
                        recompute(scene)
                    return path.read_bytes() != before  # a hash is made to fit again

                found = "bundle" if place == MANIFEST else "run"
                yield Tampering(
                    f"{found} field {kind} {place}:{name}", apply, bundle=found == "bundle"
                )


def another(value: object) -> object:
    """A different value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "0"
    if isinstance(value, list):
        return [*value, *(value[:1] or ["x"])]
    return {**value, "x": 1} if isinstance(value, dict) else "x"


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def statement_sql(text: str, *values: object) -> Callable[[Scene], bool]:
    def apply(scene: Scene) -> bool:
        filled = [scene.other if value == "OTHER" else value for value in values]
        with sqlite3.connect(scene.database) as connection:
            given = text.replace(":run", f"'{scene.run}'").replace(":other", f"'{scene.other}'")
            return (
                connection.execute(given.replace(":name", f"'{scene.name}'"), filled).rowcount > 0
            )

    return apply


def script(text: str) -> Callable[[Scene], bool]:
    """Several statements that together fit each other."""

    def apply(scene: Scene) -> bool:
        with sqlite3.connect(scene.database) as connection:
            connection.executescript(text.replace(":run", f"'{scene.run}'"))
        return True

    return apply


def mlflow() -> Iterator[Tampering]:
    """Rows and fields of MLflow's tables: edited, exchanged with another run's, removed."""
    for table, key in (
        *(("tags", f"dpflows.{one}") for one in ("model", "ledger_entry", "releasable")),
        *(
            ("params", one)
            for one in ("privacy.epsilon", "privacy.delta", "privacy.adjacency", "config.sha256")
        ),
    ):
        where = f"run_uuid = :run and \"key\" = '{key}'"
        taken = f"(select value from {table} where run_uuid = :other and \"key\" = '{key}')"
        yield Tampering(
            f"mlflow edit {key}", statement_sql(f"update {table} set value = 'x' where {where}")
        )
        yield Tampering(f"mlflow remove {key}", statement_sql(f"delete from {table} where {where}"))
        differs = f"update {table} set value = {taken} where {where} and value != {taken}"
        yield Tampering(f"mlflow swap {key}", statement_sql(differs))
    for key in ("spent.epsilon", "spent.delta", "released.accuracy"):
        for table in ("metrics", "latest_metrics"):
            where = f"run_uuid = :run and \"key\" = '{key}'"
            text = f"update {table} set value = value + 0.01 where {where}"
            yield Tampering(f"mlflow edit {table} {key}", statement_sql(text))
        both = "".join(f"update {table} set value = value * 2 where run_uuid = :run and \"key\" = "
                       f"'{key}';"
                       for table in ("metrics", "latest_metrics"))  # fmt: skip
        yield Tampering(f"mlflow edit both {key}", script(both))
    columns = '"key", value, timestamp, step, is_nan, run_uuid'
    text = f"insert into latest_metrics ({columns}) values ('released.roc_auc', 1, 0, 0, 0, :run)"
    yield Tampering("mlflow duplicate metric", statement_sql(text))
    for text, label in (
        ("update runs set status = 'RUNNING' where run_uuid = :run", "edit runs.status"),
        ("update runs set lifecycle_stage = 'deleted' where run_uuid = :run", "remove run"),
        ("update runs set artifact_uri = (select artifact_uri from runs where run_uuid = :other) "
         "where run_uuid = :run",
         "swap runs.artifact_uri"),
        ("update logged_models set artifact_location = '/x' where source_run_id = "
         ":run", "edit artifact_location"),
        ("update logged_models set artifact_location = (select artifact_location from "
         "logged_models where "
         "source_run_id = :other) where source_run_id = :run", "swap artifact_location"),
        ("update logged_models set source_run_id = :other where source_run_id = "
         ":run", "swap source_run_id"),
        ("update logged_models set status = 3 where source_run_id = "
         ":run", "edit logged_models.status"),
        ("update logged_models set lifecycle_stage = 'deleted' where source_run_id = "
         ":run", "remove model"),
        ("update model_versions set source = 'models:/m-0' where name = :name", "edit source"),
        ("update model_versions set storage_location = '/elsewhere' where name = "
         ":name", "edit storage_location"),
        ("update model_versions set storage_location = (select artifact_location from "
         "logged_models where "
         "source_run_id = :other) where name = :name", "swap storage_location"),
        ("update model_versions set run_id = :other where name = :name", "swap run_id"),
        ("update model_versions set run_id = null where name = :name", "remove run_id"),
        ("delete from registered_model_aliases where name = :name", "remove alias"),
        ("update registered_model_aliases set version = 7 where name = :name", "edit alias"),
        ("update model_version_tags set value = :other where \"key\" = 'dpflows.run_id' and name = "
         ":name",
         "swap run tag"),
        ("delete from model_version_tags where \"key\" = 'dpflows.run_id' and name = "
         ":name", "remove run tag"),
        ("update model_version_tags set value = '0.01' where \"key\" = 'epsilon' and name = "
         ":name", "edit epsilon tag"),
        ("delete from model_version_tags where \"key\" = 'epsilon' and name = "
         ":name", "remove epsilon tag"),
    ):  # fmt: skip
        yield Tampering(f"mlflow {label}", statement_sql(text))


def pointer() -> Iterator[Tampering]:
    """The signed pointer of a name."""
    for kind in KINDS:

        def apply(scene: Scene, kind: str = kind) -> bool:
            where, other = (
                scene.bundle.parent / "front.json",
                scene.other_bundle.parent / "front.json",
            )
            if kind in ("duplicate", "link"):
                return False
            return change(kind, where, other, where.parent)

        if kind not in ("duplicate", "link"):
            yield Tampering(f"home {kind} front.json", apply)

    def signed_by_another(scene: Scene) -> bool:
        where = scene.bundle.parent / "front.json"
        stored = json.loads(where.read_text())
        stored["front"] = stored["front"].replace('"serial": 1', '"serial": 9')
        stored["signature"] = json.loads(sign(load_key(scene.attacker), stored["front"].encode()))
        where.write_text(json.dumps(stored))
        return True

    yield Tampering("home forge front.json", signed_by_another)


def bundles() -> Iterator[Tampering]:
    """Files of a bundle, as they are and with new checksums under the attacker's own signature."""
    for one in BUNDLE_FILES:
        for kind in KINDS:
            for forged in (False, True):

                def apply(
                    scene: Scene, where: str = one.where, kind: str = kind, forged: bool = forged
                ) -> bool:
                    done = change(
                        kind, scene.bundle / where, scene.other_bundle / where, scene.bundle
                    )
                    if done and forged and (scene.bundle / MANIFEST).is_file():
                        forge(scene)
                    return done

                yield Tampering(
                    f"bundle {kind} {one.where}{' forged' if forged else ''}", apply, bundle=True
                )


def forge(scene: Scene) -> None:
    """New checksums, and a signature by another key."""
    folder = scene.bundle
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except ValueError:
        manifest = {}
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (MANIFEST, SIGNATURE)
    ]
    manifest["files"] = {
        path.relative_to(folder).as_posix(): {"sha256": digest(path), "bytes": path.stat().st_size}
        for path in files
    }
    text = json.dumps(manifest, indent=1, sort_keys=True)
    (folder / MANIFEST).write_text(text)
    (folder / SIGNATURE).write_text(sign(load_key(scene.attacker), text.encode()))


def rechain(connection: sqlite3.Connection) -> None:
    """All hashes of the chain, computed again over what the rows say now."""
    last, rows = (
        None,
        [Record(*row) for row in connection.execute("select * from ledger_records order by seq")],
    )
    for number, row in enumerate(rows, start=1):
        record = row._replace(previous=rows[0].previous if last is None else last)
        record = record._replace(hash=record.expected_hash())
        last = record.hash
        change = "update ledger_records set seq = ?, body = ?, previous = ?, hash = ? where seq = ?"
        connection.execute(change, (number, record.body, record.previous, record.hash, row.seq))


def ledgers() -> Iterator[Tampering]:
    """Records of the ledger, with the whole chain computed again: the head that the signed manifest
    holds tells.
    """

    def body(kind: str, edit: Callable[[dict], None]) -> Callable[[sqlite3.Connection], None]:
        def do(connection: sqlite3.Connection) -> None:
            row = connection.execute(
                "select seq, body from ledger_records where kind = ? order by seq", (kind,)
            ).fetchone()
            stored = json.loads(row[1])
            edit(stored)
            connection.execute(
                "update ledger_records set body = ? where seq = ?", (canonical(stored), row[0])
            )

        return do

    def drop(count: int) -> Callable[[sqlite3.Connection], None]:
        def do(connection: sqlite3.Connection) -> None:
            newest = connection.execute("select max(seq) from ledger_records").fetchone()[0]
            for table in ("ledger_records", "ledger_balances"):
                connection.execute(f"delete from {table} where seq > ?", (newest - count,))

        return do

    def run(text: str) -> Callable[[sqlite3.Connection], None]:
        return lambda connection: connection.execute(text) and None

    changes = {
        "edit opened": body("opened", lambda stored: stored.update(epsilon=99.0)),
        "edit reserved": body("reserved", lambda stored: stored.update(cost=0.0, units=0)),
        "swap reserved "
        "blocks": body("reserved", lambda stored: stored.update(blocks=["other"], read=["other"])),
        "edit committed": body("committed", lambda stored: stored["hashes"].update(weights="0" * 64)),
        "downgrade committed": body("committed", lambda stored: stored["hashes"].pop("files")),
        "edit committed "
        "text": body("committed", lambda stored: stored["hashes"].update({"privacy/curve.json": ""})),
        "remove last": drop(1),
        "remove half": drop(5),
        "edit events": run("update ledger_events set text = replace(text, '3', '4')"),
        "remove events": run("delete from ledger_events"),
        "edit balances": run("update ledger_balances set units = units / 2"),
        "remove balances": run("delete from ledger_balances"),
        "edit dataset": run("update ledger_records set dataset = 'another'"),
        "edit time": run("update ledger_records set created_at = '2020' where seq = 2"),
    }  # fmt: skip
    for label, edit in changes.items():

        def apply(scene: Scene, edit: Callable[[sqlite3.Connection], None] = edit) -> bool:
            with sqlite3.connect(scene.ledger) as connection:
                for (trigger,) in connection.execute(
                    "select name from sqlite_master where type = 'trigger'"
                ).fetchall():
                    connection.execute(f"drop trigger {trigger}")
                edit(connection)
                rechain(connection)
            return True

        yield Tampering(f"ledger {label}", apply)
    for label, change_head in (
        ("remove head file", lambda path: path.unlink()),
        (
            "edit head file",
            lambda path: path.write_bytes(edited(path.read_bytes()).replace(b"0", b"1")),
        ),
        ("downgrade head file", lambda path: path.write_bytes(b"")),
    ):

        def apply(scene: Scene, change_head: Callable[[Path], object] = change_head) -> bool:
            change_head(scene.ledger.with_name(f"{scene.ledger.name}.head"))
            return True

        yield Tampering(f"ledger {label}", apply)


ALL = {
    one.label: one
    for make in (stored_files, stored_fields, mlflow, pointer, bundles, ledgers)
    for one in make()
}
