"""The table and the picture of a run."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table

from flashlight.bench.record import Row

COLUMNS = ("ours", "eager", "compile", "flex", "flex+mask", "cudnn", "fa2", "sdpa")
RATIOS = ("compile", "flex", "cudnn", "sdpa")


def table(rows: list[Row], title: str = "") -> Table:
    """Times in ms, ours / theirs as a speed-up, achieved rate and share of the machine's limit."""
    systems = [c for c in COLUMNS if any(c in r.ms for r in rows)]
    ratios = [c for c in RATIOS if any(r.speedup(c) for r in rows)]
    out = Table(title=title or None, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("program", "shape", "dtype", "k"):
        out.add_column(name, no_wrap=True)
    for name in (*systems, *(f"×{c}" for c in ratios), "TF/s", "limit", "MiB", "err/eager", ""):
        out.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        out.add_row(
            row.variant,
            row.label,
            row.dtype,
            "" if row.kernels is None else str(row.kernels),
            *(_ms(row.ms.get(c)) for c in systems),
            *(_ratio(row.speedup(c)) for c in ratios),
            ""
            if row.tflops is None
            else f"{row.tflops:.0f}"
            if row.tflops >= 10
            else f"{row.tflops:.2f}",
            "" if row.share_of_limit is None else f"{row.share_of_limit:.0%}",
            _memory(row.workspace.get("ours")),
            _errors(row),
            "[green]ok[/]"
            if row.correct
            else "[red]WRONG[/]"
            if "ours" in row.error
            else "[yellow]none[/]",
        )
    return out


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _ratio(value: float | None) -> str:
    if value is None:
        return "–"
    colour = "green" if value >= 1 else "red"
    return f"[{colour}]{value:.2f}[/]"


def _memory(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _errors(row: Row) -> str:
    ours, eager = row.error.get("ours"), row.error.get("eager")
    return "" if ours is None or not eager else f"{ours / eager:.2f}"


def plot(rows: list[Row], path: Path, title: str) -> Path | None:
    """A bar for every system and cell: its achieved rate. None, and nothing drawn, without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    from matplotlib import pyplot

    rows = [r for r in rows if r.ms]
    systems = [c for c in COLUMNS if any(c in r.ms for r in rows)]
    height = max(3.0, 0.16 * len(rows) * len(systems) + 1.2)
    figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
    thick = 0.8 / max(1, len(systems))
    for n, system in enumerate(systems):
        places = [i + n * thick for i, r in enumerate(rows) if system in r.ms]
        rates = [r.flops / r.ms[system] / 1e9 for r in rows if system in r.ms]
        axes.barh(places, rates, height=thick, label=system)
    axes.set_yticks([i + 0.4 for i in range(len(rows))])
    axes.set_yticklabels([f"{r.variant} {r.label} {r.dtype}" for r in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("TFLOP/s over the pairs that the mask keeps")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path
