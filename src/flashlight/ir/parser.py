"""Text to programs. The notation is described in `ir.text`."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
from flashlight.ir.printer import COMPARE, INFIX, PREFIX, PREFIXED, dims_of

# Bare words that are literals, so that nothing else may be called so.
RESERVED = frozenset({"inf", "nan", "true", "false"})
NAME = r"[A-Za-z_][A-Za-z0-9_]*'*"

_OPERATORS = {symbol: (op, level) for op, (symbol, level) in INFIX.items()}
_PREFIXES = {symbol: op for op, symbol in PREFIX.items()}
_DTYPES = {dtype.value: dtype for dtype in DType}


class TextError(ValueError):
    """Text that is no program; says where."""


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
    return (*program.sizes, *dims_of(program), *program.inputs, *results, *carries)


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
    + r"(?::(?:f16|bf16|f64)\b)?)|(?P<symbol>\*\*|//|<<|>>|<=|>=|==|!=|[-+*/%<>=&|^~!()\[\],:])|(?P<bad>\S))"
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
        if own == COMPARE and _OPERATORS.get(line.peek(), ("", 0))[1] == COMPARE:
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
    return Unary(_PREFIXES[token], _expression(line, scope, PREFIXED))


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
    if name in UNARY and name not in PREFIX and len(items) == 1:
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
