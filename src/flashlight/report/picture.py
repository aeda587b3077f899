"""A picture of a compiled graph: inputs, our kernels, what Inductor runs, outputs. As DOT text, and as SVG without other programs."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["input", "fused", "product", "other", "output"]

_FILL = {
    "input": "#eef2f7",
    "fused": "#ffd9a8",
    "product": "#f7c4c4",
    "other": "#e4e4e4",
    "output": "#d8ecd8",
}
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 200, 44, 24, 46, 16


@dataclass(frozen=True)
class Box:
    """One node of the picture; `detail` is a second line of text."""

    name: str
    kind: Kind
    label: str
    detail: str = ""


@dataclass(frozen=True)
class Picture:
    """Boxes and arrows between their names, in an order in which every arrow points forward."""

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[str, str], ...]

    @property
    def dot(self) -> str:
        """Graphviz text."""
        lines = ["digraph flashlight {", '  node [shape=box, style="rounded,filled", fontsize=10];']
        for box in self.boxes:
            text = box.label + (f"\\n{box.detail}" if box.detail else "")
            label = text.replace('"', "'")
            lines.append(f'  "{box.name}" [label="{label}", fillcolor="{_FILL[box.kind]}"];')
        lines.extend(f'  "{a}" -> "{b}";' for a, b in self.arrows)
        return "\n".join([*lines, "}"])

    @property
    def svg(self) -> str:
        """A layered drawing: a box stands one layer below the lowest box it reads."""
        layers: dict[str, int] = {}
        for box in self.boxes:
            above = [layers[a] for a, b in self.arrows if b == box.name and a in layers]
            layers[box.name] = max(above) + 1 if above else 0
        rows: dict[int, list[Box]] = {}
        for box in self.boxes:
            rows.setdefault(layers[box.name], []).append(box)
        widest = max((len(r) for r in rows.values()), default=1)
        width = 2 * _MARGIN + widest * (_WIDTH + _GAP_X) - _GAP_X
        height = 2 * _MARGIN + len(rows) * (_HEIGHT + _GAP_Y) - _GAP_Y
        place: dict[str, tuple[float, float]] = {}
        for depth, row in rows.items():
            start = (width - (len(row) * (_WIDTH + _GAP_X) - _GAP_X)) / 2
            for n, box in enumerate(row):
                place[box.name] = (
                    start + n * (_WIDTH + _GAP_X),
                    _MARGIN + depth * (_HEIGHT + _GAP_Y),
                )
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
            ' font-family="sans-serif" font-size="11">',
            '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" fill="#777"/></marker></defs>',
        ]
        for a, b in self.arrows:
            (ax, ay), (bx, by) = place[a], place[b]
            parts.append(
                f'<line x1="{ax + _WIDTH / 2:.0f}" y1="{ay + _HEIGHT:.0f}" x2="{bx + _WIDTH / 2:.0f}"'
                f' y2="{by:.0f}" stroke="#777" marker-end="url(#tip)"/>'
            )
        for box in self.boxes:
            parts.extend(_drawn(box, *place[box.name]))
        return "\n".join([*parts, "</svg>"])

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return self.dot

    def save(self, path: str | Path) -> Path:
        """Write the SVG, or the DOT text if the name ends so."""
        path = Path(path)
        path.write_text(self.dot if path.suffix in (".dot", ".gv") else self.svg, encoding="utf-8")
        return path


def _drawn(box: Box, x: float, y: float) -> list[str]:
    middle = x + _WIDTH / 2
    lines = [box.label, box.detail] if box.detail else [box.label]
    texts = [
        f'<text x="{middle:.0f}" y="{y + (18 if len(lines) > 1 else 26) + 16 * n:.0f}" text-anchor="middle">'
        f"{html.escape(_short(line))}</text>"
        for n, line in enumerate(lines)
    ]
    return [
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{_FILL[box.kind]}"'
        f' stroke="#999"><title>{html.escape(box.label)} {html.escape(box.detail)}</title></rect>',
        *texts,
    ]


def _short(text: str, most: int = 32) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
