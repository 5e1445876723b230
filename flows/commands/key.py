"""``dpflows key``: the key that signs releases."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tasks.release.keys import PASSPHRASE, VARIABLE, load_key, new_key, own_fingerprint

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


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
    as_json: AsJson = False,
) -> None:
    """Make an Ed25519 key that signs releases, and print its fingerprint."""
    words = ""
    if passphrase:
        words = os.environ.get(PASSPHRASE, "") or str(
            typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
        )
    key = new_key(file, words)
    place = file.resolve()
    if as_json:
        found = {"schema_version": 1, "file": str(place), "fingerprint": own_fingerprint(key)}
        sys.stdout.write(json.dumps(found) + "\n")
        return
    typer.echo(f"Key: {place} (mode 600{', encrypted' if words else ''}); keep a copy elsewhere.")
    typer.echo(f"Fingerprint: {own_fingerprint(key)}; give it to whoever verifies.")
    typer.echo(f"Sign with it: export {VARIABLE}={place}")


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
