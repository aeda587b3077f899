"""Folds: accumulators before a nest, a step inside it, the result after it."""

from __future__ import annotations

from flashlight.codegen.blocks import (
    Fold,
)
from flashlight.codegen.cpp_core import Core, reach_of
from flashlight.codegen.cpp_ops import (
    compute_type,
    fold_function,
    fold_identity,
    vector_type,
)
from flashlight.codegen.cpp_tree import Nest
from flashlight.errors import CompileError
from flashlight.ir.dtypes import DType
from flashlight.ir.monoids import SUM

# So many terms of a sum are added one after the other, then the sums of such runs: at most 24 roundings of a term in a tile of 128
# columns. Eager's sums are trees, and its variances are carried in f64.
RUN = 16


class Folds:
    """Emits folds; `open` and `close` stand around the nest over the folded axis."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.uses = core.uses
        self._names: dict[Fold, tuple[str, ...]] = {}

    def open(self, op: Fold, nest: Nest, *, lane: bool) -> None:
        """Accumulators before the nest over the folded axis: variables, or a tile where more axes are stepped over inside."""
        inner = self.uses.axes_of(op)
        inner = inner[inner.index(op.axis) + 1 :]
        identity = fold_identity(op)
        if inner:
            home = self.core.homes[op.result]
            if op.monoid.is_position:
                raise CompileError(
                    "A position along an axis that is not the innermost has no C++ form."
                )
            number = f"-i32({identity})" if op.x.dtype is DType.BOOL else identity
            self.core.fill(home, number)
            return
        vector = lane or self.core.is_vector(op.x)
        ctype = vector_type(op.x.dtype) if vector else compute_type(op.x.dtype)
        first = f"spread({identity})" if vector else identity
        names = [self.core.fresh(op.result.name)]
        self.core.line(f"{ctype} {names[0]} = {first};")
        if op.monoid.is_position:
            names.append(self.core.fresh(f"{op.result.name}_at"))
            self.core.line(f"vi32 {names[1]}{{}};" if vector else f"i32 {names[1]} = 0;")
        elif _is_rounded_sum(op) and op.axis.block > RUN and not lane:
            names.append(self.core.fresh(f"{op.result.name}_run"))
            self.core.line(f"{ctype} {names[1]} = {first};")
        self._names[op] = tuple(names)

    def step(self, op: Fold) -> None:
        """One step of a fold, inside its nest."""
        names = self._names.get(op)
        lane = self.core.lane()
        function = fold_function(op)
        if names is None:
            home = self.core.homes[op.result]
            at, vector = self.core.place(home)
            x = self.core.vector(op.x) if vector else self.core.ref(op.x)
            if vector:
                self.core.line(f"tile_store({at}, {function}(tile_load({at}), {x}));")
            elif op.x.dtype is DType.BOOL:
                self.core.line(f"*({at}) = -i32({function}(*({at}) != 0, {x}));")
            else:
                self.core.line(f"*({at}) = {function}(*({at}), {x});")
            self.core.workspace.read(home.tile)
            return
        along = lane is not None and lane.axis == op.axis
        vector = along or self.core.is_vector(op.x)
        x = self.core.vector(op.x) if vector else self.core.ref(op.x)
        if along and lane is not None:
            tail = f"first({reach_of(op.axis)} - {lane.index})"
            x_name = self.core.fresh("x")
            self.core.line(f"{vector_type(op.x.dtype)} {x_name} = {x};")
            self.core.line(
                f"if ({lane.index} + W > {reach_of(op.axis)})"
                f" {x_name} = select({tail}, {x_name}, spread({fold_identity(op)}));"
            )
            x = x_name
        if not op.monoid.is_position:
            self.core.line(f"{names[-1]} = {function}({names[-1]}, {x});")
            if len(names) > 1:
                self._end_run(op, *names)
            return
        step = f"i32({self.core.step_of(op.axis)})"
        position = f"iota() + {step}" if along else f"spread({step})" if vector else step
        better = self.core.fresh("better")
        kind = op.monoid.name[-3:]
        self.core.line(f"const auto {better} = beats_{kind}({x}, {names[0]});")
        self.core.line(f"{names[1]} = select({better}, {position}, {names[1]});")
        self.core.line(f"{names[0]} = select({better}, {x}, {names[0]});")

    def _end_run(self, op: Fold, total: str, run: str) -> None:
        """Add a run that is complete to the total."""
        last = f"({self.core.step_of(op.axis)} & {RUN - 1}) == {RUN - 1}"
        self.core.line(f"if ({last}) {total} = plus({total}, {run}), {run} = decltype({run}){{}};")

    def close(self, op: Fold, *, lane: bool) -> None:
        """The result of a fold, after its nest."""
        names = self._names.get(op)
        if names is None:
            return
        text = names[-1]
        if len(names) > 1 and not op.monoid.is_position:
            text = f"plus({names[0]}, {names[1]})"
        if lane:
            kind = op.monoid.name[-3:]
            if op.monoid.is_position:
                text = f"winner_{kind}({names[0]}, {names[1]})"
            else:
                text = f"across_{fold_function(op)}({names[0]})"
        self.core.set(op.result, text)


def _is_rounded_sum(op: Fold) -> bool:
    return op.monoid is SUM and op.x.dtype.is_float
