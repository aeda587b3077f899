"""Loads and stores: an array's element, vector of lanes, or vector of rows with all its columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flashlight.codegen.blocks import (
    Axis,
    Fetch,
    Gather,
    Point,
    Span,
    Store,
    Subscript,
    Value,
)
from flashlight.codegen.cpp_core import Core, Scope, reach_of
from flashlight.codegen.cpp_ops import (
    MEMORY_TYPES,
    compute_type,
    extent,
    identifier,
    vector_type,
)
from flashlight.ir.exprs import Buffer


@dataclass
class _Address:
    """A subscripted array in the current scope.

    Attributes:
        pointer: of lane 0.
        step: stride between lanes; "0" if the lanes' axis does not occur.
        conditions: scalar checks.
        low, high: lanes [low, high) are in range, besides the tile's own end.
        gathers: (vector of positions, stride, extent or None if unchecked).
        masks: vector masks.
    """

    pointer: str
    step: str = "0"
    conditions: list[str] = field(default_factory=list)
    low: list[str] = field(default_factory=list)
    high: list[str] = field(default_factory=list)
    gathers: list[tuple[str, str, str | None]] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)


class Arrays:
    """Emits fetches and stores."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.uses = core.uses

    def _address(
        self, buffer: Buffer, index: tuple[Subscript, ...], masks: tuple[Value, ...]
    ) -> _Address:
        name = identifier(buffer.name)
        lane = self.core.lane()
        found = _Address(f"p_{name}")
        steps: list[str] = []
        for i, subscript in enumerate(index):
            stride, reach = f"s_{name}_{i}", extent(buffer.shape[i])
            match subscript:
                case Point(None):
                    pass
                case Point(at) | Gather(at) if at is not None and not self.core.is_vector(at):
                    position = f"i64({self.core.ref(at)})"
                    if isinstance(subscript, Gather) and subscript.checked:
                        position = self._checked(found, position, reach)
                    found.pointer += f" + {position} * {stride}"
                case Gather(at, checked):
                    found.gathers.append((self.core.ref(at), stride, reach if checked else None))
                case Span(axis, start, step):
                    base = f"i64({self.core.ref(start)})" if start is not None else "0"
                    at_step = self.core.step_of(axis)
                    scaled = at_step if step == 1 else f"{step} * {at_step}"
                    position = f"({base} + {scaled})"
                    if lane is None or lane.axis != axis:
                        if subscript.below or subscript.above:
                            position = self._checked(found, position, reach)
                        found.pointer += f" + {position} * {stride}"
                    elif step != 1 and (subscript.below or subscript.above):
                        at_name = self.core.fresh("at")
                        self.core.line(f"const vi32 {at_name} = iota() * {step} + i32({position});")
                        found.gathers.append((at_name, stride, reach))
                    else:
                        found.pointer += f" + {position} * {stride}"
                        steps.append(f"{step} * {stride}" if step != 1 else stride)
                        if subscript.below:
                            found.low.append(f"-{position}")
                        if subscript.above:
                            found.high.append(f"{reach} - {position}")
        for mask in masks:
            (found.masks if self.core.is_vector(mask) else found.conditions).append(
                self.core.ref(mask)
            )
        found.step = " + ".join(steps) or "0"
        return found

    def _checked(self, found: _Address, position: str, reach: str) -> str:
        name = self.core.fresh("at")
        self.core.line(f"const i64 {name} = {position};")
        found.conditions.append(f"{name} >= 0 && {name} < {reach}")
        return name

    def _lanes_left(self, address: _Address) -> tuple[str, str]:
        """(low, high) of the lanes that exist."""
        lane = self.core.lane()
        assert lane is not None and lane.axis is not None
        high = f"{reach_of(lane.axis)} - {lane.index}"
        for limit in address.high:
            high = f"least({high}, {limit})"
        low = "0"
        for limit in address.low:
            low = f"most({low}, {limit})"
        return low, high

    def fetch(self, op: Fetch) -> str:
        """The text of what a fetch reads in the current scope."""
        ctype = MEMORY_TYPES[op.buffer.dtype]
        vector = self.core.is_vector(op.result)
        address = self._address(op.buffer, op.index, op.masks)
        kind = vector_type(op.result.dtype) if vector else compute_type(op.result.dtype)
        ok = " && ".join(f"({c})" for c in address.conditions)
        if not vector:
            text = f"{kind}(value_of(*({address.pointer})))"
            return f"{ok} ? {text} : {kind}(0)" if ok else text
        low, high = self._lanes_left(address)
        if address.gathers:
            return self._gather(op, address, kind, ok, low, high)
        mask = "".join(f" & {m}" for m in address.masks)
        parts = [address.pointer, address.step, low, high]
        if mask:
            parts.append(mask[3:])
        text = f"load<{ctype}>({', '.join(parts)})"
        return f"({ok}) ? {text} : {kind}{{}}" if ok else text

    def _gather(self, op: Fetch, address: _Address, kind: str, ok: str, low: str, high: str) -> str:
        name = self.core.fresh("gathered")
        self.core.line(f"{kind} {name}{{}};")
        with self._each_lane(address, ok, low, high) as pointer:
            self.core.line(f"{name}[w] = lane_of(*({pointer}));")
        return name

    @contextmanager
    def _each_lane(self, address: _Address, ok: str, low: str, high: str) -> Iterator[str]:
        """A loop over the lanes that exist, are in range and not masked; yields the address of lane w."""
        head = f"for (i64 w = {low}; w < W && w < {high}; w++) "
        with self.core.scope(f"if ({ok}) " if ok else ""), self.core.scope(head):
            pointer = f"{address.pointer} + w * ({address.step})"
            checks = [f"{m}[w]" for m in address.masks]
            for at, stride, reach in address.gathers:
                position = f"i64({at}[w])"
                pointer += f" + {position} * {stride}"
                if reach is not None:
                    checks += [f"{position} >= 0", f"{position} < {reach}"]
            if checks:
                self.core.line(f"if ({' && '.join(checks)})")
            yield pointer

    def store(self, op: Store) -> None:
        """Write a value to an array."""
        ctype = MEMORY_TYPES[op.buffer.dtype]
        address = self._address(op.buffer, op.index, op.masks)
        ok = " && ".join(f"({c})" for c in address.conditions)
        if self.core.lane() is None:
            value = self.core.ref(op.value)
            guard = f"if ({ok}) " if ok else ""
            self.core.line(f"{guard}*({address.pointer}) = Narrow<{ctype}>::at({value});")
            return
        value = self.core.vector(op.value)
        low, high = self._lanes_left(address)
        if address.gathers:
            with self._each_lane(address, ok, low, high) as pointer:
                self.core.line(f"*({pointer}) = Narrow<{ctype}>::at({value}[w]);")
            return
        parts = [address.pointer, address.step, low, high, value]
        if address.masks:
            parts.append(" & ".join(address.masks))
        guard = f"if ({ok}) " if ok else ""
        self.core.line(f"{guard}store<{ctype}>({', '.join(parts)});")

    def move_rows(self, op: Fetch | Store) -> None:
        """Move a vector of rows between an array and a tile."""
        lane = self.core.lane()
        assert lane is not None and lane.axis is not None
        name, ctype = identifier(op.buffer.name), MEMORY_TYPES[op.buffer.dtype]
        value = op.result if isinstance(op, Fetch) else op.value
        (columns,) = (a for a in value.axes if a is not self.uses.rows)
        pointer, limits, strides = f"p_{name}", {}, {}
        for i, subscript in enumerate(op.index):
            stride, reach = f"s_{name}_{i}", extent(op.buffer.shape[i])
            match subscript:
                case Point(at) if at is not None:
                    pointer += f" + i64({self.core.ref(at)}) * {stride}"
                case Span(axis, start, step, below, above):
                    at_start = f"i64({self.core.ref(start)})" if start is not None else "0"
                    here = (
                        f"{at_start} + {step} * {lane.index}"
                        if axis is self.uses.rows
                        else at_start
                    )
                    pointer += f" + ({here}) * {stride}"
                    strides[axis] = f"{step} * {stride}"
                    limits[axis] = self._limits(axis, f"({here})", step, reach, below, above)
        (lo, hi), (first, last) = limits[lane.axis], limits[columns]
        home = self.core.operand(value) if isinstance(op, Store) else self.core.homes[value]
        zero = Scope(axis=columns, index="0")
        self.core.scopes.append(zero)
        tile, _ = self.core.place(home)
        self.core.scopes.pop()
        ranges = f"{strides[lane.axis]}, {strides[columns]}, {lo}, {hi}, {first}, {last}, {reach_of(columns)}"
        if isinstance(op, Fetch):
            self.core.line(f"load_rows<{ctype}>({tile}, {pointer}, {ranges});")
            self.core.workspace.wrote(home.tile)
        else:
            self.core.line(f"store_rows<{ctype}>({pointer}, {ranges}, {tile});")
            self.core.workspace.read(home.tile)

    def _limits(
        self, axis: Axis, here: str, step: int, reach: str, below: bool, above: bool
    ) -> tuple[str, str]:
        """(first, last + 1) of the positions from `here` on that exist along an axis."""
        lane = self.core.lane()
        assert lane is not None
        low, high = "0", reach_of(axis)
        if axis is self.uses.rows:
            high = f"{high} - {lane.index}"
        if step < 0:
            below, above, here = above, below, f"({reach} - 1 - {here})"
        if below:
            low = f"ceil_div(-{here}, {abs(step)})" if abs(step) != 1 else f"-{here}"
        if above:
            high = f"least({high}, ceil_div({reach} - {here}, {abs(step)}))"
        return low, high
