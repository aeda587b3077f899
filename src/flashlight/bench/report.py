"""The table and the picture of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    """Achieved rates: lines over the length where all programs were run at several, else a bar for every system and cell.

    None, and nothing drawn, without matplotlib.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    from matplotlib import pyplot

    rows = [r for r in rows if r.ms]
    panels = _panels(rows)
    variants, kinds = _axes(panels)
    grid = len(panels) == len(variants) * len(kinds)
    draw = _lines if grid and all(len(cells) > 1 for cells in panels.values()) else _bars
    figure = draw(rows, panels, pyplot)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path


Panels = dict[tuple[str, str], dict[int, Row]]
"""Rows by length, for each program (column of panels) and each kind of shape (row of panels)."""


def _panels(rows: list[Row]) -> Panels:
    found: Panels = {}
    for r in rows:
        s = r.shape
        kind = f"H{s['heads']}/{s['kv_heads']} D{s['head_dim']} {r.dtype}"
        found.setdefault((r.variant, kind), {})[s["length"]] = r
    return found


def _axes(panels: Panels) -> tuple[list[str], list[str]]:
    """Programs and kinds of shape, in the order of their first rows."""
    return list(dict.fromkeys(v for v, _ in panels)), list(dict.fromkeys(k for _, k in panels))


def _rate(row: Row, system: str) -> float:
    """TFLOP/s over the pairs that the mask keeps."""
    return row.flops / row.ms[system] / 1e9


def _systems(rows: list[Row]) -> list[str]:
    return [c for c in COLUMNS if any(c in r.ms for r in rows)]


def _lines(rows: list[Row], panels: Panels, pyplot: Any) -> Any:
    """A panel for each program and kind of shape: rate over length, a line for each system."""
    variants, kinds = _axes(panels)
    figure, axes = pyplot.subplots(
        len(kinds),
        len(variants),
        figsize=(1.2 + 1.7 * len(variants), 1 + 1.6 * len(kinds)),
        layout="constrained",
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for (variant, kind), cells in panels.items():
        ax = axes[kinds.index(kind)][variants.index(variant)]
        for n, system in enumerate(_systems(rows)):
            at = [
                (length, _rate(r, system)) for length, r in sorted(cells.items()) if system in r.ms
            ]
            if at:
                ax.plot(
                    *zip(*at, strict=True), marker="o", markersize=3, color=f"C{n}", label=system
                )
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(cells), [str(length) for length in cells])
        ax.tick_params(labelsize=7)
        ax.grid(alpha=0.3)
    for ax in axes.flat:
        ax.set_ylim(bottom=0)
    for ax, variant in zip(axes[0], variants, strict=True):
        ax.set_title(variant, fontsize=9)
    for ax, kind in zip(axes[:, 0], kinds, strict=True):
        ax.set_ylabel(kind, fontsize=7)
    handles = {
        label: handle
        for ax in axes.flat
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside right upper", fontsize=8)
    figure.supxlabel("length", fontsize=8)
    figure.supylabel("TFLOP/s over the pairs that the mask keeps", fontsize=8)
    return figure


def _bars(rows: list[Row], _: Panels, pyplot: Any) -> Any:
    """A bar for every system and cell."""
    systems = _systems(rows)
    height = max(3.0, 0.16 * len(rows) * len(systems) + 1.2)
    figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
    thick = 0.8 / max(1, len(systems))
    for n, system in enumerate(systems):
        places = [i + n * thick for i, r in enumerate(rows) if system in r.ms]
        rates = [_rate(r, system) for r in rows if system in r.ms]
        axes.barh(places, rates, height=thick, label=system)
    axes.set_yticks([i + 0.4 for i in range(len(rows))])
    axes.set_yticklabels([f"{r.variant} {r.label} {r.dtype}" for r in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("TFLOP/s over the pairs that the mask keeps")
    axes.legend(fontsize=7)
    return figure
