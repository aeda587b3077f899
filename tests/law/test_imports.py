"""Who may import whom. The layers are what keeps the compiler's middle free of torch and of targets."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "flashlight"
FILES = sorted(SRC.rglob("*.py"))

# Layer -> the layers of ours it may import. A layer is a folder, or a file of the package's top level.
MAY_IMPORT = {
    "ir": {"ir", "errors"},
    "rewrite": {"ir", "rewrite", "errors", "options", "trace"},
    "codegen": {"ir", "rewrite", "codegen", "errors", "options", "trace"},
    "lift": {"ir", "rewrite", "lift", "errors", "options", "trace"},
    "errors": set(),
    "options": {"errors"},
    "trace": {"errors", "options", "ir"},
}
NO_TORCH = {"ir", "rewrite", "codegen", "errors", "options", "trace", "pipeline"}
FORBIDDEN_NAMES = {"utils", "util", "common", "core", "helpers", "misc"}


def layer(path: Path) -> str:
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Every module a file imports, at any depth, as written."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {n.name for n in names}
            case ast.ImportFrom(module=module, names=names) if module:
                found |= {f"{module}.{n.name}" for n in names}
    return found


def test_layers() -> None:
    offenders = {}
    for path in FILES:
        allowed = MAY_IMPORT.get(layer(path))
        ours = {m.split(".")[1] for m in imported(path) if m.startswith("flashlight.")}
        if allowed is not None and not ours <= allowed:
            offenders[str(path.relative_to(SRC))] = sorted(ours - allowed)
    assert not offenders


def test_no_torch_in_the_middle() -> None:
    files = [p for p in FILES if layer(p) in NO_TORCH]
    assert not [p for p in files if "torch" in {m.split(".")[0] for m in imported(p)}]


def test_file_names_say_something() -> None:
    assert not [p for p in FILES if p.stem in FORBIDDEN_NAMES or p.parent.name in FORBIDDEN_NAMES]


def test_pure_packages_import_without_torch() -> None:
    modules = [
        "flashlight",
        *(
            ".".join(("flashlight", *p.relative_to(SRC).with_suffix("").parts))
            for p in FILES
            if layer(p) in ("ir", "rewrite") and p.stem != "__init__"
        ),
    ]
    code = f"import importlib, sys; [importlib.import_module(m) for m in {modules!r}]; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SRC.parent, timeout=60)
