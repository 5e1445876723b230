"""``dpflows key``: the key that signs releases."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.help import AsJson
from tasks.release import openssf
from tasks.release.keys import (
    OPENSSF_PASSPHRASE,
    OPENSSF_VARIABLE,
    PASSPHRASE,
    VARIABLE,
    load_key,
    new_key,
    new_openssf_key,
    own_fingerprint,
    public_pem,
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def ask_passphrase() -> str:
    """The passphrase of the key, typed where there is a terminal."""
    return str(typer.prompt("Passphrase of the signing key", hide_input=True, err=True))


@app.command()
def new(
    file: Annotated[Path, typer.Argument(help="New file for the key, PEM; only you can read it.")],
    passphrase: Annotated[
        bool,
        typer.Option(
            "--passphrase",
            help=f"Encrypt it: the passphrase is {PASSPHRASE}, else asked for twice.",
        ),
    ] = False,
    second: Annotated[
        bool,
        typer.Option(
            "--openssf",
            help="A key of the curve P-256 for OpenSSF model signing, beside the first; its "
            f"passphrase is {OPENSSF_PASSPHRASE}.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make an Ed25519 key that signs releases, and print its fingerprint."""
    words = ""
    if passphrase:
        words = os.environ.get(OPENSSF_PASSPHRASE if second else PASSPHRASE, "") or str(
            typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
        )
    place, more = file.resolve(), {}
    if second:
        key, public = new_openssf_key(file, words)
        known, more = (
            openssf.fingerprint(public_pem(key.public_key())),
            {"public": str(public.resolve())},
        )
    else:
        known = own_fingerprint(new_key(file, words))
    if as_json:
        found = {"schema_version": 1, "file": str(place), "fingerprint": known, **more}
        sys.stdout.write(json.dumps(found) + "\n")
        return
    typer.echo(f"Key: {place} (mode 600{', encrypted' if words else ''}); keep a copy elsewhere.")
    typer.echo(f"Fingerprint: {known}; give it to whoever verifies.")
    if second:
        typer.echo(f"Public half, for `model_signing verify key`: {more['public']}")
    typer.echo(f"Sign with it: export {OPENSSF_VARIABLE if second else VARIABLE}={place}")


@app.command()
def show(
    file: Annotated[
        Path | None, typer.Argument(help=f"The key's file; default: {VARIABLE}.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the fingerprint of a key."""
    found = own_fingerprint(load_key(file, ask_passphrase))
    typer.echo(json.dumps({"schema_version": 1, "fingerprint": found}) if as_json else found)
