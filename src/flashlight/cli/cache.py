"""`cache`: what is stored, why, and how to be rid of it."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from flashlight.cli.console import console, fail
from flashlight.runtime.cache import root


def add(commands: Any) -> None:
    """Declare the arguments."""
    parser = commands.add_parser("cache", help="list, show or clear compiled kernels")
    parser.add_argument(
        "action", choices=("path", "list", "show", "clear"), nargs="?", default="list"
    )
    parser.add_argument(
        "key", nargs="?", help="of an entry, or the beginning of one, for show and clear"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Entries are the folders that hold a key.json; see runtime.cache."""
    folder, out = root(), console()
    if args.action == "path":
        out.print(str(folder), soft_wrap=True, highlight=False)
        return 0
    entries = sorted(p.parent for p in folder.rglob("key.json")) if folder.is_dir() else []
    if args.key:
        entries = [e for e in entries if e.name.startswith(args.key)]
        if not entries:
            fail(f"No entry of '{folder}' starts with '{args.key}'.")
    match args.action:
        case "list":
            out.print(_table(entries))
            out.print(f"{len(entries)} entries in {folder}", highlight=False, soft_wrap=True)
        case "show":
            for entry in entries if args.key else entries[-1:]:
                _show(entry, out)
        case "clear":
            for entry in entries:
                shutil.rmtree(entry, ignore_errors=True)
            out.print(
                f"{len(entries)} entries removed from {folder}", highlight=False, soft_wrap=True
            )
    return 0


def _table(entries: list[Path]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("key", "made", "KiB", "kind", "files"):
        table.add_column(heading)
    for entry in entries:
        key, files = _record(entry)
        size = sum(p.stat().st_size for p in entry.rglob("*") if p.is_file()) / 1024
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.stat().st_mtime))
        kind = str(key.get("kind", "?"))
        table.add_row(entry.name[:16], made, f"{size:.0f}", kind, ", ".join(files))
    return table


def _record(entry: Path) -> tuple[dict[str, Any], list[str]]:
    """What the key was made of, and the names of the files; both empty for a damaged entry."""
    try:
        record = json.loads((entry / "key.json").read_text(encoding="utf-8"))
        return dict(record["key"]), sorted(record["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}, []


def _show(entry: Path, out: Any) -> None:
    out.print(f"[bold]{entry}[/]", highlight=False, soft_wrap=True)
    key, _ = _record(entry)
    for name, value in key.items():
        text = str(value)
        joined = f"\n{text}" if "\n" in text else f" {text}"
        out.print(f"{name}:{joined}", highlight=False, markup=False, soft_wrap=True)
    for path in sorted(p for p in entry.rglob("*") if p.is_file()):
        out.print(f"  {path.relative_to(entry)}  {path.stat().st_size} bytes", highlight=False)
