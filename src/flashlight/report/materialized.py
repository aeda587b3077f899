"""Which large intermediates of a compiled graph still reach memory, and which line of the user's program makes each.

An intermediate is large if it has more elements than every input and output of its graph. Where Inductor offers its fused nodes
(`_post_fusion_custom_pass`), a buffer that is written and read within one kernel does not count; where that private hook is not
there, contractions' results and operands of opaque calls are what counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

CONTRACTIONS = ("bmm", "mm", "baddbmm", "addmm", "convolution")
VIEWS = (
    "view", "reshape", "permute", "expand", "unsqueeze", "squeeze", "slice", "select", "alias",
    "t", "transpose", "as_strided", "getitem", "detach",
)  # fmt: skip
_TRANSPARENT = ("aten", "prims", "inductor_prims")


@dataclass(frozen=True)
class Intermediate:
    """A tensor that is written to memory although neither the program's inputs nor its outputs are as large.

    Attributes:
        shape: its sizes.
        dtype: as torch prints it, without the module.
        op: what computes it.
        line: file:line and text of the user's code, or "".
        phase: "forward" or "backward".
    """

    shape: tuple[int, ...]
    dtype: str
    op: str
    line: str = ""
    phase: str = "forward"

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        phase = f" in the {self.phase}" if self.phase != "forward" else ""
        return f"{self.op} {self.shape} {self.dtype}{phase}{where}"


def user_line(node: fx.Node) -> str:
    """The innermost line of the user's program that made the node: 'file.py:12: scores = q @ k.mT', or ""."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return ""
    lines = [x for x in str(trace).splitlines() if x.strip()]
    for n in range(len(lines) - 1, -1, -1):
        text = lines[n].strip()
        if text.startswith('File "'):
            file, _, rest = text[6:].partition('", line ')
            number = rest.partition(",")[0]
            code = lines[n + 1].strip() if n + 1 < len(lines) else ""
            return f"{file.rsplit('/', 1)[-1]}:{number}" + (f": {code}" if code else "")
    return ""


def elements(value: Any) -> int:
    """How many elements a tensor has; 0 where a size is not a number."""
    if not isinstance(value, torch.Tensor):
        return 0
    sizes = list(value.shape)
    return math.prod(sizes) if all(isinstance(s, int) for s in sizes) else 0


def phase_of(graph: fx.Graph) -> str:
    """A backward graph is the one that is given tangents."""
    names = [str(n.target) for n in graph.find_nodes(op="placeholder")]
    return "backward" if any(n.startswith("tangents_") for n in names) else "forward"


def in_graph(graph: fx.Graph, largest: int) -> list[Intermediate]:
    """By the graph alone: what a contraction or an opaque call writes, or an opaque call is handed."""
    found: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if str(node.target).split(".")[:1] == ["aten"] and op_name(node) in CONTRACTIONS:
            candidates: Iterable[fx.Node] = [node]
        elif getattr(node.target, "namespace", "aten") not in _TRANSPARENT:
            candidates = [x for x in (node, *node.all_input_nodes) if x.op == "call_function"]
        else:
            continue
        for x in candidates:
            for value in _values(x):
                if elements(value) > largest and _owns(value):
                    found[x] = None
    return [
        _intermediate(tuple(v.shape), v.dtype, node)
        for node in found
        for v in _values(node)
        if elements(v) > largest
    ]


def _values(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, torch.Tensor)]


def _owns(value: torch.Tensor) -> bool:
    """An expanded view has many elements and little memory."""
    return 0 not in value.stride()


def op_name(node: fx.Node) -> str:
    """Name of a node's operation without its namespace and overload."""
    target = node.target
    return str(getattr(target, "_opname", getattr(target, "__name__", target)))


def _intermediate(shape: tuple[int, ...], dtype: torch.dtype, node: fx.Node) -> Intermediate:
    return Intermediate(
        tuple(int(s) for s in shape),
        str(dtype).removeprefix("torch."),
        op_name(node),
        user_line(node),
    )


def in_kernels(nodes: Iterable[Any], largest: int) -> list[Intermediate]:
    """By Inductor's kernels: each buffer that is large and read by a kernel other than the one that writes it.

    What a training graph saves for its backward counts; a result of the program is never larger than `largest`.

    Args:
        nodes: the scheduler's nodes after fusion.
        largest: elements of the largest input or output of the whole program.
    """
    found = []
    for group in nodes:
        inside = {n.get_name() for n in group.get_nodes()}
        for buffer in group.get_outputs():
            node = buffer.node
            size = [int(s) for s in node.get_size()] if _is_static(node) else []
            readers = {u.get_name() for u in buffer.users if not u.is_weak}
            if not size or math.prod(size) <= largest or readers <= inside:
                continue
            origins = list(node.get_origins())
            origin = _heaviest(origins)
            if origin is None:
                found.append(Intermediate(tuple(size), str(node.get_dtype())[6:], "buffer"))
            else:
                found.append(_intermediate(tuple(size), node.get_dtype(), origin))
    return found


def _is_static(node: Any) -> bool:
    try:
        return all(
            bool(s.is_Integer) if hasattr(s, "is_Integer") else True for s in node.get_size()
        )
    except (AttributeError, NotImplementedError):  # an IR node without a size of its own
        return False


def _heaviest(origins: list[fx.Node]) -> fx.Node | None:
    """The origin that says most about a buffer: a contraction if there is one, else the last that has a line."""
    for node in origins:
        if op_name(node) in CONTRACTIONS:
            return node
    known = [n for n in origins if n.meta.get("stack_trace")] or origins
    known = [n for n in known if op_name(n) not in VIEWS] or known
    return known[-1] if known else None
