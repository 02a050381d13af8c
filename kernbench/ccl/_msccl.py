"""MSCCL programs on the machine: every thread block of a GPU is the program of one PE of its SIP.

GPUs are SIPs, in rank order. Thread block t of a GPU runs on the t-th PE of its SIP, counted from the PE that holds the
tensor: first those of its cube, then those of the others. Each pair of a peer and a channel has its own queue.

The steps of a thread block are pipelined as those of other collectives are (`kernbench.ccl._schedule`): receives and
loads are posted some messages ahead, and a long chunk moves in several messages. A step that another thread block waits
for (`hasdep`) ends with a message to it, once everything that its thread block has stored is in memory.

Each step is run by its own copies of `_post` and `_do`, whose code carries the name of the step and its line in the XML
file: errors, deadlocks and results refer to these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import Parameter, Signature
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from kernbench.ccl._group import Group, Neighbours, Place, Subgroup, single_shard_per_rank
from kernbench.ccl._msccl_program import MSCCL_COLLECTIVES, MscclProgram, MscclStep, read_program
from kernbench.ccl._schedule import AHEAD, Chunking, Operator, Reduction
from kernbench.ccl.algorithm import Algorithm, algorithm
from kernbench.errors import ConfigError
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu._queue_ops import Arrival
from kernbench.triton_emu.tl_context import TLContext

# Chunks of these keep their place from input to output.
_IN_PLACE = ("allreduce", "broadcast", "reduce")


def from_msccl(path: str | Path, *, name: str | None = None, **settings: Any) -> Algorithm:
    """Return an MSCCL program as an algorithm.

    Parameters
    ----------
    path : path
        The XML file, as msccl-tools or `to_msccl` write it.
    name : str, optional
        What results call it; by default the file's name without its suffix.
    **settings
        Any other attribute of `Algorithm`, such as `n_slots`.

    Returns
    -------
    Algorithm
        For `torch.collective` and `torch.distributed`. Each device has one shard of the tensor, on one PE. A program
        that uses only its input, or whose output is its input, takes one tensor of each device, any other two:
        [input, output]. Options of a call: `op` ("sum", "min", "max", "product" or a function, as for other
        collectives) and `chunk_bytes`, the bytes of a message.

    Raises
    ------
    ConfigError
        If the program is wrong: with file, line, element, attribute and remedy.

    Examples
    --------
    >>> from_msccl("ring.xml").collective  # doctest: +SKIP
    'all_reduce'
    """
    file = Path(path).resolve()
    program = read_program(file)
    run = _run(program)  # the same for the same program: ranks compare their algorithms
    settings.setdefault("collective", MSCCL_COLLECTIVES.get(program.coll, "custom"))
    return algorithm(
        run.kernel,
        run.kernel_args,
        name=name or file.stem,
        topology=run.topology,
        mapper=run.mapper,
        validator=run.validator,
        scratch=run.scratch,
        world_size=len(program.gpus) * program.width,
        **settings,
    )


class _Message(NamedTuple):
    """A message's worth of a step: what it waits for, receives, reads, sends, stores and tells."""

    size: int
    waits: tuple[str, ...]
    source: str | None
    reads: tuple[Pointer, ...]
    src: Pointer | None
    to: str | None
    dst: Pointer | None
    tells: tuple[str, ...]
    confirms: bool


def _do(
    message: _Message, arrivals: list[Arrival], tiles: list[Tile] | None, stored: list[Pointer], work: Reduction,
    dtype: Any, tl: TLContext,
) -> None:  # fmt: skip
    for direction in message.waits:
        tl.recv(direction, shape=1, dtype=dtype)
    if tiles is None:
        tiles = [tl.load(pointer, shape=(message.size,)) for pointer in message.reads]
    if arrivals:
        received = tl.wait(arrivals[0])
        arrivals.clear()  # or the message would stay in its slot
        if message.to is not None and not tiles:
            received = tl.copy(received)
        tiles.insert(0, received)
    if message.confirms:
        for tile in tiles:
            tl.wait(tile)
    if len(tiles) > 1:
        result = work.combine(tl, tiles, complete=False)
    elif tiles:
        result = tiles[0]
    if message.to is not None:
        if message.source is None and not message.confirms:
            tl.send(message.to, message.src, shape=(message.size,))
        else:
            tl.send(message.to, result)
    if message.dst is not None:
        tl.store(message.dst, result)
        if message.confirms:
            stored.append(message.dst)
    if message.tells:
        token = tl.zeros((1,), dtype)
        seen = [tl.load(pointer, shape=(1,)) for pointer in stored]
        for token in seen:
            tl.wait(token)
        stored.clear()
        for direction in message.tells:
            tl.send(direction, token)


def _post(message: _Message, late: bool, dtype: Any, tl: TLContext) -> tuple[list[Arrival], list[Tile] | None]:
    sources = [] if message.source is None else [message.source]
    arrivals = [tl.recv_async(source, shape=(message.size,), dtype=dtype) for source in sources]
    return arrivals, None if late else [tl.load(pointer, shape=(message.size,)) for pointer in message.reads]


def _named(function: Callable[..., Any], where: str, line: int) -> Callable[..., Any]:
    """Return a copy of a function as code of a line of the XML file."""

    def placed(code: CodeType) -> CodeType:
        units = len(code.co_code) // 2
        # An entry for up to 8 units: no columns (kind 13), and no lines after that of the function.
        table = b"".join(bytes((0x80 | 13 << 3 | min(8, units - at) - 1, 0)) for at in range(0, units, 8))
        inner = tuple(placed(const) if isinstance(const, CodeType) else const for const in code.co_consts)
        return code.replace(co_filename=where, co_firstlineno=line, co_linetable=table, co_consts=inner)

    return FunctionType(placed(function.__code__), globals())


@dataclass(frozen=True, slots=True)
class _Action:
    """A step with its queues, and the code that runs it."""

    step: MscclStep
    post: Callable[..., tuple[list[Arrival], list[Tile] | None]]
    do: Callable[..., None]
    waits: tuple[str, ...]
    tells: tuple[str, ...]
    to: str | None
    source: str | None


class _Run:
    """Runs the thread blocks of a program; its methods are those of an algorithm."""

    def __init__(self, program: MscclProgram) -> None:
        self.program = program
        self.ranks = len(program.gpus)
        both = program.most("i") and program.most("o")
        in_place = program.inplace and program.coll not in ("allgather", "custom")
        self.tensors = 1 if in_place or (program.coll == "custom" and not both) else 2
        self.root = self._root()
        self.kernel = self._kernel(self.tensors)
        # Of an all-gather in place, a rank's input is a part of its output: these chunks.
        self.own = program.nchunks // self.ranks if program.coll == "allgather" and program.inplace else 0
        self._actions: dict[tuple[int, int], list[_Action]] = {}
        self._pairs: list[set[tuple[int, int]]] = []  # of each GPU: (who tells, who waits)
        for g in range(self.ranks):
            self._pairs.append(self._link(g))

    def _link(self, g: int) -> set[tuple[int, int]]:
        """Make the actions of a GPU; return which of its thread blocks tell which."""
        gpu, program = self.program.gpus[g], self.program
        waits: dict[tuple[int, int], list[int]] = {}
        tells: dict[tuple[int, int], list[int]] = {}
        first: list[int] = []
        for t, block in enumerate(gpu.blocks):
            seen = {t: len(block.steps)}
            if self.own and t and any(step.does("read") for step in block.steps):
                first.append(t)
            for i, step in enumerate(block.steps):
                if step.dep is not None and seen.get(step.dep[0], -1) < step.dep[1]:
                    seen[step.dep[0]] = step.dep[1]
                    waits.setdefault((t, i), []).append(step.dep[0])
                    tells.setdefault(step.dep, []).append(t)
        for t, block in enumerate(gpu.blocks):
            where = partial(self._where, f"gpu {g}, tb {t}")
            actions = []
            if self.own and (not t or t in first):
                copy = MscclStep(block.line, "nop" if t else "cpy", ("i", 0), ("o", g * self.own), self.own)
                told = () if t else tuple(f"tb{w}" for w in first)
                actions.append(
                    _Action(copy, *where("copy of the input", block.line), ("tb0",) * bool(t), told, None, None)
                )
            for i, step in enumerate(block.steps):
                to = source = None
                if step.does("send"):
                    to = f"gpu{block.send}.tb{program.receivers[block.send, g, block.chan]}.chan{block.chan}"
                if step.does("receive"):
                    source = f"gpu{block.recv}.tb{program.senders[block.recv, g, block.chan]}.chan{block.chan}"
                directions = [tuple(f"tb{w}" for w in known.get((t, i), ())) for known in (waits, tells)]
                if step.type == "cpy" and i and _is_joint(block.steps[i - 1], step) and not actions[-1].tells:
                    to, directions[0] = actions[-1].to, actions[-1].waits
                    del actions[-1]
                code = where(f"step {i} ({step.type})", step.line)
                actions.append(_Action(step, *code, directions[0], directions[1], to, source))
            self._actions[g, t] = actions
        pairs = {(d, t) for (t, _), others in waits.items() for d in others}
        return pairs | {(0, t) for t in first}

    def _root(self) -> int | None:
        """Return the GPU that only sends in a broadcast, or only receives in a reduction; None of other collectives."""
        action = {"broadcast": "receive", "reduce": "send"}.get(self.program.coll, "")
        passive = [
            g
            for g, gpu in enumerate(self.program.gpus)
            if not any(step.does(action) for block in gpu.blocks for step in block.steps)
        ]
        return passive[0] if action and len(passive) == 1 else None

    def _where(self, block: str, what: str, line: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the code of a step, which says where it is."""
        where = f"{block}, {what} in {self.program.file}"
        return _named(_post, where, line), _named(_do, where, line)

    def chunk(self, n_elem: int) -> int:
        """Return the elements of a chunk; ConfigError if those of the tensor are no multiple of the chunks."""
        p = self.program
        whole = n_elem * self.ranks if p.coll == "allgather" else n_elem
        parts = (p.most("i") or p.nchunks) if p.coll == "custom" else p.nchunks
        size, rest = divmod(whole, parts)
        if rest or not size:
            each = parts // self.ranks if p.coll == "allgather" else parts
            raise ConfigError(
                f"{Path(p.file).name}: {n_elem} elements do not make the {parts} equal chunks of the program; give "
                f"each device a multiple of {max(1, each)} elements"
            )
        return size

    def kernel_args(
        self,
        *,
        n_elem: int,
        world_size: int,
        op: str | Operator = "sum",
        root: int | None = None,
        chunk_bytes: int | None = None,
    ) -> tuple[object, ...]:
        """Return the kernel's arguments after its pointers; `n_elem` is that of a device's first tensor."""
        if op == "avg":
            raise ConfigError(
                f"{Path(self.program.file).name}: op = 'avg': an MSCCL program does not state when a sum is complete; "
                "use op='sum', and divide"
            )
        if root not in (None, self.root):
            raise ConfigError(
                f"{Path(self.program.file).name}: root = {root}, but the root of the program is {self.root}; leave "
                "it out"
            )
        self.chunk(n_elem)
        return n_elem, (Reduction(op, self.ranks), chunk_bytes), *self._padding(self.tensors + 3)

    def scratch(self, n_elem: int) -> int:
        return self.program.most("s") * self.chunk(n_elem)

    def validator(self, group: Group) -> None:
        """Require one shard on each device, one device for each GPU, and a PE for each thread block."""
        single_shard_per_rank(group)
        p = self.program
        if len(group.shards) != self.ranks:
            raise ConfigError(
                f"{Path(p.file).name} is a program for {self.ranks} ranks, and the group has {len(group.shards)}; give "
                "it one tensor on each of as many devices"
            )
        if group.targets and p.width > len(group.targets):
            raise ConfigError(
                f"{Path(p.file).name} has {p.width} thread blocks for each GPU, and a SIP has {len(group.targets)} "
                "PEs; give the machine more PEs, or the program fewer instances or channels"
            )

    def mapper(self, group: Group) -> list[tuple[Place, ...]]:
        """Return the PEs of each device that run its thread blocks, the holder of the shard first."""
        places: list[Place] = []
        for shards in group.shards:
            sip, cube, pe = shards[0]
            others = group.targets or [(cube, n) for n in range(self.program.width)]
            order = sorted(others, key=lambda at: (at != (cube, pe), at[0] != cube, at))
            places += [(sip, *at) for at in order[: self.program.width]]
        return [tuple(places)]

    def topology(self, subgroup: Subgroup) -> Neighbours:
        """Return a queue for each peer and channel of a thread block, and for each that it waits for."""
        width, p = self.program.width, self.program
        graph: Neighbours = [{} for _ in subgroup.places]
        for (g, peer, chan), t in p.senders.items():
            u = p.receivers[peer, g, chan]
            here, there = f"gpu{peer}.tb{u}.chan{chan}", f"gpu{g}.tb{t}.chan{chan}"
            graph[g * width + t][here] = (peer * width + u, there)
            graph[peer * width + u][there] = (g * width + t, here)
        for g, pairs in enumerate(self._pairs):
            for a, b in pairs:
                graph[g * width + a][f"tb{b}"] = (g * width + b, f"tb{a}")
                graph[g * width + b][f"tb{a}"] = (g * width + a, f"tb{b}")
        return graph

    def _kernel(self, tensors: int) -> Callable[..., None]:
        """Return the kernel for so many tensors of each device; it takes as many arguments as the program says."""
        names = [*("t_ptr", "out_ptr")[:tensors], "scratch", "n_elem", "call"]
        used = len(names)

        def kernel(*args: Any, tl: TLContext) -> None:
            *pointers, scratch, n_elem, (work, chunk_bytes) = args[:used]
            self._run(pointers[0], pointers[-1], scratch, n_elem, work, chunk_bytes, tl)

        kernel.__name__ = Path(self.program.file).stem
        names += [f"unused_{i}" for i in range(len(self._padding(used)))]
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        signed = Signature([*parameters, Parameter("tl", Parameter.KEYWORD_ONLY)])
        kernel.__signature__ = signed  # type: ignore[attr-defined]
        return kernel

    def _padding(self, used: int) -> tuple[int, ...]:
        """Return arguments without meaning, so that a launch is as large as that of the algorithm that was written."""
        return (0,) * (self.program.arguments - used)

    def _run(
        self, i_ptr: Pointer, o_ptr: Pointer, s_ptr: Pointer, n_elem: int, work: Reduction, chunk_bytes: int | None,
        tl: TLContext,
    ) -> None:  # fmt: skip
        """Run the thread block of this PE."""
        rank, block = divmod(int(tl.program_id(2)), self.program.width)
        actions = self._actions.get((rank, block), [])
        confirms = any(action.tells for action in actions)
        posted: deque[tuple[_Action, _Message, list[Arrival], list[Tile] | None]] = deque()
        stored: list[Pointer] = []
        if self.tensors == 1 and self.program.coll in ("reduce_scatter", "reducescatter"):
            o_ptr += rank * self.program.nchunks // self.ranks * self.chunk(n_elem)  # a part of the input
        pointers = {"i": i_ptr, "o": o_ptr, "s": s_ptr}
        dtype = i_ptr.dtype.element_ty

        def finish() -> None:
            action, *rest = posted.popleft()
            action.do(*rest, stored, work, dtype, tl)

        chunking = Chunking(dtype.itemsize, 1, chunk_bytes)
        for action, message in self._messages(actions, pointers, n_elem, chunking, confirms):
            while message.waits and posted:
                finish()
            late = bool(message.waits) or _is_stale(message, [each[1] for each in posted])
            posted.append((action, message, *action.post(message, late, dtype, tl)))
            while posted and (message.waits or message.tells or len(posted) > AHEAD):
                finish()
        while posted:
            finish()

    def _messages(
        self, actions: list[_Action], pointers: dict[str, Pointer], n_elem: int, chunking: Chunking, confirms: bool
    ) -> Iterator[tuple[_Action, _Message]]:
        """Yield the messages of all steps, loop after loop: each loop does a part of the tensor that fits into TCM."""
        for extent, stride, starts in self._loops(n_elem, chunking):
            for action in actions:
                step = action.step
                whole = stride == extent
                blocks = [(0, step.cnt * extent)] if whole else [(c * stride, extent) for c in range(step.cnt)]
                spans = (
                    [span for block in blocks for span in chunking.chunks(block)] if step.type != "nop" else [(0, 0)]
                )
                src, dst = (
                    pointers[end[0]] + (starts[end[0]] + end[1] * stride) if step.does(used) else None
                    for end, used in ((step.src, "read"), (step.dst, "store"))
                )
                for n, (at, size) in enumerate(spans):
                    here, there = (None if p is None else p + at for p in (src, dst))
                    reads: tuple[Pointer, ...] = ()
                    if here is not None and (step.type != "s" or confirms):
                        reads = (there, here) if step.type == "re" and there is not None else (here,)
                    yield action, _Message(
                        size, action.waits if not n else (), action.source, reads, here, action.to, there,
                        action.tells if n == len(spans) - 1 else (), confirms,
                    )  # fmt: skip

    def _loops(self, n_elem: int, chunking: Chunking) -> Iterator[tuple[int, int, dict[str, int]]]:
        """Yield the elements of a chunk in each loop, those from one chunk to the next, and where buffers start."""
        chunk, p = self.chunk(n_elem), self.program
        if p.coll in _IN_PLACE:
            for start, size in chunking.segments(0, n_elem, p.nchunks):
                yield (
                    size // p.nchunks,
                    size // p.nchunks,
                    {"i": start, "o": start, "s": start // p.nchunks * p.most("s")},
                )
            return
        for start, size in chunking.segments(0, chunk, 1):
            yield size, chunk, dict.fromkeys("ios", start)


def _is_joint(send: MscclStep, copy: MscclStep) -> bool:
    """Return whether what is sent is then copied: it is read once."""
    return send.type == "s" and copy.dep is None and (send.src, send.cnt) == (copy.src, copy.cnt)


@lru_cache(maxsize=32)
def _run(program: MscclProgram) -> _Run:
    return _Run(program)


def _is_stale(message: _Message, posted: list[_Message]) -> bool:
    """Return whether a posted message has yet to store what this one reads."""

    def reach(pointer: Pointer, size: int) -> tuple[int, int]:
        return pointer.va, pointer.va + size * pointer.dtype.element_ty.itemsize

    stores = [reach(before.dst, before.size) for before in posted if before.dst is not None]
    reads = [reach(pointer, message.size) for pointer in message.reads]
    return any(a < end and start < b for start, end in stores for a, b in reads)
