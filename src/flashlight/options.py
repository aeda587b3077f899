"""Every setting in one place: its environment variable, its documentation and whether it changes generated code.

`torch.compile(fn, backend="flashlight", options={...})` takes these names beside Inductor's; FLASHLIGHT_<FIELD> gives defaults.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_origin, get_type_hints

PREFIX = "FLASHLIGHT_"


def _option(default: Any, doc: str, *, affects_code: bool = False) -> Any:
    return field(default=default, metadata={"doc": doc, "affects_code": affects_code})


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one compilation. Field names are option names; each may be set by its environment variable."""

    strict: bool = _option(
        False,
        "Raise where a region is refused or cannot be compiled, instead of leaving it to Inductor.",
    )
    sdpa: bool = _option(
        True,
        "Also look into calls of F.scaled_dot_product_attention (where nothing needs gradients; not under `enable()`).",
        affects_code=True,
    )
    tune: str = _option(
        "quick",
        "How to choose tile sizes: off (the cost model), quick (a few candidates at first use) or max (many).",
        affects_code=True,
    )
    inline: bool = _option(
        True,
        "Launch the kernels of fused regions from Inductor's own code (GPU); off: one call of an op launches them.",
        affects_code=True,
    )
    float32: str = _option(
        "split",
        "How a GPU multiplies float32 at matmul precision 'highest': split (three TF32 products of the operands' upper and lower "
        "halves; the error is like eager's) or ieee (without tensor cores, several times slower).",
        affects_code=True,
    )
    verify: bool = _option(
        False, "Check every pass: its program's form, and the law by which each carry moves (slow)."
    )
    debug: int = _option(0, "The debug ladder: 1 regions and refusals ... 5 every rule applied.")
    dump: str = _option("", "A folder for what each stage leaves, in numbered files.")

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(
                    f"Option '{name}' has the value '{value}', expected one of {', '.join(allowed)}."
                )

    def code_key(self) -> str:
        """The settings that change generated code, as text for keys of caches."""
        return " ".join(
            f"{f.name}={getattr(self, f.name)}" for f in fields(self) if f.metadata["affects_code"]
        )


_CHOICES = {
    "tune": ("off", "quick", "max"),
    "float32": ("split", "ieee"),
}


def names() -> tuple[str, ...]:
    return tuple(f.name for f in fields(Options))


def environment_name(name: str) -> str:
    """The environment variable of an option."""
    return PREFIX + name.upper()


def from_environment(overrides: Mapping[str, Any] | None = None) -> Options:
    """Options from the environment, with some given by name."""
    types = get_type_hints(Options)
    found: dict[str, Any] = {}
    for name in names():
        text = os.environ.get(environment_name(name))
        if text is not None:
            found[name] = _parsed(name, text, types[name])
    for name, value in (overrides or {}).items():
        found[name] = _checked(name, value, types[name])
    return Options(**found)


def divide(
    options: Mapping[str, Any] | None, theirs: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of torch.compile as ours and Inductor's. Raises ValueError for a name that is neither's.

    Args:
        options: as the user gave them.
        theirs: names that Inductor knows.
    """
    ours: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in (options or {}).items():
        plain = name.replace("-", "_")
        if plain in names():
            ours[plain] = value
        elif plain in theirs:
            rest[name] = value
        else:
            close = difflib.get_close_matches(plain, [*names(), *theirs], n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise ValueError(f"Unknown option '{name}'.{hint}")
    return ours, rest


def _parsed(name: str, text: str, kind: Any) -> Any:
    if kind is bool:
        lowered = text.strip().lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("", "0", "false", "no", "off"):
            return False
        raise ValueError(f"{environment_name(name)} is '{text}', expected 0 or 1.")
    if kind is int:
        if not text.strip().isdigit():
            raise ValueError(f"{environment_name(name)} is '{text}', expected a number.")
        return int(text)
    return text


def _checked(name: str, value: Any, kind: Any) -> Any:
    expected = get_args(kind) if get_origin(kind) else (kind,)
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        wanted = " or ".join(t.__name__ for t in expected)
        raise ValueError(f"Option '{name}' is {value!r}, expected {wanted}.")
    return value
