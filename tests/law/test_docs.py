"""The documents are in step with the sources, and the programs they print are programs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from flashlight.ir.text import parse_program

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_generated_documents_are_in_step() -> None:
    command = [sys.executable, str(ROOT / "tools" / "write_docs.py"), "--check"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr


def test_printed_programs_parse() -> None:
    blocks = [
        block
        for path in DOCS.glob("*.md")
        for block in re.findall(r"```\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
        if block.startswith("program ")
    ]
    assert blocks
    for block in blocks:
        parse_program(block)


def test_links_lead_somewhere() -> None:
    for path in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (path.parent / link).exists(), f"{path.name}: {link}"


def test_every_decision_is_listed() -> None:
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    records = [p.name for p in (DOCS / "decisions").glob("[0-9]*.md")]
    assert records
    assert all(name in index for name in records)
