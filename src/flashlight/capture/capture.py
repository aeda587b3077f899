"""The graph pass: lift a graph, find regions, ask the compiler about each, and splice what it takes.

Transactional: everything that may fail happens before the graph is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import lru_cache

import torch
import torch.fx

from flashlight import trace
from flashlight.capture import record
from flashlight.capture.borders import Region
from flashlight.capture.emit import Emitted, emit, origins_of
from flashlight.capture.frames import write_out_frames
from flashlight.capture.layouts import access_of
from flashlight.capture.normalize import (
    reject_mixed_products,
    shield_softmax,
    why_not_graph,
    widen_positions,
)
from flashlight.capture.parts import mark_concatenations
from flashlight.capture.record import Record, Taken, warn_once
from flashlight.capture.regions import Finder
from flashlight.capture.specialize import features_of, specialize
from flashlight.capture.splice import (
    Splice,
    acyclic,
    apply,
    device_of,
    known_sizes,
    shapes_from_inputs,
)
from flashlight.capture.unexpand import compute_before_expanding
from flashlight.errors import Refusal
from flashlight.ir.exprs import Size
from flashlight.ir.nests import Program
from flashlight.lift import rules as _rules  # registers the lifting rules
from flashlight.lift.cells import user_line
from flashlight.lift.extents import extent_of, hint
from flashlight.lift.lift import Lifter
from flashlight.options import Options
from flashlight.pipeline import CANONICAL
from flashlight.rewrite.canonical import InputView, canonical_sizes, canonicalize
from flashlight.rewrite.fuse import TooLargeError
from flashlight.rewrite.picks import is_incomparable
from flashlight.runtime.gpu import GpuExecutable
from flashlight.runtime.op import executable, token_of

del _rules


def capture(graph: torch.fx.Graph, options: Options) -> Record:
    """Fuse what can be fused in a graph, in place, and say what was done."""
    found = Record()
    reject_mixed_products(graph)
    refused = why_not_graph(graph)
    if refused is not None:
        found.refusals.append(refused)
        record.publish(found)
        return found
    shapes_from_inputs(graph)
    widen_positions(graph)
    compute_before_expanding(graph)
    finder, regions = _find(graph)
    if specialize(graph, features_of(finder, regions)):
        finder, regions = _find(graph)
    lifter, hints = finder.lifter, finder.hints
    found.refusals.extend(finder.refusals)
    splices: list[tuple[Splice, Taken]] = []
    read = {name for region in regions for name in finder.borders.read_by(region)}
    for number, region in enumerate(regions):
        with trace.region(f"region{number}"):
            result = _tried(region, lifter, hints, read, options)
            for less in finder.smaller(region) if isinstance(result, Refusal) else ():
                other = _tried(less, lifter, hints, read, options)
                if not isinstance(other, Refusal):
                    result = other
                    break
        if isinstance(result, Refusal):
            found.refusals.append(result)
        else:
            splices.append(result)
    kept = acyclic([s for s, _ in splices])
    apply(graph, kept, lifter.sizes)
    found.regions.extend(taken for splice, taken in splices if splice in kept)
    shield_softmax(graph)
    if found.regions:
        write_out_frames(graph)
        mark_concatenations(graph)
    record.publish(found)
    return found


def _find(graph: torch.fx.Graph) -> tuple[Finder, list[Region]]:
    """The graph's regions, in terms of a fresh lifting of it."""
    with trace.timed("lift"):
        lifter = Lifter(graph)
        hints = dict(lifter.hints)
    _hint_factors(lifter, hints)
    with trace.timed("regions"):
        finder = Finder(lifter, hints)
        return finder, finder.regions()


def _tried(
    region: Region, lifter: Lifter, hints: Mapping[str, int], read: Set[str], options: Options
) -> tuple[Splice, Taken] | Refusal:
    """A compiled region; `read`: names of cells that regions read. An error of ours costs this region only, unless `strict`."""
    cell = region.roots[-1]
    where = user_line(cell.tensors[0]) or cell.name
    try:
        return _compile(emit(region, lifter, hints, read), lifter, hints, options)
    except TooLargeError as error:
        return Refusal("too-large", str(error), where)
    except Exception as error:
        if options.strict:
            raise
        message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        warn_once(f"Flashlight left a region to Inductor because of an error of its own: {message}")
        return Refusal("internal-error", f"Compiling the region raised {message}.", where)


def _compile(
    emitted: Emitted, lifter: Lifter, hints: Mapping[str, int], options: Options
) -> tuple[Splice, Taken] | Refusal:
    """A region's canonical program with kernels that are known to build, or why there are none."""
    origins = origins_of(emitted.program)
    where = origins[-1].line if origins else ""
    no_inputs = Refusal("no-inputs", "The region reads no tensor.", where)
    if not emitted.inputs:
        return no_inputs
    device = device_of(emitted.inputs)
    if any(n.meta["val"].device != device and n.meta["val"].dim() for n in emitted.inputs):
        return Refusal("devices", "The region reads tensors of several devices.", where)
    trace.left("lifted", emitted.program)
    canonical = _canonical(emitted.program)
    if isinstance(canonical, str):
        raise TooLargeError(canonical)
    if isinstance(canonical, Refusal):
        return _located(canonical, where)
    program, views, sizes = canonical
    trace.left("canonical", program)
    if not program.inputs:
        return no_inputs  # what it read did not matter
    if not {s.name for s in sizes} <= known_sizes(lifter.graph, lifter.sizes):
        message = "The region's sizes are not known before the graph runs."
        return Refusal("unknown-sizes", message, where)
    known = {
        new.name: hints.get(old.name, 64) for new, old in zip(program.sizes, sizes, strict=True)
    }
    token = token_of(program, known, options)
    built = executable(token, device)
    if isinstance(built, Refusal):
        return _located(built, where)
    taken = Taken(emitted.program, program, token, str(device), known, origins)
    steps = built.steps if isinstance(built, GpuExecutable) else ()
    accesses = tuple(access_of(steps, b.name, known) for b in program.inputs)
    return Splice(emitted, views, accesses, sizes, program, token), taken


@lru_cache(maxsize=256)
def _canonical(
    program: Program,
) -> tuple[Program, tuple[InputView, ...], tuple[Size, ...]] | Refusal | str:
    """The canonical form of a lifted program, with its inputs and sizes, or why there is none, or why it grows too large. Layers of
    a model share one.
    """
    try:
        for step in CANONICAL:
            program = trace.step(step.__name__.removesuffix("_program"), step, program)
    except TooLargeError as error:
        return str(error)
    odd = is_incomparable(program)
    if odd is not None:
        return Refusal(
            "scores-compared",
            "Scores are compared with some of them that would be computed again, and rounded otherwise.",
            odd.origin.line if odd.origin else "",
        )
    renamed, views = canonicalize(program)
    return renamed, views, canonical_sizes(program)


def _located(refusal: Refusal, where: str) -> Refusal:
    """A refusal with the user's line, if it has none."""
    if refusal.where:
        return refusal
    return Refusal(refusal.code, refusal.message, where, refusal.hint)


def _hint_factors(lifter: Lifter, hints: dict[str, int]) -> None:
    """Sizes of the symbols that lifting made."""
    for symbol, meaning in lifter.sizes.meaning.items():
        whole, part = (hint(extent_of(s), hints) for s in meaning.args)
        hints[str(symbol)] = max(whole // max(part, 1), 1)
