"""``python -m tests.measures``: the house in numbers, beside the limits that ``test_house`` holds.

Code tokens leave out comments, docstrings and layout.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from io import BytesIO
from pathlib import Path

from tests.test_house import PACKAGES, branches, files, moves_of_prepare, place, rooms
from tests.way import climbs, way

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def docstrings(tree: ast.AST) -> set[tuple[int, int]]:
    """Where the docstrings of a module, its classes and functions begin."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    firsts = (node.body[0] for node in ast.walk(tree) if isinstance(node, holders) and node.body)
    return {
        (one.lineno, one.col_offset)
        for one in firsts
        if isinstance(one, ast.Expr)
        and isinstance(one.value, ast.Constant)
        and isinstance(one.value.value, str)
    }


def code_tokens(path: Path) -> int:
    """Tokens of code in ``path``."""
    data = path.read_bytes()
    left_out = docstrings(ast.parse(data))
    return sum(
        token.type not in LAYOUT and token.start not in left_out
        for token in tokenize.tokenize(BytesIO(data).readline)
    )


def main() -> None:
    sizes = {place(path): path.read_text(encoding="utf-8").count("\n") for path in files()}
    longest = max(sizes, key=lambda name: sizes[name])
    functions = [
        node
        for path in files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    ]
    trail, read = moves_of_prepare(), way()
    by_package = {
        package: sum(count for name, count in sizes.items() if name.startswith(f"{package}/"))
        for package in PACKAGES
    }
    sys.stdout.write(
        f"files: {len(sizes)}\n"
        f"longest file: {sizes[longest]} lines, {longest}\n"
        f"lines: {sum(sizes.values())}, {by_package}\n"
        f"code tokens: {sum(map(code_tokens, files()))}\n"
        f"functions of more than ten ways: {sum(branches(node) > 10 for node in functions)}\n"
        f"rooms and arrows: dpcore {rooms('dpcore')}, tasks {rooms('tasks')}\n"
        f"moves of prepare: {len(trail) - 1}, between {len(set(trail))} files\n"
        f"train_flow call by call: {len({file for file, _ in read})} files, "
        f"{len(climbs(read))} climbs (python -m tests.way)\n"
    )


if __name__ == "__main__":
    main()
