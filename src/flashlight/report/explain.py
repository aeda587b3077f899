"""explain(fn, *args, **kwargs): compile a program once, out of every cache's way, and report what became of it."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from flashlight.capture.record import Record, collecting
from flashlight.report.graph import draw, joined
from flashlight.report.kernels import read
from flashlight.report.materialized import Intermediate, elements, in_graph, in_kernels, phase_of
from flashlight.report.picture import Picture
from flashlight.report.report import Report


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Report:
    """Compile `fn` for these arguments as `torch.compile(fn, backend="flashlight")` would, and say what became of it.

    Shapes are static; nothing is read from a cache, nor are compilations that the program already has touched. The program runs once,
    on copies of the tensors among the arguments. The backward is covered when an argument or parameter requires gradients.

    Args:
        fn: a function or an nn.Module.
        args: its arguments.
        kwargs: its keyword arguments.

    Returns:
        A report: print it, or read `kernels`, `refusals`, `materialized` and `graph`.
    """
    from flashlight.backend import flashlight

    watch = Watch(flashlight)
    watch.compile(fn, args, kwargs)
    return watch.report()


@dataclass
class Look:
    """What was seen of one graph that Inductor compiled."""

    phase: str
    picture: Picture
    by_graph: list[Intermediate]
    by_kernels: list[Intermediate] | None = None

    @property
    def large(self) -> list[Intermediate]:
        """What reaches memory: by Inductor's kernels if they were seen, else by the graph."""
        found = self.by_graph if self.by_kernels is None else self.by_kernels
        return [replace(x, phase=self.phase) for x in found]


class Watch:
    """One compilation under observation."""

    def __init__(self, backend: Callable[..., Any]) -> None:
        self.backend = backend
        self.largest = 0
        self.graphs = 0
        self.looks: list[Look] = []
        self.record = Record()

    # -- Compiling

    def compile(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Run the program once under the watched backend."""
        args, kwargs = pytree.tree_map_only(Tensor, _copy, (tuple(args), kwargs))
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=_cuda_devices((args, kwargs))))
            stack.enter_context(_no_caches(self._look_at_graph, self._look_at_kernels))
            self.record = stack.enter_context(collecting())
            compiled = torch.compile(_fresh(fn), backend=self._compile_graph, dynamic=False)
            out = compiled(*args, **kwargs)
            _backward(out, [*_leaves((args, kwargs)), *_parameters(fn)])

    def _compile_graph(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        self.graphs += 1
        for value in example_inputs:
            self.largest = max(self.largest, elements(value))
        for node in gm.graph.find_nodes(op="output"):
            for value in pytree.tree_leaves(node.args[0]):
                if isinstance(value, fx.Node):
                    self.largest = max(self.largest, elements(value.meta.get("example_value")))
        known = len(self.looks)
        compiled = self.backend(gm, example_inputs)
        new = self.looks[known:]
        forward = [x for x in new if x.phase == "forward"]
        # A backend may try twice; the last attempt is what runs.
        self.looks[known:] = [x for x in new if x.phase != "forward" or x is forward[-1]]
        return compiled

    def _look_at_graph(self, graph: fx.Graph) -> None:
        picture = draw(graph, f"g{len(self.looks)}.")
        self.looks.append(Look(phase_of(graph), picture, in_graph(graph, self.largest)))

    def _look_at_kernels(self, nodes: list[Any]) -> list[Any]:
        if self.looks:
            self.looks[-1].by_kernels = in_kernels(nodes, self.largest)
        return nodes

    # -- Reporting

    def report(self) -> Report:
        """The report of what was seen."""
        ours = read(self.record, self.largest)
        large = (x for look in self.looks for x in look.large)
        large = (x for x in large if torch.Size(x.shape).numel() > self.largest)
        return Report(
            kernels=ours.kernels,
            refusals=ours.refusals,
            materialized=tuple(dict.fromkeys((*ours.materialized, *large))),
            graph=joined([look.picture for look in self.looks]),
            graphs=self.graphs,
            warnings=ours.warnings,
        )


def _leaves(values: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(values) if isinstance(t, Tensor) and t.requires_grad]


def _parameters(fn: Callable[..., Any]) -> list[Tensor]:
    return (
        [p for p in fn.parameters() if p.requires_grad] if isinstance(fn, torch.nn.Module) else []
    )


def _backward(out: Any, leaves: list[Tensor]) -> None:
    """Run the backward, as torch compiles it only then. No `.grad` is touched."""
    outs = _leaves(out)
    if outs and leaves:
        torch.autograd.grad(outs, leaves, [torch.ones_like(o) for o in outs], allow_unused=True)


def _fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` with a code object of its own, so that Dynamo finds no compilation of it and leaves none on it.

    A function keeps its globals: Dynamo would import the module of a function that it inlines, which need not be importable.
    """
    if isinstance(fn, types.FunctionType):
        copy = types.FunctionType(
            fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
        )
        copy.__kwdefaults__ = fn.__kwdefaults__
        return copy

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    code = call.__code__.replace(co_name=getattr(fn, "__name__", type(fn).__name__))
    return types.FunctionType(code, globals(), code.co_name, None, call.__closure__)


def _copy(tensor: Tensor) -> Tensor:
    """A leaf with the same values and strides; an expanded tensor stays expanded."""
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    with torch.no_grad():
        copy = tensor.detach()
        if tensor.layout is torch.strided and tensor.numel():
            copy = torch.empty_strided(
                (_span(tensor),), (1,), dtype=tensor.dtype, device=tensor.device
            )
            copy = copy.as_strided(tensor.shape, tensor.stride())
            copy.as_strided((_span(tensor),), (1,)).copy_(
                tensor.detach().as_strided((_span(tensor),), (1,))
            )
    return copy.requires_grad_(tensor.requires_grad)


def _span(tensor: Tensor) -> int:
    """Elements of memory from the first to the last one of the tensor."""
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _cuda_devices(values: Any) -> list[torch.device]:
    leaves = pytree.tree_leaves(values)
    return list({t.device for t in leaves if isinstance(t, Tensor) and t.device.type == "cuda"})


@contextmanager
def _no_caches(
    look_at_graph: Callable[[fx.Graph], None], look_at_kernels: Callable[[list[Any]], list[Any]]
) -> Iterator[None]:
    """Inductor without its graph caches, and with our two looks at what it makes; a user's own passes run before them."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    from flashlight.report.hooks import after_graph, after_kernels

    patches: dict[str, Any] = {
        "fx_graph_cache": False,
        "post_grad_custom_post_pass": after_graph(
            inductor.post_grad_custom_post_pass, look_at_graph
        ),
    }
    if hasattr(inductor, "_post_fusion_custom_pass"):
        patches["_post_fusion_custom_pass"] = after_kernels(
            inductor._post_fusion_custom_pass, look_at_kernels
        )
    with inductor.patch(patches), functorch.patch({"enable_autograd_cache": False}):
        yield
