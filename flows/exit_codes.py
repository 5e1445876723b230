"""How a command begins and ends: its first line, what an error says on one line, and which exit
code it gives.
"""

from __future__ import annotations

import errno
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from dpcore.errors import InputError

UNEXPECTED = 1
USAGE = 2
INTERRUPTED = 130
# What a code says of a failure, without a word of the error itself.
CODES = {
    UNEXPECTED: "unexpected failure",
    USAGE: "bad input or configuration",
    3: "refused by the budget",
    4: "audit, release or verification failed",
    INTERRUPTED: "interrupted",
}

# What a system says of paths, rights and disks that no code can help.
OF_PATHS = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)

# Signals that asked this process to stop: a library may wrap the exception that they raise in one
# of its own.
_asked: list[int] = []


class Terminated(BaseException):
    """The process was told to end (SIGTERM)."""


def words_of_code(code: int) -> str:
    """What an exit code says, for places where the error's own words may not stand."""
    return CODES.get(code, CODES[UNEXPECTED])


def listen() -> None:
    """Turn SIGINT and SIGTERM into exceptions, and remember that they came."""
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)


def _stop(signum: int, frame: object) -> None:
    _asked.append(signum)
    heed()


def heed() -> None:
    """Raise what a signal asked for: an exception inside a callback is swallowed, and nothing may
    be spent after it.
    """
    if _asked:
        raise KeyboardInterrupt if _asked[-1] == signal.SIGINT else Terminated


def interrupted() -> int:
    complain(
        "interrupted; a charge, where there was one, is named above and in `dpflows ledger show`."
    )
    return INTERRUPTED


def other(error: Exception) -> int:
    """Usage errors and aborts, which typer raises through classes that moved between its versions;
    else a fault.
    """
    if _asked or type(error).__name__ == "Abort":
        return interrupted()
    if type(error).__name__ == "NoArgsIsHelpError":
        untyped: Any = error
        sys.stderr.write(f"{untyped.format_message()}\n")
        return USAGE
    if hasattr(error, "format_message"):
        complain(usage(error))
        return USAGE
    if isinstance(error, Warning):  # who asks for errors (python -W error) gets them
        complain(str(error))
        return USAGE
    if isinstance(error, OSError) and error.filename and error.errno in OF_PATHS:
        complain(
            f"Expected a path that this account can use, got {str(error.filename)[:200]!r}: "
            f"{error.strerror}; correct it, its rights or its disk. A charge, where there was one, "
            "is named above and in `dpflows ledger show`."
        )
        return USAGE
    traceback.print_exception(error)
    complain(
        f"unexpected {type(error).__name__}; this is a fault of dpflows or of its environment."
    )
    return UNEXPECTED


def usage(error: Any) -> str:
    """A usage error in one line that ends in the help of the command that was called."""
    from pydantic import ValidationError

    from tasks.config.read import rule

    context, cause = getattr(error, "ctx", None), error.__cause__
    see = f"see `{context.command_path if context else 'dpflows'} --help`"
    if isinstance(cause, ValidationError) and getattr(error, "param", None):
        finding = cause.errors(include_url=False)[0]
        given = finding["input"]
        return f"Expected {rule(finding)} for {_shown(error.param)}, got {given}; {see}."
    return f"{str(error.format_message()).rstrip('.')}; {see}."


def _shown(parameter: Any) -> str:
    """An option as it is written, an argument as the help shows it."""
    options = [name for name in parameter.opts if name.startswith("--")]
    return options[0] if options else str(parameter.name).upper()


# Packages whose warnings are ours to say.
OURS = r"(dpcore|tasks|flows)(\.|$)"


def hear_warnings() -> None:
    """Say warnings of this product on one line, each once: a deprecated name above all, which
    Python keeps to itself.

    Those of libraries stay as Python has them, but end nothing: with ``-W error`` MLflow and
    Prefect would stop at deprecations of their own, where nobody here can help it.
    """
    said: set[str] = set()
    shown = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is None and "site-packages" not in filename and _is_ours(filename):
            if str(message) not in said:
                said.add(str(message))
                complain(f"Warning: {message}")
            return
        shown(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    if "error" in sys.warnoptions:
        warnings.filterwarnings("ignore", module=f"(?!{OURS})")
    else:
        warnings.filterwarnings("default", category=DeprecationWarning, module=OURS)


def _is_ours(filename: str) -> bool:
    return bool({"dpcore", "tasks", "flows"} & set(Path(filename).parts))


def complain(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"dpflows: {' '.join(text.split())}\n")


def begin(words: str) -> None:
    """The first line of a command that has much to load, at once; where nobody watches, nothing is
    said.
    """
    if sys.stderr.isatty():
        sys.stderr.write(f"dpflows {words} ...\n")
        sys.stderr.flush()


def alone(option: str, others: Mapping[str, object]) -> None:
    """Raise ``InputError`` for what is given beside ``option`` and would be ignored."""
    given = [name for name, value in others.items() if value]
    if given:
        raise InputError(f"Expected {option} alone, got {given[0]} beside it; leave one out.")


def needed(option: str, others: Mapping[str, object]) -> None:
    """Raise ``InputError`` for what is given without the ``option`` that it belongs to."""
    given = [(name, value) for name, value in others.items() if value is not None]
    if given:
        name, value = given[0]
        raise InputError(
            f"Expected {option} with {name}={value}, got none; add it, or leave {name} out."
        )
