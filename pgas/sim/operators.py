"""Rewrites two operators in the source of kernels, because those of NumPy's own numbers differ from Numba's.

In NumPy, a comparison makes a boolean, and the sum of two of them is a boolean; the power of a float32 and an int64 is a float64. Functions
without a source, such as those of exec(), keep NumPy's operators.
"""

import ast
import dis
import functools
import itertools
import linecache
from collections.abc import Callable
from types import CodeType
from typing import Any, cast

import numpy as np

from pgas.base.code import nested
from pgas.sim.integers import boolean

_BOOLEAN, _POWER = "__pgas_boolean__", "__pgas_power__"
_TESTS = ("COMPARE_OP", "CONTAINS_OP", "IS_OP", "UNARY_NOT")


def rewritten(code: CodeType) -> CodeType:
    """Return the code of a function that calls OPERATORS, which are its globals."""
    instructions = list(dis.get_instructions(code))
    for one, following in itertools.pairwise(instructions):
        kept = one.opname in _TESTS and not following.opname.startswith("POP_JUMP")
        if kept or (following.argrepr.startswith("**") and one.opname != "LOAD_CONST"):
            return _of_file(code.co_filename).get(code, code)
    return code


@functools.cache
def _of_file(name: str) -> dict[CodeType, CodeType]:
    """Map the functions of a file to their rewritten ones."""
    source = "".join(linecache.getlines(name))
    try:
        tree = ast.parse(source)
    except SyntaxError:  # The file has changed, or there is none.
        return {}
    given = nested(compile(tree, name, "exec", dont_inherit=True))
    return dict(zip(given, nested(compile(_Rewriter().visit(tree), name, "exec", dont_inherit=True)), strict=True))


class _Rewriter(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        test = getattr(node, "test", None)
        if test is not None:
            _mark(test)
        return super().visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        return node if hasattr(node, "tested") else _call(_BOOLEAN, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if not isinstance(node.op, ast.Not):
            return cast(ast.expr, self.generic_visit(node))
        _mark(node.operand)
        self.generic_visit(node)
        return node if hasattr(node, "tested") else _call(_BOOLEAN, node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Pow) and not isinstance(node.right, ast.Constant):
            return _call(_POWER, node.left, node.right)
        return node


def _mark(test: ast.expr) -> None:
    """Mark an expression that is only tested, not kept."""
    test.tested = True  # type: ignore[attr-defined]
    for part in test.values if isinstance(test, ast.BoolOp) else ():
        _mark(part)


def _call(name: str, *args: ast.expr) -> ast.expr:
    call = ast.Call(ast.copy_location(ast.Name(name, ast.Load()), args[0]), list(args), [])
    return ast.copy_location(call, args[0])


def _power(base: Any, exponent: Any) -> Any:
    if type(base) is np.float32 and isinstance(exponent, (int, np.integer)):
        return base ** int(exponent)
    return base**exponent


#: Globals of rewritten functions.
OPERATORS: dict[str, Callable[..., Any]] = {_BOOLEAN: boolean, _POWER: _power}
