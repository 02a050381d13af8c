"""YAML text: what it holds, and which of its keys stand twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from kernbench.config.faults import Fault, dotted
from kernbench.errors import cut

_NUMBERS = {
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


MOST_VALUES = 50_000
MOST_DEPTH = 100
_TOO_DEEP = "it is nested too deeply"


class TooLargeError(ConstructorError):
    """The text holds more values than are read."""


class _Loader(yaml.SafeLoader):
    """YAML with the plain decimal numbers of YAML 1.2 and of every editor.

    1e3 is one; 1:30 (once 90), 010 (once 8) and 1_000 are text. At most `MOST_VALUES` values are read.
    """

    values = 0

    def fetch_flow_collection_start(self, kind: Any) -> None:
        """Begin a list or group in brackets, unless it is in too many: the scanner's time grows with their square."""
        if self.flow_level >= MOST_DEPTH:
            raise yaml.YAMLError(_TOO_DEEP)
        super().fetch_flow_collection_start(kind)

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node, unless there are too many; an alias is as large as what it stands for."""
        self.values += 1
        if self.values > MOST_VALUES:
            raise TooLargeError(None, None, f"more than {MOST_VALUES:,} values", self.get_mark())
        return super().compose_node(parent, index)

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the class above
        first: [(tag, form) for tag, form in forms if tag.rpartition(":")[2] not in _NUMBERS]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; one that is no date, say, though it looks like one, is a fault with a place."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise ConstructorError(None, None, str(error).partition(";")[0], node.start_mark) from error


for _kind, _form in _NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"({_form})$"), list("-+.0123456789"))


def parse_yaml(text: str) -> tuple[Any, list[Fault]]:
    """Return the content of `text`, and a fault for each key that stands twice.

    Raises
    ------
    yaml.YAMLError
        If it is no YAML, or a part of it holds itself.
    """
    content, doubles = _parsed(text)
    return deepcopy(content), list(doubles)


@lru_cache(maxsize=16)
def _parsed(text: str) -> tuple[Any, list[Fault]]:
    """Parse once what is read again and again: the file of the algorithms, with every run of one."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, []
        if _size(node, {}) > MOST_VALUES:
            raise TooLargeError(None, None, f"more than {MOST_VALUES:,} values, its aliases counted", node.start_mark)
        # Before construction, which copies what `<<` merges in among a group's own keys.
        doubles = list(_doubles(node, (), set(), ()))
        return loader.construct_document(node), doubles
    except RecursionError:
        raise yaml.YAMLError(_TOO_DEEP) from None
    finally:
        loader.dispose()


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return how many values a node holds, each alias counted as what it stands for."""
    if id(node) not in sizes:
        sizes[id(node)] = 1  # of an alias of itself, which is told elsewhere
        if isinstance(node, yaml.SequenceNode):
            sizes[id(node)] += sum(_size(item, sizes) for item in node.value)
        elif isinstance(node, yaml.MappingNode):
            sizes[id(node)] += sum(_size(key, sizes) + _size(value, sizes) for key, value in node.value)
    return sizes[id(node)]


def problem(error: yaml.YAMLError, remedy: str) -> str:
    """Return what is wrong with YAML text, on one line that ends with the remedy of wrong syntax."""
    what = " ".join(str(getattr(error, "problem", None) or error).split())
    if isinstance(error, TooLargeError):
        return f"holds {what}; leave some out"
    return f"is no YAML: {cut(what, 200)}; {remedy}"


def _doubles(node: yaml.Node, path: tuple[Any, ...], visited: set[int], above: tuple[int, ...]) -> Iterator[Fault]:
    if id(node) in above:
        raise ConstructorError(None, None, "the group of this anchor holds an alias of itself", node.start_mark)
    if id(node) in visited:
        return
    visited.add(id(node))
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for place, item in enumerate(node.value):
            yield from _doubles(item, (*path, place), visited, above)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[Any, int] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if isinstance(key_node, yaml.ScalarNode):
                here = (*path, key)
                if key in lines:
                    at = f"lines {lines[key]} and {line}" if line != lines[key] else f"line {line}"
                    yield Fault(f"{dotted(here)} stands twice, in {at}; keep one", (here,))
                lines.setdefault(key, line)
                yield from _doubles(value_node, here, visited, above)
