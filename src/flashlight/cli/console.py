"""Where commands write: a rich console that is wide enough for tables when it is not a terminal."""

from __future__ import annotations

import sys
from typing import NoReturn

from rich.console import Console

WIDE = 200


def console() -> Console:
    """Standard output."""
    return Console(soft_wrap=False) if sys.stdout.isatty() else Console(width=WIDE)


def fail(message: str) -> NoReturn:
    """Say what is wrong on standard error and end with status 2, as argparse does."""
    sys.stderr.write(f"flashlight: {message}\n")
    raise SystemExit(2)
