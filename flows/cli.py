"""The command line ``dpflows``. Commands import what they need when they run, so that ``--help`` is
quick.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer

from dpcore.errors import DPFlowsError, VerificationFailed
from flows import model_signatures, signatures
from flows.exit_codes import (
    INTERRUPTED,
    Terminated,
    complain,
    hear_warnings,
    interrupted,
    listen,
    other,
)
from flows.help import LINES, epilog, whole

# Commands that live in modules of their own and are imported only when they are called: name ->
# (module, help).
GROUPS = {name: (f"flows.commands.{name}", LINES[name]) for name in ("ledger", "key")}

# Commands in the order of the help; groups stand apart.
COMMANDS = tuple(
    (vars(signatures) | vars(model_signatures))[name] for name in LINES if name not in GROUPS
)
# The shell's completion asks the program itself, by this variable.
COMPLETING = "_DPFLOWS_COMPLETE"


def version(asked: bool) -> None:
    """Print the version and end."""
    if asked:
        from importlib.metadata import version as installed

        typer.echo(f"dpflows {installed('dpflows')}")
        raise typer.Exit


def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=version, is_eager=True, help="Show the version and end."
        ),
    ] = False,
) -> None:
    """Differentially private training as scheduled, tracked, releasable pipelines."""


def build(chosen: str | None) -> Any:
    """The application. Only the group that is called is imported; of the others the help line
    stands there.
    """
    app = typer.Typer(
        name="dpflows",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog=whole())(_program)
    for command in COMMANDS:
        app.command(epilog=epilog(command.__name__), short_help=LINES[command.__name__])(command)
    asked = os.environ.get("COMP_WORDS", "").split() if COMPLETING in os.environ else [chosen]
    for name, (module, text) in GROUPS.items():
        if name in asked:
            app.add_typer(import_module(module).app, name=name, help=text, epilog=epilog(name))
        else:
            app.command(name, help=text)(_unloaded)
    return app


def _unloaded() -> None:
    """Stands for a group in the list of commands; the group itself is loaded when it is called."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point: run a command and exit with 0, 1 (unexpected), 2 (input), 3 (budget), 4
    (verification) or 130.
    """
    # Everything that a command writes is for its owner alone.
    os.umask(0o077)
    write_anything(sys.stdout)
    write_anything(sys.stderr)
    listen()
    hear_warnings()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def write_anything(stream: Any) -> None:
    """Let ``stream`` take every letter in any locale, or a command that has charged would fail at
    its last words.

    Files and pipes get UTF-8, which is what they are read as; a terminal of fewer letters shows the
    number of others.
    """
    if isinstance(stream, TextIOWrapper):
        if not stream.isatty():
            stream.reconfigure(encoding="utf-8")
        stream.reconfigure(errors="backslashreplace")


def refused(error: DPFlowsError, as_json: bool) -> int:
    """Say why nothing was done; the exit code."""
    complain(str(error))
    # A failed verification is an answer, which the command has printed.
    if as_json and not isinstance(error, VerificationFailed):
        typer.echo(
            json.dumps({"schema_version": 1, "error": str(error), "exit_code": error.exit_code})
        )
    return error.exit_code


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; errors are one line on standard error."""
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        command = typer.main.get_command(build(chosen))
        code = int(command.main(args=arguments, prog_name="dpflows", standalone_mode=False) or 0)
        # Typer turns Ctrl-C into this code without a word.
        return interrupted() if code == INTERRUPTED else code
    except DPFlowsError as error:
        return refused(error, "--json" in arguments)
    except (KeyboardInterrupt, Terminated):
        return interrupted()
    except BrokenPipeError:
        # The reader of a pipe went away; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return other(error)


if __name__ == "__main__":
    main()
