"""Registered versions in MLflow: one is released, the one before it stays for a way back. Aliases,
no stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.exceptions import MlflowException

from dpcore.errors import InputError, unknown_name
from tasks.record.stored import run_model

if TYPE_CHECKING:
    from mlflow import MlflowClient


RELEASED, PREVIOUS = "released", "previous"
# For people to see: a release believes none of them but the signed bundle, which DONE_TAG helps to
# find.
RUN_TAG, SERIAL_TAG, DONE_TAG = "dpflows.run_id", "dpflows.serial", "dpflows.bundle"
AT_TAG = "dpflows.released_at"  # when the gate last put the version in front
METRIC_TAG = "dpflows.metric."


def find_model(client: MlflowClient, name: str) -> Any | None:
    """The registered model of this very name, None where there is none: a list of all of them comes
    in pages.
    """
    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def model_names(client: MlflowClient) -> list[str]:
    """The names of all registered models, page by page."""
    return [model.name for model in every(client.search_registered_models)]


def versions_of(client: MlflowClient, name: str) -> list[Any]:
    """All versions of a registered model."""
    quote = '"' if "'" in name else "'"
    return every(partial(client.search_model_versions, f"name = {quote}{name}{quote}"))


def every(search: Callable[..., Any]) -> list[Any]:
    """All that an MLflow search finds, which answers with a page and the way to the next one."""
    found, token = [], None
    while True:
        page = search(page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def ensure_model(client: MlflowClient, name: str) -> Mapping[str, str]:
    """Find or create the registered model; return its aliases. Raises ``InputError`` for a name
    MLflow refuses.
    """
    if find_model(client, name) is None:
        try:
            client.create_registered_model(name, tags={"dpflows": "1"})
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise InputError(
                    f"Expected a name that MLflow takes for --to, got {name!r}: {error}."
                ) from error
    return aliases(client, name)


def aliases(client: MlflowClient, name: str) -> dict[str, str]:
    """Aliases of a registered model, empty where there is none."""
    known = find_model(client, name)
    return (
        {} if known is None else {alias: str(version) for alias, version in known.aliases.items()}
    )


def version_of(client: MlflowClient, name: str, run_id: str) -> Any | None:
    """The version of ``name`` that holds the run, None where there is none."""
    found = [one for one in versions_of(client, name) if one.run_id == run_id]
    return max(found, key=lambda one: int(one.version), default=None)


def find_version(client: MlflowClient, name: str, version: str) -> Any | None:
    """A version, None where MLflow does not hold it."""
    try:
        return client.get_model_version(name, version)
    except MlflowException:
        return None


def tag_of(client: MlflowClient, name: str, version: str, key: str) -> str | None:
    """A tag of a version; None where there is no such version or tag."""
    found = find_version(client, name, version)
    return None if found is None else found.tags.get(key)


def add_version(
    client: MlflowClient, name: str, run_id: str, uri: str, tags: Mapping[str, str]
) -> str:
    """Create the version of a run, or take the one that an interrupted release left; return its
    number.
    """
    found = version_of(client, name, run_id)
    if found is None:
        found = client.create_model_version(name, uri, run_id, tags={RUN_TAG: run_id, **tags})
    else:
        for key, value in tags.items():
            client.set_model_version_tag(name, found.version, key, value)
    return str(found.version)


def _decided(version: Any) -> tuple[int, str]:
    """Order of decisions: by number, and by the time in versions from before it was kept."""
    number = version.tags.get(SERIAL_TAG, "")
    return (int(number) if number.isdecimal() else 0, version.tags[AT_TAG])


def promote(client: MlflowClient, name: str, version: str, serial: int) -> str | None:
    """Move the aliases: ``version`` is released, the one before it is previous. Return that one's
    number.
    """
    before = aliases(client, name).get(RELEASED)
    if before is not None and before != version:
        client.set_registered_model_alias(name, PREVIOUS, before)
    client.set_registered_model_alias(name, RELEASED, version)
    client.set_model_version_tag(name, version, SERIAL_TAG, str(serial))
    client.set_model_version_tag(
        name, version, AT_TAG, datetime.now(UTC).isoformat(timespec="microseconds")
    )
    return aliases(client, name).get(PREVIOUS)


def in_front(client: MlflowClient, name: str) -> str | None:
    """The version that the gate put in front last, by its count of decisions, whatever the alias
    says now.
    """
    found = [one for one in versions_of(client, name) if AT_TAG in one.tags]
    newest = max(found, key=_decided, default=None)
    return None if newest is None else str(newest.version)


def model_uri(client: MlflowClient, name: str) -> str:
    """The URI of a model: a run id, a URI, a folder, or a registered ``NAME``, ``NAME@ALIAS`` or
    ``NAME/VERSION``.

    Raises ``InputError`` where there is no such model, with near misses among the registered names.
    """
    if ":/" in name or Path(name).joinpath("MLmodel").is_file():
        return name
    if re.fullmatch(r"[0-9a-f]{32}", name):
        return run_model(client, name)
    if re.fullmatch(r"m-[0-9a-f]{32}", name):
        return f"models:/{name}"
    base = re.split(r"[@/]", name)[0]
    known = find_model(client, base)
    if known is None:
        raise unknown_name(
            "model (a run id, a models:/ URI, a folder with MLmodel, or a registered model)",
            name,
            model_names(client) or ["none"],
        )
    if base != name:
        return f"models:/{name}"
    if RELEASED in known.aliases:
        return f"models:/{base}@{RELEASED}"
    newest = max(versions_of(client, base), key=lambda found: int(found.version))
    return f"models:/{base}/{newest.version}"
