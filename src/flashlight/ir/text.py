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
From loose to tight: comparisons, `|`, `^`, `&`, `+ -`, `* / // %`, prefix `- ~ !`, `**`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias, assert_never

from flashlight.ir.dtypes import DType
from flashlight.ir.exprs import (
    UNARY,
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
from flashlight.ir.monoids import MONOIDS, Monoid
from flashlight.ir.nests import Carry, Give, Loop, Nest, Pass, Program, Shift, Statement
from flashlight.ir.visit import children, free_dims

# Bare words that are literals, so that nothing else may be called so.
RESERVED = frozenset({"inf", "nan", "true", "false"})
NAME = r"[A-Za-z_][A-Za-z0-9_]*'*"

_INFIX = {
    "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1), "eq": ("==", 1), "ne": ("!=", 1),
    "or": ("|", 2), "xor": ("^", 3), "and": ("&", 4),
    "add": ("+", 5), "sub": ("-", 5),
    "mul": ("*", 6), "div": ("/", 6), "floordiv": ("//", 6), "mod": ("%", 6),
    "pow": ("**", 8),
}  # fmt: skip
_OPERATORS = {symbol: (op, level) for op, (symbol, level) in _INFIX.items()}
_PREFIX = {"neg": "-", "anchor": "~", "not": "!"}
_PREFIXES = {symbol: op for op, symbol in _PREFIX.items()}
_COMPARE, _UNARY, _POWER, _ATOM = 1, 7, 8, 9
_DTYPES = {dtype.value: dtype for dtype in DType}

# A shared subterm is named when its text is longer than this; a lone one when it nests deeper than this.
_SHARED_LENGTH = 20
_SHARED_LOAD_LENGTH = 40
_NESTING = 40
_LINE = 100


class TextError(ValueError):
    """Text that is no program; says where."""


# -- Printing


def print_program(program: Program) -> str:
    """The program as text, without provenance. Ends without a newline."""
    dims = _dims_of(program)
    taken = _names_of(program) | {d.name for d in dims}
    lines = [f"program {program.name}"]
    if program.sizes:
        lines.append("  size " + ", ".join(s.name for s in program.sizes))
    lines.extend(_wrapped("  dim ", [f"{d.name}: {print_expr(d.extent)}" for d in dims]))
    lines.extend(f"  input {print_buffer(b)}" for b in program.inputs)
    for statement in program.statements:
        lines.extend("  " + line for line in _statement_lines(statement, taken, dims))
    lines.append(" ".join(["  output", ", ".join(program.outputs)]).rstrip())
    return "\n".join(lines)


def print_statement(statement: Statement) -> str:
    """One nest or loop as text; dims are named, not declared."""
    dims = _statement_dims(statement)
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


def print_buffer(buffer: Buffer) -> str:
    """A declaration: `Q: bf16[S, 64]`."""
    shape = ", ".join(print_expr(extent) for extent in buffer.shape)
    return f"{buffer.name}: {buffer.dtype.value}[{shape}]"


def print_node(node: Expr | Dim | Buffer) -> str:
    """The repr of an interned node."""
    match node:
        case Dim(name, extent):
            return f"{name}: {print_expr(extent)}"
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
                text, level, depth = name, _ATOM, 0
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
                return text, _UNARY if text.startswith("-") else _ATOM
            case Size(name):
                return name, _ATOM
            case Index(dim):
                return dim.name, _ATOM
            case Load(buffer, index):
                if self._bare.get(buffer.name) == index:
                    return buffer.name, _ATOM
                return f"{buffer.name}[{', '.join(self._at(i, 0) for i in index)}]", _ATOM
            case Unary(op, x):
                if op not in _PREFIX:
                    return f"{op}({self._at(x, 0)})", _ATOM
                inner = self._at(x, _UNARY)
                if inner[0] in _PREFIXES or (op == "neg" and isinstance(_leftmost(x), Const)):
                    # ~(-m) reads better than ~-m; -(1.0) is no literal
                    inner = f"({self._at(x, 0)})"
                return _PREFIX[op] + inner, _UNARY
            case Binary(op, a, b):
                if op not in _INFIX:
                    return f"{op}({self._at(a, 0)}, {self._at(b, 0)})", _ATOM
                symbol, level = _INFIX[op]
                left = level + 1 if level in (_COMPARE, _POWER) else level
                return f"{self._at(a, left)} {symbol} {self._at(b, level + 1)}", level
            case Select(c, a, b):
                return f"where({self._at(c, 0)}, {self._at(a, 0)}, {self._at(b, 0)})", _ATOM
            case Cast(x, dtype):
                return f"{dtype.value}({self._at(x, 0)})", _ATOM
            case Reduce(monoid, dims, body):
                names = ", ".join(d.name for d in dims)
                return f"{monoid.name}({names}: {self._at(body, 0)})", _ATOM
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


def _statement_dims(statement: Statement) -> dict[Dim, None]:
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


def _dims_of(program: Program) -> dict[Dim, None]:
    found: dict[Dim, None] = {}
    for statement in program.statements:
        found.update(_statement_dims(statement))
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


# -- Parsing

Named: TypeAlias = Dim | Size | Buffer


def parse_program(text: str) -> Program:
    """The program that prints as `text`. Raises TextError. Says nothing about whether it is valid: `ir.verify` does."""
    return _ProgramParser(text).program()


def parse_expr(text: str, names: Iterable[Named] | Program = ()) -> Expr:
    """The expression that prints as `text`; `names` are the dims, sizes and buffers it may mention (those of a program, if given one)."""
    scope = _Scope()
    for item in names_in(names) if isinstance(names, Program) else names:
        scope.declare(item)
    *lets, body = text.split(";")
    for let in lets:
        line = _Line(let, 1)
        line.expect("let")
        name = line.name()
        line.expect("=")
        scope.lets[name] = _whole(line, scope)
    return _whole(_Line(body, 1), scope)


def names_in(program: Program) -> tuple[Named, ...]:
    """Everything an expression of the program may mention: sizes, dims, inputs, results and carries."""
    carries = (c.buffer for loop in program.loops for c in loop.carries)
    results = program.results().values()
    return (*program.sizes, *_dims_of(program), *program.inputs, *results, *carries)


@dataclass
class _Scope:
    """What names mean: program-wide, and within one statement (`bare`, `lets`)."""

    sizes: dict[str, Size] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    bare: dict[str, Load] = field(default_factory=dict)
    lets: dict[str, Expr] = field(default_factory=dict)

    def declare(self, item: Named) -> None:
        match item:
            case Size(name):
                self.sizes[name] = item
            case Dim(name):
                self.dims[name] = item
            case Buffer(name):
                self.buffers[name] = item
            case _:
                assert_never(item)

    def bare_name(self, name: str) -> Expr | None:
        if name in self.lets:
            return self.lets[name]
        if name in self.bare:
            return self.bare[name]
        if name in self.dims:
            return Index(self.dims[name])
        return self.sizes.get(name)


_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?::(?:"
    + "|".join(_DTYPES)
    + r")\b)?)|(?P<name>"
    + NAME
    + r"(?::(?:f16|bf16|f64)\b)?)|(?P<symbol>\*\*|//|<=|>=|==|!=|[-+*/%<>=&|^~!()\[\],:])|(?P<bad>\S))"
)
_TYPED_WORD = re.compile(r"(?P<word>inf|nan):(?P<dtype>f16|bf16|f64)")
_END = ""


class _Line:
    """The tokens of one line and a position in them."""

    def __init__(self, text: str, number: int) -> None:
        self.text = text.strip()
        self.number = number
        self.tokens: list[str] = []
        self.position = 0
        for match in _TOKEN.finditer(text):
            token = match.group(match.lastgroup or "bad")
            if match.lastgroup == "bad":
                self.fail(f"Unexpected character {token!r}")
            if match.lastgroup == "name" and ":" in token and not _TYPED_WORD.fullmatch(token):
                word, _, dtype = token.partition(":")  # `sum(d:f16(x))`: the colon is a symbol
                self.tokens.extend((word, ":", dtype))
            else:
                self.tokens.append(token)

    def peek(self, ahead: int = 0) -> str:
        place = self.position + ahead
        return self.tokens[place] if place < len(self.tokens) else _END

    def next(self) -> str:
        token = self.peek()
        self.position += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self.position += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail(f"Expected {token!r}, got {self.peek() or 'the end of the line'!r}")

    def name(self) -> str:
        token = self.next()
        if not (token[:1].isalpha() or token[:1] == "_"):
            self.fail(f"Expected a name, got {token or 'the end of the line'!r}")
        return token

    def dtype(self) -> DType:
        token = self.next()
        if token not in _DTYPES:
            self.fail(f"Expected a type, got {token or 'the end of the line'!r}")
        return _DTYPES[token]

    def end(self) -> None:
        if self.peek():
            self.fail(f"Expected the end of the line, got {self.peek()!r}")

    def fail(self, message: str) -> NoReturn:
        raise TextError(f"Line {self.number}: {message}, in {self.text!r}.")


def _whole(line: _Line, scope: _Scope) -> Expr:
    expr = _expression(line, scope)
    line.end()
    return expr


def _expression(line: _Line, scope: _Scope, level: int = 0) -> Expr:
    """An expression whose infix operators all bind at least as tightly as `level`."""
    left = _prefixed(line, scope)
    while (found := _OPERATORS.get(line.peek())) is not None:
        op, own = found
        if own < level:
            break
        line.next()
        left = Binary(op, left, _expression(line, scope, own + 1))
        if own == _COMPARE and _OPERATORS.get(line.peek(), ("", 0))[1] == _COMPARE:
            line.fail("Comparisons do not chain: parenthesise")
    return left


def _prefixed(line: _Line, scope: _Scope) -> Expr:
    token = line.peek()
    if token not in _PREFIXES:
        return _atom(line, scope)
    line.next()
    following = line.peek()
    if token == "-" and (following[:1].isdigit() or following.partition(":")[0] in ("inf", "nan")):
        return _number(line, line.next(), negative=True)
    # ** binds tighter than a prefix: -x ** 2 is -(x ** 2)
    return Unary(_PREFIXES[token], _expression(line, scope, _UNARY))


def _atom(line: _Line, scope: _Scope) -> Expr:
    token = line.next()
    if token == "(":
        inner = _expression(line, scope)
        line.expect(")")
        return inner
    if token[:1].isdigit() or token.partition(":")[0] in ("inf", "nan"):
        return _number(line, token, negative=False)
    if token in ("true", "false"):
        return Const(token == "true", DType.BOOL)
    if not (token[:1].isalpha() or token[:1] == "_"):
        line.fail(f"Expected an expression, got {token or 'the end of the line'!r}")
    if line.accept("("):
        return _call(line, scope, token)
    if line.accept("["):
        if token not in scope.buffers:
            line.fail(f"Unknown buffer {token!r}")
        return Load(scope.buffers[token], _list(line, scope, "]"))
    expr = scope.bare_name(token)
    if expr is None:
        line.fail(f"Unknown name {token!r}")
    return expr


def _number(line: _Line, token: str, *, negative: bool) -> Const:
    digits, _, suffix = token.partition(":")
    is_float = not digits.isdigit()
    dtype = _DTYPES[suffix] if suffix else DType.F32 if is_float else DType.I64
    if dtype.is_float:
        value: float | int = float(digits)
        return Const(-value if negative else value, dtype)
    if is_float or dtype is DType.BOOL:
        line.fail(f"{token!r} is no literal of type {dtype.value}")
    return Const(-int(digits) if negative else int(digits), dtype)


def _list(line: _Line, scope: _Scope, close: str) -> tuple[Expr, ...]:
    items: list[Expr] = []
    while not line.accept(close):
        if items:
            line.expect(",")
        items.append(_expression(line, scope))
    return tuple(items)


def _call(line: _Line, scope: _Scope, name: str) -> Expr:
    """What follows `name(`: a reduction, a cast, an operator or a select."""
    if name in MONOIDS and _is_reduction(line):
        dims = _dim_list(line, scope, ":")
        body = _expression(line, scope)
        line.expect(")")
        return Reduce(MONOIDS[name], dims, body)
    items = _list(line, scope, ")")
    if name in _DTYPES and len(items) == 1:
        return Cast(items[0], _DTYPES[name])
    if name in UNARY and name not in _PREFIX and len(items) == 1:
        return Unary(name, items[0])
    if name in ("min", "max") and len(items) == 2:
        return Binary(name, items[0], items[1])
    if name == "where" and len(items) == 3:
        return Select(items[0], items[1], items[2])
    line.fail(f"Unknown function {name!r} of {len(items)} arguments")


def _is_reduction(line: _Line) -> bool:
    """Whether names and commas up to a colon follow."""
    ahead = 0
    while (token := line.peek(ahead)) == "," or token[:1].isalpha() or token[:1] == "_":
        ahead += 1
    return token == ":"


def _dim_list(line: _Line, scope: _Scope, *closes: str) -> tuple[Dim, ...]:
    """Known dims up to one of `closes`, which is consumed."""
    dims: list[Dim] = []
    while line.peek() not in closes:
        if dims:
            line.expect(",")
        name = line.name()
        if name not in scope.dims:
            line.fail(f"Unknown dim {name!r}")
        dims.append(scope.dims[name])
    line.next()
    return tuple(dims)


def _monoid(line: _Line) -> Monoid:
    name = line.next()
    if name not in MONOIDS:
        line.fail(f"Expected a monoid, got {name!r}")
    return MONOIDS[name]


@dataclass
class _Open:
    """A nest or loop whose head has been read: `lines` hold its body, its results and lets, each with its kind."""

    head: Nest | Loop
    lines: list[tuple[str, _Line, Carry | Give | Nest | None]] = field(default_factory=list)


_NOTHING = Const(0, DType.I64)  # stands for a body until it is read


class _ProgramParser:
    """Reads heads first and bodies second, so that what a text may say does not depend on order."""

    def __init__(self, text: str) -> None:
        self.scope = _Scope()
        self.name = "program"
        self.inputs: list[Buffer] = []
        self.outputs: tuple[str, ...] = ()
        self.open: list[_Open] = []
        for number, raw in enumerate(text.splitlines(), 1):
            if content := raw.partition("#")[0].strip():
                self._head(_Line(content, number))

    def program(self) -> Program:
        return Program(
            self.name,
            tuple(self.scope.sizes.values()),
            tuple(self.inputs),
            tuple(self._statement(item) for item in self.open),
            self.outputs,
        )

    def _head(self, line: _Line) -> None:
        match line.next():
            case "program":
                self.name = line.name()
                line.end()
            case "size":
                for name in self._names(line):
                    self._unique(line, name)
                    self.scope.declare(Size(name))
            case "dim":
                self._dims(line)
            case "input":
                self._input(line)
            case "nest":
                self._nest(line)
            case "loop":
                line.expect("(")
                kept = _dim_list(line, self.scope, "|")
                head = Loop(kept, _dim_list(line, self.scope, ")"), ())
                line.end()
                self.open.append(_Open(head))
            case "carry" | "give" | "pass" as kind:
                self._result(line, kind)
            case "let":
                if not self.open:
                    line.fail("A 'let' belongs under a nest or loop")
                self.open[-1].lines.append(("let", line, None))
            case "output":
                self.outputs = self._names(line)
            case word:
                line.fail(f"Unknown statement {word!r}")

    def _unique(self, line: _Line, name: str) -> None:
        scope = self.scope
        if name in scope.sizes or name in scope.dims or name in scope.buffers or name in RESERVED:
            line.fail(f"The name {name!r} is taken")

    def _names(self, line: _Line) -> tuple[str, ...]:
        names: list[str] = []
        while line.peek():
            if names:
                line.expect(",")
            names.append(line.name())
        return tuple(names)

    def _dims(self, line: _Line) -> None:
        while line.peek():
            name = line.name()
            self._unique(line, name)
            line.expect(":")
            self.scope.declare(Dim(name, _expression(line, self.scope)))
            if line.peek():
                line.expect(",")

    def _input(self, line: _Line) -> None:
        name = line.name()
        self._unique(line, name)
        line.expect(":")
        dtype = line.dtype()
        line.expect("[")
        buffer = Buffer(name, _list(line, self.scope, "]"), dtype)
        line.end()
        self.inputs.append(buffer)
        self.scope.declare(buffer)

    def _nest(self, line: _Line) -> None:
        name = line.name()
        self._unique(line, name)
        line.expect("(")
        left = _dim_list(line, self.scope, "|", ")")
        has_bar = line.tokens[line.position - 1] == "|"
        right = _dim_list(line, self.scope, ")") if has_bar else ()
        dtype = line.dtype()
        line.expect(":")
        monoid = _monoid(line) if has_bar else None
        head = Nest(name, left, right, dtype, monoid, _NOTHING)
        self.scope.declare(head.buffer)
        self.open.append(_Open(head, [("nest", line, head)]))

    def _result(self, line: _Line, kind: str) -> None:
        if not self.open or not isinstance(self.open[-1].head, Loop):
            line.fail(f"A {kind!r} belongs under a loop")
        lines = self.open[-1].lines
        if kind == "pass":
            lines.append((kind, line, None))
            return
        name = line.name()
        self._unique(line, name)
        line.expect("(")
        dims = _dim_list(line, self.scope, ")")
        dtype = line.dtype()
        line.expect(":" if kind == "carry" else "=")
        head: Carry | Give = (
            Carry(name, dims, dtype, _monoid(line), _NOTHING)
            if kind == "carry"
            else Give(name, dims, dtype, _NOTHING)
        )
        self.scope.declare(head.buffer)
        lines.append((kind, line, head))

    def _statement(self, item: _Open) -> Statement:
        results = [head for _, _, head in item.lines if isinstance(head, Carry | Give)]
        scope = self.scope
        scope.lets = {}
        scope.bare = {r.name: Load(r.buffer, tuple(Index(d) for d in r.dims)) for r in results}
        for kind, line, _ in item.lines:
            if kind == "let":
                self._let(line)
        match item.head:
            case Nest(name, parallel, reduced, dtype, monoid):
                body = _whole(item.lines[0][1], scope)
                return Nest(name, parallel, reduced, dtype, monoid, body)
            case Loop(kept, loop):
                return Loop(kept, loop, self._passes(item))
            case _:
                assert_never(item.head)

    def _let(self, line: _Line) -> None:
        name = line.name()
        self._unique(line, name)
        if name in self.scope.lets:
            line.fail(f"The name {name!r} is taken")
        if line.accept("("):
            _dim_list(line, self.scope, ")")
        line.expect("=")
        self.scope.lets[name] = _whole(line, self.scope)

    def _passes(self, item: _Open) -> tuple[Pass, ...]:
        passes: list[tuple[list[Carry], list[Give]]] = [([], [])]
        for kind, line, head in item.lines:
            if kind == "pass":
                if line.next() != str(len(passes) + 1):
                    line.fail(f"Expected 'pass {len(passes) + 1}'")
                line.accept(":")
                line.end()
                passes.append(([], []))
            elif isinstance(head, Carry):
                passes[-1][0].append(self._carry(line, head))
            elif isinstance(head, Give):
                expr = _whole(line, self.scope)
                passes[-1][1].append(Give(head.name, head.dims, head.dtype, expr))
        return tuple(Pass(tuple(carries), tuple(gives)) for carries, gives in passes)

    def _carry(self, line: _Line, head: Carry) -> Carry:
        scope = self.scope
        body = _expression(line, scope)
        weight: tuple[Expr, ...] = ()
        shifts: list[Shift] = []
        lower: tuple[str, ...] = ()
        if line.accept("moves"):
            if line.peek() == "exp" and line.peek(1) == "(":
                line.position += 2
                weight = _list(line, scope, ")")
            if line.accept("shift"):
                shifts.append(Shift(_expression(line, scope)))
                while line.accept(","):
                    shifts.append(Shift(_expression(line, scope)))
            if line.accept("over"):
                lower = self._names(line)
        line.end()
        return Carry(
            head.name, head.dims, head.dtype, head.monoid, body, weight, tuple(shifts), lower
        )


def is_name(text: str) -> bool:
    """Whether a size, dim or buffer may be called so."""
    return text not in RESERVED and re.fullmatch(NAME, text) is not None
