"""`kb.torch.Stages`: compiled models as the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import simpy
import torch

from kernbench.errors import ArgumentError
from kernbench.pipeline._actions import BACKWARD, FORWARD, Action, Table
from kernbench.pipeline._timing import received, times
from kernbench.torch._compile import CompiledModel
from kernbench.torch._device import ModelDevice, collector_paused
from kernbench.torch._experts import Routing
from kernbench.torch._memory import TensorMemory, typed

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.runtime_api.tensor import Tensor
    from kernbench.torch._operators import ModelStep


_Tensors = dict[Action, "Tensor"]


class Stages:
    """Modules as the stages of `kb.pipeline.run`: each is compiled for the SIPs of its rank.

    F is a call of the module with what the previous stage returned, and B its gradients, those of the weights included,
    as one graph of autograd. Gradients of weights are not added up over microbatches. Tensors stay on the devices, and
    nothing is compiled or allocated during the run.

    Parameters
    ----------
    modules : sequence of torch.nn.Module
        The stages in order, unmodified, on the CPU: each takes one tensor and returns one.
    x : torch.Tensor or sequence of it
        The input of the first stage: one for all microbatches, or one for each.
    tp, plan, graph, fuse, routing : optional
        As for `kb.torch.compile`; with `tp`, a rank of the pipeline has as many SIPs, and `plan` is that of each stage.

    Attributes
    ----------
    outputs : list of torch.Tensor
        By microbatch, what the last stage returned in the last run; NaN without values. If the first stage's input
        requires a gradient, its `grad` is that of the sum of the outputs.

    Raises
    ------
    ArgumentError
        By `kb.pipeline.run`, if the schedule has another number of stages, more microbatches than `x`, or I and W:
        autograd computes both parts of a backward in one graph.

    Examples
    --------
    >>> import kernbench as kb, torch  # doctest: +SKIP
    >>> stages = kb.torch.Stages([torch.nn.Linear(64, 64).half() for _ in range(2)], torch.ones(8, 64).half())
    ... # doctest: +SKIP
    >>> kb.pipeline.run(kb.pipeline.orders("1F1B", 2, 4), stages, machine)  # doctest: +SKIP
    """

    def __init__(
        self, modules: Sequence[torch.nn.Module], x: torch.Tensor | Sequence[torch.Tensor], *, tp: int = 1,
        plan: Mapping[str, Any] | None = None, graph: bool = False, fuse: bool = False, routing: Routing | None = None,
    ) -> None:  # fmt: skip
        self._modules, self._x, self.sips_per_rank = modules, x, tp
        self._options: dict[str, Any] = {"graph": graph, "tp": tp, "fuse": fuse, "routing": routing}
        self._plan = plan or {}
        self._made: tuple[ModelDevice, list[CompiledModel]] | None = None
        self.outputs: list[torch.Tensor] = []

    def record(self, session: RuntimeContext, table: Table) -> None:
        """Compile the stages, allocate memory, and record the launches of all actions."""
        stages = len(self._modules)
        if table.last_stage + 1 != stages:
            raise ArgumentError(f"Stages: {stages} modules for the {table.last_stage + 1} stages of the schedule")
        if split := sorted(str(a) for a in table.actions if a.is_compute and a.kind not in (FORWARD, BACKWARD)):
            raise ArgumentError(f"Stages: {split[0]}: a backward is one graph; give a schedule with B, such as 1F1B")
        if self._made is None:
            device = ModelDevice(session, **self._options)
            self._made = device, [CompiledModel(module, device, self._plan) for module in self._modules]
        device, self._compiled = self._made
        device.use(session)
        tp, ranks = self.sips_per_rank, range(len(table.ranks))
        self._device, self._table = device, table
        self._memories = [[TensorMemory(session, rank * tp + i, i, True) for i in range(tp)] for rank in ranks]
        self._joining: dict[int, tuple[simpy.Event, int]] = {}
        self._given: dict[Action, torch.Tensor] = {}  # by forward; of the first SIP of a rank, as the results
        self._results: dict[Action, torch.Tensor] = {}
        self._messages: list[torch.Tensor] = []  # kept: a message may arrive as soon as its receive is queued
        self._ones: dict[int, torch.Tensor] = {}  # gradients of outputs, by stage
        self._steps: dict[Action, list[Sequence[Sequence[ModelStep]]]] = {}
        self._tensors: dict[int, tuple[_Tensors, _Tensors]] = {sip: ({}, {}) for sip in range(tp * len(ranks))}
        trained = any(action.kind == BACKWARD for action in table.actions)
        spans = times(table, lambda _: 1.0, lambda _: 0.0).spans  # in this order, what an action reads is known
        # What the collector frees depends on what else the process did; memory is that of dead tensors.
        with torch.set_grad_enabled(trained), collector_paused():
            for action in sorted((a for a in spans if a.is_compute), key=lambda action: spans[action][0]):
                self._record(action, trained)

    def tensors(self, sip: int) -> tuple[_Tensors, _Tensors]:
        """Return the results of a SIP by action, and the messages that it receives, by RECV."""
        return self._tensors[sip]

    def __call__(self, session: RuntimeContext, action: Action, *_: object) -> None:
        """Queue the launches of an action on the SIP of the calling program."""
        sip = session.distributed.get_rank()
        rank, place = divmod(sip, self.sips_per_rank)
        for ranks in self._steps[action]:
            for is_launch, run in groupby(zip(*ranks, strict=True), lambda steps: steps[0].is_launch):
                if is_launch:
                    self._device.start(sip, [steps[place] for steps in run])
                    continue
                for steps in run:
                    self._join(session, rank, steps)

    def finish(self) -> None:
        """Read the outputs, and the gradients of inputs, in no simulated time; drop the rest."""
        found = sorted(self._results, key=lambda action: action.microbatch or 0)
        self.outputs = [self._read(a) for a in found if a.kind == FORWARD and a.stage == self._table.last_stage]
        for action in found if self._device.session.engine.data else ():
            if action.kind == BACKWARD and action.stage == 0:
                x, gradient = self._input(action), self._read(action)
                x.grad = gradient if x.grad is None else x.grad + gradient
        self._given, self._results, self._ones, self._messages = {}, {}, {}, []
        self._steps, self._tensors, self._memories = {}, {}, []

    # -- recording

    def _record(self, action: Action, trained: bool) -> None:
        device, table = self._device, self._table
        rank, forward = table.home[action.stage], action.as_kind(FORWARD)
        device.memories = self._memories[rank]
        source = table.source(action)
        given = None if source is None else self._received(action, source)
        device.recorded = self._steps[action] = []
        try:
            if action.kind == FORWARD:
                x = self._given[action] = self._input(action) if given is None else given.requires_grad_(trained)
                self._results[action] = y = self._compiled[action.stage](x)
                if not isinstance(y, torch.Tensor):
                    raise ArgumentError(f"Stages: stage {action.stage} returns {type(y).__name__}; return one tensor")
            else:
                x, y = self._given.pop(forward), self._results[forward]
                self._results[forward] = y.detach()
                weights = [w for w in self._compiled[action.stage].parameters if w.requires_grad]
                inputs = [x, *weights] if x.requires_grad else weights
                if given is None:
                    given = self._ones.setdefault(action.stage, torch.ones_like(y))
                gradients = list(torch.autograd.grad(y, inputs, given, allow_unused=True) if inputs else ())
                if x.requires_grad:
                    self._results[action] = gradients[0]
        finally:
            device.recorded = None
        if (result := self._results.get(action)) is not None:
            for place, memory in enumerate(device.memories):
                held = memory.place(memory.twin(device.of_rank(place, result)))
                self._tensors[memory.sip][0][action] = typed(held)

    def _received(self, action: Action, source: Action) -> torch.Tensor:
        """Return the result of another action; of another rank, in the memory of a message."""
        device, table, result = self._device, self._table, self._results[source].detach()
        if not table.is_message(source, action):
            return result
        found = []
        for place, (memory, sender) in enumerate(
            zip(device.memories, self._memories[table.home[source.stage]], strict=True)
        ):
            x = device.of_rank(place, result)
            whole = x.new_zeros(x.untyped_storage().nbytes() // x.element_size())
            held = memory.message(sender.place(sender.twin(x)), whole)
            self._tensors[memory.sip][1][received(table, action)] = typed(held)
            found.append(whole.as_strided(x.size(), x.stride(), x.storage_offset()))
        device.belong(found)
        self._messages += found
        return found[0]

    def _input(self, action: Action) -> torch.Tensor:
        if isinstance(self._x, torch.Tensor):
            return self._x
        if (microbatch := action.microbatch or 0) >= len(self._x):
            raise ArgumentError(f"Stages: {action}: x has {len(self._x)} microbatches; give one tensor for each")
        return self._x[microbatch]

    def _read(self, action: Action) -> torch.Tensor:
        memory, x = self._memories[self._table.home[action.stage]][0], self._results[action].detach()
        return memory.peek(memory.twin(x), x)

    # -- running

    def _join(self, session: RuntimeContext, rank: int, steps: Sequence[ModelStep]) -> None:
        """Queue a step of all SIPs of a rank when the last of their programs has come."""
        event, come = self._joining.pop(rank, (simpy.Event(session.engine.env), 0))
        if come + 1 < len(steps):
            self._joining[rank] = event, come + 1
            session.engine.wait(event, f"the other SIPs of rank {rank}, at {steps[0].name}")
            return
        self._device.together(steps)
        event.succeed()
