"""`opt`: run passes on program text, so that a bug report is one .ir file and one line.

python -m flashlight opt region0/00_lifted.ir -p simplify,fuse
python -m flashlight opt region0/00_lifted.ir              (all passes, in order)
python -m flashlight opt --list
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from flashlight.cli.console import console, fail


def add(commands: Any) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "opt",
        help="run passes on program text",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "file", nargs="?", type=Path, help="a program; - or nothing is standard input"
    )
    parser.add_argument(
        "-p", "--passes", default=None, metavar="A,B", help="names from --list; default all"
    )
    parser.add_argument("--each", action="store_true", help="print the program after each pass")
    parser.add_argument(
        "--check", action="store_true", help="compare the result with the input by the interpreter"
    )
    parser.add_argument("--list", action="store_true", help="print the passes, in order, and stop")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Status 1 if a pass refuses or --check finds a difference."""
    from flashlight.cli.passes import PASSES, equal_by_interpreter
    from flashlight.errors import Refusal
    from flashlight.ir.text import TextError, parse_program

    out = console()
    if args.list:
        for name, step in PASSES.items():
            out.print(
                f"{name:16s} {(step.__doc__ or '').strip().splitlines()[0]}",
                highlight=False,
                markup=False,
            )
        return 0
    names = list(PASSES) if args.passes is None else [n for n in args.passes.split(",") if n]
    if unknown := [n for n in names if n not in PASSES]:
        fail(f"Unknown passes {unknown}; expected some of {', '.join(PASSES)}.")
    path: Path | None = args.file
    text = (
        sys.stdin.read() if path is None or str(path) == "-" else path.read_text(encoding="utf-8")
    )
    try:
        before = program = parse_program(text)
    except TextError as error:
        fail(f"{path or '-'}: {error}")
    for name in names:
        result = PASSES[name](program)
        if isinstance(result, Refusal):
            out.print(f"{name}: {result}", markup=False, highlight=False)
            return 1
        program = result
        if args.each:
            out.print(f"# {name}\n{program}\n", markup=False, highlight=False, soft_wrap=True)
    if not args.each:
        out.print(str(program), markup=False, highlight=False, soft_wrap=True)
    if args.check:
        difference = equal_by_interpreter(before, program)
        out.print(f"# {difference or 'same by the interpreter'}", markup=False, highlight=False)
        return int(bool(difference))
    return 0
