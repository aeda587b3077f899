"""`torch.compile(fn, backend="flashlight")`, and the same for everybody's ordinary torch.compile by `enable()`.

Both end in one graph pass at Inductor's joint_custom_pre_pass, which sees functional ATen before Inductor's own attention matcher
and before the partitioner decides what is saved. What the pass does not take, Inductor compiles as always.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.fx
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashlight import options as option_names
from flashlight import trace
from flashlight.capture import layers, lowering, record
from flashlight.capture.capture import capture
from flashlight.capture.record import Record, collecting
from flashlight.errors import ProgramError, RefusedError
from flashlight.options import Options, from_environment

# Products that Inductor would take apart before our pass sees them, where one matrix is a vector: decoding would lose both.
_KEPT_WHOLE = ("bmm", "mm", "addmm")


class FuseRegions(CustomGraphPass):
    """The graph pass. It never raises, unless `strict`: an error of ours leaves the graph to Inductor."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Fuse the regions of a graph in place."""
        options = self.options or from_environment()
        lowering.register()
        try:
            with trace.using(trace.Settings(options.debug, options.dump, options.verify)):
                found = capture(graph, options)
        except ProgramError:
            raise
        except Exception as error:
            if options.strict:
                raise
            record.warn_once(
                "Flashlight left a graph to Inductor because of an error of its own: "
                f"{type(error).__name__}: {error}"
            )
            return
        if options.strict and found.refusals:
            raise RefusedError(found.refusals[0])

    def uuid(self) -> str:
        """What caches must know: our sources, the settings that affect code, and the versions below."""
        options = self.options or from_environment()
        return f"flashlight {source_hash()} torch {torch.__version__} {options.code_key()} {options.strict}"


class Chain(CustomGraphPass):
    """A user's passes and ours, as one pass: Inductor before 2.13 takes only one."""

    def __init__(self, passes: Sequence[Any]) -> None:
        self.passes = tuple(passes)

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Run all passes in order."""
        for run in self.passes:
            run(graph)

    def uuid(self) -> Any:
        """The uuids of all passes, or None (no caching) if one has none."""
        found = [p.uuid() if isinstance(p, CustomGraphPass) else None for p in self.passes]
        return None if any(not u for u in found) else tuple(found)


def flashlight(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend of torch.compile.

    Args:
        gm: Dynamo's graph.
        example_inputs: its inputs.
        mode: as for Inductor.
        options: ours (`flashlight.Options`) and Inductor's, by name.
    """
    ours, theirs = option_names.divide(options, inductor.get_config_copy())
    settings = from_environment(ours)
    wrapper = torch._TorchCompileInductorWrapper(mode, theirs or None, None)
    patches = dict(wrapper.config)
    before = patches.get("joint_custom_pre_pass", inductor.joint_custom_pre_pass)
    patches["joint_custom_pre_pass"] = _chained(before, FuseRegions(settings))
    calls = _sdpa_calls(gm) if settings.sdpa and _is_inference(example_inputs) else 0
    if not calls:
        return _compile(gm, example_inputs, patches)
    with collecting(alone=True) as found, sdpa_kernel([SDPBackend.MATH]):
        compiled = _compile(_copied(gm), example_inputs, patches)
    if found.refusals and len(found.regions) < calls:
        # What stays is better served by PyTorch's own attention than by its decomposition.
        return _compile(gm, example_inputs, patches)
    record.hand_on(found)
    return compiled


def _compile(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], patches: dict[str, Any]
) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(
        gm, list(example_inputs), config_patches=patches, decompositions=decompositions()
    )
    return cast(Callable[..., Any], compiled)


class _Table(dict[Any, Callable[..., Any]]):
    """A decomposition table that cache keys can hold: it pickles as the call that makes it."""

    def __reduce__(self) -> Any:
        return decompositions, ()


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's table without those that hide products, and with those of layers that hide attention."""
    from torch._inductor.decomposition import select_decomp_table

    table = _Table(select_decomp_table())
    table.update(layers.DECOMPOSITIONS)
    for name in _KEPT_WHOLE:
        table.pop(getattr(torch.ops.aten, name).default, None)
    return table


def _copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph module that compiling may change, over the same parameters."""
    copy = torch.fx.GraphModule(gm, torch.fx.Graph())
    copy.graph.output(copy.graph.graph_copy(gm.graph, {}))
    copy.recompile()
    copy.meta.update(gm.meta)
    return copy


def _is_inference(example_inputs: Sequence[Any]) -> bool:
    """Whether no gradients can be asked for."""
    return not torch.is_grad_enabled() or not any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs
    )


_CALLS_SDPA = (
    torch.nn.functional.scaled_dot_product_attention,
    torch.nn.functional.multi_head_attention_forward,  # stays one call in Dynamo's graph
)


def _sdpa_calls(gm: torch.fx.GraphModule) -> int:
    return sum(
        node.op == "call_function" and node.target in _CALLS_SDPA
        for module in gm.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    )


def _chained(before: Any, ours: FuseRegions) -> CustomGraphPass:
    """Our pass after a user's, once."""
    passes = list(before) if isinstance(before, list | tuple) else [before] if before else []
    flat = [p for given in passes for p in (given.passes if isinstance(given, Chain) else [given])]
    kept = [p for p in flat if not isinstance(p, FuseRegions)]
    return Chain([*kept, ours]) if kept else ours


# -- Everybody's torch.compile

_replaced: list[Any] = []


def enable() -> None:
    """Make ordinary torch.compile calls fuse regions too, until `disable()`. Functions that are compiled already stay."""
    if not _replaced:
        _replaced.append(inductor.joint_custom_pre_pass)
        inductor.joint_custom_pre_pass = _chained(inductor.joint_custom_pre_pass, FuseRegions())


def disable() -> None:
    """Undo `enable()`."""
    if _replaced:
        inductor.joint_custom_pre_pass = _replaced.pop()


@contextmanager
def enabled() -> Iterator[None]:
    """`enable()` for what is compiled (called for the first time) inside."""
    was = bool(_replaced)
    enable()
    try:
        yield
    finally:
        if not was:
            disable()


def compile(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """torch.compile with this backend; also as a decorator, with or without arguments."""
    return torch.compile(fn, backend=flashlight, **kwargs)


def last_report() -> Record:
    """Regions and refusals of the graph that was compiled last."""
    return record.last()


def source_hash() -> str:
    """A hash of this package's sources as they were when it was imported."""
    return _HASH


def _hash_of_sources() -> str:
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# Now: a process that outlives an update must not store its graphs as the update's.
_HASH = _hash_of_sources()
