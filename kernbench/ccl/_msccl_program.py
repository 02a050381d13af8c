"""MSCCL programs: collectives as XML, with the steps of every thread block of every GPU.

The format is that of msccl-tools and of the MSCCL runtime. A thread block has at most one peer that it sends to and one
that it receives from, on one channel; its steps run in order, and a step may wait for a step of another thread block of
its GPU (`depid`, `deps`). Everything that a program can be wrong in by itself is found here, before anything runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from xml.parsers import expat

from kernbench._registry import hint
from kernbench._units import MIB
from kernbench.config._ccl import STATED, CclEntry
from kernbench.config._files import read_text
from kernbench.config._kinds import Fault, KeyPath, dotted
from kernbench.errors import ConfigError, quote

# Each type of step, by what it does: receive, combine with or read local elements, send, store.
_TYPES = {
    "s": "read send",
    "r": "receive store",
    "rcs": "receive send store",
    "rrc": "receive read store",
    "rrs": "receive read send",
    "rrcs": "receive read send store",
    "cpy": "read store",
    "re": "read store",
    "nop": "",
}
MSCCL_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
# Whether torch's collective writes its result to its input. An all-gather in place can be run out of place.
IN_PLACE = {"all_reduce": True, "broadcast": True, "reduce": True, "reduce_scatter": False, "all_to_all": False}
BUFFERS = {"i": "input", "o": "output", "s": "scratch"}
_MOST_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class MscclStep:
    """`cnt` chunks from `src` on, to `dst` on, both (buffer, chunk).

    `dep` is the (thread block, step) that it waits for; others wait for it only if it `hasdep`.
    """

    line: int
    type: str
    src: tuple[str, int]
    dst: tuple[str, int]
    cnt: int
    dep: tuple[int, int] | None = None
    hasdep: bool = True

    def does(self, what: str) -> bool:
        """Return whether it does one of "receive", "read", "send", "store"."""
        return what in _TYPES[self.type].split()


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """The peers that a thread block sends to and receives from (-1: none), its channel, and its steps."""

    line: int
    send: int
    recv: int
    chan: int
    steps: tuple[MscclStep, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """The chunks of each buffer of a GPU, and its thread blocks."""

    line: int
    chunks: Mapping[str, int] = field(hash=False)
    blocks: tuple[ThreadBlock, ...]


@dataclass(frozen=True)
class MscclProgram:
    """An MSCCL program."""

    file: str  # where it was read from
    name: str  # what it calls itself
    coll: str  # as it names its collective: "allreduce", ..., "custom"
    inplace: bool  # input and output are one buffer
    nchunks: int  # of the larger of input and output
    gpus: tuple[Gpu, ...]
    arguments: int = 0  # of the launch of an algorithm that kernbench wrote

    @cached_property
    def width(self) -> int:
        """Thread blocks of the GPU that has the most."""
        return max(len(gpu.blocks) for gpu in self.gpus)

    @cached_property
    def senders(self) -> dict[tuple[int, int, int], int]:
        """(gpu, peer, channel) to the thread block that sends there."""
        return _ends(self, "send")

    @cached_property
    def receivers(self) -> dict[tuple[int, int, int], int]:
        """(gpu, peer, channel) to the thread block that receives from there."""
        return _ends(self, "recv")

    def most(self, buffer: str) -> int:
        """Return the chunks of a buffer on the GPU that uses the most of it."""
        return max(gpu.chunks[buffer] for gpu in self.gpus)


def _ends(program: MscclProgram, side: str) -> dict[tuple[int, int, int], int]:
    found = {}
    for g, gpu in enumerate(program.gpus):
        for t, block in enumerate(gpu.blocks):
            peer = block.send if side == "send" else block.recv
            if peer >= 0:
                found[g, peer, block.chan] = t
    return found


def entry_faults(path: KeyPath, entry: CclEntry) -> Iterator[Fault]:
    """Yield what is wrong with an entry of ccl.yaml that names an MSCCL program, and with the program."""

    def fault(key: str, text: str) -> Fault:
        return Fault(f"{dotted((*path, key))} {text}", ((*path, key),))

    try:
        program = read_program(entry.module)
    except ConfigError as error:
        yield fault("module", f"= {quote(entry.module)}: {error}")
        return
    for key, value in STATED.items():
        if (stated := {"topology": entry.topology, "mapper": entry.mapper, "validator": entry.validator}[key]) != value:
            yield fault(key, f"= {quote(stated)} is the MSCCL program's to state; leave it out")
    does = MSCCL_COLLECTIVES.get(program.coll)
    if does not in (None, entry.collective):
        yield fault("collective", f"= {entry.collective!r}, but the program does {does}; write collective: {does}")
    if does in IN_PLACE and program.inplace is not IN_PLACE[does]:
        yield fault(
            "module",
            f"= {quote(entry.module)}: {does} works {'in' if IN_PLACE[does] else 'out of'} place in torch, and the "
            f"program does not; generate it with inplace={IN_PLACE[does]}",
        )
    if entry.contribution != "rank":
        yield fault("contribution", f"= {entry.contribution!r}: an MSCCL program combines ranks; leave it out")
    if entry.world_size not in (None, len(program.gpus)):
        yield fault(
            "world_size", f"= {entry.world_size}, but the program is for {len(program.gpus)} ranks; leave it out"
        )
    for name, value in entry.options.items():
        if name not in ("op", "chunk_bytes"):
            yield fault("options", f"{name} = {quote(value)} is unknown; {hint(name, ('op', 'chunk_bytes'))}")


def read_program(path: str | Path) -> MscclProgram:
    """Return the program of an XML file; ConfigError with file, line, element and attribute if it is wrong."""
    text = read_text(Path(path), _MOST_BYTES, "write it with msccl-tools, or with kernbench.ccl.to_msccl")
    return _Reader(str(path)).program(text)


@dataclass
class _Element:
    tag: str
    line: int
    attributes: dict[str, str]
    children: list[_Element] = field(default_factory=list)


class _Reader:
    """Reads one file; every error names its place."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.name = Path(file).name

    def program(self, text: str) -> MscclProgram:
        algo = self._parsed(text)
        self._tag(algo, "algo")
        n = self._number(algo, "ngpus", least=1)
        places: list[Gpu | None] = [None] * n
        for element in algo.children:
            self._tag(element, "gpu")
            g = self._number(element, "id", most=n - 1)
            if places[g] is not None:
                raise self._error(element, "id", f"is there twice; number the GPUs 0 to {n - 1}, each once")
            places[g] = self._gpu(element, n, g)
        if None in places:
            raise self._error(algo, "ngpus", f"but GPU {places.index(None)} is missing; add it, or change ngpus")
        gpus = tuple(gpu for gpu in places if gpu is not None)
        most = max(max(gpu.chunks["i"], gpu.chunks["o"]) for gpu in gpus)
        nchunks = self._number(algo, "nchunksperloop", default=most, least=1)
        if nchunks < most:
            raise self._error(algo, "nchunksperloop", f"but a GPU uses {most} chunks; write nchunksperloop={most}")
        coll = algo.attributes.get("coll", "custom")
        if coll not in (*MSCCL_COLLECTIVES, "custom"):
            raise self._error(algo, "coll", f"is unknown; {hint(coll, (*MSCCL_COLLECTIVES, 'custom'))}")
        if nchunks % n and MSCCL_COLLECTIVES.get(coll) in ("all_gather", "reduce_scatter", "all_to_all"):
            raise self._error(algo, "nchunksperloop", f"must be a multiple of ngpus = {n}: each rank has an equal part")
        inplace = bool(self._number(algo, "inplace", default=1, most=1))
        name = algo.attributes.get("name", Path(self.file).stem)
        arguments = self._number(algo, "arguments", default=0, most=64)
        found = MscclProgram(self.file, name, coll, inplace, nchunks, gpus, arguments)
        self._check_messages(found)
        for g, gpu in enumerate(gpus):
            self._check_dependences(g, gpu)
        return found

    def _parsed(self, text: str) -> _Element:
        parser = expat.ParserCreate()
        root = _Element("", 0, {})
        open_elements = [root]

        def start(tag: str, attributes: dict[str, str]) -> None:
            element = _Element(tag, parser.CurrentLineNumber, attributes)
            open_elements[-1].children.append(element)
            open_elements.append(element)

        def refuse(*_: object) -> None:
            raise ConfigError(
                f"{self.name}:{parser.CurrentLineNumber}: a document type; an MSCCL program has none: delete it"
            )

        parser.StartElementHandler = start
        parser.EndElementHandler = lambda _: open_elements.pop()
        parser.StartDoctypeDeclHandler = refuse
        try:
            parser.Parse(text, True)
        except expat.ExpatError as error:
            what = expat.errors.messages[error.code]
            raise ConfigError(
                f"{self.name}:{error.lineno}:{error.offset + 1}: invalid XML: {what}; correct it"
            ) from error
        return root.children[0]

    def _gpu(self, element: _Element, n: int, g: int) -> Gpu:
        chunks = {buffer: self._number(element, f"{buffer}_chunks", default=0) for buffer in BUFFERS}
        blocks: list[ThreadBlock | None] = [None] * len(element.children)
        for child in element.children:
            self._tag(child, "tb")
            t = self._number(child, "id", most=len(blocks) - 1)
            if blocks[t] is not None:
                raise self._error(child, "id", f"is there twice in GPU {g}; number its thread blocks from 0 on")
            blocks[t] = self._block(child, n, g, chunks)
        found = tuple(block for block in blocks if block is not None)
        for side in ("send", "recv"):
            ends = [(block.send if side == "send" else block.recv, block.chan) for block in found]
            for t, (peer, chan) in enumerate(ends):
                if peer >= 0 and (peer, chan) in ends[:t]:
                    raise ConfigError(
                        f"{self.name}:{found[t].line}: <tb> {t} of GPU {g}: {side} = {peer} on chan = {chan}, as "
                        f"thread block {ends.index((peer, chan))}; give one of them another channel"
                    )
        return Gpu(element.line, chunks, found)

    def _block(self, element: _Element, n: int, g: int, chunks: Mapping[str, int]) -> ThreadBlock:
        peers = {}
        for side in ("send", "recv"):
            peers[side] = self._number(element, side, default=-1, least=-1, most=n - 1)
            if peers[side] == g:
                raise self._error(element, side, f"is GPU {g} itself; name a peer, or -1, and copy with a step cpy")
        chan = self._number(element, "chan", default=0, least=-1)
        steps = []
        for i, child in enumerate(element.children):
            self._tag(child, "step")
            if self._number(child, "s") != i:
                raise self._error(child, "s", f"but it is the step {i} of its thread block; number them from 0 on")
            steps.append(self._step(child, peers, chunks))
        return ThreadBlock(element.line, peers["send"], peers["recv"], chan, tuple(steps))

    def _step(self, element: _Element, peers: Mapping[str, int], chunks: Mapping[str, int]) -> MscclStep:
        kind = element.attributes.get("type", "")
        if kind not in _TYPES:
            raise self._error(element, "type", f"is unknown; {hint(kind, _TYPES)}")
        does = _TYPES[kind].split()
        for what, side in (("send", "send"), ("receive", "recv")):
            if what in does and peers[side] < 0:
                raise self._error(element, "type", f"does {what}, but its <tb> has {side} = -1; state the peer there")
        cnt = self._number(element, "cnt", default=1, least=0 if kind == "nop" else 1)
        ends = []
        for end, used in (("src", "read" in does), ("dst", "store" in does)):
            buffer = element.attributes.get(f"{end}buf", "i")
            offset = self._number(element, f"{end}off", default=0 if used else -1, least=0 if used else -1)
            if used and buffer not in BUFFERS:
                raise self._error(element, f"{end}buf", f"is unknown; {hint(buffer, BUFFERS)}")
            if used and offset + cnt > chunks[buffer]:
                raise self._error(
                    element, f"{end}off",
                    f"with cnt = {cnt} ends at chunk {offset + cnt}, but {buffer}_chunks of its <gpu> is "
                    f"{chunks[buffer]}; correct one of them",
                )  # fmt: skip
            ends.append((buffer, offset))
        block, step = (self._number(element, key, default=-1, least=-1) for key in ("depid", "deps"))
        hasdep = bool(self._number(element, "hasdep", default=1, most=1))
        return MscclStep(element.line, kind, ends[0], ends[1], cnt, None if block < 0 else (block, step), hasdep)

    def _check_messages(self, program: MscclProgram) -> None:
        """Refuse a peer that is not there, and sends without receives of the same size."""
        for side, ends, others in (
            ("send", program.senders, program.receivers),
            ("recv", program.receivers, program.senders),
        ):
            back = "recv" if side == "send" else "send"
            for (g, peer, chan), t in ends.items():
                if (peer, g, chan) not in others:
                    raise ConfigError(
                        f"{self.name}:{program.gpus[g].blocks[t].line}: <tb> {t} of GPU {g}: {side} = {peer} on chan = "
                        f"{chan}, but no <tb> of GPU {peer} has {back} = {g} on that channel; add it, or correct {side}"
                    )
        for (g, peer, chan), t in program.senders.items():
            u = program.receivers[peer, g, chan]
            sent = [step for step in program.gpus[g].blocks[t].steps if step.does("send")]
            received = [step for step in program.gpus[peer].blocks[u].steps if step.does("receive")]
            sender = f"GPU {g}, thread block {t}, to GPU {peer}, thread block {u}"
            for i, (a, b) in enumerate(zip(sent, received, strict=False)):
                if a.cnt != b.cnt:
                    raise ConfigError(
                        f"{self.name}:{b.line}: <step> cnt = {b.cnt}, but message {i} from {sender} has {a.cnt} chunks "
                        f"(line {a.line}); make them equal"
                    )
            if len(sent) != len(received):
                extra = max(sent, received, key=len)[min(len(sent), len(received))]
                raise ConfigError(
                    f"{self.name}:{extra.line}: <step> type = {extra.type!r}: {len(sent)} sends, but {len(received)} "
                    f"receives from {sender}; add or delete steps until they match"
                )

    def _check_dependences(self, g: int, gpu: Gpu) -> None:
        """Refuse dependences on steps that are not there, and cycles of them."""
        waits: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for t, block in enumerate(gpu.blocks):
            for i, step in enumerate(block.steps):
                waits[t, i] = [(t, i - 1)] * (i > 0)
                if step.dep is None:
                    continue
                other, at = step.dep
                if other >= len(gpu.blocks):
                    raise ConfigError(
                        f"{self.name}:{step.line}: <step> depid = {other}, but GPU {g} has the thread blocks 0 to "
                        f"{len(gpu.blocks) - 1}; name one of them, or -1"
                    )
                if not 0 <= at < len(gpu.blocks[other].steps):
                    raise ConfigError(
                        f"{self.name}:{step.line}: <step> deps = {at}, but thread block {other} of GPU {g} has the "
                        f"steps 0 to {len(gpu.blocks[other].steps) - 1}; name one of them"
                    )
                if other != t and not gpu.blocks[other].steps[at].hasdep:
                    raise ConfigError(
                        f"{self.name}:{gpu.blocks[other].steps[at].line}: <step> hasdep = 0, but step {i} of thread "
                        f"block {t} of GPU {g} waits for it (line {step.line}); write hasdep = 1"
                    )
                waits[t, i].append((other, at))
        if cycle := _cycle(waits):
            steps = " <- ".join(f"thread block {t}, step {i}" for t, i in cycle)
            line = gpu.blocks[cycle[0][0]].steps[cycle[0][1]].line
            raise ConfigError(
                f"{self.name}:{line}: <step> depid, deps: steps of GPU {g} wait for each other: {steps}; remove one of "
                "these dependences"
            )

    def _tag(self, element: _Element, expected: str) -> None:
        if element.tag != expected:
            raise ConfigError(
                f"{self.name}:{element.line}: <{element.tag}> is unknown here; expected <{expected}>, as msccl-tools "
                "writes it"
            )

    def _number(
        self, element: _Element, key: str, *, default: int | None = None, least: int = 0, most: int | None = None
    ) -> int:
        text = element.attributes.get(key)
        if text is None and default is not None:
            return default
        upto = f" to {most}" if most is not None else " or more"
        if text is None:
            raise ConfigError(
                f"{self.name}:{element.line}: <{element.tag}> has no {key}; add it, a whole number, {least}{upto}"
            )
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise self._error(element, key, f"must be a whole number, {least}{upto}")
        return value

    def _error(self, element: _Element, key: str, text: str) -> ConfigError:
        value = element.attributes.get(key, "")
        return ConfigError(f"{self.name}:{element.line}: <{element.tag}> {key} = {value!r} {text}")


def _cycle(waits: Mapping[tuple[int, int], Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Return steps of which each waits for the next, and the last for the first; none if there are none."""
    left = {step: len(others) for step, others in waits.items()}
    followers: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for step, others in waits.items():
        for other in others:
            followers.setdefault(other, []).append(step)
    ready = [step for step, n in left.items() if not n]
    done = Counter(ready)
    while ready:
        for step in followers.get(ready.pop(), []):
            left[step] -= 1
            if not left[step]:
                ready.append(step)
                done[step] += 1
    stuck = [step for step in waits if step not in done]
    if not stuck:
        return []
    seen = [stuck[0]]
    while True:
        step = next(other for other in waits[seen[-1]] if other not in done)
        if step in seen:
            return seen[seen.index(step) :]
        seen.append(step)
