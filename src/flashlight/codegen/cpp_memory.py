"""Where the tiles of a kernel live in a thread's workspace.

Emission numbers its steps and tells when each tile is written and read. Tiles whose lives do not overlap may share memory; tiles
that a copy or an in-place operation connects share one place if they can, and then the copy is no copy at all.
"""

from __future__ import annotations

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
        """Size, in whole cache lines."""
        size = {"f64": 8, "i64": 8}.get(self.ctype, 4)
        return (self.elements * size + 63) // 64 * 64


class Workspace:
    """Records the lives of tiles, then places them; see the module's docstring.

    Attributes:
        tiles: in order of creation.
        nests: first and last step of each loop over positions of tiles.
        loops: first and last step of each loop over tiles: what is read in one again is needed to its end.
        slots: tiles that are carried by a loop, with the step at its head.
        wishes: pairs of tiles that had better share a place.
    """

    def __init__(self) -> None:
        self.tiles: list[Tile] = []
        self.nests: list[tuple[int, int]] = []
        self.loops: list[tuple[int, int]] = []
        self.slots: dict[Tile, int] = {}
        self.wishes: list[tuple[Tile, Tile]] = []
        self._writes: dict[Tile, list[int]] = {}
        self._reads: dict[Tile, list[int]] = {}
        self._time = 0
        self._leader: dict[Tile, Tile] = {}

    # -- While emitting.

    def tick(self) -> int:
        """A new step."""
        self._time += 1
        return self._time

    def wrote(self, tile: Tile) -> None:
        """A tile is written now."""
        self._writes.setdefault(tile, []).append(self.tick())

    def read(self, tile: Tile) -> None:
        """A tile is read now."""
        self._reads.setdefault(tile, []).append(self.tick())

    def moved(self, target: Tile, source: Tile) -> None:
        """The whole of one tile was copied to another, which is no copy if both can be one."""
        self.read(source)
        self._writes.setdefault(target, []).append(self._time)
        self.wishes.append((target, source))

    def add(self, tile: Tile) -> Tile:
        """A new tile, in a place of its own so far."""
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

    # -- After it.

    def placed(self) -> tuple[dict[Tile, int], int]:
        """(offset of each tile, bytes in all)."""
        self._lives()
        for target, source in self.wishes:
            self.share(target, source)
        return self._layout()

    def _lives(self) -> None:
        """Turn what was written and read when into spans, lengthened over loops that come back to a read."""
        for tile in self.tiles:
            writes = sorted(self._writes.get(tile, [0]))
            reads = self._reads.get(tile, [])
            if tile in self.slots:
                start, back = writes[0], writes[-1]
                head = self.slots[tile]
                inside = [self._last(head, t) for t in reads if t < back]
                after = [self._last(head, t) for t in reads if t >= back]
                # A body that replaces the value unread may still not run: what it started with lasts until its head.
                tile.spans.append((start, max(inside, default=head)))
                tile.spans.append((back, max(after, default=back + 1)))
                continue
            last = max((self._last(writes[0], t) for t in reads), default=writes[0])
            tile.spans.append((writes[0], max(last, writes[-1])))

    def _last(self, born: int, read: int) -> int:
        """When a value born at one step and read at another is needed no more."""
        for start, end in self.loops:
            if start <= read <= end and not start <= born <= end:
                read = max(read, end)
        return read

    def _layout(self) -> tuple[dict[Tile, int], int]:
        """Offsets, first fit.

        Inside a nest one row is written while another is still to be read: a life that touches the nest lasts as long.
        """
        loops = sorted(self.nests)
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
