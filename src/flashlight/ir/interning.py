"""Interning of nodes: two nodes built alike are one object, so `is` is equality and memo tables may key on identity.

Inlining shares subtrees; structural equality of two separately built shared graphs would be exponential.
"""

from __future__ import annotations

import struct
import threading
import weakref
from typing import Any

_LOCK = threading.RLock()


class Interned(type):
    """Metaclass that returns the existing object for equal constructor arguments."""

    _pool: weakref.WeakValueDictionary[tuple[Any, ...], Any]

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        cls._pool = weakref.WeakValueDictionary()
        cls.__reduce__ = _reduce  # type: ignore[assignment]  # so that unpickling goes through the pool
        cls.__repr__ = _repr  # type: ignore[assignment]  # program text

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        node = super().__call__(*args, **kwargs)
        key = tuple(_exact(getattr(node, field)) for field in cls.__match_args__)  # type: ignore[attr-defined]
        with _LOCK:
            return cls._pool.setdefault(key, node)


def _reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
    return type(self), tuple(getattr(self, name) for name in self.__match_args__)


def _repr(self: Any) -> str:
    from flashlight.ir.text import print_node  # the printer needs the nodes

    return print_node(self)


def _exact(value: Any) -> Any:
    """A key that tells 1 from 1.0 from True, and 0.0 from -0.0."""
    if isinstance(value, float):
        return (float, struct.pack("<d", value))
    if isinstance(value, bool | int):
        return (type(value), value)
    return value
