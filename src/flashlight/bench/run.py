"""The run: for every cell make inputs, check each system against float64, time them in turn, write what is known so far."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flashlight.bench import measure, record, report
from flashlight.bench.cells import Cell
from flashlight.bench.record import Row
from flashlight.bench.systems import BY_NAME, Call, NotApplicableError, fresh_compilers
from flashlight.capture.record import Record, collecting
from flashlight.programs.sdpa import HAS_BIAS
from flashlight.programs.variants import VARIANTS, Args
from flashlight.report.kernels import read

NOT_WARMED = ("eager", "cudnn", "fa2", "sdpa")  # nothing to compile


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        cells: the rows, in order.
        systems: names from `bench.systems`.
        device: where.
        out: the JSON file; the plot stands beside it.
        rounds: how often each system is timed, in turn.
        jobs: processes that compile ahead and fill the compilers' caches; 0 for none.
        seconds: stop before a cell that would begin later than this; None for no limit.
        seed: of the inputs.
        graphs: time replays of CUDA graphs, without what launching costs the host.
    """

    cells: Sequence[Cell]
    systems: Sequence[str]
    device: torch.device
    out: Path
    rounds: int = 3
    jobs: int = 0
    seconds: float | None = None
    seed: int = 0
    graphs: bool = False


def run(plan: Plan, console: Console) -> list[Row]:
    """Run the plan, print a line for each cell and the table at the end, leave the JSON and the plot."""
    begin = time.monotonic()
    facts = record.machine(plan.device)
    if plan.graphs:
        facts["timed"] = "replays of CUDA graphs"
    console.print(f"[bold]{facts['device']}[/]  torch {facts['torch']}  commit {facts['commit']}")
    kernels = _compile_ahead(plan, console, begin) if plan.jobs else {}
    ceilings = measure.limits(plan.device, {c.dtype for c in plan.cells})
    facts["limits"] = {
        "tflops": {str(k): round(v, 2) for k, v in ceilings.tflops.items()},
        "gbytes": round(ceilings.gbytes, 1),
    }
    console.print(f"limits measured: {facts['limits']}")
    rows: list[Row] = []
    with _progress(console) as progress:
        task = progress.add_task("cells", total=len(plan.cells))
        for cell in plan.cells:
            if plan.seconds is not None and time.monotonic() - begin > plan.seconds:
                left = len(plan.cells) - len(rows)
                facts["left_out"] = left
                console.print(f"[yellow]time is up: {left} cells left out[/]")
                break
            progress.update(task, description=str(cell))
            rows.append(measure_cell(cell, plan, ceilings))
            if rows[-1].kernels is None:
                rows[-1].kernels = kernels.get(cell)
            record.save(plan.out, facts, rows)
            console.print(_line(rows[-1]), highlight=False)
            progress.advance(task)
    show(rows, facts, plan.out, console)
    return rows


def show(rows: list[Row], facts: dict[str, object], out: Path, console: Console) -> None:
    """The table, and the plot beside the JSON file."""
    title = f"{facts['device']}, torch {facts['torch']}, {facts['date']}, commit {facts['commit']}"
    console.print(report.table(rows, title))
    picture = report.plot(rows, out.with_suffix(".png"), title)
    console.print(
        f"{out}" + (f"  {picture}" if picture else "  (no plot: matplotlib is not there)")
    )


def measure_cell(cell: Cell, plan: Plan, ceilings: measure.Limits) -> Row:
    """One row. A system that fails has its reason in `notes` and no time."""
    row = Row.of(cell)
    variant = VARIANTS[cell.variant]
    with fresh_compilers():
        args = variant.make(cell.shape, cell.dtype, plan.device, plan.seed)
        ref = measure.reference(cell, args)
        row.error["eager"], row.allowed_error = ref.eager_error, ref.allowed
        calls: dict[str, Call] = {}
        for name in _systems(cell, plan):
            call = _checked(name, cell, args, ref, row)
            if call is not None:
                calls[name] = call
        if not calls:
            return row
        for name, call in calls.items():
            used = measure.workspace(call, plan.device)
            if used is not None:
                row.workspace[name] = round(used, 2)
        timed = _replayed(calls, row) if plan.graphs else calls
        times = measure.side_by_side(timed, device=plan.device, rounds=plan.rounds)
        row.ms = {name: t.median for name, t in times.items()}
        row.spread = {name: (t.low, t.high) for name, t in times.items()}
        row.flops = variant.flops(cell.shape, args)
        row.bytes = measure.bytes_once(args, next(iter(calls.values()))())
        if "ours" in row.ms:
            row.tflops = row.flops / row.ms["ours"] / 1e9
            floor = ceilings.floor(cell.dtype, row.flops, row.bytes)
            row.share_of_limit = floor / row.ms["ours"]
    _free(plan.device)
    return row


def _systems(cell: Cell, plan: Plan) -> list[str]:
    """On CUDA the dispatcher's own choice is a column only where neither cuDNN nor FA2 can be asked for."""
    return [
        name
        for name in plan.systems
        if name != "sdpa" or plan.device.type != "cuda" or cell.variant in HAS_BIAS
    ]


def _checked(name: str, cell: Cell, args: Args, ref: measure.Reference, row: Row) -> Call | None:
    """The call, once its result is right; otherwise None and a note. A wrong rival is timed all the same, with its error."""
    try:
        with collecting() as taken:
            call = BY_NAME[name].make(cell, args)
            out = call()
    except NotApplicableError:
        return None
    except Exception as error:
        row.notes[name] = _reason(error)
        _free(args[0].device)
        return None
    row.error[name] = ref.error(out)
    if name == "ours":
        row.kernels = _count(taken)
        whole = bool(torch.isfinite(out).all())
        row.correct = whole and row.error[name] <= ref.allowed
        if not row.correct:
            row.notes[name] = f"error {row.error[name]:.2e}, allowed {ref.allowed:.2e}"
            return None
    return call


def _replayed(calls: Mapping[str, Call], row: Row) -> dict[str, Callable[[], object]]:
    """The calls as CUDA graphs; one that cannot be captured has its reason in the notes and no time."""
    found: dict[str, Callable[[], object]] = {}
    for name, call in calls.items():
        try:
            found[name] = measure.replayed(call)
        except Exception as error:
            row.notes[name] = f"no graph: {_reason(error)}"
            torch.cuda.synchronize()
    return found


def _reason(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *(line[:200] for line in lines[:1])])


def _count(taken: Record) -> int | None:
    """Kernels of ours; None where torch's cache had the graph, so that nothing was captured."""
    return len(read(taken, 0).kernels) if taken.regions or taken.refusals else None


def _line(row: Row) -> str:
    times = "  ".join(f"{k} {v:.3f}" for k, v in row.ms.items())
    notes = "; ".join(f"{k}: {v}" for k, v in row.notes.items())
    return f"{row.variant:16s} {row.label:26s} {row.dtype}  {times}  {notes}"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# -- Compiling ahead: other processes compile every cell, so that this one finds all code in the compilers' caches on disk.


def _compile_ahead(plan: Plan, console: Console, begin: float) -> dict[Cell, int]:
    """Fill the caches; how many kernels of ours each cell has, as this process will not capture it again."""
    kernels: dict[Cell, int] = {}
    names = [n for n in plan.systems if n not in NOT_WARMED]
    budget = None if plan.seconds is None else plan.seconds / 2
    with _progress(console) as progress:
        task = progress.add_task("compiling ahead", total=len(plan.cells))
        pool = ProcessPoolExecutor(plan.jobs, mp_context=get_context("spawn"))
        waiting = {
            pool.submit(warm, cell, names, plan.device.type, plan.seed): cell for cell in plan.cells
        }
        try:
            left = None if budget is None else max(1.0, budget - (time.monotonic() - begin))
            for done in as_completed(waiting, timeout=left):
                progress.advance(task)
                count = done.result() if done.exception() is None else None
                if count is not None:
                    kernels[waiting[done]] = count
        except TimeoutError:
            console.print("[yellow]compiling ahead stopped: out of time[/]")
            _terminate(pool)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    console.print(f"compiled ahead in {time.monotonic() - begin:.0f} s")
    return kernels


def _terminate(pool: ProcessPoolExecutor) -> None:
    """Stop what the workers are at: a cell may take a minute, and the time is wanted for measuring. Python 3.14 can do it itself."""
    if hasattr(pool, "terminate_workers"):
        pool.terminate_workers()
        return
    for worker in list((pool._processes or {}).values()):
        worker.terminate()


def warm(cell: Cell, systems: Sequence[str], device: str, seed: int) -> int | None:
    """Compile one cell and run it once, in a process of its own; how many kernels of ours it has."""
    kernels: int | None = None
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    with fresh_compilers():
        args = VARIANTS[cell.variant].make(cell.shape, cell.dtype, torch.device(device), seed)
        for name in systems:
            try:
                with collecting() as taken:
                    BY_NAME[name].make(cell, args)()
                kernels = _count(taken) if name == "ours" else kernels
            except Exception:  # the timing process meets it again and writes it down
                _free(args[0].device)
    _free(args[0].device)
    return kernels
