"""The Before and After of every pass's docstring, executed."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import flashlight.rewrite
from flashlight.ir.nests import Program
from flashlight.ir.text import parse_program

_EXAMPLE = re.compile(r"Before:\n(.*?)\n\s*After:\n(.*?)\n\s*Legal when:", re.DOTALL)


def documented_passes() -> list[Callable[[Program], Any]]:
    """Public functions of rewrite/ whose docstring states a before and an after."""
    found = []
    for module_info in pkgutil.iter_modules(flashlight.rewrite.__path__):
        module = importlib.import_module(f"flashlight.rewrite.{module_info.name}")
        for name, value in vars(module).items():
            is_own = callable(value) and getattr(value, "__module__", "") == module.__name__
            if not is_own or name.startswith("_") or not _EXAMPLE.search(value.__doc__ or ""):
                continue
            if (
                len(inspect.signature(value).parameters) == 1
            ):  # others are told how, by tests of their own
                found.append(value)
    return found


def test_every_pass_of_the_pipeline_is_documented() -> None:
    from flashlight.pipeline import CANONICAL

    documented = documented_passes()
    assert all(step in documented for step in CANONICAL)


@pytest.mark.parametrize("step", documented_passes(), ids=lambda f: f.__name__)
def test_docstring_example(step: Callable[[Program], Any]) -> None:
    match = _EXAMPLE.search(textwrap.dedent(step.__doc__ or ""))
    assert match is not None
    before, after = (parse_program(textwrap.dedent(text)) for text in match.groups())
    result = step(before)
    result = result[0] if isinstance(result, tuple) else result
    assert str(result) == str(after)
