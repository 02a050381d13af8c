"""Chakra execution traces as programs: a file for each rank, whose nodes run on the SIPs of a machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.analysis._chakra import COLLECTIVE, COMM_TYPES, COMP, RECV, SEND, TraceNode, read_nodes
from kernbench.analysis.result import Result
from kernbench.errors import ConfigError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext, session

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.runtime_api.tensor import Tensor

Launches = Mapping[str, Callable[[TraceNode], object]]

_NAMES = {number: name for name, number in COMM_TYPES.items()}
_REPLAYED = ("all_reduce", "reduce", "all_gather", "broadcast", "all_to_all", "reduce_scatter", "barrier")
_SPREAD = (("cube", "row_wise"), ("pe", "row_wise"))
_ITEM = "float16", 2  # the type of tensors of which only the bytes are known


@dataclass(frozen=True, eq=False, repr=False)
class ChakraTrace:
    """The nodes of a Chakra trace by rank; `run` simulates them.

    Attributes
    ----------
    ranks : tuple of tuple of TraceNode
        By rank, in the order of its file. A node has `id`, `name`, `type`, `ctrl_deps`, `data_deps`,
        `start_micros`, `micros` and `attrs`.
    missing : int
        Dependencies on nodes that their file does not have, as traces of PyTorch may contain. They are left out.
    """

    folder: str
    ranks: tuple[tuple[TraceNode, ...], ...]
    missing: int = 0

    def run(
        self, machine: Any = None, launches: Callable[[RuntimeContext], Launches] | None = None, log: str = "operation"
    ) -> Result:
        """Replay the trace: rank r drives SIP r.

        Collectives and messages are simulated. A compute node is what `launches` has for its name, such as a launch or
        a product; without an entry it is a delay of its recorded time, and the result has no launch of it.

        Parameters
        ----------
        machine : Machine, str, Path, mapping, optional
            As for `kb.load`; it has a SIP for each rank.
        launches : callable, optional
            `launches(torch)` is called on each rank before the start, allocates what the rank needs, and returns a
            mapping from names of nodes to functions: each is called with its node, and queues the work.
        log : str
            As for `kb.session`.

        Returns
        -------
        Result

        Notes
        -----
        The device waits for `data_deps`, and the program of the rank for `ctrl_deps`. Compute nodes of a rank run one
        after another; a collective begins after the compute nodes in front of it. The first nodes begin at their
        recorded times. In traces of other tools a collective's tensors are f16, row-wise over all PEs, and operators of
        the CPU (`is_cpu_op`) take no time. What `result.chakra` wrote takes the same picoseconds with its launches,
        if host and launches cost the rank's program no time, and tensors were allocated before the first launch.
        """
        ordered = []
        for rank, nodes in enumerate(self.ranks):
            where = f"{self.folder}: rank {rank}"
            for node in nodes:
                if _communicates(node):
                    _check(f"{where}, node {node.id} ({node.name})", node)
            ordered.append([*_sorted(where, nodes)])
        with session(machine, log=log) as torch:

            def program(rank: int) -> None:
                _Rank(torch, ordered, rank, {} if launches is None else launches(torch)).run()

            torch.multiprocessing.spawn(program, nprocs=len(self.ranks))
        return torch.result

    @property
    def table(self) -> pd.DataFrame:
        """A row for each rank and kind of node: how many, bytes [B] of those that communicate, recorded time [ns]."""
        import pandas as pd

        found: dict[tuple[int, str], dict[str, Any]] = {}
        for rank, nodes in enumerate(self.ranks):
            for node in nodes:
                kind = _kind(node) if _communicates(node) else "CPU" if node.attrs.get("is_cpu_op") else "compute"
                row = found.setdefault((rank, kind), {"rank": rank, "kind": kind, "nodes": 0, "nbytes": 0, "ns": 0.0})
                row["nodes"] += 1
                row["nbytes"] += int(node.attrs.get("comm_size", 0))
                row["ns"] += _duration_ps(node) / 1000
        return pd.DataFrame(list(found.values()))

    def __repr__(self) -> str:
        note = f", without {self.missing} dependencies on nodes that are not there" if self.missing else ""
        return f"Chakra trace of {len(self.ranks)} ranks in {self.folder}{note}\n{self.table.to_string(index=False)}"

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False, border=0)


def read_chakra(folder: str | Path) -> ChakraTrace:
    """Read Chakra execution traces (MLCommons): the files NAME.RANK.et of a folder.

    Parameters
    ----------
    folder : str or Path
        `result.chakra(folder)` or another tool has written it.

    Returns
    -------
    ChakraTrace
        It shows its nodes and bytes; `run(machine)` simulates them.

    Raises
    ------
    ConfigError
        If there is no trace, a rank is missing, or a file is damaged; the message names the file and the node. `run`
        raises it, too, for a collective or message without what a simulation needs.

    Examples
    --------
    >>> import tempfile
    >>> import kernbench as kb
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = kb.run("gemm-single-pe", "preset:small").result.chakra(folder)
    ...     trace = read_chakra(folder)
    >>> [node.name for node in trace.ranks[0]]
    ['gemm']
    """
    folder = Path(folder)
    files: dict[int, Path] = {}
    for path in sorted(folder.glob("*.et")):
        rank = path.stem.rpartition(".")[2]
        if not rank.isdecimal() or int(rank) in files:
            raise ConfigError(f"{path}: expected files NAME.RANK.et of one trace; give each trace its own folder")
        files[int(rank)] = path
    if not files:
        raise ConfigError(
            f"{folder}: has no Chakra trace; expected files NAME.RANK.et, as result.chakra(folder) writes"
        )
    if lost := sorted({*range(max(files) + 1)} - files.keys()):
        raise ConfigError(f"{folder}: has files up to rank {max(files)}, but none of rank {lost[0]}")
    read = [_read(files[rank]) for rank in range(len(files))]
    return ChakraTrace(str(folder), tuple(nodes for nodes, _ in read), sum(missing for _, missing in read))


def _read(path: Path) -> tuple[tuple[TraceNode, ...], int]:
    """Return the nodes of a file, and how many of their dependencies are left out as their nodes are not there."""
    given = read_nodes(path)
    there = {node.id for node in given}
    found = []
    missing = 0
    for node in given:
        ctrl, data = (tuple(n for n in deps if n in there) for deps in (node.ctrl_deps, node.data_deps))
        missing += len(node.ctrl_deps) + len(node.data_deps) - len(ctrl) - len(data)
        found.append(replace(node, ctrl_deps=ctrl, data_deps=data))
    return tuple(found), missing


def _sorted(where: str, given: Sequence[TraceNode]) -> Iterator[TraceNode]:
    """Yield the nodes of a rank in an order that respects dependencies, by id where they leave a choice."""
    nodes = {node.id: node for node in given}
    missing = {node.id: len({*node.ctrl_deps, *node.data_deps}) for node in nodes.values()}
    after: dict[int, list[int]] = {}
    for node in nodes.values():
        for before in {*node.ctrl_deps, *node.data_deps}:
            after.setdefault(before, []).append(node.id)
    ready = [number for number, n in missing.items() if not n]
    heapify(ready)
    found = 0
    while ready:
        number = heappop(ready)
        found += 1
        yield nodes[number]
        for other in after.get(number, ()):
            missing[other] -= 1
            if not missing[other]:
                heappush(ready, other)
    if found < len(nodes):
        node = nodes[min(number for number, n in missing.items() if n)]
        raise ConfigError(f"{where}, node {node.id} ({node.name}): depends on itself through other nodes")


def _check(where: str, node: TraceNode) -> None:
    """Refuse a node of communication without what its replay needs."""
    needs = {SEND: ("comm_size", "comm_dst"), RECV: ("comm_size", "comm_src"), COLLECTIVE: ("comm_type", "comm_size")}
    for name in needs.get(node.type, ()):
        if not isinstance(node.attrs.get(name), int):
            raise ConfigError(f"{where}: attribute {name} is missing, or is no number; a simulation needs it")
    if node.type == COLLECTIVE and _kind(node) not in _REPLAYED:
        raise ConfigError(f"{where}: a collective of type {_kind(node)} cannot be replayed; known: {_REPLAYED}")
    if "kernbench" in node.attrs:
        try:
            own = json.loads(node.attrs["kernbench"])
            [_signature(*x) for x in own["tensors"]], dict(own["options"])
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{where}: attribute kernbench is damaged: {error}") from error


def _communicates(node: TraceNode) -> bool:
    """Whether a node moves bytes: the operator of the CPU that started it has a node, too."""
    return node.type in (SEND, RECV, COLLECTIVE) and not node.attrs.get("is_cpu_op")


def _kind(node: TraceNode) -> str:
    kind = node.attrs.get("comm_type", "unknown")
    return {SEND: "send", RECV: "recv"}.get(node.type) or _NAMES.get(kind, str(kind))


def _duration_ps(node: TraceNode) -> int:
    return int(node.attrs.get("duration_ps", node.micros * 10**6))


def _start_ps(node: TraceNode) -> int:
    return int(node.attrs.get("start_ps", node.start_micros * 10**6))


def _signature(name: str, shape: Any, dtype: str, placement: Any) -> tuple[str, tuple[int, ...], str, Any]:
    fields = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in placement)
    return name, tuple(map(int, shape)), dtype.removeprefix("torch."), fields


class _Rank:
    def __init__(
        self, torch: RuntimeContext, ranks: Sequence[Sequence[TraceNode]], rank: int, launches: Launches
    ) -> None:
        self._torch, self._ranks, self._rank, self._launches = torch, ranks, rank, launches
        self._nodes = {node.id: node for node in ranks[rank]}
        self._tensors: dict[tuple[Any, ...], Tensor] = {}
        self._works: dict[int, Any] = {}
        self._blocked: set[int] = set()
        self._events: dict[int, Any] = {}

    def run(self) -> None:
        torch, ranks = self._torch, self._ranks
        torch.distributed.init_process_group("ahbm")
        groups = dict.fromkeys(_group(node, len(ranks)) for nodes in ranks for node in nodes)
        everyone = tuple(range(len(ranks)))
        self._groups = {
            group: None if group == everyone else torch.distributed.new_group(list(group)) for group in groups if group
        }
        calls = {node.id: self._call(node) for node in self._nodes.values() if _communicates(node)}
        waited = {number for node in self._nodes.values() for number in node.ctrl_deps}
        torch.ahbm.synchronize()
        torch.distributed.monitored_barrier()
        self._begin()
        for node in self._nodes.values():
            self._wait(node)
            if node.id in calls:
                self._works[node.id] = calls[node.id]()
                continue
            if node.type == COMP and not node.attrs.get("is_cpu_op"):
                self._compute(node)
            if node.id in waited:
                event = self._events[node.id] = torch.ahbm.Event()
                event.record()
        for work in self._works.values():
            work.wait()
        torch.ahbm.synchronize()

    def _begin(self) -> None:
        """Wait until this rank's first node begins, after the first one of all ranks."""
        first = min(_start_ps(nodes[0]) for nodes in self._ranks)
        engine = self._torch.engine
        engine.wait(engine.env.timeout(_start_ps(self._ranks[self._rank][0]) - first), "the start of its trace")

    def _wait(self, node: TraceNode) -> None:
        for number in node.ctrl_deps:
            if number in self._works:
                self._works[number].wait()
            else:
                self._events[number].synchronize()
        for number in node.data_deps:
            before = self._nodes[number]
            # Work of one stream is in order; a collective begins after the compute nodes in front of it.
            if number in self._works and number not in self._blocked and _stream(before) != _stream(node):
                self._works[number].block_current_stream()
                self._blocked.add(number)

    def _compute(self, node: TraceNode) -> None:
        launch = self._launches.get(node.name)
        if launch is not None:
            launch(node)
            return
        engine, ps = self._torch.engine, _duration_ps(node)
        self._torch.ahbm.current_stream().submit(lambda: engine.env.timeout(ps))

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: str, placement: Any) -> Tensor:
        key = name, shape, dtype, placement  # an output is apart from an input of its shape
        if key not in self._tensors:
            dp = DPPolicy(**dict(placement))
            self._tensors[key] = self._torch.empty(*shape, dtype=getattr(self._torch, dtype), device="ahbm", dp=dp)
        return self._tensors[key]

    def _call(self, node: TraceNode) -> Callable[[], Any]:
        """Return a function that starts a node of communication; its tensors are made now."""
        dist, name = self._torch.distributed, _kind(node)
        own = json.loads(node.attrs["kernbench"]) if "kernbench" in node.attrs else {"tensors": [], "options": {}}
        ranks = _group(node, len(self._ranks))
        options: dict[str, Any] = own["options"]
        named = {each[0]: each[1:] for each in (_signature(*x) for x in own["tensors"])}
        named = _joint(name, named, options, len(ranks)) if named else _foreign(node, len(ranks))
        tensors = {each: self._tensor(each, *made) for each, made in named.items()}
        if node.type in (SEND, RECV):
            (tensor,), tag = tensors.values(), int(node.attrs.get("comm_tag", 0))
            if node.type == SEND:
                return lambda: dist.isend(tensor, node.attrs["comm_dst"], tag=tag)
            return lambda: dist.irecv(tensor, node.attrs["comm_src"], tag=tag)
        common: dict[str, Any] = {"group": self._groups[ranks], "async_op": True}
        x: Any = tensors.get("input", tensors.get("tensor"))
        y: Any = tensors.get("output")
        op, root = {"op": options.get("op", "sum")}, ranks[options.get("root", 0)]
        received, sent = (_rows(options.get(part)) for part in ("receives", "sends"))
        calls: dict[str, Callable[[], Any]] = {
            "barrier": lambda: dist.barrier(**common),
            "all_reduce": lambda: dist.all_reduce(x, **op, **common),
            "broadcast": lambda: dist.broadcast(x, root, **common),
            "reduce": lambda: dist.reduce(x, root, **op, **common),
            "all_gather": lambda: dist.all_gather_single(y, x, **common),
            "reduce_scatter": lambda: dist.reduce_scatter_single(y, x, **op, **common),
            "all_to_all": lambda: dist.all_to_all_single(y, x, received, sent, **common),
        }
        return calls[name]


def _group(node: TraceNode, world: int) -> tuple[int, ...]:
    if node.type != COLLECTIVE or not _communicates(node):
        return ()
    return tuple(node.attrs.get("pg_ranks", range(world)))


def _stream(node: TraceNode) -> object:
    if node.type in (SEND, RECV):
        return node.type, node.attrs.get("comm_src"), node.attrs.get("comm_dst"), node.attrs.get("comm_tag", 0)
    return node.attrs.get("pg_ranks", "world") if node.type == COLLECTIVE else "compute"


def _rows(parts: Any) -> list[int] | None:
    """Return the rows by member that `all_to_all_single` moves; None for equal parts."""
    rows = [n for _, n in sorted(parts or ())]
    return None if not rows or None in rows else rows


def _joint(name: str, named: dict[str, Any], options: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Return the tensors with lists of `n` tensors as one: the parts of a list were recorded once, or not at all."""
    if name == "all_to_all" and _rows(options.get("sends")) is None:
        return {each: ((shape[0] * n, *shape[1:]), *rest) for each, (shape, *rest) in named.items()}
    part, whole = ("input", "output") if name == "all_gather" else ("output", "input")
    if name in ("all_gather", "reduce_scatter") and whole not in named:
        shape, *rest = named[part]
        return {**named, whole: ((shape[0] * n, *shape[1:]), *rest)}
    return named


def _foreign(node: TraceNode, n: int) -> dict[str, tuple[tuple[int, ...], str, Any]]:
    """Return the tensors of a node that says only how many bytes its input has, for `n` ranks."""
    dtype, itemsize = _ITEM
    size = max(1, -(-int(node.attrs["comm_size"]) // itemsize))
    name = _kind(node)
    if name in ("reduce_scatter", "all_to_all"):
        size = -(-size // n) * n
    sizes = {"input": size}
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        sizes["output"] = {"all_gather": size * n, "reduce_scatter": size // n, "all_to_all": size}[name]
    return {} if name == "barrier" else {each: ((count,), dtype, _SPREAD) for each, count in sizes.items()}
