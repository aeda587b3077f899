"""`explain`: compile a function of a file, or a program of the zoo, and print what became of it.

    python -m flashlight explain model.py:attention --input 2,8,1024,64:bf16 --input 2,8,1024,64:bf16 --input 2,8,1024,64:bf16
    python -m flashlight explain model.py:attention            (model.py has a function `inputs` that returns the arguments)
    python -m flashlight explain causal                        (a program of flashlight.programs)

A file's inputs are what `inputs()`, `example_inputs()` or `make(device, dtype, scale, gen)` in it returns: a tuple, or a dict of
keyword arguments.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashlight.cli.console import console, fail

if TYPE_CHECKING:
    import torch

DTYPES = {
    "f16": "float16", "fp16": "float16", "bf16": "bfloat16", "f32": "float32", "fp32": "float32",
    "f64": "float64", "i32": "int32", "i64": "int64", "bool": "bool",
}  # fmt: skip
MAKERS = ("inputs", "example_inputs", "make")


def add(commands: Any) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "explain",
        help="what became of a program, and why",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", help="FILE.py:function, or the name of a program of the zoo")
    parser.add_argument(
        "--input", action="append", default=[], metavar="SIZES[:DTYPE]", help="a random tensor"
    )
    parser.add_argument(
        "--inputs", metavar="NAME", help="the function of the file that makes the arguments"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--dtype", default="f32", help="of the zoo's inputs and of make()")
    parser.add_argument("--grad", action="store_true", help="let float tensors require gradients")
    parser.add_argument("--source", action="store_true", help="print the generated code too")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page")
    parser.add_argument(
        "--graph", type=Path, metavar="FILE", help="write the picture: .svg or .dot"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Status 1 if a large intermediate reaches memory or nothing was fused."""
    import torch

    from flashlight.report.explain import explain

    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.dtype not in DTYPES:
        fail(f"Unknown dtype '{args.dtype}'; expected one of {', '.join(DTYPES)}.")
    dtype = getattr(torch, DTYPES[args.dtype])
    fn, positional, keywords = _program(args, device, dtype)
    if args.grad:
        for value in (*positional, *keywords.values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                value.requires_grad_()
    with torch.enable_grad() if args.grad else torch.no_grad():
        report = explain(fn, *positional, **keywords)
    out = console()
    out.print(report)
    if args.source:
        for kernel in report.kernels:
            out.print(f"\n[bold]{kernel.name}[/] {kernel.language}")
            out.print(kernel.source, markup=False, highlight=False, soft_wrap=True)
    if args.html:
        args.html.write_text(report.to_html(), encoding="utf-8")
        out.print(f"\n{args.html}")
    if args.graph:
        report.graph.save(args.graph)
        out.print(f"\n{args.graph}")
    return int(bool(report.materialized) or not report.kernels)


def _program(
    args: argparse.Namespace, device: str, dtype: torch.dtype
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    file, colon, name = args.target.rpartition(":")
    if not colon:
        from flashlight.programs.variants import VARIANTS

        variant = VARIANTS.get(args.target)
        if variant is None:
            fail(
                f"There is no program '{args.target}'; expected FILE.py:function or one of {', '.join(VARIANTS)}."
            )
        return variant.fn, variant.make(variant.tiny, dtype, device, 0), {}
    module = _load(Path(file))
    fn = getattr(module, name, None)
    if fn is None:
        fail(f"There is no '{name}' in '{file}'.")
    if args.input:
        return fn, tuple(_tensor(text, device) for text in args.input), {}
    made = _made(module, args.inputs, device, dtype, file)
    if isinstance(made, dict):
        return fn, (), made
    return fn, tuple(made) if isinstance(made, (tuple, list)) else (made,), {}


def _load(path: Path) -> Any:
    if not path.is_file():
        fail(f"There is no file '{path}'.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        fail(f"'{path}' is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _made(module: Any, name: str | None, device: str, dtype: torch.dtype, file: str) -> Any:
    import torch

    names = (name,) if name else MAKERS
    make = next((getattr(module, n) for n in names if hasattr(module, n)), None)
    if make is None:
        fail(
            f"'{file}' has none of {', '.join(names)} to make arguments; give --input SIZES for each."
        )
    wanted = inspect.signature(make).parameters
    known = {
        "device": device,
        "dtype": dtype,
        "scale": "tiny" if device == "cpu" else "real",
        "gen": torch.Generator(device=device).manual_seed(0),
    }
    return make(**{k: v for k, v in known.items() if k in wanted})


def _tensor(text: str, device: str) -> torch.Tensor:
    import torch

    sizes, _, dtype = text.partition(":")
    try:
        shape = tuple(int(s) for s in sizes.split(",") if s)
        kind = getattr(torch, DTYPES[dtype or "f32"])
    except (ValueError, KeyError):
        fail(f"Expected sizes and a dtype such as '2,8,1024,64:bf16', got '{text}'.")
    if kind.is_floating_point:
        return torch.randn(shape, device=device).to(kind)
    return torch.randint(0, 2, shape, device=device).to(kind)
