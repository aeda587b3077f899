"""The compiler on one page: the passes in order, and what holds between them.

A region arrives as `lift` leaves it: one nest for each operation, every view an index map. `prepare` makes it the canonical
program, which is the same for all spellings and is what the token of a spliced region holds; `optimize` makes loops of it.
"""

from __future__ import annotations

from flashlight.errors import CompileError, Refusal
from flashlight.ir.nests import Program
from flashlight.rewrite.canonical import InputView, canonicalize
from flashlight.rewrite.fuse import fuse
from flashlight.rewrite.group import group_and_online
from flashlight.rewrite.picks import pick_from_tiles
from flashlight.rewrite.simplify import simplify_program
from flashlight.rewrite.split_dims import split_dims
from flashlight.rewrite.unions import split_unions

CANONICAL = (
    simplify_program,
    fuse,
    pick_from_tiles,  # while inputs are tensors rather than views of them: an entry is known by what it reads
    split_dims,
    split_unions,  # before inputs become views: a key that is also read past its end would be two inputs
    simplify_program,  # what the splits left behind
)


def prepare(program: Program) -> tuple[Program, tuple[InputView, ...]]:
    """A lifted program as its canonical form, and how the canonical inputs are views of the lifted ones."""
    for step in CANONICAL:
        program = step(program)
    return canonicalize(program)


def optimize(program: Program) -> Program | Refusal:
    """A canonical program of nests as loops, each of which becomes one kernel."""
    try:
        return group_and_online(program)
    except CompileError as error:
        return Refusal("out-of-range", str(error))
