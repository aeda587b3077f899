"""What a run leaves: rows, the facts about the machine, and the JSON file that holds both."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from flashlight import __version__
from flashlight.bench.cells import Cell, short
from flashlight.runtime.cache import package_fingerprint

PACKAGE = Path(__file__).parents[1]


@dataclass
class Row:
    """The result of one cell. Times are milliseconds, errors relative to float64, memory in MiB beyond inputs and result."""

    variant: str
    shape: dict[str, int]
    dtype: str
    ms: dict[str, float] = field(default_factory=dict)
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)
    workspace: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    allowed_error: float = 0.0
    correct: bool = False
    kernels: int | None = None
    tflops: float | None = None
    share_of_limit: float | None = None
    flops: float = 0.0
    bytes: float = 0.0
    notes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, cell: Cell) -> Row:
        """An empty row."""
        return cls(cell.variant, asdict(cell.shape), short(cell.dtype))

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two rows the same cell."""
        return self.variant, *self.shape.values(), self.dtype

    def speedup(self, system: str) -> float | None:
        """How many times as fast as `system` ours is."""
        ours, theirs = self.ms.get("ours"), self.ms.get(system)
        return theirs / ours if ours and theirs else None

    @property
    def label(self) -> str:
        s = self.shape
        rows = f" N{s['rows']}" if s["rows"] > 1 else ""
        return f"B{s['batch']}{rows} H{s['heads']}/{s['kv_heads']} S{s['length']} D{s['head_dim']}"


def machine(device: torch.device) -> dict[str, Any]:
    """Date, device, versions and commit."""
    facts: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": _device_name(device),
        "flashlight": __version__,
        "commit": _commit(),
        "source": package_fingerprint(),
        "torch": torch.__version__,
        "triton": _version_of("triton"),
        "python": platform.python_version(),
        "command": " ".join(Path(a).name if "/" in a else a for a in sys.argv[1:]),
    }
    if device.type == "cuda":
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else ""
    return f"{model or platform.processor() or 'CPU'}, {torch.get_num_threads()} threads"


def _version_of(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout, with a plus sign if it has changes; FLASHLIGHT_COMMIT where there is no git."""
    try:
        run = subprocess.run(
            ["git", "-C", str(PACKAGE), "describe", "--always", "--dirty=+", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("FLASHLIGHT_COMMIT")
    return run.stdout.strip()


def save(path: Path, facts: dict[str, Any], rows: list[Row]) -> None:
    """Write the file whole or not at all; called after every cell, so that a stopped run leaves what it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": facts, "rows": [asdict(r) for r in rows]}, indent=1)
    beside = path.with_name(path.name + ".part")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(path)


def load(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """What `save` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return data["machine"], [Row(**row) for row in data["rows"]]
