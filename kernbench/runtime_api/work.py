"""A rank's call of a collective, and the handle that it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import simpy

from kernbench._registry import hint
from kernbench.analysis._records import Communication
from kernbench.errors import quote
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api._devices import HostProgram, Mark, Start, StartOfWork, Stream
from kernbench.runtime_api.collective import ShardArguments
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine._user_code import user_line
from kernbench.topology._naming import PeId

if TYPE_CHECKING:
    from kernbench.policy.placement.dp import DPPolicy
    from kernbench.runtime_api._process_group import ProcessGroup


class ReduceOp(Enum):
    """The elementwise operation that combines the values of ranks; 16-bit values are combined in f32.

    `AVG` is the sum over the ranks of the group, divided by their number. Its name is accepted, too:
    `op="sum"`.
    """

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, op: ReduceOp | str) -> ReduceOp:
        if isinstance(op, cls):
            return op
        try:
            return cls(str(op).lower())
        except ValueError:
            known = [each.value for each in cls]
            raise ValueError(f"op = {quote(op)} is not a reduction; {hint(str(op).lower(), known)}") from None


class Work:
    """A collective in progress, as seen by one rank.

    `wait` holds the program, and `block_current_stream` only the device's stream. `is_completed` does not wait: time
    passes only where the program waits, so a loop around it never ends.
    Of a receive, `source` is the sender's number in the group, once it is known.
    """

    def __init__(self, host: HostProgram, what: Callable[[], str]) -> None:
        self._host = host
        self._what = what
        self.event = simpy.Event(host.engine.env)
        self.error: Exception | None = None
        self.source: int | None = None
        self._mark: Mark | None = None  # after its last operation

    def detach(self) -> Work:
        """Return the handle for the program to wait on: the end of the session warns if it never does."""
        self._host.unwaited[self.event] = self._what, user_line()
        return self

    def wait(self, timeout: object = None) -> bool:
        """Run the clock until this rank's part is complete; return True. `timeout` is ignored."""
        self._host.unwaited.pop(self.event, None)
        if self.error is None:
            self._host.engine.wait(self.event, self)
            if self._mark is not None:
                self._host.heard[self._mark.stream] = self._mark.order
        if self.error is not None:
            raise self.error
        return True

    def block_current_stream(self) -> None:
        """Make the stream of this rank's device wait until the part is complete; the program continues, as in torch.

        What is queued on the device later begins after that: a launch, a copy, a collective or message.
        """
        if self._mark is None:
            raise RuntimeError(
                f"block_current_stream: {self}: the stream cannot wait for a receive without a source; name the "
                "source, or call wait()"
            )
        self._host.unwaited.pop(self.event, None)
        stream = self._host.stream(self._host.index(self._mark.stream.device))
        stream.wait_event(self.event, self, self._mark)

    def submit(self, stream: Stream, start: Start, after: StartOfWork, operation: int) -> None:
        """Queue the next step of this rank's part; the last one completes it."""
        self.event = stream.submit(start, after=after, operation=operation)
        self._mark = stream.mark()

    def is_completed(self) -> bool:
        if self.event.processed:
            self._host.unwaited.pop(self.event, None)
        return self.event.processed

    def exception(self) -> Exception | None:
        return self.error

    def fail(self, error: Exception) -> None:
        self.error = copy(error)
        self.error.__cause__ = error

    def complete(self, _: simpy.Event) -> None:
        self.event.succeed()

    def __str__(self) -> str:
        return self._what()

    def __repr__(self) -> str:
        state = "failed" if self.error else "complete" if self.is_completed() else "under way"
        return f"<Work {self}: {state}>"


class CapturedWork(Work):
    """A collective of a graph that is being captured: it runs where the graph is replayed, in its order."""

    def detach(self) -> Work:
        return self

    def wait(self, timeout: object = None) -> bool:
        return True

    def block_current_stream(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's call: all ranks give equal `terms`, and equal `tensors` in equal places.

    This one meets the others on the host only.
    """

    runs: ClassVar[bool] = False  # on the devices

    name: str
    terms: Mapping[str, object] = field(default_factory=dict)
    tensors: Mapping[str, DeviceTensor] = field(default_factory=dict)
    label: str = ""  # in messages, instead of `name`

    @property
    def signature(self) -> tuple[object, ...]:
        """Fields that must match across ranks, except placement."""
        return self.name, self.terms, [(name, tuple(t.shape), t.dtype) for name, t in self.tensors.items()]

    @property
    def places(self) -> list[object]:
        return [t.layout.placement for t in self.tensors.values()]

    def communication(self, group: tuple[int, ...]) -> Communication:
        own = self.tensors.get("input", next(iter(self.tensors.values()), None))
        nbytes = 0 if own is None else own.nbytes
        return Communication(self.name, group, nbytes, _recorded(self.tensors))

    def steps(self, begin: Start) -> Sequence[Start]:
        """Return the steps of the rank's device, in order; `begin` is its part of the common step."""
        return (begin,)

    def __str__(self) -> str:
        given = [f"{name} {tuple(t.shape)} {t.dtype} on {len(t.pes)} PEs" for name, t in self.tensors.items()]
        given += [f"{name}={value}" for name, value in self.terms.items()]
        return f"{self.label or self.name}({', '.join(given)})"


@dataclass(frozen=True, slots=True)
class LaunchCall(Call):
    """An algorithm's kernel on the shards of `args`: tensors, each with how many ranks' parts lie in a shard."""

    runs = True

    args: Sequence[tuple[DeviceTensor, int]] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    before: Sequence[Start] = ()
    after: Sequence[Start] = ()

    def communication(self, group: tuple[int, ...]) -> Communication:
        return replace(Call.communication(self, group), options=tuple(self.options.items()))

    def steps(self, begin: Start) -> Sequence[Start]:
        return (*self.before, begin, *self.after)

    def shards(self) -> dict[PeId, list[ShardArguments]]:
        if not self.args:
            return {(0, 0): [ShardArguments((), 1)]}
        found: dict[PeId, list[ShardArguments]] = {}
        part, _ = min(self.args, key=lambda arg: arg[1])
        parts, apart = self.args[0][1], any(k > 1 for _, k in self.args)
        for pe, own in sorted(part._parts().items()):
            found[pe] = [
                ShardArguments(
                    tuple(t.pointer + first * k for t, k in self.args), n * parts, parts, n if apart else None
                )
                for first, n in own
            ]
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the larger side of the call on a device."""
        return max((tensor.nbytes for tensor, _ in self.args), default=0)


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A whole tensor, or `n` rows of it (dim 0) from row `first`."""

    tensor: DeviceTensor
    first: int = 0
    n: int | None = None

    @property
    def nbytes(self) -> int:
        whole = self.tensor.nbytes
        return whole if self.n is None else whole // max(self.tensor.shape[0], 1) * self.n


def _recorded(tensors: Mapping[str, DeviceTensor]) -> Any:
    return tuple((name, tuple(t.shape), str(t.dtype), _placement(t.layout.dp)) for name, t in tensors.items())


def _placement(dp: DPPolicy | None) -> tuple[tuple[str, object], ...]:
    given = [] if dp is None else [(f.name, getattr(dp, f.name), f.default) for f in fields(dp)]
    return tuple((name, value) for name, value, default in given if value != default)


@dataclass(frozen=True, slots=True)
class Exchange(Call):
    """Messages: by member, the part that the calling rank sends to it, and where it puts the part from it."""

    runs = True

    sends: Mapping[int, TensorPart] = field(default_factory=dict)
    receives: Mapping[int, TensorPart] = field(default_factory=dict)
    tag: int = 0

    def communication(self, group: tuple[int, ...]) -> Communication:
        """Of a message, `group` has the source and the target; else `sends` and `receives` are rows by member."""
        parts = {"input": self.sends, "output": self.receives}
        tensors = _recorded({name: each[min(each)].tensor for name, each in parts.items() if each})
        nbytes = sum(part.nbytes for part in (self.sends or self.receives).values())
        if self.name == "message":
            return Communication(self.label, group, nbytes, tensors, (("tag", self.tag),))
        rows = (tuple((member, part.n) for member, part in each.items()) for each in parts.values())
        return Communication(self.name, group, nbytes, tensors, tuple(zip(("sends", "receives"), rows, strict=True)))


class Coalesced:
    def __init__(self) -> None:
        self.works: list[Work] = []

    def wait(self) -> None:
        for work in self.works:
            work.wait()


@dataclass(frozen=True, slots=True)
class P2POp:
    """A send or receive of a batch.

    Parameters
    ----------
    op : callable
        `torch.distributed.isend` or `irecv`.
    tensor : Tensor
        The data, or its destination.
    peer : int, optional
        Global rank of the other side.
    group : ProcessGroup, optional
        By default the world.
    tag : int
        Sends match receives with the same tag.
    group_peer : int, optional
        Rank of the other side in the group, instead of `peer`.
    """

    op: Callable[..., Work | None]
    tensor: Tensor
    peer: int | None = None
    group: ProcessGroup | None = None
    tag: int = 0
    group_peer: int | None = None

    def __post_init__(self) -> None:
        if getattr(self.op, "__name__", "") not in ("isend", "irecv"):
            raise ValueError(f"op = {quote(self.op)}: expected torch.distributed.isend or torch.distributed.irecv")
