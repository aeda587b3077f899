"""Programs as text, exactly: `parse_program(print_program(p)) == p`.

The text is the language of tests, dumps, cache keys and bug reports:

    program attention
      size S, T
      dim q: S, k: T, d: 64, e: 64
      input Q: bf16[S, 64]
      input K: bf16[T, 64]
      input V: bf16[T, 64]
      loop (q | k)
        let s(q, k) = sum(d: Q[q, d] * K[k, d]) * 0.125
        carry m (q) f32: max s
        carry l (q) f32: sum exp(s - ~m) moves exp(-m)
        carry A (q, e) f32: sum exp(s - ~m) * V[k, e] moves exp(-m)
        give O (q, e) bf16 = A / l
      output O

One statement a line; indentation and `#` comments mean nothing. A `let` belongs to the nest or loop above it and only names a
subterm, so a shared graph prints in space linear in its nodes; the parser puts the subterm back. Inside a loop a bare name is
its carry or give at its own dims. Integers are i64 and floats f32; other literals carry their type (`0.5:f64`, `1:i32`).
From loose to tight: comparisons, `|`, `^`, `&`, `<< >>`, `+ -`, `* / // %`, prefix `- ~ !`, `**`.
"""

from flashlight.ir.parser import (
    RESERVED,
    TextError,
    is_name,
    names_in,
    parse_expr,
    parse_program,
)
from flashlight.ir.printer import (
    print_buffer,
    print_carry,
    print_expr,
    print_give,
    print_node,
    print_program,
    print_statement,
)

__all__ = [
    "RESERVED",
    "TextError",
    "is_name",
    "names_in",
    "parse_expr",
    "parse_program",
    "print_buffer",
    "print_carry",
    "print_expr",
    "print_give",
    "print_node",
    "print_program",
    "print_statement",
]
