"""Small changes to a module that its tests should notice.

Found in the syntax tree and made in the text, so that the difference is the lines one would look at. What no test can
see, or none should repeat, is not touched: docstrings, annotations, texts for people, `validate()` and assertions (they
look at the code, nothing looks at them), and the constants of a module, which are measured and not derived.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from hashlib import sha256


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A module with one small change."""

    path: str  # of the module, from the repository's root
    start: int  # bytes [start, stop) of the source are replaced
    stop: int
    new: str
    kind: str

    def apply(self, source: str) -> str:
        """Return the module's text with the change."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.stop :]).decode()

    def changed(self, source: str) -> tuple[str, str]:
        """Return the lines that the change takes away and puts in their place, without the space around them."""
        lines = list(unified_diff(source.splitlines(), self.apply(source).splitlines(), n=0, lineterm=""))[2:]
        return tuple("\n".join(x[1:].strip() for x in lines if x.startswith(sign)) for sign in "-+")  # type: ignore[return-value]

    def name(self, source: str) -> str:
        """Return a short name, which stays as long as the changed lines and those around them."""
        lines = [line for line in self.diff(source).splitlines() if not line.startswith("@@")]
        return sha256("\n".join(lines).encode()).hexdigest()[:6]

    def diff(self, source: str) -> str:
        """Return the change as a hunk."""
        lines = unified_diff(
            source.splitlines(), self.apply(source).splitlines(), self.path, self.path, n=2, lineterm=""
        )
        return "\n".join(lines)


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Mod: ast.FloorDiv,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: Functions that are there for who reads or checks, and calls that only say something to people.
UNSEEN_FUNCTIONS = frozenset({"validate", "__repr__", "__str__", "title"})
UNSEEN_CALLS = frozenset({"Log", "listed", "round", "TypeVar", "isinstance", "cast"})
#: Arguments that guard against mistakes of our own, or save a copy.
UNSEEN_ARGUMENTS = frozenset({"strict", "copy", "frozen", "slots", "kw_only"})


def mutants(path: str, source: str) -> list[Mutant]:
    """Return all changes of a module, in the order of its text."""
    found = list(_Finder(path, source).visit_all())
    return sorted(set(found), key=lambda mutant: (mutant.start, mutant.stop, mutant.new))


class _Finder:
    """Walks a module's tree and yields what can be changed."""

    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._tree = ast.parse(source)
        self._starts = [0]
        for line in source.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def visit_all(self) -> Iterator[Mutant]:
        yield from self._body([s for s in self._tree.body if not isinstance(s, (ast.Assign, ast.AnnAssign))])

    def _replace(self, node: ast.expr | ast.stmt, new: str | ast.AST, kind: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        stop = self._starts[node.end_lineno - 1] + node.end_col_offset
        if isinstance(new, ast.expr):
            new = f"({ast.unparse(new)})" if _is_compound(new) else ast.unparse(new)
        elif isinstance(new, ast.AST):
            new = ast.unparse(new)
        return Mutant(path=self._path, start=start, stop=stop, new=new, kind=kind)

    # --- statements -----------------------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> Iterator[Mutant]:
        if isinstance(node, (ast.Assert, ast.Import, ast.ImportFrom)) or _is_for_types(node):
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name not in UNSEEN_FUNCTIONS:
                for default in [*node.args.defaults, *node.args.kw_defaults]:
                    yield from self._expression(default) if default is not None else ()
                yield from self._body(node.body)
            return
        yield from self._changes_of_statement(node)
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    yield from self._body([child])
                elif isinstance(child, ast.expr) and field not in ("annotation", "decorator_list", "bases", "targets"):
                    yield from self._expression(child)
                elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                    yield from self._body(child.body)
                elif isinstance(child, ast.withitem):
                    yield from self._expression(child.context_expr)

    def _body(self, body: Sequence[ast.stmt]) -> Iterator[Mutant]:
        for statement in body:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):  # a docstring
                yield from self._statement(statement)

    def _changes_of_statement(self, node: ast.stmt) -> Iterator[Mutant]:
        if isinstance(node, (ast.Continue, ast.Break)):
            yield self._replace(node, "break" if isinstance(node, ast.Continue) else "continue", "loop")
        elif isinstance(node, ast.AugAssign):
            yield self._replace(node, "pass", "deletion")
            yield self._replace(node, ast.Assign([node.target], node.value, lineno=0), "assignment")
            if type(node.op) in OPERATORS and not isinstance(node.value, (ast.List, ast.ListComp, ast.JoinedStr)):
                changed = ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
                yield self._replace(node, changed, "operator")
        elif isinstance(node, (ast.Delete, ast.Raise)) or (
            isinstance(node, ast.Assign) and all(isinstance(t, (ast.Attribute, ast.Subscript)) for t in node.targets)
        ):  # without an assignment to a new name, nothing works and nothing is learned
            yield self._replace(node, "pass", "deletion")
        elif isinstance(node, ast.Expr):
            if not (isinstance(node.value, (ast.Yield, ast.YieldFrom)) or _is_call(node.value, UNSEEN_CALLS)):
                yield self._replace(node, "pass", "deletion")
        elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield self._replace(node, "return None", "return")
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            first, last = node.body[0], node.body[-1]
            everything = self._replace(first, "pass", "deletion")
            rest = self._replace(last, "pass", "deletion")
            yield Mutant(path=self._path, start=everything.start, stop=rest.stop, new="pass", kind="deletion")

    # --- expressions ----------------------------------------------------------------------------

    def _expression(self, node: ast.expr) -> Iterator[Mutant]:
        if isinstance(node, (ast.JoinedStr, ast.Lambda)) or _is_call(node, UNSEEN_CALLS):
            return
        yield from self._changes_of_expression(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                if child.arg not in UNSEEN_ARGUMENTS:
                    yield from self._expression(child.value)
            elif isinstance(child, ast.comprehension):
                yield from self._expression(child.iter)
                for condition in child.ifs:
                    yield from self._expression(condition)
            elif isinstance(child, ast.expr):
                yield from self._expression(child)

    def _changes_of_expression(self, node: ast.expr) -> Iterator[Mutant]:
        match node:
            case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
                yield self._replace(
                    node, ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators), "comparison"
                )
            case ast.Compare(left=left, ops=[first, second], comparators=[middle, right]):
                for a, b in ((COMPARISONS[type(first)](), second), (first, COMPARISONS[type(second)]())):
                    yield self._replace(node, ast.Compare(left, [a, b], [middle, right]), "comparison")
            case ast.BoolOp(op=op, values=values):
                other = ast.Or() if isinstance(op, ast.And) else ast.And()
                yield self._replace(node, ast.BoolOp(other, values), "and-or")
                for i in range(len(values)):
                    rest = values[:i] + values[i + 1 :]
                    yield self._replace(node, rest[0] if len(rest) == 1 else ast.BoolOp(op, rest), "condition")
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
                yield self._replace(node, operand, "unary")
            case ast.BinOp(op=op, left=left, right=right) if type(op) in OPERATORS and not _is_text(left, right):
                yield self._replace(node, ast.BinOp(left, OPERATORS[type(op)](), right), "operator")
            case ast.IfExp(body=body, orelse=orelse):
                yield self._replace(node, body, "condition")
                yield self._replace(node, orelse, "condition")
            case ast.Call(func=ast.Name(id=name), args=args) if name in CALLS:
                yield self._replace(node.func, CALLS[name], "call")
                if name in ("min", "max") and len(args) == 2 and not any(isinstance(a, ast.Starred) for a in args):
                    yield self._replace(node, args[0], "call")
                    yield self._replace(node, args[1], "call")
            case ast.Constant(value=bool(value)):
                yield self._replace(node, repr(not value), "constant")
            case ast.Constant(value=int(value) | float(value)):
                yield self._replace(node, repr(value + 1), "constant")
                yield self._replace(node, repr(value - 1), "constant")


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_call(node: ast.expr, names: frozenset[str]) -> bool:
    """Tell whether an expression is a call of one of some functions, or makes an error, whose facts are for people."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return False
    return node.func.id in names or node.func.id.endswith("Error")


def _is_text(*nodes: ast.expr) -> bool:
    return any(
        isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
        for node in nodes
    )


def _is_compound(node: ast.expr) -> bool:
    return isinstance(node, (ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp))
