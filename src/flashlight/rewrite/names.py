"""Names that a program does not have yet."""

from __future__ import annotations

from flashlight.ir.exprs import Reduce
from flashlight.ir.nests import Program
from flashlight.ir.visit import fresh_name, walk


class Names:
    """Names of nests, inputs and dims of a program of nests, bound ones included, and those that were made since."""

    def __init__(self, program: Program) -> None:
        self.taken = {d.name for n in program.nests for d in (*n.parallel, *n.reduced)}
        self.taken |= {n.name for n in program.nests} | {b.name for b in program.inputs}
        bound = (x for n in program.nests for x in walk(n.body) if isinstance(x, Reduce))
        self.taken |= {d.name for x in bound for d in x.dims}

    def fresh(self, name: str) -> str:
        """A name like this one that nothing has, and that is taken from now on."""
        found = fresh_name(name, self.taken)
        self.taken.add(found)
        return found
