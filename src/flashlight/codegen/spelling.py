"""Pieces of generated Python: names, parentheses, and how tensors of fewer axes line up."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator, Sequence

from flashlight.codegen.blocks import Axis, Gather, Kernel, Point, Span, Subscript, Value

_MODULES = ("tl", "triton", "libdevice", "gl", "gluon", "mbarrier", "tma")


def fresh_name(hint: str, names: set[str]) -> str:
    """A variable's name like a hint that is none of some names; it becomes one of them."""
    name = re.sub(r"\W", "_", hint)
    if not name or name[0].isdigit():
        name = f"v{name}"
    if keyword.iskeyword(name) or name in _MODULES or hasattr(builtins, name):
        name = f"{name}_"
    base, n = name, 1
    while name in names:
        name = f"{base}_{n}"
        n += 1
    names.add(name)
    return name


def hint_of(value: Value) -> str:
    """A value's name without what made it unique in the block program."""
    return re.sub(r"(_\d+)+$", "", value.name)


def lined_up(text: str, have: tuple[Axis, ...], want: tuple[Axis, ...]) -> str:
    """Text of a tensor over `have`, indexed so that it broadcasts over `want`."""
    if not have or have == want:
        return text
    index = ", ".join(":" if a in have else "None" for a in want)
    return f"{text}[{index}]"


def atom(text: str) -> str:
    """Text that may stand next to any operator: a name, a number or a call, or else parenthesised."""
    head = re.match(r"[\w.]+", text)
    rest = text[head.end() :] if head else text
    if head and (not rest or (rest[0] == "(" and stripped(rest) != rest)):
        return text
    return f"({text})"


def stripped(text: str) -> str:
    """Text without redundant outer parentheses."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and i < len(text) - 1:
            return text
    return text[1:-1]


def wrapped(names: Sequence[str], width: int = 100) -> Iterator[str]:
    line = ""
    for name in names:
        if line and len(line) + len(name) > width:
            yield line
            line = ""
        line = f"{line}, {name}" if line else name
    if line:
        yield line


def axes_of(
    kernel: Kernel, index: tuple[Subscript, ...], masks: tuple[Value, ...]
) -> tuple[Axis, ...]:
    found: set[Axis] = set()
    for s in index:
        match s:
            case Span(axis):
                found.add(axis)
            case Point(at) | Gather(at):
                found.update(at.axes if at is not None else ())
    for m in masks:
        found.update(m.axes)
    return tuple(sorted(found, key=kernel.axes.index))
