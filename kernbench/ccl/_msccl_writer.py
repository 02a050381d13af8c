"""Algorithms as MSCCL programs: each participant becomes a GPU with one thread block.

The kernel of every participant runs once without values, on a few elements, and its commands are noted. What becomes of
each message is then a step. A thread block has one peer that it sends to and one that it receives from: only
algorithms whose participants have no more can be written, such as those of one ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import gcd
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from kernbench._dtypes import float32
from kernbench.ccl._group import Group
from kernbench.ccl._msccl_program import MSCCL_COLLECTIVES, read_program
from kernbench.ccl._topologies import through_switch
from kernbench.ccl.algorithm import CollectivePlan, plan_group
from kernbench.ccl.install import AlgorithmLike, CclLike, resolve_algorithm_config
from kernbench.components._command import Command, Load, Recv, Run, Send, Store, Value, Vector
from kernbench.config._files import write_text
from kernbench.errors import ConfigError
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu._runner import run_kernel_program
from kernbench.triton_emu.testing import MockBackend

_EACH = 64  # elements for each participant: a block of any algorithm is then one message
_FAR = 1 << 40  # bytes between buffers


def to_msccl(
    algorithm: AlgorithmLike, path: str | Path, ranks: int | Group, *, config: CclLike | None = None, **call: Any
) -> Path:
    """Write an algorithm as an MSCCL program.

    Parameters
    ----------
    algorithm : str, Algorithm, callable or module
        As for `torch.collective`: an entry of ccl.yaml, or an algorithm of your own.
    path : path
        The XML file.
    ranks : int or Group
        How many ranks, joined in a ring; or a group, for an algorithm on a grid.
    config : CclConfig, path or mapping, optional
        The ccl.yaml; by default the nearest one.
    **call
        What the algorithm is asked for, such as `root=1`.

    Returns
    -------
    Path
        The file. `from_msccl` runs it with the same values and, given the same settings of queues, in the same
        simulated time, for vectors of up to 256 KiB for each rank.

    Raises
    ------
    ConfigError
        If the algorithm cannot be expressed: a participant sends to, or receives from, more than one other, combines
        more than two tiles, or does not sum.

    Examples
    --------
    >>> to_msccl("ring_allreduce_tcm", "ring.xml", 4)  # doctest: +SKIP
    PosixPath('ring.xml')
    """
    group = ranks if isinstance(ranks, Group) else Group.line(ranks)
    plan = plan_group(resolve_algorithm_config(algorithm, config), group)
    if len(plan.subgroups) > 1:
        raise _inexpressible(plan, f"it has {len(plan.subgroups)} subgroups; give it one shard on each device")
    if plan.algorithm.topology is through_switch:
        raise _inexpressible(plan, "a switch adds")
    threads = [_Thread(plan, rank, call) for rank in range(plan.world_size)]
    text = _text(plan, threads)
    file = Path(path)
    write_text(file, text)
    read_program(file)
    return file


def _inexpressible(plan: CollectivePlan, why: str) -> ConfigError:
    return ConfigError(f"algorithm {plan.algorithm.name!r} cannot be written as an MSCCL program: {why}")


@dataclass(eq=False)
class _Effect:
    """What a participant does with a message, or with local elements; spans are (buffer, first element, elements)."""

    message: int | None = None
    read: tuple[str, int, int] | None = None
    sends: list[bool] = field(default_factory=list)  # of each send, whether it is a sum
    stores: list[tuple[bool, tuple[str, int, int]]] = field(default_factory=list)


def _elements(plan: CollectivePlan) -> tuple[int, int]:
    """Return the elements of a participant's tensor, and of its result if that is another tensor."""
    whole = _EACH * plan.world_size
    out = {"all_gather": (_EACH, whole), "reduce_scatter": (whole, _EACH), "all_to_all": (whole, whole)}
    return out.get(plan.algorithm.collective, (whole, 0))


class _Thread(MockBackend):
    """One participant: the effects of its kernel, in order, and its peers."""

    def __init__(self, plan: CollectivePlan, rank: int, call: dict[str, Any]) -> None:
        super().__init__(data=False)
        self.plan, self.rank = plan, rank
        self.place = plan.subgroups[0].places[rank]
        self.effects: list[_Effect] = []
        self.directions: dict[str, set[str]] = {"send": set(), "recv": set()}
        self._terms: dict[
            int, frozenset[object]
        ] = {}  # of each value: the message, and the local elements, that it sums
        self._values: list[Value] = []  # so that no other gets the id of one
        self._open: dict[int, _Effect] = {}
        self._messages = 0
        n_elem, result = _elements(plan)
        pointers = [Pointer(start * _FAR, float32) for start in ((1, 2) if result else (1,))]
        self.args = (*pointers, *plan.args(self.place, n_elem, **call))
        run_kernel_program(plan.algorithm.kernel, self.args, self, (0, 0), (1, 1), (rank, plan.world_size))

    def submit(self, command: Command) -> None:
        value = command.output
        if value is not None:
            value.done_ps = 1
            self._values.append(value)
        command.done_ps = 1
        if isinstance(command, Load) and value is not None:
            self._terms[id(value)] = frozenset([self._span(command.runs)])
        elif isinstance(command, Recv) and command.direction is not None:
            self.directions["recv"].add(command.direction)
            terms: frozenset[object] = frozenset([self._messages])
            self._messages += 1
            if value is not None:
                self._terms[id(value)] = terms
            else:
                self._store(terms, self._span(command.runs))
        elif isinstance(command, Send):
            self.directions["send"].add(command.direction)
            if command.inputs:
                self._send(self._sum_of(command.inputs[0]))
            else:
                self._send(frozenset([self._span(command.runs)]))
        elif isinstance(command, Store):
            self._store(self._sum_of(command.inputs[0]), self._span(command.runs))
        elif isinstance(command, Vector) and value is not None and command.name in ("copy", "cast", "add"):
            of = [self._sum_of(source) for source in command.inputs]
            self._terms[id(value)] = frozenset(chain(*of))
        else:
            raise self._fault(f"it uses {command.name}; a program receives, sums two tiles, copies and sends")

    def _sum_of(self, value: Value) -> frozenset[object]:
        if id(value) not in self._terms:
            raise self._fault("it uses a constant; a program receives, sums two tiles, copies and sends")
        return self._terms[id(value)]

    def steps(self, grain: int) -> list[dict[str, str]]:
        """Return the attributes of its steps, in chunks of `grain` elements."""
        found = []
        received = [effect.message for effect in self.effects if effect.message is not None]
        if received != list(range(self._messages)):
            raise self._fault("it does not use its messages in the order in which it receives them")
        for effect in self.effects:
            found += [self._step(*step, grain) for step in self._types(effect)]
        return found

    def _types(self, effect: _Effect) -> list[tuple[str, tuple[str, int, int] | None, tuple[str, int, int] | None]]:
        """Return the steps of an effect: type, source and destination."""
        stored = effect.stores[0][1] if effect.stores else None
        if len(effect.sends) > 1 or len(effect.stores) > 1:
            raise self._fault("it sends, or stores, a result twice")
        if effect.message is None:
            steps = [("s", effect.read, effect.read)] * len(effect.sends)
            return [*steps, *([("cpy", effect.read, stored)] if stored else [])]
        sums = {*effect.sends, *(is_sum for is_sum, _ in effect.stores)}
        if len(sums) != 1:
            raise self._fault("it sends a message on as it came, and stores the sum, or the other way round")
        if True in sums:
            kind = {(True, True): "rrcs", (True, False): "rrs", (False, True): "rrc"}
            return [(kind[bool(effect.sends), bool(stored)], effect.read, stored or effect.read)]
        if stored is None:
            raise self._fault("it sends a message on that it does not store")
        return [("rcs" if effect.sends else "r", stored, stored)]

    def _step(
        self, kind: str, src: tuple[str, int, int] | None, dst: tuple[str, int, int] | None, grain: int
    ) -> dict[str, str]:
        assert src is not None
        assert dst is not None
        return {
            "type": kind, "srcbuf": src[0], "srcoff": str(src[1] // grain), "dstbuf": dst[0],
            "dstoff": str(dst[1] // grain), "cnt": str(src[2] // grain), "depid": "-1", "deps": "-1", "hasdep": "0",
        }  # fmt: skip

    def _span(self, runs: Sequence[Run]) -> tuple[str, int, int]:
        if len(runs) != 1:
            raise self._fault("it reads or writes elements that are not consecutive")
        buffer, at = divmod(runs[0].va, _FAR)
        if at > _FAR // 2:  # before the start of the next one
            raise self._fault("it reads or writes outside its tensors")
        return "io"[buffer - 1], at // float32.itemsize, runs[0].nbytes // float32.itemsize

    def _effect(self, terms: frozenset[object]) -> tuple[_Effect, bool]:
        """Return the effect of a result, and whether the result is a sum."""
        messages = [term for term in terms if isinstance(term, int)]
        spans: list[Any] = [term for term in terms if not isinstance(term, int)]
        if len(messages) > 1 or len(spans) > 1:
            raise self._fault("it combines more than a message and its own elements")
        if not messages:
            last = self.effects[-1] if self.effects else None
            if last is None or last.message is not None or last.read != spans[0] or last.stores:
                last = _Effect(None, spans[0])
                self.effects.append(last)
            return last, False
        effect = self._open.get(messages[0])
        if effect is None:
            effect = self._open[messages[0]] = _Effect(messages[0])
            self.effects.append(effect)
        effect.read = spans[0] if spans else effect.read
        return effect, bool(spans)

    def _send(self, terms: frozenset[object]) -> None:
        effect, is_sum = self._effect(terms)
        effect.sends.append(is_sum)

    def _store(self, terms: frozenset[object], span: tuple[str, int, int]) -> None:
        effect, is_sum = self._effect(terms)
        effect.stores.append((is_sum, span))

    def spans(self) -> list[tuple[str, int, int]]:
        """Return all elements that it reads and stores."""
        return [
            span
            for effect in self.effects
            for span in (effect.read, *(stored for _, stored in effect.stores))
            if span is not None
        ]

    def peer(self, side: str) -> int:
        """Return the rank that it sends to, or receives from; -1: none."""
        directions = sorted(self.directions[side])
        ranks = {self.plan.programs[self.plan.programs[self.place].neighbours[each][0]].rank for each in directions}
        if len(directions) > 1:
            does = "sends to" if side == "send" else "receives from"
            raise self._fault(f"it {does} {' and '.join(directions)}, and a thread block has one peer each way")
        return ranks.pop() if ranks else -1

    def _fault(self, why: str) -> ConfigError:
        return _inexpressible(self.plan, f"participant {self.rank}: {why}")


def _text(plan: CollectivePlan, threads: Sequence[_Thread]) -> str:
    """Return the XML of the threads."""
    n, collective = plan.world_size, plan.algorithm.collective
    names = {does: name for name, does in reversed(MSCCL_COLLECTIVES.items())}
    peers = [(thread.peer("send"), thread.peer("recv")) for thread in threads]
    spans = [span for thread in threads for span in thread.spans()]
    if collective not in names or not spans:
        raise _inexpressible(plan, f"it does {collective}; a program does one of {', '.join(names)}")
    vector, result = _elements(plan)
    grain = gcd(vector, result, *(number for _, start, size in spans for number in (start, size)))
    chunks = {"i": vector // grain, "o": result // grain, "s": 0}
    algo = ET.Element(
        "algo", name=plan.algorithm.name, proto="Simple", nchannels="1", nchunksperloop=str(max(chunks.values())),
        ngpus=str(n), coll=names[collective], inplace=str(int(not result)),
        arguments=str(len(threads[0].args)),
    )  # fmt: skip
    for rank, (thread, (send, recv)) in enumerate(zip(threads, peers, strict=True)):
        sizes = {f"{buffer}_chunks": str(size) for buffer, size in chunks.items()}
        gpu = ET.SubElement(algo, "gpu", {"id": str(rank), **sizes})
        block = ET.SubElement(gpu, "tb", id="0", send=str(send), recv=str(recv), chan="0")
        for i, step in enumerate(thread.steps(grain)):
            ET.SubElement(block, "step", {"s": str(i), **step})
    ET.indent(algo)
    return ET.tostring(algo, encoding="unicode") + "\n"
