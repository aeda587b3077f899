"""Programs to text. The notation is described in `ir.text`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    Binary,
    Buffer,
    Cast,
    Const,
    Dim,
    Expr,
    Index,
    Load,
    Reduce,
    Select,
    Size,
    Unary,
)
from flashlight.ir.nests import Carry, Give, Loop, Nest, Pass, Program, Statement
from flashlight.ir.visit import children, free_dims

# How infix operators are written and how tightly they bind; what a prefix operator and an atom bind at.
INFIX = {
    "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1), "eq": ("==", 1), "ne": ("!=", 1),
    "or": ("|", 2), "xor": ("^", 3), "and": ("&", 4),
    "shl": ("<<", 5), "shr": (">>", 5),
    "add": ("+", 6), "sub": ("-", 6),
    "mul": ("*", 7), "div": ("/", 7), "floordiv": ("//", 7), "mod": ("%", 7),
    "pow": ("**", 9),
}  # fmt: skip
PREFIX = {"neg": "-", "anchor": "~", "not": "!"}
COMPARE, ADDITIVE, PREFIXED, POWER, ATOM = 1, 6, 8, 9, 10

# A shared subterm is named when its text is longer than this; a lone one when it nests deeper than this.
_SHARED_LENGTH = 20
_SHARED_LOAD_LENGTH = 40
_NESTING = 40
_LINE = 100


def print_program(program: Program) -> str:
    """The program as text, without provenance. Ends without a newline."""
    dims = dims_of(program)
    taken = _names_of(program) | {d.name for d in dims}
    lines = [f"program {program.name}"]
    if program.sizes:
        lines.append("  size " + ", ".join(s.name for s in program.sizes))
    lines.extend(_wrapped("  dim ", [f"{d.name}: {_print_extent(d.extent)}" for d in dims]))
    lines.extend(f"  input {print_buffer(b)}" for b in program.inputs)
    for statement in program.statements:
        lines.extend("  " + line for line in _statement_lines(statement, taken, dims))
    lines.append(" ".join(["  output", ", ".join(program.outputs)]).rstrip())
    return "\n".join(lines)


def print_statement(statement: Statement) -> str:
    """One nest or loop as text; dims are named, not declared."""
    dims = statement_dims(statement)
    names = _statement_names(statement) | {d.name for d in dims}
    return "\n".join(_statement_lines(statement, names, dims))


def print_expr(expr: Expr) -> str:
    """An expression on one line. Big shared subterms come first, as `let t = ...; `."""
    names = {n.buffer.name for n in _fresh(expr, {}) if isinstance(n, Load)}
    names |= {n.name for n in _fresh(expr, {}) if isinstance(n, Size)}
    names |= {d.name for d in _expr_dims(expr)}
    writer = _Writer(names, {}, [expr])
    text = writer.write(expr)
    return "".join(f"let {name} = {value}; " for name, _, value in writer.lets) + text


def _print_extent(extent: Expr) -> str:
    """A size in full: declarations have no place for names."""
    return _Writer(set(), {}, ()).write(extent)


def print_buffer(buffer: Buffer) -> str:
    """A declaration: `Q: bf16[S, 64]`."""
    shape = ", ".join(_print_extent(extent) for extent in buffer.shape)
    return f"{buffer.name}: {buffer.dtype.value}[{shape}]"


def print_node(node: Expr | Dim | Buffer) -> str:
    """The repr of an interned node."""
    match node:
        case Dim(name, extent):
            return f"{name}: {_print_extent(extent)}"
        case Buffer():
            return print_buffer(node)
        case _:
            return print_expr(node)


def print_carry(carry: Carry) -> str:
    """A carry's line on its own; other carries are printed with their index."""
    writer = _Writer({d.name for d in carry.dims}, {}, _carry_exprs(carry))
    return _where(_carry_line(carry, writer), writer)


def print_give(give: Give) -> str:
    """A give's line on its own; carries are printed with their index."""
    writer = _Writer({d.name for d in give.dims}, {}, [give.expr])
    return _where(_give_line(give, writer), writer)


def _where(line: str, writer: _Writer) -> str:
    return "".join(f"let {name} = {value}; " for name, _, value in writer.lets) + line


def _statement_lines(statement: Statement, taken: set[str], dims: Iterable[Dim]) -> list[str]:
    order = {dim: i for i, dim in enumerate(dims)}
    match statement:
        case Nest():
            writer = _Writer(taken, {}, [statement.body])
            monoid = f"{statement.monoid.name} " if statement.monoid else ""
            bar = _bar(statement.parallel, statement.reduced, bar=statement.monoid is not None)
            head = f"nest {statement.name} {bar} {statement.dtype.value}: {monoid}"
            return [head + writer.write(statement.body), *_let_lines(writer.take(), order)]
        case Loop():
            return _loop_lines(statement, taken, order)
        case _:
            assert_never(statement)


def _loop_lines(loop: Loop, taken: set[str], order: Mapping[Dim, int]) -> list[str]:
    results = [r for p in loop.passes for r in _results(p)]
    exprs = [e for r in results for e in (_carry_exprs(r) if isinstance(r, Carry) else [r.expr])]
    writer = _Writer(taken, {r.name: r.dims for r in results}, exprs)
    lines = [f"loop {_bar(loop.kept, loop.loop, bar=True)}"]
    for number, part in enumerate(loop.passes, 1):
        if number > 1:
            lines.append(f"  pass {number}")
        for carry in part.carries:
            line = _carry_line(carry, writer)
            lines.extend([*_let_lines(writer.take(), order), "  " + line])
        for give in part.gives:
            line = _give_line(give, writer)
            lines.extend([*_let_lines(writer.take(), order), "  " + line])
    return lines


def _results(part: Pass) -> list[Carry | Give]:
    return [*part.carries, *part.gives]


def _carry_line(carry: Carry, writer: _Writer) -> str:
    line = f"carry {carry.name} {_bar(carry.dims, ())} {carry.dtype.value}: "
    line += f"{carry.monoid.name} {writer.write(carry.body)}"
    if carry.weight or carry.shifts or carry.lower:
        line += " moves"
    if carry.weight:
        line += f" exp({', '.join(writer.write(w) for w in carry.weight)})"
    if carry.shifts:
        line += f" shift {', '.join(writer.write(s.value) for s in carry.shifts)}"
    if carry.lower:
        line += f" over {', '.join(carry.lower)}"
    return line


def _give_line(give: Give, writer: _Writer) -> str:
    return f"give {give.name} {_bar(give.dims, ())} {give.dtype.value} = {writer.write(give.expr)}"


def _carry_exprs(carry: Carry) -> list[Expr]:
    return [carry.body, *carry.weight, *(shift.value for shift in carry.shifts)]


def _let_lines(lets: Iterable[tuple[str, Expr, str]], order: Mapping[Dim, int]) -> list[str]:
    lines = []
    for name, expr, text in lets:
        dims = sorted(free_dims(expr), key=lambda d: (order.get(d, len(order)), d.name))
        head = f"({', '.join(d.name for d in dims)})" if dims else ""
        lines.append(f"  let {name}{head} = {text}")
    return lines


def _bar(left: Sequence[Dim], right: Sequence[Dim], bar: bool = False) -> str:
    text = ", ".join(d.name for d in left)
    if right or bar:
        text = f"{text} | {', '.join(d.name for d in right)}".strip()
    return f"({text})"


def _wrapped(head: str, items: Sequence[str]) -> list[str]:
    """`head` and the items on as few lines as fit, `head` repeated on each."""
    lines: list[str] = []
    line = ""
    for item in items:
        if line and len(line) + 2 + len(item) > _LINE:
            lines.append(line)
            line = ""
        line = f"{line}, {item}" if line else head + item
    return [*lines, line] if line else lines


class _Writer:
    """Writes the expressions of one statement, naming shared subterms the first time they come up."""

    def __init__(
        self, taken: set[str], bare: Mapping[str, tuple[Dim, ...]], roots: Sequence[Expr]
    ) -> None:
        """`bare`: carries and gives that are printed without an index at these dims; `roots`: all that will be written."""
        self.lets: list[tuple[str, Expr, str]] = []
        self._taken = set(taken)
        self._next = {"s": 1, "t": 1}
        self._bare = {name: tuple(Index(d) for d in dims) for name, dims in bare.items()}
        self._uses: Counter[Expr] = Counter(roots)
        self._has_sum: set[Expr] = set()
        seen: dict[Expr, object] = {}
        for root in roots:
            for node in _fresh(root, seen):
                seen[node] = True
                self._uses.update(children(node))
        # text, binding level and nesting depth of each node
        self._done: dict[Expr, tuple[str, int, int]] = {}

    def write(self, root: Expr) -> str:
        """The text of `root`; what has to be named first is appended to `lets`."""
        for node in _fresh(root, self._done):
            text, level = self._text(node)
            depth = 1 + max((self._done[c][2] for c in children(node)), default=0)
            if isinstance(node, Reduce) or any(c in self._has_sum for c in children(node)):
                self._has_sum.add(node)
            if self._named(node, text, depth):
                name = self._name("s" if node in self._has_sum else "t")
                self.lets.append((name, node, text))
                text, level, depth = name, ATOM, 0
            self._done[node] = (text, level, depth)
        return self._done[root][0]

    def take(self) -> list[tuple[str, Expr, str]]:
        """The lets since the last take."""
        lets, self.lets = self.lets, []
        return lets

    def _named(self, node: Expr, text: str, depth: int) -> bool:
        if depth > _NESTING:
            return True
        length = _SHARED_LOAD_LENGTH if isinstance(node, Load) else _SHARED_LENGTH
        return len(text) > length and self._uses[node] > 1

    def _name(self, letter: str) -> str:
        while True:
            number = self._next[letter]
            self._next[letter] += 1
            name = letter if number == 1 else f"{letter}{number}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def _text(self, node: Expr) -> tuple[str, int]:
        match node:
            case Const():
                text = _literal(node)
                return text, PREFIXED if text.startswith("-") else ATOM
            case Size(name):
                return name, ATOM
            case Index(dim):
                return dim.name, ATOM
            case Load(buffer, index):
                if self._bare.get(buffer.name) == index:
                    return buffer.name, ATOM
                return f"{buffer.name}[{', '.join(self._at(i, 0) for i in index)}]", ATOM
            case Unary(op, x):
                if op not in PREFIX:
                    return f"{op}({self._at(x, 0)})", ATOM
                inner = self._at(x, PREFIXED)
                if inner[0] in PREFIX.values() or (op == "neg" and isinstance(_leftmost(x), Const)):
                    # ~(-m) reads better than ~-m; -(1.0) is no literal
                    inner = f"({self._at(x, 0)})"
                return PREFIX[op] + inner, PREFIXED
            case Binary(op, a, b):
                if op not in INFIX:
                    return f"{op}({self._at(a, 0)}, {self._at(b, 0)})", ATOM
                symbol, level = INFIX[op]
                # `a < (b & c)`: languages differ in which binds tighter
                right = ADDITIVE if level == COMPARE else level + 1
                left = right if level in (COMPARE, POWER) else level
                return f"{self._at(a, left)} {symbol} {self._at(b, right)}", level
            case Select(c, a, b):
                return f"where({self._at(c, 0)}, {self._at(a, 0)}, {self._at(b, 0)})", ATOM
            case Cast(x, dtype):
                return f"{dtype.value}({self._at(x, 0)})", ATOM
            case Reduce(monoid, dims, body):
                names = ", ".join(d.name for d in dims)
                return f"{monoid.name}({names}: {self._at(body, 0)})", ATOM
            case _:
                assert_never(node)

    def _at(self, node: Expr, level: int) -> str:
        text, own, _ = self._done[node]
        return text if own >= level else f"({text})"


def _leftmost(expr: Expr) -> Expr:
    """What the text of a power begins with."""
    while isinstance(expr, Binary) and expr.op == "pow":
        expr = expr.a
    return expr


def _literal(const: Const) -> str:
    value, dtype = const.value, const.dtype
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value)) if dtype is DType.I64 else f"{int(value)}:{dtype.value}"
    text = repr(float(value))
    return text if dtype is DType.F32 else f"{text}:{dtype.value}"


def _fresh(root: Expr, done: Mapping[Expr, object]) -> Iterator[Expr]:
    """Subexpressions that are not in `done`, children first; `done` may grow meanwhile."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if node in done or node in seen:
            continue
        if expanded:
            seen.add(node)
            yield node
            continue
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(children(node)))


def _expr_dims(*roots: Expr) -> dict[Dim, None]:
    """Dims that occur, bound ones included, in order of appearance."""
    found: dict[Dim, None] = {}
    seen: dict[Expr, object] = {}
    for root in roots:
        for node in _fresh(root, seen):
            seen[node] = True
            match node:
                case Index(dim):
                    found[dim] = None
                case Reduce(_, dims, _):
                    found.update(dict.fromkeys(dims))
    return found


def statement_dims(statement: Statement) -> dict[Dim, None]:
    """Dims of a statement: its own, then those that inner reductions bind."""
    found: dict[Dim, None] = {}
    match statement:
        case Nest():
            found.update(dict.fromkeys((*statement.parallel, *statement.reduced)))
            found.update(_expr_dims(statement.body))
        case Loop():
            found.update(dict.fromkeys((*statement.kept, *statement.loop)))
            for dims in [r.dims for p in statement.passes for r in _results(p)]:
                found.update(dict.fromkeys(dims))
            exprs = [e for c in statement.carries for e in _carry_exprs(c)]
            found.update(_expr_dims(*exprs, *(g.expr for g in statement.gives)))
        case _:
            assert_never(statement)
    return found


def dims_of(program: Program) -> dict[Dim, None]:
    found: dict[Dim, None] = {}
    for statement in program.statements:
        found.update(statement_dims(statement))
    return found


def _statement_names(statement: Statement) -> set[str]:
    match statement:
        case Nest(name):
            exprs: list[Expr] = [statement.body]
            names = {name}
        case Loop():
            exprs = [e for c in statement.carries for e in _carry_exprs(c)]
            exprs += [g.expr for g in statement.gives]
            names = {c.name for c in statement.carries} | {g.name for g in statement.gives}
        case _:
            assert_never(statement)
    seen: dict[Expr, object] = {}
    for expr in exprs:
        for node in _fresh(expr, seen):
            seen[node] = True
            match node:
                case Load(buffer, _):
                    names.add(buffer.name)
                case Size(size):
                    names.add(size)
    return names


def _names_of(program: Program) -> set[str]:
    names = {s.name for s in program.sizes} | {b.name for b in program.inputs}
    for statement in program.statements:
        names |= _statement_names(statement)
    return names
