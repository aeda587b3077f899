"""Where the tiles of a kernel live in a thread's workspace.

Emission numbers its steps and tells when each tile is written and read. Tiles whose lives do not overlap may share memory; tiles
that a copy or an in-place operation connects share one place if they can, and then the copy is no copy at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(eq=False)
class Tile:
    """A piece of workspace.

    Attributes:
        name: its pointer in the source.
        ctype: element type in the source.
        elements: how many.
        layout: two tiles with equal layouts hold equal elements at equal offsets.
        spans: closed intervals of steps during which its contents matter.
    """

    name: str
    ctype: str
    elements: int
    layout: object
    spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        size = {"f64": 8, "i64": 8}.get(self.ctype, 4)
        return (self.elements * size + 63) // 64 * 64


class Workspace:
    """Places tiles; see the module's docstring."""

    def __init__(self) -> None:
        self.tiles: list[Tile] = []
        self._leader: dict[Tile, Tile] = {}

    def add(self, tile: Tile) -> Tile:
        self.tiles.append(tile)
        self._leader[tile] = tile
        return tile

    def place_of(self, tile: Tile) -> Tile:
        """The tile that stands for all that share its place."""
        while self._leader[tile] is not tile:
            tile = self._leader[tile]
        return tile

    def share(self, a: Tile, b: Tile) -> bool:
        """Give two tiles one place if their lives allow; whether they have one now."""
        a, b = self.place_of(a), self.place_of(b)
        if a is b:
            return True
        if a.layout != b.layout or a.ctype != b.ctype or _overlap(a.spans, b.spans):
            return False
        self._leader[b] = a
        a.spans.extend(b.spans)
        return True

    def layout(self, nests: Iterable[tuple[int, int]]) -> tuple[dict[Tile, int], int]:
        """(offset of each tile, bytes in all). `nests`: steps of the loops over tiles.

        Inside such a loop one row is written while another is still to be read: a life that touches the loop lasts as long.
        """
        loops = sorted(nests)
        places = sorted({self.place_of(t) for t in self.tiles}, key=lambda t: (-t.bytes, t.name))
        lives = {p: [_widened(span, loops) for span in p.spans] for p in places}
        offsets: dict[Tile, int] = {}
        total = 0
        for place in places:
            taken = sorted(
                (offsets[q], offsets[q] + q.bytes)
                for q in offsets
                if _overlap(lives[place], lives[q])
            )
            at = 0
            for start, end in taken:
                if at + place.bytes <= start:
                    break
                at = max(at, end)
            offsets[place] = at
            total = max(total, at + place.bytes)
        return {t: offsets[self.place_of(t)] for t in self.tiles}, total


def _overlap(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> bool:
    """Whether two lives share more than an instant at which one ends and the other begins."""
    return any((s < f and u < e) or (s, e) == (u, f) for s, e in a for u, f in b)


def _widened(span: tuple[int, int], loops: list[tuple[int, int]]) -> tuple[int, int]:
    start, end = span
    for first, last in loops:
        if first <= start <= last:
            start = first
        if first <= end <= last:
            end = last
    return start - 1, end + 1
