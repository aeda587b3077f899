"""The report: kernels, refusals, what still reaches memory, a picture. Data first; the text is made from it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from flashlight.errors import Refusal
from flashlight.report.materialized import Intermediate
from flashlight.report.picture import Picture

_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222; }}
pre {{ background: #f6f8fa; padding: .8em; overflow-x: auto; font-size: 12px; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .2em .8em .2em 0; text-align: left; vertical-align: top; }}
summary {{ cursor: pointer; }}
</style>
{body}
"""


@dataclass(frozen=True)
class Kernel:
    """One kernel of ours.

    Attributes:
        name: unique in the report.
        program: its loop in program text.
        source: generated code, "" where none was generated.
        language: "cpp", "triton", "gluon" or "".
        grid: program instances at the given sizes.
        passes: runs over the loop dims.
        bytes_moved: every array it reads once and every array it writes once.
        flops: floating-point operations if no tile is skipped.
        config: the chosen configuration, as text.
        origins: lines of the user's program that it computes.
        phase: "forward" or "backward".
        notes: what its loops leave out, for a tile of rows from `first` to `last`.
    """

    name: str
    program: str
    source: str = ""
    language: str = ""
    grid: int = 0
    passes: int = 1
    bytes_moved: int = 0
    flops: int = 0
    config: str = ""
    origins: tuple[str, ...] = ()
    phase: str = "forward"
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.facts}"

    @property
    def facts(self) -> str:
        """One line of numbers."""
        parts = [_count(self.passes, "pass", "passes")]
        if self.grid:
            parts.append(f"grid {self.grid}")
        parts.append(f"{_scaled(self.flops)}FLOP")
        parts.append(f"{_scaled(self.bytes_moved)}B moved")
        return ", ".join(parts)


@dataclass(frozen=True)
class Report:
    """What Flashlight made of a program. `print(report)` for people; the fields for programs.

    Attributes:
        kernels: those of ours, the forward's first.
        refusals: what was left to Inductor and why, the best near miss first.
        materialized: intermediates with more elements than the largest input or output that still reach memory. Empty: fully fused.
        graph: a picture of what was fused.
        graphs: how many graphs Dynamo made of the program.
        warnings: what else should be known, such as a kernel that fell back.
        seconds: time by stage.
    """

    kernels: tuple[Kernel, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    materialized: tuple[Intermediate, ...] = ()
    graph: Picture = field(default_factory=lambda: Picture((), ()))
    graphs: int = 1
    warnings: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """One line."""
        passes = sum(k.passes for k in self.kernels)
        parts = [_count(len(self.kernels), "kernel", "kernels")]
        if self.kernels:
            parts.append(_count(passes, "pass", "passes"))
        parts.append(
            _count(len(self.refusals), "refusal", "refusals")
            if self.refusals
            else "nothing refused"
        )
        parts.append(
            f"{len(self.materialized)} large intermediates in memory"
            if self.materialized
            else "no large intermediate in memory"
        )
        if self.graphs != 1:
            parts.append(f"{self.graphs} graphs")
        return ", ".join(parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.summary, style="bold")
        for kernel in self.kernels:
            yield Text()
            yield from _kernel(kernel)
        for title, items, style in (
            ("Refused", self.refusals, "yellow"),
            ("In memory", self.materialized, "red"),
            ("Warnings", self.warnings, "yellow"),
        ):
            if items:
                yield Text()
                yield Text(title, style=f"bold {style}")
                yield Padding(Group(*(Text(str(item)) for item in items)), (0, 0, 0, 2))
        if self.seconds:
            yield Text()
            times = ", ".join(f"{k} {v * 1e3:.0f} ms" for k, v in self.seconds.items())
            yield Text(times, style="dim")

    def __str__(self) -> str:
        console = Console(width=120, color_system=None, force_terminal=False, record=False)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip("\n")

    def to_html(self) -> str:
        """A page of its own, with the picture and every kernel's program and source."""
        parts = [f"<h1>Flashlight</h1><p><b>{html.escape(self.summary)}</b></p>"]
        for kernel in self.kernels:
            lines = "".join(f"<li><code>{html.escape(o)}</code></li>" for o in kernel.origins)
            parts.append(
                f"<h2>{html.escape(kernel.name)}</h2><p>{html.escape(kernel.facts)}<br>"
                f"{html.escape(kernel.config)}</p>"
                f"<ul>{lines}</ul><pre>{html.escape(kernel.program)}</pre>"
            )
            if kernel.source:
                parts.append(
                    f"<details><summary>{html.escape(kernel.language or 'source')}</summary>"
                    f"<pre>{html.escape(kernel.source)}</pre></details>"
                )
        for title, items in (
            ("Refused", self.refusals),
            ("In memory", self.materialized),
            ("Warnings", self.warnings),
        ):
            if items:
                rows = "".join(f"<li>{html.escape(str(item))}</li>" for item in items)
                parts.append(f"<h2>{title}</h2><ul>{rows}</ul>")
        if self.graph.boxes:
            parts.append(f"<h2>Graph</h2>{self.graph.svg}")
        return _PAGE.format(title="Flashlight", body="\n".join(parts))

    def _repr_html_(self) -> str:
        return self.to_html()


def _kernel(kernel: Kernel) -> RenderResult:
    phase = f"  [{kernel.phase}]" if kernel.phase != "forward" else ""
    yield Text(f"{kernel.name}{phase}", style="bold cyan")
    facts = Table.grid(padding=(0, 2))
    facts.add_row("  does", kernel.facts)
    if kernel.config:
        facts.add_row("  tiles", Text(kernel.config))
    for note in kernel.notes:
        facts.add_row("  note", Text(note))
    for n, line in enumerate(kernel.origins):
        facts.add_row("  from" if n == 0 else "", Text(line))
    yield facts
    yield Padding(
        Syntax(kernel.program, "text", background_color="default", word_wrap=True), (0, 0, 0, 2)
    )


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _scaled(value: float) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
