"""How operations are spelled in Gluon: as in Triton, but for helpers that only groups of warps with roles need."""

from __future__ import annotations

import re

from flashlight.codegen.triton_ops import HELPERS
from flashlight.errors import CompileError

_SPELLED = frozenset(
    re.findall(
        r"\w+",
        """
    abs arange atomic_add cast ceil cos erf exp exp2 float16 bfloat16 float32 floor full inline_asm_elementwise int1 int8 int16
    int32 int64 load log log2 max maximum min minimum program_id range reduce rsqrt sin sqrt static_range store sum uint8 uint32
    where constexpr reshape convert_layout
    """,
    )
)
"""What Gluon has of Triton's language, of what is printed here."""

GLUON_HELPERS = {
    "_exp2": """
@gluon.jit
def _exp2(x):
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )
""",
    "_widen": """
@gluon.jit
def _widen(x):
    if x.dtype == gl.bfloat16:
        # one instruction for each of two bf16 of a word, where a cast takes three for both
        return gl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=f,=f,r", [x], dtype=gl.float32,
            is_pure=True, pack=2,
        )
    else:  # what chooses between numbers has 32 bits already
        return x.to(gl.float32)
""",
    "_here": """
@gluon.jit
def _here(x):
    # no instruction: x is computed before what follows, or it would wait and all that it is made of would take registers
    return gl.inline_asm_elementwise("", "=f,0", [x], dtype=gl.float32, is_pure=False, pack=1)
""",
    "_keep": """
@gluon.jit
def _keep(x):
    # no instruction: the registers of x stay as they are up to here, as a running product reads them
    return gl.inline_asm_elementwise("", "=r,0", [x], dtype=x.dtype, is_pure=False, pack=2)
""",
}


def helper(name: str) -> str:
    """The function of a name that operations are printed with."""
    if name.startswith(_RESCALE):
        return _rescale(int(name.removeprefix(_RESCALE)))
    return GLUON_HELPERS.get(name) or spelled(HELPERS[name].text)


_RESCALE = "_rescale_"


def rescale(width: int) -> str:
    """The name of the function (x, y) that is x * y for accumulators of a width, where y is one number for each row."""
    return f"{_RESCALE}{width // 2}"


def _rescale(count: int) -> str:
    """`count`: elements of a thread, in two rows of its warp: two of the one, two of the other, and so on."""
    first, second = 2 * count, 2 * count + 2
    products = [f"mul.f32 ${n}, ${n}, ${2 * count + n};" for n in range(count)]
    by_line = [" ".join(products[n : n + 4]) for n in range(0, count, 4)]
    text = "\n".join(f'        "{line} "' for line in by_line)
    return f"""
@gluon.jit
def {_RESCALE}{count}(x, y):
    # a warp none of whose rows moves has nothing to multiply
    return gl.inline_asm_elementwise(
        "{{ .reg .pred p; .reg .pred q; "
        "setp.neu.f32 p, ${first}, 0f3F800000; setp.neu.or.f32 p, ${second}, 0f3F800000, p; "
        "vote.sync.any.pred q, p, 0xffffffff; @!q bra STAY; "
{text}
        "STAY: }}",
        "{",".join(["=f"] * count)},"
        "{",".join(map(str, range(count)))},"
        "{",".join(["f"] * count)}",
        [x, y], dtype=gl.float32, is_pure=True, pack={count},
    )
"""


def turns(consumers: int) -> list[str]:
    """Functions that wait for the turn of a group, and pass it to the next: each has a barrier that both take part in."""
    lines = []
    for what, op, shift in (("wait", "sync", 0), ("pass", "arrive", 1)):
        lines += ["", "", "@gluon.jit", f"def _{what}_turn(group: gl.constexpr):"]
        lines += ["    x = gl.full([128], 0, gl.int32, GROUP)"]
        for group in range(consumers):
            barrier = _FIRST_BARRIER + (group + shift) % consumers
            lines += [
                f"    if group == {group}:",
                f'        gl.inline_asm_elementwise("bar.{op} {barrier}, 256; mov.u32 $0, $1;", "=r,r", [x],',
                "                                  dtype=gl.int32, is_pure=False, pack=1)",
            ]
    return lines


_FIRST_BARRIER = 10  # those below are Triton's


def spelled(text: str) -> str:
    """Triton's text in Gluon, which lacks a name for Triton's way with NaN."""
    text = text.replace("@triton.jit", "@gluon.jit")
    for name in re.findall(r"\btl\.(\w+)", text):
        if name not in _SPELLED and name != "PropagateNan":
            raise CompileError(f"'{name}' has no spelling in Gluon.")
    text = re.sub(r"\btl\.range\(", "range(", text)
    return re.sub(r"\btl\.(?!PropagateNan)", "gl.", text)
