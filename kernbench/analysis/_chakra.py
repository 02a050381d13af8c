"""Chakra execution traces (MLCommons): the schema's messages in protobuf's wire format, and the writer of a run.

Source: github.com/mlcommons/chakra, schema/protobuf/et_def.proto. A file has the messages of one rank, each after its
length: GlobalMetadata, then a Node for each operation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np

from kernbench.analysis._records import Communication, Launch, Records
from kernbench.config._files import read_bytes, replacing
from kernbench.errors import ConfigError, StateError

VERSION = "0.0.4"
COMP, SEND, RECV, COLLECTIVE = 4, 5, 6, 7  # NodeType
COMM_TYPES = {  # CollectiveCommType
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
    "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types
# Field of AttributeProto by type.
_VALUES = {
    "double": 3,
    "float": 5,
    "int32": 7,
    "int64": 9,
    "int64_list": 10,
    "uint32": 11,
    "uint64": 13,
    "bool": 27,
    "string": 29,
}
_NAMES = {number: name for name, number in _VALUES.items()}
# Types of attributes that readers of Chakra expect, and of those that kernbench adds.
_TYPES = {
    "is_cpu_op": "bool", "num_ops": "int64", "tensor_size": "uint64", "comm_type": "int64", "comm_size": "int64",
    "comm_src": "int32", "comm_dst": "int32", "comm_tag": "int32", "pg_name": "string", "pg_ranks": "int64_list",
    "start_ps": "uint64", "duration_ps": "uint64", "kernbench": "string",
}  # fmt: skip
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class TraceNode:
    id: int
    name: str
    type: int
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_micros: int = 0
    micros: int = 0
    attrs: Mapping[str, Any] = field(default_factory=dict)


# -- protobuf


def _varint(n: int) -> bytes:
    out = bytearray()
    n &= (1 << 64) - 1  # a negative number has 64 bits
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def _field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _packed(number: int, values: Iterable[int]) -> bytes:
    data = b"".join(map(_varint, values))
    return _field(number, data) if data else b""


def _encoded(node: TraceNode) -> bytes:
    found = _field(1, node.id) + _field(2, node.name) + _field(3, node.type)
    found += _packed(4, node.ctrl_deps) + _packed(5, node.data_deps)
    found += _field(6, node.start_micros) + _field(7, node.micros)
    for name, value in node.attrs.items():
        kind = _TYPES[name]
        coded = _packed(1, value) if kind == "int64_list" else value
        found += _field(10, _field(1, name) + _field(_VALUES[kind], coded))
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    n = shift = 0
    while True:
        byte = data[at]
        at += 1
        n |= (byte & 127) << shift
        if byte < 128:
            return n, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, float | bytes]]:
    at, end = 0, len(data)
    while at < end:
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value: float | bytes
            value, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size, form = (8, "<d") if kind == _FIXED64 else (4, "<f")
            (value,), at = unpack_from(form, data, at), at + size
        elif kind == _BYTES:
            size, at = _read_varint(data, at)
            value, at = data[at : at + size], at + size
            if at > end:
                raise ValueError("a field is cut off")
        else:
            raise ValueError(f"wire type {kind} is unknown")
        yield key >> 3, value


def _numbers(value: float | bytes) -> tuple[int, ...]:
    """Return a repeated number: packed, or one of them."""
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, bytes):
        raise TypeError("a list of numbers is something else")
    found, at = [], 0
    while at < len(value):
        n, at = _read_varint(value, at)
        found.append(n)
    return tuple(found)


def _signed(n: int) -> int:
    return n - (1 << 64) if n >> 63 else n


def _attribute(data: bytes) -> tuple[str, Any]:
    name = ""
    value: Any = None
    for number, given in _fields(data):
        kind = _NAMES.get(number, "")
        if number == 1:
            name = _text(given)
        elif kind == "string":
            value = _text(given)
        elif kind == "int64_list" and isinstance(given, bytes):
            value = tuple(_signed(n) for key, each in _fields(given) if key == 1 for n in _numbers(each))
        elif kind in ("int32", "int64") and isinstance(given, int):
            value = _signed(given)
        elif kind:
            value = bool(given) if kind == "bool" else given
    return name, value


def _text(value: float | bytes) -> str:
    if not isinstance(value, bytes):
        raise TypeError("a text is something else")
    return value.decode(errors="replace")


def _decoded(data: bytes) -> TraceNode:
    found: dict[int, Any] = {1: 0, 2: b"", 3: 0, 4: (), 5: (), 6: 0, 7: 0}  # TraceNode's fields, in its order
    attrs: dict[str, Any] = {}
    for number, value in _fields(data):
        if number == 10 and isinstance(value, bytes):
            name, given = _attribute(value)
            attrs[name] = given
        elif number in (4, 5):
            found[number] += _numbers(value)
        elif number in found:
            if isinstance(value, bytes) is not (number == 2):
                raise TypeError(f"field {number} of a node is something else")
            found[number] = value
    return TraceNode(found[1], _text(found[2]), found[3], found[4], found[5], found[6], found[7], attrs)


def read_nodes(path: Path) -> list[TraceNode]:
    """Return the nodes of a file; a ConfigError if it is no trace, or damaged."""
    data = read_bytes(path, _MOST_BYTES, "give a Chakra trace of one rank")
    found: list[TraceNode] = []
    try:
        at = messages = 0
        while at < len(data):
            size, at = _read_varint(data, at)
            if at + size > len(data):
                raise ValueError("its last message is cut off")
            if messages:
                found.append(_decoded(data[at : at + size]))
            at, messages = at + size, messages + 1
        ids = {node.id for node in found}
        if len(ids) < len(found):
            raise ValueError("two nodes have one id")
        if not found:
            raise ValueError("it has no nodes")
    except (ValueError, TypeError, IndexError) as error:
        reason = "it ends within a number" if isinstance(error, IndexError) else error
        raise ConfigError(
            f"{path}: is not a Chakra trace: {reason}; write it again with result.chakra(folder)"
        ) from error
    return found


# -- a run


def write_traces(records: Records, folder: str | Path) -> list[Path]:
    """Write a file for each SIP that the host queued something on; return them."""
    if not records.operations:
        raise StateError(
            "a Chakra trace needs what the host queued on the devices, and this run has nothing of it; run it again"
        )
    folder = Path(folder)
    nodes = _nodes(records)
    paths = {sip: folder / f"trace.{sip}.et" for sip in nodes}
    if other := sorted(set(folder.glob("*.et")) - {*paths.values()}):
        raise ConfigError(f"{other[0]}: the folder has a trace of another run; give an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    for sip, own in nodes.items():
        with replacing(paths[sip]) as part, part.open("wb") as file:
            for message in (_field(1, VERSION), *map(_encoded, own)):
                file.write(_varint(len(message)) + message)
    return list(paths.values())


def _nodes(records: Records) -> dict[int, list[TraceNode]]:
    operations = records.operations
    launches: dict[int, list[tuple[int, Launch]]] = {}
    for i, launch in enumerate(records.launches):
        launches.setdefault(launch.operation, []).append((i, launch))
    groups: dict[tuple[int, ...], int] = {}
    work = _work(records)
    found: dict[int, list[TraceNode]] = {}
    for i, operation in enumerate(operations):
        own = launches.get(i, [])
        start = min((x.start_ps for _, x in own), default=0)
        ps = max((x.end_ps for _, x in own), default=0) - start
        ctrl, data = (
            tuple(n for n in before if operations[n].sip == operation.sip)
            for before in (operation.waited, operation.after)
        )
        call = operation.communication
        if call is None:
            name, kind = (own[0][1].name if own else "not started"), COMP
            flops, nbytes = (sum(work[column][n] for n, _ in own) for column in (0, 1))
            attrs: dict[str, Any] = {"num_ops": flops, "tensor_size": nbytes}
        else:
            name, kind, attrs = call.name, *_communication(call, groups)
        attrs = {"is_cpu_op": False, **attrs, "start_ps": start, "duration_ps": ps}
        node = TraceNode(i, name, kind, ctrl, data, start // 10**6, max(1, round(ps / 10**6)), attrs)
        found.setdefault(operation.sip, []).append(node)
    return found


def _communication(call: Communication, groups: dict[tuple[int, ...], int]) -> tuple[int, dict[str, Any]]:
    attrs: dict[str, Any] = {"comm_size": call.nbytes}
    options = dict(call.options)
    if call.name in ("send", "recv"):
        source, target = call.group
        attrs |= {"comm_src": source, "comm_dst": target, "comm_tag": options.pop("tag")}
    else:
        number = groups.setdefault(call.group, len(groups))
        attrs |= {"comm_type": COMM_TYPES[call.name], "pg_name": str(number), "pg_ranks": call.group}
    attrs["kernbench"] = json.dumps({"tensors": call.tensors, "options": options})
    return {"send": SEND, "recv": RECV}.get(call.name, COLLECTIVE), attrs


def _work(records: Records) -> tuple[list[int], list[int]]:
    """Return the useful operations of each launch, and the bytes that it moved, as far as they were logged."""
    commands = {int(command): i for i, (command, _) in enumerate(records.dependencies.begin)}
    of = np.full(len(records.commands) + 1, -1)
    for command, _, launch in records.dependencies.issued.tolist():
        of[command] = commands.get(launch, -1)
    flops, nbytes = np.zeros((2, len(records.launches) + 1), np.int64)  # the last is of rows without a launch
    for found, column in ((flops, records.flops), (nbytes, records.nbytes)):
        np.add.at(found, of[records.command], column)
    return flops.tolist(), nbytes.tolist()
