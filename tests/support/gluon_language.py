"""The part of Gluon that generated kernels are written in, on numpy arrays and a simulated machine.

`load` runs a module's text with this in place of Triton's packages. Values of 16 bits are kept in 32, rounded after each operation.
Layouts are Gluon's own, and must agree where Gluon wants them to; whether a conversion is trivial is asked of Triton.
"""

from __future__ import annotations

import ast
import builtins
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partialmethod, wraps
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton.experimental.gluon import language as real
from triton.experimental.gluon.language.nvidia.hopper.mbarrier import MBarrierLayout
from triton.language import PropagateNan
from triton.language.semantic import TritonSemantic

from flashlight.codegen.gluon_shared import SHARED
from tests.support.gluon_machine import Barrier, Block, Machine, MachineError, Place, Product

NUMPY = {
    "int1": np.bool_,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint32": np.uint32,
    "fp16": np.float32,
    "bf16": np.float32,
    "fp32": np.float32,
    "fp64": np.float64,
}
HALF = (real.float16, real.bfloat16)
WARPS = 4  # of a group that computes products

_types = object.__new__(TritonSemantic)  # its rules of promotion need no builder
_plain = real._core._unwrap_if_constexpr


def rounded(data: np.ndarray, dtype: Any) -> np.ndarray:
    """Data as a type holds it."""
    name = dtype.name
    kind = NUMPY[name]
    if name == "fp16":
        return data.astype(np.float16).astype(kind)
    if name == "bf16":
        wide = np.ascontiguousarray(data, np.float32)
        return torch.from_numpy(wide).bfloat16().float().numpy().reshape(np.shape(data))
    if name == "int1":
        return np.asarray(data != 0)
    return np.asarray(data).astype(kind, copy=False)


@cache
def linear(layout: Any, shape: tuple[int, ...]) -> Any:
    """Where each element of a tensor lies."""
    from triton._C.libtriton import ir, nvidia
    from triton._C.libtriton.gluon_ir import GluonOpBuilder

    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    builder = GluonOpBuilder(context)
    return builder.to_linear_layout(layout._to_ir(builder), list(shape))


def is_trivial(a: Any, b: Any, shape: tuple[int, ...]) -> bool:
    """Whether a conversion of layouts stays within threads."""
    if isinstance(b, real.SliceLayout) and isinstance(b.parent, Split):
        return a == real.SliceLayout(1, b.parent.parent)
    x, y = linear(a, shape), linear(b, shape)
    return x.lane_bases == y.lane_bases and x.warp_bases == y.warp_bases


def is_operand(x: Tensor, layout: Any) -> bool:
    return isinstance(x.layout, real.DotOperandLayout) and is_trivial(x.layout, layout, x.shape)


@dataclass(frozen=True)
class Split:
    """The layout of rows whose columns were divided, and perhaps reduced in part."""

    parent: Any


@cache
def promoted(a: Any, a_is_literal: bool, b: Any, b_is_literal: bool, divides: bool) -> Any:
    """The type in which two are computed."""
    if a.name == b.name and not divides:
        return a
    return _types.computation_type_impl(a, a_is_literal, b, b_is_literal, divides)


class Tensor:
    """A scalar or a tile in registers."""

    def __init__(self, data: Any, dtype: Any, layout: Any = None) -> None:
        self.data = np.asarray(data)
        self.dtype = dtype
        self.layout = layout

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def type(self) -> Any:
        return SimpleNamespace(layout=self.layout)

    def to(self, dtype: Any) -> Tensor:
        return Tensor(rounded(self.data, dtype), dtype, self.layout)

    def __bool__(self) -> bool:
        return bool(self.scalar())

    def __int__(self) -> int:
        return int(self.scalar())

    def scalar(self) -> Any:
        if self.shape:
            raise TypeError("a tile is no scalar")
        return self.data[()]

    def __getitem__(self, index: tuple[slice | None, ...]) -> Tensor:
        axis = index.index(None)
        if not isinstance(self.layout, real.SliceLayout) or self.layout.dim != axis:
            raise TypeError(f"a tile of layout {self.layout} gets no axis {axis}")
        return Tensor(np.expand_dims(self.data, axis), self.dtype, self.layout.parent)

    def __neg__(self) -> Tensor:
        return self.binary(np.subtract, 0, flipped=True)

    def __invert__(self) -> Tensor:
        return Tensor(~self.data, self.dtype, self.layout)

    def binary(
        self,
        op: Callable[..., Any],
        other: Any,
        *,
        flipped: bool = False,
        result: Any = None,
        divides: bool = False,
    ) -> Any:
        if isinstance(other, Pointer):
            return other + self
        a, b = (tensor(other), self) if flipped else (self, tensor(other))
        literal = not isinstance(other, Tensor)
        dtype = promoted(a.dtype, literal and flipped, b.dtype, literal and not flipped, divides)
        if op is np.true_divide and dtype.is_int():
            dtype = real.float32
        if op in (np.right_shift, np.left_shift) and dtype != self.dtype:
            raise TypeError("a shift by a wider type")
        layout = common(a, b)
        data = op(rounded(a.data, dtype), rounded(b.data, dtype))
        result = result or dtype
        return Tensor(rounded(np.asarray(data), result), result, layout)

    __add__ = __radd__ = partialmethod(binary, np.add)
    __mul__ = __rmul__ = partialmethod(binary, np.multiply)
    __and__ = __rand__ = partialmethod(binary, np.bitwise_and)
    __or__ = __ror__ = partialmethod(binary, np.bitwise_or)
    __xor__ = __rxor__ = partialmethod(binary, np.bitwise_xor)
    __sub__ = partialmethod(binary, np.subtract)
    __rsub__ = partialmethod(binary, np.subtract, flipped=True)
    __truediv__ = partialmethod(binary, np.true_divide, divides=True)
    __rtruediv__ = partialmethod(binary, np.true_divide, divides=True, flipped=True)
    __mod__ = partialmethod(binary, np.fmod, divides=True)  # with the dividend's sign
    __rmod__ = partialmethod(binary, np.fmod, divides=True, flipped=True)
    __lshift__ = partialmethod(binary, np.left_shift)
    __rshift__ = partialmethod(binary, np.right_shift)
    __lt__ = partialmethod(binary, np.less, result=real.int1)
    __le__ = partialmethod(binary, np.less_equal, result=real.int1)
    __gt__ = partialmethod(binary, np.greater, result=real.int1)
    __ge__ = partialmethod(binary, np.greater_equal, result=real.int1)
    __eq__ = partialmethod(binary, np.equal, result=real.int1)  # type: ignore[assignment]
    __ne__ = partialmethod(binary, np.not_equal, result=real.int1)  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __floordiv__(self, other: Any) -> Tensor:
        return self.binary(truncated, other, divides=True)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return self.binary(truncated, other, divides=True, flipped=True)


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a - np.fmod(a, b)) // b


def tensor(value: Any) -> Tensor:
    """A Python number as Triton takes it."""
    value = _plain(value)
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Running):
        raise MachineError(
            "a result is taken while its product runs, or without having waited for it"
        )
    if isinstance(value, bool):
        return Tensor(np.bool_(value), real.int1)
    if isinstance(value, int):
        dtype = real.int32 if -(1 << 31) <= value < 1 << 31 else real.int64
        return Tensor(NUMPY[dtype.name](value), dtype)
    if isinstance(value, float):
        return Tensor(np.float32(value), real.float32)
    raise TypeError(f"{type(value)} is no number")


def common(*values: Tensor | Pointer) -> Any:
    """The layout of tiles that are lined up."""
    tiles = [v for v in values if v.shape]
    if any(len(v.shape) != len(tiles[0].shape) for v in tiles):
        raise TypeError(f"ranks differ: {[v.shape for v in tiles]}")
    if any(v.layout != tiles[0].layout for v in tiles):
        raise TypeError(f"layouts differ: {[v.layout for v in tiles]}")
    return tiles[0].layout if tiles else None


class Memory:
    """A tensor in global memory, all of what it lies in."""

    def __init__(self, name: str, whole: torch.Tensor, offset: int, dtype: Any) -> None:
        self.name = name
        data = whole.float() if whole.is_floating_point() and whole.itemsize < 4 else whole
        self.data = data.numpy().copy()
        self.offset = offset
        self.dtype = dtype
        self.times = np.zeros(self.data.shape, np.int32)  # that an element was stored


class Pointer:
    """Addresses in a tensor."""

    def __init__(self, memory: Memory, at: Any, layout: Any = None) -> None:
        self.memory = memory
        self.at = np.asarray(at, np.int64)
        self.layout = layout

    @property
    def shape(self) -> tuple[int, ...]:
        return self.at.shape

    def __add__(self, other: Any) -> Pointer:
        other = tensor(other)
        return Pointer(self.memory, self.at + other.data, common(self, other))

    __radd__ = __add__

    def places(self, mask: Any) -> tuple[np.ndarray, np.ndarray]:
        """(indices, which are accessed)."""
        chosen = np.bool_(True) if mask is None else tensor(mask).data
        if mask is not None:
            common(self, tensor(mask))
        chosen = np.broadcast_to(chosen, self.shape)
        if ((self.at < 0) | (self.at >= len(self.memory.data)))[chosen].any():
            raise MachineError(f"an access outside of {self.memory.name}")
        return np.where(chosen, self.at, 0), chosen


class Descriptor:
    """A tensor that the copy engine can read."""

    def __init__(self, described: Any, memory: Memory) -> None:
        self.shape = tuple(described.shape)
        self.block = tuple(described.block_shape)
        self.layout = described.layout
        self.dtype = memory.dtype
        strides = [s * memory.data.itemsize for s in described.strides]
        self.view = np.lib.stride_tricks.as_strided(
            memory.data[memory.offset :], self.shape, strides, writeable=False
        )

    def tile(self, starts: Sequence[int]) -> np.ndarray:
        """A box of the tensor, with zeros for what is outside of it."""
        found = np.zeros(self.block, self.view.dtype)
        source, target = [], []
        for start, n, extent in zip(starts, self.block, self.shape, strict=True):
            lo, hi = max(0, -start), min(n, extent - start)
            if hi <= lo:
                return found
            source.append(slice(start + lo, start + hi))
            target.append(slice(lo, hi))
        found[tuple(target)] = self.view[tuple(source)]
        return found


class Ring:
    """Slots in shared memory."""

    def __init__(
        self, machine: Machine, name: str, dtype: Any, shape: Sequence[int], layout: Any
    ) -> None:
        self.machine = machine
        self.dtype = dtype
        self.layout = layout
        count, *block = shape
        kind = NUMPY[dtype.name]
        start = np.nan if dtype.is_floating() else 0
        self.slots = [Place(f"{name}[{i}]", np.full(block, start, kind)) for i in range(count)]
        owner = machine.me.block
        owner.places += self.slots
        owner.bytes += math.prod(shape) * dtype.primitive_bitwidth // 8
        if owner.bytes > SHARED:
            raise MachineError("too much shared memory")

    def index(self, at: Any) -> Shared:
        at = tensor(at)
        if at.dtype != real.int32:
            raise TypeError("an index of shared memory has 32 bits")
        if not 0 <= int(at) < len(self.slots):
            raise MachineError(f"there is no slot {int(at)} beside {self.slots[0].name}")
        place = self.slots[int(at)]
        return Shared(self.machine, place, place.data, self.dtype)


class Shared:
    """A slot in shared memory, as some shape."""

    def __init__(self, machine: Machine, place: Place, view: np.ndarray, dtype: Any) -> None:
        self.machine = machine
        self.place = place
        self.view = view
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    def reshape(self, shape: Sequence[int]) -> Shared:
        return Shared(self.machine, self.place, self.view.reshape(shape), self.dtype)

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.machine, self.place, self.view.transpose(order), self.dtype)

    def load(self, layout: Any) -> Tensor:
        self.machine.read(self.place)
        return Tensor(self.view.copy(), self.dtype, _plain(layout))

    def store(self, value: Tensor) -> None:
        if value.shape != self.shape or value.dtype != self.dtype:
            raise TypeError("what is stored in shared memory has another form")
        self.machine.write(self.place, value.data)

    @property
    def barrier(self) -> Barrier:
        if self.place.barrier is None:
            raise MachineError(f"{self.place.name} is no barrier yet")
        return self.place.barrier


@dataclass(eq=False)
class Running:
    """The result of a product before it has been waited for."""

    product: Product
    shape: tuple[int, ...]
    dtype: Any
    layout: Any

    def result(self) -> Tensor:
        if not self.product.done:
            raise MachineError("a product adds to a result that is not there")
        return Tensor(self.product.value, self.dtype, self.layout)


# -- Functions.


def elementwise(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], Tensor]:
    def apply(x: Any) -> Tensor:
        x = tensor(x)
        return Tensor(rounded(np.asarray(function(x.data)), x.dtype), x.dtype, x.layout)

    return apply


def in_torch(name: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: (
        getattr(torch, name)(torch.from_numpy(np.ascontiguousarray(x))).numpy().reshape(np.shape(x))
    )


def extremum(quiet: Callable[..., Any], loud: Callable[..., Any]) -> Callable[..., Tensor]:
    def apply(a: Any, b: Any, *, propagate_nan: PropagateNan = PropagateNan.NONE) -> Tensor:
        op = quiet if propagate_nan is PropagateNan.NONE else loud
        if isinstance(a, Tensor):
            return a.binary(op, b)
        return tensor(b).binary(op, a, flipped=True)

    return apply


def folded(op: Any) -> Callable[[Tensor, int], Tensor]:
    def apply(x: Tensor, axis: int) -> Tensor:
        x = x.to(real.float32) if x.dtype == real.bfloat16 else x
        if x.dtype.is_int() and x.dtype.primitive_bitwidth < 32:
            x = x.to(real.int32)
        return reduced(x, axis, op.reduce(x.data, axis, dtype=x.data.dtype))

    return apply


def reduced(x: Tensor, axis: int, data: np.ndarray) -> Tensor:
    """A reduction's result, with the layout it has."""
    if not isinstance(x.layout, Split):
        return Tensor(data, x.dtype, real.SliceLayout(axis, x.layout) if data.shape else None)
    if axis == 0:
        raise TypeError("rows are reduced")
    layout = x.layout if data.ndim > 1 else real.SliceLayout(1, x.layout.parent)
    return Tensor(data, x.dtype, layout)


def reduce(x: Tensor, axis: int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Neighbours combined in pairs; an axis has a power of two of elements."""
    data = np.moveaxis(x.data, axis, -1)
    while data.shape[-1] > 1:
        a, b = (Tensor(data[..., n::2], x.dtype, x.layout) for n in (0, 1))
        data = combine(a, b).data
    return reduced(x, axis, data[..., 0])


def where(condition: Any, a: Any, b: Any) -> Tensor:
    c, x, y = tensor(condition), tensor(a), tensor(b)
    if c.dtype != real.int1:
        c = c.to(real.int1)
    literal = [not isinstance(v, Tensor) for v in (a, b)]
    dtype = promoted(x.dtype, literal[0], y.dtype, literal[1], False)
    layout = common(c, x, y)
    data = np.where(c.data, rounded(x.data, dtype), rounded(y.data, dtype))
    return Tensor(data.astype(NUMPY[dtype.name], copy=False), dtype, layout)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    if x.data.ndim != 2 or shape[0] != x.shape[0]:
        raise TypeError("only columns are divided")
    return Tensor(x.data.reshape(shape), x.dtype, Split(x.layout))


def convert_layout(x: Tensor, layout: Any, assert_trivial: bool = False) -> Tensor:
    layout = _plain(layout)
    if not isinstance(x, Tensor) or not x.shape:
        raise TypeError("only tiles in registers have layouts")
    if assert_trivial and not is_trivial(x.layout, layout, x.shape):
        raise TypeError(f"no trivial conversion: {x.layout} to {layout}")
    return Tensor(x.data, x.dtype, layout)


def cast(x: Any, dtype: Any) -> Tensor:
    return tensor(x).to(dtype)


def load(pointer: Pointer, mask: Any = None, other: Any = None) -> Tensor:
    memory = pointer.memory
    at, chosen = pointer.places(mask)
    if not len(memory.data):
        return Tensor(np.zeros(pointer.shape, NUMPY[memory.dtype.name]), memory.dtype)
    data = memory.data[at]
    if mask is not None:
        unread = np.nan if memory.dtype.is_floating() else 99
        data = np.where(chosen, data, unread if other is None else tensor(other).data)
    return Tensor(rounded(data, memory.dtype), memory.dtype, pointer.layout)


def store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    memory = pointer.memory
    value = tensor(value)
    common(pointer, value)
    at, chosen = pointer.places(mask)
    data = np.broadcast_to(rounded(value.data, memory.dtype), pointer.shape)
    memory.data[at[chosen]] = data[chosen]
    memory.times[at[chosen]] += 1


_SIGMOID = re.compile(
    r"\{ \.reg \.f32 t; mul\.f32 t, \$1, 0fBFB8AA3B; ex2\.approx\.ftz\.f32 t, t; "
    r"add\.f32 t, t, 0f3F800000; rcp\.approx\.ftz\.f32 \$0, t; \}"
)
_CHOICE = re.compile(r"setp\.(\w+)\.([us])(\d+) p, \$2, \$3; selp")
_MEETING = re.compile(r"bar\.(sync|arrive) (\d+), (\d+); mov\.u32 \$0, \$1;")
_COMPARE = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


class Language:
    """Gluon's functions that depend on the machine."""

    def __init__(self, machine: Machine, names: Sequence[str]) -> None:
        self.machine = machine
        self.names = names  # of what is allocated in shared memory, in order

    def program_id(self, axis: int) -> Tensor:
        return Tensor(np.int32(self.machine.me.block.number), real.int32)

    def num_programs(self, axis: int) -> Tensor:
        return Tensor(np.int32(len(self.machine.blocks)), real.int32)

    def tile(self, layout: Any) -> Any:
        """A layout, for as many warps as the role has."""
        layout = inner = _plain(layout)
        while isinstance(inner, real.SliceLayout | real.DotOperandLayout):
            inner = inner.parent
        if math.prod(inner.warps_per_cta) != self.machine.me.warps:
            raise TypeError(f"{self.machine.me.name} has another number of warps than {inner}")
        return layout

    def full(self, shape: Sequence[int], value: Any, dtype: Any, layout: Any) -> Tensor:
        data = np.broadcast_to(rounded(tensor(value).data, dtype), tuple(shape))
        return Tensor(data, dtype, self.tile(layout))

    def arange(self, start: int, end: int, layout: Any) -> Tensor:
        return Tensor(np.arange(start, end, dtype=np.int32), real.int32, self.tile(layout))

    def atomic_add(self, pointer: Pointer, value: Any) -> Tensor:
        self.machine.pause()
        old = load(pointer)
        pointer.memory.data[int(pointer.at)] += int(tensor(value))
        return old

    def store(self, pointer: Pointer, value: Any, mask: Any = None) -> None:
        self.machine.pause()
        store(pointer, value, mask)

    def inline_asm_elementwise(
        self, asm: str, constraints: str, args: list[Any], dtype: Any, is_pure: bool, pack: int
    ) -> Tensor:
        if meeting := _MEETING.fullmatch(asm):
            what, number, threads = meeting.groups()
            self.machine.meet(int(number), int(threads), wait=what == "sync")
            return args[0]
        if not asm and constraints == "=f,0":
            return args[0]
        if not asm:
            if not isinstance(args[0], Tensor):
                raise MachineError("registers are kept that a product writes")
            self.machine.keep(args[0])
            return args[0]
        if asm == "ex2.approx.ftz.f32 $0, $1;":
            return elementwise(np.exp2)(args[0])
        if asm == "tanh.approx.f32 $0, $1;":
            return elementwise(np.tanh)(args[0])
        if asm == "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;":
            if args[0].dtype != real.bfloat16 or pack != 2:
                raise TypeError("words of two bf16 are widened")
            return Tensor(args[0].data, real.float32, args[0].layout)
        if _SIGMOID.fullmatch(asm):
            return elementwise(lambda x: 1 / (1 + np.exp(-x)))(args[0])
        if "vote.sync.any.pred" in asm:
            return args[0] * args[1]
        if choice := _CHOICE.search(asm):
            code, sign, bits = choice.groups()
            x, a, b, y = args
            kind = np.dtype(f"{'uint' if sign == 'u' else 'int'}{bits}")

            def holds(c: Any, d: Any) -> Any:  # as numbers of that many bits
                return _COMPARE[code](np.asarray(c).view(kind), np.asarray(d).view(kind))

            return where(tensor(a).binary(holds, b, result=real.int1), x, y)
        raise TypeError(f"unknown assembly: {asm}")

    def allocate_shared_memory(self, dtype: Any, shape: Sequence[int], layout: Any) -> Ring:
        name = self.names[len({p.name.partition("[")[0] for p in self.machine.me.block.places})]
        return Ring(self.machine, name, dtype, shape, _plain(layout))

    def warp_specialize(
        self, parts: Sequence[tuple[Any, tuple[Any, ...]]], warps: list[int], registers: list[int]
    ) -> None:
        if not len(parts) - 1 == len(warps) == len(registers):
            raise TypeError("each worker has a number of warps and of registers")
        bodies = []
        for n, ((function, args), count) in enumerate(zip(parts, [WARPS, *warps], strict=True)):
            name = f"{function.__name__} {n}"
            bodies.append((name, count, lambda function=function, args=args: function(*args)))
        self.machine.part(bodies)

    # -- Of Hopper.

    def warpgroup_mma(
        self, a: Any, b: Shared, acc: Any, *, use_acc: bool = True, is_async: bool = False
    ) -> Running:
        machine = self.machine
        shape = (a.shape[0], b.shape[1])
        operand = real.DotOperandLayout(0, acc.layout, 2)
        for holds, says in (
            (is_async, "products are asynchronous"),
            (machine.me.warps == WARPS and a.shape[0] == 16 * WARPS, "a group has 64 rows"),
            (a.dtype == b.dtype and a.dtype in HALF, "operands of 16 bits"),
            (acc.dtype == real.float32, "a result of 32 bits"),
            (a.shape[1] == b.shape[0] and acc.shape == shape, f"{a.shape}, {b.shape}, {acc.shape}"),
            (isinstance(acc.layout, real.NVMMADistributedLayout), "the layout of products"),
            (acc.layout.instr_shape[1] == shape[1], "an instruction of the result's width"),
            (isinstance(a, Shared) or is_operand(a, operand), "an operand in registers"),
        ):
            if not holds:
                raise TypeError(f"no product: {says}")

        def compute() -> np.ndarray:
            first = a.view if isinstance(a, Shared) else a.data
            value = first @ b.view
            if use_acc:
                value = value + (acc.result() if isinstance(acc, Running) else acc).data
            return value

        operands = tuple(dict.fromkeys(x.place for x in (a, b) if isinstance(x, Shared)))
        product = Product(machine.me, operands, compute, () if isinstance(a, Shared) else (a,))
        machine.start(product)
        return Running(product, shape, acc.dtype, acc.layout)

    def warpgroup_mma_wait(self, num_outstanding: int, deps: Sequence[Any]) -> Any:
        self.machine.finish_products(num_outstanding)
        found = [d.result() if isinstance(d, Running) and d.product.done else d for d in deps]
        return found[0] if len(found) == 1 else tuple(found)

    def fence_async_shared(self) -> None:
        self.machine.fence()

    def async_copy_global_to_shared(
        self, described: Descriptor, starts: Sequence[Any], barrier: Shared, target: Shared
    ) -> None:
        if target.shape != described.block:
            raise TypeError(f"a tile of {described.block} is copied to {target.shape}")
        values = described.tile([int(tensor(s)) for s in starts])
        size = values.size * described.dtype.primitive_bitwidth // 8
        self.machine.copy(target.place, barrier.barrier, values, size)

    def init(self, place: Shared, count: int) -> None:
        place.place.barrier = Barrier(place.place, count, count)

    def wait(self, place: Shared, phase: Any) -> None:
        self.machine.wait(place.barrier, int(tensor(phase)))

    def expect(self, place: Shared, bytes: int) -> None:
        self.machine.arrive(place.barrier, 1, bytes)

    def arrive(self, place: Shared, count: int = 1) -> None:
        self.machine.arrive(place.barrier, count)

    def modules(self) -> dict[str, Any]:
        """What takes the place of Triton's modules, by name."""
        own = ("program_id", "num_programs", "full", "arange", "atomic_add", "store")
        own += ("inline_asm_elementwise", "allocate_shared_memory", "warp_specialize")
        functions = {name: getattr(self, name) for name in own}
        gl = SimpleNamespace(**{**KEPT, **FUNCTIONS, **functions})
        barriers = ("init", "wait", "expect", "arrive")
        hopper = SimpleNamespace(
            mbarrier=SimpleNamespace(
                MBarrierLayout=MBarrierLayout, **{n: getattr(self, n) for n in barriers}
            ),
            tma=SimpleNamespace(async_copy_global_to_shared=self.async_copy_global_to_shared),
            warpgroup_mma=self.warpgroup_mma,
            warpgroup_mma_wait=self.warpgroup_mma_wait,
            fence_async_shared=self.fence_async_shared,
        )
        names_of_nan = SimpleNamespace(PropagateNan=PropagateNan)
        return {
            "triton": SimpleNamespace(language=names_of_nan),
            "triton.experimental": SimpleNamespace(gluon=SimpleNamespace(jit=jit)),
            "triton.experimental.gluon": SimpleNamespace(language=gl),
            "triton.experimental.gluon.language.nvidia.hopper": hopper,
            "triton.language.extra": SimpleNamespace(libdevice=LIBDEVICE),
        }


def jit(function: Any = None, **_: Any) -> Any:
    return (lambda f: f) if function is None else function


def scalars(*bounds: Any) -> Iterator[Tensor]:
    """Python's range, over scalars of the device."""
    for n in builtins.range(*(int(tensor(b)) for b in bounds)):
        yield Tensor(np.int32(n), real.int32)


_KEPT = "constexpr BlockedLayout SliceLayout DotOperandLayout NVMMADistributedLayout SwizzledSharedLayout"
_KEPT += " int1 int8 int16 int32 int64 uint8 uint32 float16 bfloat16 float32 float64"
KEPT = {name: getattr(real, name) for name in _KEPT.split()}
FUNCTIONS: dict[str, Any] = {
    "abs": elementwise(np.abs),
    "exp": elementwise(np.exp),
    "exp2": elementwise(np.exp2),
    "log": elementwise(np.log),
    "log2": elementwise(np.log2),
    "sqrt": elementwise(np.sqrt),
    "rsqrt": elementwise(lambda x: 1.0 / np.sqrt(x)),
    "sin": elementwise(np.sin),
    "cos": elementwise(np.cos),
    "floor": elementwise(np.floor),
    "ceil": elementwise(np.ceil),
    "erf": elementwise(in_torch("erf")),
    "maximum": extremum(np.fmax, np.maximum),
    "minimum": extremum(np.fmin, np.minimum),
    "max": folded(np.fmax),
    "min": folded(np.fmin),
    "sum": folded(np.add),
    "reduce": reduce,
    "where": where,
    "reshape": reshape,
    "convert_layout": convert_layout,
    "cast": cast,
    "load": load,
    "to_tensor": tensor,
    "static_range": builtins.range,
}
LIBDEVICE = SimpleNamespace(
    **{n: elementwise(getattr(np, n)) for n in ("tanh", "expm1", "log1p", "tan", "sinh", "cosh")},
    **{f"a{n}": elementwise(getattr(np, f"arc{n}")) for n in ("sin", "cos", "tan", "sinh")},
    erfc=elementwise(in_torch("erfc")),
    nearbyint=elementwise(np.rint),
    trunc=elementwise(np.trunc),
)


def allocated(text: str) -> list[str]:
    """Names of what a module allocates, in order."""
    return re.findall(r"^ *(\w+) = gl\.allocate_shared_memory", text, re.M)


class _Assigned(ast.NodeTransformer):
    """Numbers become scalars of the device when a variable takes them."""

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        name = ast.Name("_assigned", ast.Load())
        node.value = ast.copy_location(ast.Call(name, [node.value], []), node.value)
        return node


def assigned(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(assigned, value))
    return tensor(value) if isinstance(value, bool | int | float) else value


@cache
def compiled(text: str) -> CodeType:
    tree = _Assigned().visit(ast.parse(text))
    return compile(ast.fix_missing_locations(tree), "<kernel>", "exec")


def load_module(text: str, machine: Machine) -> dict[str, Any]:
    """A generated module's functions, to be run on a machine."""
    modules = Language(machine, allocated(text)).modules()

    @wraps(builtins.__import__)
    def imported(name: str, *_: Any) -> Any:
        return modules[name]

    given = {**vars(builtins), "__import__": imported, "range": scalars}
    namespace: dict[str, Any] = {"__builtins__": given, "_assigned": assigned}
    exec(compiled(text), namespace)
    return namespace


def launch(text: str, kernel: str, arguments: Sequence[Any], instances: int, seed: int) -> None:
    """Run a kernel's program instances beside each other, in an order of events that a seed draws. Raises `MachineError`."""
    machine = Machine(seed)
    function = load_module(text, machine)[kernel]

    def body(block: Block) -> None:
        function(*arguments)

    machine.run([body] * instances)
