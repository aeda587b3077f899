"""Rules on the text of the sources: size, output, exceptions, docstrings. Each test names every offender."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "flashlight"
FILES = sorted(SRC.rglob("*.py"))
LONGEST = 800  # lines; a file that grows past it holds two things


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield f"{path.relative_to(SRC)}:{getattr(node, 'lineno', 0)}", node


def test_no_file_grows_without_end() -> None:
    sizes = {p.relative_to(SRC): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES}
    assert not {path: n for path, n in sizes.items() if n > LONGEST}


def test_nothing_prints() -> None:
    assert not [
        where
        for where, node in nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]


def test_no_bare_exception_is_raised() -> None:
    assert not [
        where
        for where, node in nodes()
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and getattr(node.exc.func, "id", "") in ("Exception", "BaseException")
    ]


def test_every_module_says_what_it_is() -> None:
    texts = {p.relative_to(SRC): p.read_text(encoding="utf-8") for p in FILES}
    assert not [
        path for path, text in texts.items() if text and not ast.get_docstring(ast.parse(text))
    ]
