"""Flashlight: a compiler inside torch.compile that turns plain-PyTorch attention programs into single fused kernels.

The public names, nothing else. They are imported on first use, so that `flashlight.ir` and `flashlight.rewrite` need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashlight.backend import compile, disable, enable, enabled
    from flashlight.options import Options
    from flashlight.report.explain import explain
    from flashlight.report.report import Report

__version__ = "0.1.0"
__all__ = ["Options", "Report", "__version__", "compile", "disable", "enable", "enabled", "explain"]

_HOME = {
    "compile": "backend",
    "disable": "backend",
    "enable": "backend",
    "enabled": "backend",
    "explain": "report.explain",
    "Report": "report.report",
    "Options": "options",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'flashlight' has no attribute '{name}'")
    value = getattr(import_module(f"flashlight.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
