"""Single faults in the source of a module: where there can be one, and the source with one planted."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

#: a comparison, turned round
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
#: Numbers below this are moved by one, others doubled: nobody has to notice 61 s in place of 60.
SMALL = 10
TYPES = {"annotation", "returns"}
NOT_RUN = ("TYPE_CHECKING", "__name__ == '__main__'")


class Place(NamedTuple):
    """What can be changed: ``change`` does so, in the tree, and returns what is there then."""

    node: ast.expr
    change: Callable[[], ast.expr]


class Planted(NamedTuple):
    """A module's source with a fault in it (comments are lost, nothing else is), and what the fault is."""

    source: str
    line: int
    change: str


def places(source: str) -> list[int]:
    """Return the line of each fault that can be planted; its position in the list is its number."""
    return [place.node.lineno for place in _places(ast.parse(source))]


def planted(source: str, number: int) -> Planted:
    """Return the source with this one fault."""
    tree = ast.parse(source)
    node, change = list(_places(tree))[number]
    before = ast.unparse(node)
    after = ast.unparse(change())
    return Planted(ast.unparse(tree) + "\n", node.lineno, f"{before}  ->  {after}")


def _places(node: ast.AST) -> Iterator[Place]:
    if isinstance(node, ast.If) and ast.unparse(node.test) in NOT_RUN:
        return
    yield from _places_of(node)
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in TYPES:
                yield from _places(child)


def _places_of(node: ast.AST) -> Iterator[Place]:
    match node:
        case ast.Compare():
            yield Place(node, lambda: _turn(node))
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            yield Place(node, lambda: _move(node))
        case ast.If() | ast.While() | ast.IfExp() if _negatable(node.test):
            yield Place(node.test, lambda: _negate(node))
        case ast.comprehension():
            for i, condition in enumerate(node.ifs):
                if _negatable(condition):
                    yield Place(condition, lambda i=i: _negate_filter(node, i))


def _negatable(condition: ast.expr) -> bool:
    # A comparison is turned round already; "while True" has to end by itself.
    return not isinstance(condition, ast.Compare | ast.Constant)


def _turn(node: ast.Compare) -> ast.expr:
    node.ops[0] = TURNED[type(node.ops[0])]()
    return node


def _move(node: ast.Constant) -> ast.expr:
    value = node.value
    assert isinstance(value, int | float)
    node.value = value + 1 if abs(value) < SMALL else value * 2
    return node


def _negate(node: ast.If | ast.While | ast.IfExp) -> ast.expr:
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return node.test


def _negate_filter(node: ast.comprehension, i: int) -> ast.expr:
    node.ifs[i] = ast.UnaryOp(ast.Not(), node.ifs[i])
    return node.ifs[i]
