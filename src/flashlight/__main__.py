"""python -m flashlight explain | opt | bench | cache | doctor."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flashlight import __version__
from flashlight.cli import bench, cache, doctor, explain, opt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    parser = argparse.ArgumentParser(prog="flashlight", description=__doc__)
    parser.add_argument("--version", action="version", version=f"flashlight {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (explain, opt, bench, cache, doctor):
        command.add(commands)
    args = parser.parse_args(arguments)
    try:
        return int(args.run(args))
    except BrokenPipeError:  # `... | head`
        sys.stderr.close()
        return 0


if __name__ == "__main__":
    sys.exit(main())
