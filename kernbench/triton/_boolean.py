"""Constructs to which Triton's compiler gives another meaning: `and`, `or`, `not`, `assert` on blocks, `.value`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import cache
from textwrap import dedent
from types import CodeType
from typing import Any

from kernbench.triton_emu._handles import Tensor
from kernbench.triton_emu.tl_context import constexpr


def _is_block(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(value.shape)


def all_of(value: Any, *others: Callable[[], Any]) -> Any:
    """`value and ...`: elementwise on blocks, short-circuit on scalars."""
    for other in others:
        if _is_block(value):
            value = value.logical_and(other())
        elif value:
            value = other()
        else:
            break
    return value


def any_of(value: Any, *others: Callable[[], Any]) -> Any:
    """`value or ...`: elementwise on blocks, short-circuit on scalars."""
    for other in others:
        if _is_block(value):
            value = value.logical_or(other())
        elif value:
            break
        else:
            value = other()
    return value


def none_of(value: Any) -> Any:
    return value == 0 if _is_block(value) else not value


def asserted(value: Any) -> Any:
    """Condition of an `assert`: always true for blocks, as in Triton outside of debug mode."""
    return True if _is_block(value) else value


def value_of(x: Any) -> Any:
    """`x.value`, also of a compile-time constant, which is its own value."""
    return x if isinstance(x, constexpr) else x.value


NAMES = {f"__{function.__name__}": function for function in (all_of, any_of, none_of, asserted, value_of)}


def _later(value: ast.expr) -> ast.expr:
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=none, body=value)


def _call(function: Callable[..., Any], first: ast.expr, *others: ast.expr) -> ast.expr:
    name = ast.Name(id=f"__{function.__name__}", ctx=ast.Load())
    return ast.Call(func=name, args=[first, *map(_later, others)], keywords=[])


class _Calls(ast.NodeTransformer):
    changed = False

    def visit(self, node: ast.AST) -> Any:
        node = self.generic_visit(node)
        found: ast.AST | None = None
        match node:
            case ast.BoolOp(op, values):
                found = _call(all_of if isinstance(op, ast.And) else any_of, *values)
            case ast.UnaryOp(op=ast.Not(), operand=value):
                found = _call(none_of, value)
            case ast.Compare(left, ops, [*middle, last]) if middle and all(isinstance(x, ast.Name) for x in middle):
                sides = [left, *middle, last]
                pairs = zip(sides, ops, sides[1:], strict=False)
                found = _call(all_of, *(ast.Compare(left=a, ops=[op], comparators=[b]) for a, op, b in pairs))
            case ast.Attribute(value, "value", ast.Load()):
                found = _call(value_of, value)
            case ast.Assert(value, message):
                found = ast.Assert(test=_call(asserted, value), msg=message)
        if found is None:
            return node
        self.changed = True
        return ast.copy_location(found, node)


@cache
def code_of(code: CodeType) -> CodeType:
    """Recompile a function with the operators as calls of `NAMES`; unchanged if its source is not available."""
    try:
        lines, first = inspect.getsourcelines(code)
        [definition] = ast.parse(dedent("".join(lines))).body
    except (OSError, SyntaxError):  # made from text that is not kept, or not a definition
        return code
    calls = _Calls()
    if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
        return code
    definition.body = [calls.visit(statement) for statement in definition.body]
    if not calls.changed:
        return code
    definition.name, definition.decorator_list = "__definition", []  # its own name stays a global
    ast.increment_lineno(definition, first - 1)
    [around] = ast.parse(f"def around({', '.join(code.co_freevars)}): pass").body
    assert isinstance(around, ast.FunctionDef)
    around.body = [definition]
    found = compile(ast.fix_missing_locations(ast.Module([around], [])), code.co_filename, "exec", dont_inherit=True)
    for _ in range(2):
        [found] = [const for const in found.co_consts if isinstance(const, CodeType)]
    return found.replace(co_name=code.co_name, co_qualname=code.co_qualname)
