"""A pipeline schedule as host programs: one rank for each SIP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kernbench.errors import ArgumentError, quote
from kernbench.pipeline._actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    RECEIVES,
    SENDS,
    WAIT_REDUCE_GRAD,
    WAITED,
    WEIGHT,
    Action,
    Given,
    Table,
)
from kernbench.pipeline._report import Pipeline, measured_pipeline
from kernbench.pipeline._timing import lowered, received, sent, times
from kernbench.runtime_api.context import RuntimeContext, session

if TYPE_CHECKING:
    from kernbench.runtime_api.tensor import Tensor
    from kernbench.runtime_api.work import Work

_Stage = Callable[..., object]
_Collective = Callable[["RuntimeContext", Action], "Work | None"]
# By action, the results that others read; by RECV, messages.
_Tensors = tuple[dict[Action, "Tensor"], dict[Action, "Tensor"]]


@runtime_checkable
class Recorded(Protocol):
    """Stages whose launches and tensors are known before the start, such as `kernbench.torch.Stages`."""

    sips_per_rank: int

    def record(self, torch: RuntimeContext, table: Table) -> None: ...
    def tensors(self, sip: int) -> _Tensors: ...
    def finish(self) -> None: ...
    def __call__(self, torch: RuntimeContext, action: Action, *_: object) -> None: ...


def run(
    orders: Given, stage: _Stage, machine: Any = None, *, message: Callable[[RuntimeContext], Tensor] | None = None,
    collective: _Collective | None = None, data: bool = False, log: str = "operation", sips_per_rank: int = 1,
    communication_streams: int | None = None,
) -> Pipeline:  # fmt: skip
    """Run a pipeline schedule on a machine: rank r drives SIP r, or `sips_per_rank` SIPs.

    Parameters
    ----------
    orders : mapping, str, Path, or schedule of torch
        The actions of each rank, in order: what `orders` returns, a CSV file of torch.distributed.pipelining, or one of
        its schedules. Without SEND and RECV actions they are inserted as torch does. The parts of OVERLAP_F_B run one
        after the other.
    stage : callable
        `stage(torch, action, x, y)` queues the work of an action on the rank's device. `x` has the activations (F) or
        the gradient (B, I, W) that it reads, `y` is where its result belongs: activations (F) or the gradient of the
        input (B, I). `x` is None for the first stage's forward, and `y` where no stage reads the result. Compiled
        models as stages are a `kb.torch.Stages`, which knows `message` and `sips_per_rank`.
    machine : Machine, str, Path, mapping, optional
        As for `kb.load`; it has the SIPs of each rank.
    message : callable
        `message(torch)` returns a tensor of the size that stages pass on, on the rank's device. All of them are
        allocated before the start. A stage that is a function needs it.
    collective : callable, optional
        `collective(torch, action)` queues the work of UNSHARD, RESHARD and REDUCE_GRAD; by default they do nothing.
        The device waits for the `Work` that it returns: of UNSHARD before the stage's next action, of REDUCE_GRAD at
        WAIT_REDUCE_GRAD or at the end.
    data, log : optional
        As for `kb.session`.
    sips_per_rank : int
        SIPs that run the actions of a rank together, such as those of expert parallelism: rank r has the SIPs from
        `r * sips_per_rank` on. Each sends to the one in its place at another rank. `stage` gets their process group
        as a fifth argument. The result has the actions of the first SIP of each rank.
    communication_streams : {1, 2}, optional
        By default, messages and the collectives of each group run in separate streams, and share links. With 1, a
        SIP runs all of them in one stream, in the order in which they are queued: one that waits for its peer blocks
        the next. With 2, messages and collectives have one each.

    Returns
    -------
    Pipeline

    Raises
    ------
    ConfigError
        If an action is unknown, or is there twice, or a stage is on two ranks or on none.
    DeadlockError
        If the order never ends; the message names each rank, its action and what that waits for. Nothing has run.
    ProcessRaisedException
        If messages or collectives in one stream wait for each other; the message has the DeadlockError.

    Notes
    -----
    A received message is waited for by the device (`Work.block_current_stream`), not by the host.

    Examples
    --------
    >>> import kernbench as kb
    >>> def work(x, y, n, *, tl):
    ...     for _ in range(n):
    ...         tl.store(y, tl.load(y, shape=(64,)) + 1.0)
    >>> def stage(torch, action, x, y):
    ...     out = x if y is None else y
    ...     torch.launch(str(action), work, out, out, 20 if action.kind == "F" else 40)
    >>> small = kb.load("preset:small", {"system.sips": {"count": 2, "topology": "ring_1d"}})
    >>> schedule = kb.pipeline.orders("1F1B", ranks=2, microbatches=4)
    >>> found = run(schedule, stage, small, message=lambda torch: torch.zeros(64, device="ahbm"))
    >>> round(found.ideal_bubble, 2), found.peak_activations  # (p - 1) / (m + p - 1)
    (0.2, [2, 1])
    >>> found.bubble > found.ideal_bubble
    True
    """
    if communication_streams not in _STREAMS:
        raise ArgumentError(f"communication_streams = {quote(communication_streams)}: expected None, 1 or 2")
    recorded = stage if isinstance(stage, Recorded) else None
    if recorded is not None:
        sips_per_rank = recorded.sips_per_rank
    elif message is None:
        raise ArgumentError("message = None: a stage that is a function needs message(torch), which makes a tensor")
    table = lowered(Table.of(orders))
    times(table, lambda _: 1.0, lambda _: 0.0)  # a deadlock is found before anything runs
    queued: dict[Action, range] = {}
    with session(machine, data=data, log=log) as torch:
        torch._host.stream_of = _STREAMS[communication_streams]
        if recorded is not None:
            recorded.record(torch, table)
            tensors: Callable[[int], _Tensors] = recorded.tensors
        elif message is not None:
            tensors = partial(_allocated, partial(message, torch), table, sips_per_rank)
        program = _Program(torch, table, stage, tensors, collective, queued, sips_per_rank)
        torch.multiprocessing.spawn(program, nprocs=len(table.ranks) * sips_per_rank)
        if recorded is not None:
            recorded.finish()
    return measured_pipeline(table, torch.result, queued, sips_per_rank)


# By number of streams, the stream of a group or a message; the name of a message has its ranks, as in `0-1`.
_STREAMS: dict[int | None, Callable[[str], str]] = {
    None: str,
    1: lambda _: "communication",
    2: lambda name: "messages" if "-" in name else "collectives",
}


def _allocated(message: Callable[[], Tensor], table: Table, width: int, sip: int) -> _Tensors:
    actions = dict.fromkeys(table.ranks[sip // width])
    read = {need for action in table.actions if (need := table.source(action)) is not None}
    made = {action: message() for action in actions if action in read}
    # The loss of the last stage is the input of its backward.
    made |= {a: message() for a in actions if a.kind == FORWARD and a.stage == table.last_stage}
    return made, {action: message() for action in actions if action.kind in RECEIVES}


class _Program:
    def __init__(
        self, torch: RuntimeContext, table: Table, stage: _Stage, tensors: Callable[[int], _Tensors],
        collective: _Collective | None, queued: dict[Action, range], width: int,
    ) -> None:  # fmt: skip
        self._torch, self._table, self._stage, self._tensors = torch, table, stage, tensors
        self._collective, self._queued, self._width = collective, queued, width
        self._microbatches = 1 + max(action.microbatch or 0 for action in table.actions)

    def __call__(self, sip: int) -> None:
        torch, table = self._torch, self._table
        rank, place = divmod(sip, self._width)
        torch.distributed.init_process_group("ahbm")
        given = () if self._width == 1 else (torch.distributed.new_subgroups(self._width)[0],)
        made, inputs = self._tensors(sip)
        torch.ahbm.synchronize()
        torch.distributed.barrier()
        sends: dict[Action, Any] = {}  # their Work
        receives: dict[Action, Any] = {}
        pending: dict[tuple[int, str], Work] = {}
        for action in table.ranks[rank]:
            first = len(torch.engine.operations)
            if action.kind in RECEIVES:
                send, _ = sent(table, action)
                receives[action] = torch.distributed.irecv(
                    inputs[action], table.home[send.stage] * self._width + place, tag=self._tag(action)
                )
            elif action.kind in SENDS:
                receive = received(table, action)
                _, source = sent(table, receive)
                target = table.home[receive.stage] * self._width + place
                sends[action] = torch.distributed.isend(made[source], target, tag=self._tag(receive))
            elif action.kind in WAITED:
                sends[action.as_kind(action.kind.removeprefix("WAIT_"))].block_current_stream()
            elif action.is_compute:
                self._wait(action, receives, pending)
                self._stage(torch, action, self._input(action, made, inputs), made.get(action), *given)
            elif action.kind == WAIT_REDUCE_GRAD:
                self._wait(action, receives, pending)
            elif self._collective is not None:
                work = self._collective(torch, action)
                if work is not None:
                    pending[action.stage, action.kind] = work
            if place == 0:
                self._queued[action] = range(first, len(torch.engine.operations))
        torch.ahbm.synchronize()
        for work in (*sends.values(), *pending.values()):
            work.wait()

    def _input(self, action: Action, made: dict[Action, Tensor], inputs: dict[Action, Tensor]) -> Tensor | None:
        if action.kind == WEIGHT:
            action = action.as_kind(INPUT)
        source = self._table.source(action)
        if source is None:
            return None if action.kind == FORWARD else made[action.as_kind(FORWARD)]
        return inputs[received(self._table, action)] if self._table.is_message(source, action) else made[source]

    def _wait(self, action: Action, receives: dict[Action, Any], pending: dict[tuple[int, str], Work]) -> None:
        """Make the device wait for an action's message, and for what its stage has asked for."""
        if action.kind in (FORWARD, BACKWARD, INPUT) and (receive := received(self._table, action)) in receives:
            receives.pop(receive).block_current_stream()
        work = pending.pop((action.stage, "UNSHARD" if action.is_compute else "REDUCE_GRAD"), None)
        if work is not None:
            work.block_current_stream()

    def _tag(self, receive: Action) -> int:
        return (receive.stage * self._microbatches + (receive.microbatch or 0)) * 2 + (receive.kind == RECEIVES[1])
