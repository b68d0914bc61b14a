"""The mutants of a source file: small changes of its meaning, each of which some test should notice."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OTHER_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NOT_COMMUTATIVE = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_PAIRS = (
    ("reduce_sum", "reduce_mean"), ("minimum", "maximum"), ("min", "max"), ("zeros", "ones"), ("rsqrt", "sqrt"),
    ("zeros_like", "ones_like"), ("avg_pool2d", "max_pool2d"), ("relu", "gelu"), ("assign_add", "assign_sub"),
    ("sin", "cos"), ("any", "all"), ("reduce_any", "reduce_all"),
)  # fmt: skip
OTHER_FUNCTIONS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
MAKES_SOMETHING_NEW = {"Variable", "Module", "GradientTape", "control_dependencies"}  # of tf: no function of a tensor
# with other arguments in the first two places they do the same, or fail wherever they are called
NOT_SWAPPED = {"minimum", "maximum", "min", "max", "cast", "partial", "isinstance", "getattr", "hasattr", "constant"}
NO_MEANING = {"name", "strict"}  # arguments that change nothing where all is right
A_LITTLE = 1e-3  # by which a float is changed: a test that allows for more is not exact


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: of the file, relative to the root of the repository.
        line: of the change, from 1.
        by_import: whether importing the file executes it.
        name: the function, and its lines before and after; the same as long as these lines are.
        source: the whole file with the change.
    """

    path: str
    line: int
    by_import: bool
    name: str
    source: str


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yields all mutants of a file, in the order of its lines."""
    found = [
        _mutant(path, source, owner, by_import, changed, replacement)
        for owner, by_import, node in _mutable(ast.parse(source), "", True)
        for changed, replacement in _replacements(node)
    ]
    yield from sorted({mutant.source: mutant for mutant in found}.values(), key=lambda mutant: mutant.line)


def read_mutants(root: Path, path: str) -> list[Mutant]:
    """The mutants of a file of the repository at `root`."""
    return list(mutants_of(path, (root / path).read_text()))


def _mutable(node: ast.AST, owner: str, by_import: bool) -> Iterator[tuple[str, bool, ast.AST]]:
    """The nodes that are executed and have a meaning: no annotations, decorators, docstrings or messages of errors."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)) or _is_plain(node):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        owner = f"{owner}.{node.name}".lstrip(".")
    yield owner, by_import, node
    left_out = {"annotation", "returns", "decorator_list", "bases", "type_comment"}
    for field, value in ast.iter_fields(node):
        if field in left_out:
            continue
        child_by_import = by_import and not (field == "body" and isinstance(node, (ast.FunctionDef, ast.Lambda)))
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child) and not _is_alias(node, child):
                yield from _mutable(child, owner, child_by_import)


def _is_plain(node: ast.AST) -> bool:
    """Whether it is an argument without a meaning, or super().__init__() of a class that inherits all it has."""
    if isinstance(node, ast.keyword):
        return node.arg in NO_MEANING
    return isinstance(node, ast.Expr) and ast.unparse(node) == "super().__init__()"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_alias(parent: ast.AST, child: ast.AST) -> bool:
    """Whether it is the type in `Name = list[X]`."""
    return isinstance(parent, ast.Assign) and isinstance(child, ast.Subscript) and parent.col_offset == 0


def _replacements(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Yields parts of the node, or itself, with what takes their place."""
    if isinstance(node, (ast.If, ast.IfExp)) and isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
        yield node.test, ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, ast.Pass()
    elif isinstance(node, ast.AugAssign):
        yield node, _changed(node, op=OTHER_OPERATORS[type(node.op)]())
        yield node, ast.Pass()
    elif isinstance(node, ast.expr):
        yield from ((node, other) for other in _other_expressions(node))


def _other_expressions(node: ast.expr) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp):
        if type(node.op) in OTHER_OPERATORS:
            yield _changed(node, op=OTHER_OPERATORS[type(node.op)]())
        yield node.left
        if isinstance(node.op, NOT_COMMUTATIVE):
            yield _changed(node, left=node.right, right=node.left)
    elif isinstance(node, ast.Compare):
        yield _changed(node, ops=[OTHER_OPERATORS[type(node.ops[0])](), *node.ops[1:]])
        if isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            yield ast.UnaryOp(ast.Not(), node)
    elif isinstance(node, ast.BoolOp):
        yield _changed(node, op=OTHER_OPERATORS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.Call):
        yield from _other_calls(node)


def _other_constants(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float):
        yield ast.Constant(value * (1 + A_LITTLE) if value else A_LITTLE)


def _other_calls(node: ast.Call) -> Iterator[ast.AST]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in OTHER_FUNCTIONS and isinstance(node.func, ast.Attribute):
        yield _changed(node, func=_changed(node.func, attr=OTHER_FUNCTIONS[name]))
    elif name in OTHER_FUNCTIONS:
        yield _changed(node, func=ast.Name(OTHER_FUNCTIONS[name], ast.Load()))
    listed = not any(isinstance(each, ast.Starred) for each in node.args[:2])
    if len(node.args) > 1 and listed and name not in NOT_SWAPPED:
        yield _changed(node, args=[node.args[1], node.args[0], *node.args[2:]])
    if _is_of_tensorflow(node.func) and node.args and name not in MAKES_SOMETHING_NEW:
        yield node.args[0]
    for place, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, *NO_MEANING):
            yield _changed(node, keywords=node.keywords[:place] + node.keywords[place + 1 :])


def _is_of_tensorflow(function: ast.expr) -> bool:
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id == "tf"


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _mutant(
    path: str, source: str, owner: str, by_import: bool, node: ast.expr | ast.stmt, replacement: ast.AST
) -> Mutant:
    """Replaces the text of the node only, so that the lines of the others stay."""
    assert node.end_lineno is not None
    lines = source.encode().splitlines(keepends=True)  # offsets count bytes
    first, last = node.lineno - 1, node.end_lineno - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    text = ast.unparse(ast.fix_missing_locations(replacement)).encode()
    new = head + (b"(" + text + b")" if isinstance(node, ast.expr) else text) + tail
    before = b" ".join(line.strip() for line in lines[first : last + 1]).decode()
    changed = b"".join([*lines[:first], new, *lines[last + 1 :]]).decode()
    return Mutant(path, node.lineno, by_import, f"{owner or 'module'}: {before} => {new.decode().strip()}", changed)
