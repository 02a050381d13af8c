"""`torch`: the namespace that a program for one simulated machine is written in."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kernbench.analysis.result import Result
from kernbench.errors import StateError, quote
from kernbench.runtime_api.accelerator import Accelerator, Ahbm
from kernbench.runtime_api.creation import Creation
from kernbench.runtime_api.host import Host
from kernbench.runtime_api.launch import launch
from kernbench.runtime_api.multiprocessing import Multiprocessing
from kernbench.runtime_api.names import TypeNames
from kernbench.runtime_api.types import DeviceSelector, resolve_device
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.limits import Expired, Guard, Limits
from kernbench.sim_engine.lines import Line, line_number
from kernbench.topology.builder import Machine, resolve_topology

if TYPE_CHECKING:
    from typing import Self

    from kernbench.ccl.algorithm import Plan
    from kernbench.ccl.install import AlgorithmLike, CclLike
    from kernbench.dtypes import DType
    from kernbench.runtime_api.distributed import Distributed
    from kernbench.runtime_api.functional import Nn
    from kernbench.runtime_api.tensor import Tensor


class _Open(threading.local):
    """The sessions that a thread has open, the innermost last."""

    def __init__(self) -> None:
        self.sessions: list[RuntimeContext] = []


_open = _Open()


def current_session() -> RuntimeContext:
    """Return the session whose with-block the caller is in; of several, the innermost.

    Raises
    ------
    StateError
        If there is none in this thread.
    """
    if not _open.sessions:
        raise StateError("no session is open: call it inside `with kb.session(...) as torch:`, or pass torch=torch")
    return _open.sessions[-1]


class RuntimeContext(TypeNames, Creation):
    """One simulated machine under torch's names; a context manager, used as `torch`.

    The with-block's end waits for everything that was queued, then frees every tensor; `result` stays. After an
    exception nothing is waited for, and the result is marked incomplete.

    Parameters
    ----------
    engine : GraphEngine
        The machine.
    target_device : DeviceSelector or str, optional
        "all" (default; device 0 is current at first) or "sip:N".
    correlation_id : str
        What the run is called in its result.
    spec : mapping, optional
        The machine as its file reads; default: the engine's.
    limits : Limits or mapping, optional
        How much the run may take.

    Attributes
    ----------
    ahbm : Ahbm
        The device module.
    accelerator : Accelerator
        torch's general names for it.
    multiprocessing : Multiprocessing
        Programs for several devices.
    distributed : Distributed
        Collectives between them.
    checks : int
        How many results the program has compared with a reference; whoever compares one adds it.
    """

    def __init__(
        self,
        engine: GraphEngine,
        target_device: DeviceSelector | str | None = None,
        correlation_id: str = "run",
        spec: Mapping[str, Any] | None = None,
        limits: Limits | Mapping[str, float] | None = None,
    ) -> None:
        self.engine = engine
        self.target_device = resolve_device(target_device, engine.machine.config.n_sips)
        self.correlation_id = correlation_id
        self.spec = engine.machine.spec if spec is None else spec
        super().__init__(Host(engine, self.target_device))
        self.ahbm = Ahbm(self._host)
        self.accelerator = Accelerator(self._host)
        self.multiprocessing = Multiprocessing(self._host)
        self.checks = 0
        self._guard = Guard(engine, Limits.of(limits), self._ranks)
        self._broken = False
        self._final: Result | None = None

    @cached_property
    def nn(self) -> type[Nn]:
        """`torch.nn`, of which there is `functional`; imported when first used."""
        from kernbench.runtime_api.functional import Nn

        return Nn

    def matmul(self, input: Tensor, other: Tensor) -> Tensor:
        """Return torch's matrix product of two device tensors."""
        return input.matmul(other)

    def cat(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Return device tensors joined along `dim`."""
        from kernbench.runtime_api.operators import cat

        return cat(tensors, dim)

    def softmax(self, input: Tensor, dim: int, dtype: DType | str | None = None) -> Tensor:
        """Return softmax of a device tensor along `dim`."""
        return input.softmax(dim, dtype)

    def sum(
        self, input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False,
        dtype: DType | str | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the sum of a device tensor over some dims (all)."""
        return input.sum(dim, keepdim, dtype)

    def mean(
        self, input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False,
        dtype: DType | str | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the mean of a device tensor over some dims (all)."""
        return input.mean(dim, keepdim, dtype)

    def max(self, input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the largest value of a device tensor; along `dim`, `values` and `indices`."""
        return input.max(dim, keepdim)

    def permute(self, input: Tensor, dims: Sequence[int]) -> Tensor:
        """Return a view with the dims in another order."""
        return input.permute(*dims)

    def unsqueeze(self, input: Tensor, dim: int) -> Tensor:
        """Return a view with a dim of size 1 inserted at `dim`."""
        return input.unsqueeze(dim)

    @cached_property
    def distributed(self) -> Distributed:
        """`torch.distributed`, imported when first used."""
        from kernbench.runtime_api.distributed import Distributed

        return Distributed(self._host)

    def launch(self, name: str, kernel: Callable[..., object], *args: Any) -> None:
        """Queue `kernel` on every PE of the current device that holds a part of a tensor argument.

        Returns at once; host reads and `synchronize` wait. Each PE runs `kernel(*args, tl=tl)`; it gets a tensor as
        a typed pointer to its first element, anything else as it is. The tensors' memory is kept until the end.

        Parameters
        ----------
        name : str
            What the launch is called in the result.
        kernel : callable
            The program of one PE.
        *args
            Tensors on the current device, and values.
        """
        launch(self._host, self._host.current, name, kernel, args)

    def collective(
        self,
        tensors: Sequence[Tensor | Sequence[Tensor]],
        algorithm: AlgorithmLike | None = None,
        *,
        config: CclLike | None = None,
        name: str | None = None,
        n_slots: int | None = None,
        **call: Any,
    ) -> Plan:
        """Queue a collective over several devices: by default an all-reduce of one tensor of each.

        Returns at once, like `launch`. A program that drives every device by itself uses this; one program for each
        device uses `torch.distributed`.

        Parameters
        ----------
        tensors : sequence
            One on each device, in rank order; where the algorithm's kernel takes several, a sequence of them each.
        algorithm : str, Algorithm, module or callable, optional
            A name of ccl.yaml or "pkg.mod:attribute"; an algorithm, made with `kernbench.ccl.algorithm.algorithm`; or
            a kernel for a ring. By default what ccl.yaml chooses.
        config : path, mapping or CclConfig, optional
            The ccl.yaml; by default the nearest one.
        name : str, optional
            What the launches are called in the result.
        n_slots : int, optional
            Slots of each queue's ring; by default the algorithm's, or as ccl.yaml or the machine file has it. With
            "auto" and none stated they are chosen with the algorithm.
        **call
            What the algorithm is asked for, such as `op="max"` or `root=1`.

        Returns
        -------
        Plan
            The algorithm, and who takes part.
        """
        from kernbench.runtime_api.direct import collective

        return collective(self._host, tensors, algorithm, config, name, n_slots, call)

    @property
    def is_open(self) -> bool:
        """Whether its with-block has not ended."""
        return self._host.is_open

    @property
    def requests(self) -> int:
        """Launches and copies asked for so far."""
        return self._host.requests

    @property
    def result(self) -> Result:
        """What the run came to; survives the with-block."""
        return self._final or self._summary()

    def _summary(self) -> Result:
        records = self.engine.records()
        if self._broken:
            records = replace(records, complete=False)
        return Result(records, self.correlation_id)

    def _ranks(self) -> list[str]:
        ranks = self._host.ranks
        return [] if ranks is None else [rank.place for rank in ranks.ranks if not rank.has_ended]

    def __enter__(self) -> Self:
        _open.sessions.append(self)
        self._guard.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        forgotten: list[tuple[str, Line]] = []
        try:
            if error is None and self.engine.failure is None:
                self.multiprocessing.finish()
                forgotten = [(str(work), line) for work, line in self._host.unwaited.items() if line]
                self._host.synchronize()
        except Expired as expired:
            error = expired
        finally:
            _open.sessions.remove(self)
            self._guard.stop()
            self._broken = error is not None
            self._final = self._summary()
            self._host.close()
        late = self._guard.told(error)
        if late is not None:
            raise late from None
        for what, line in forgotten:
            message = (
                f"{what}, was never waited for: its tensors can be read too early and written too early; call wait() "
                "on the Work that it returned"
            )
            warnings.warn_explicit(message, UserWarning, line[0].co_filename, line_number(line))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            known = [n for n in dir(self) if not n.startswith("_")]
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            raise AttributeError(f"torch, as simulated here, has no {quote(name)}; {hint}")

    def __repr__(self) -> str:
        state = "open" if self._host.is_open else "closed"
        return f"<torch on {self.engine.machine!r}, {state}, {self.engine.now_ns:,.2f} ns>"


def session(
    machine: Machine | str | Path | Mapping[str, Any] | None = None,
    data: bool = False,
    log: str = "operation",
    device: DeviceSelector | str | None = None,
    limits: Limits | Mapping[str, float] | None = None,
    races: bool = True,
) -> RuntimeContext:
    """Return the torch-like namespace of a fresh machine, for a with-block.

    Parameters
    ----------
    machine : Machine, str, Path, mapping, optional
        As for `kb.load`.
    data : bool
        Whether values are moved and computed. Times are the same; without, values read from a device are NaN (or
        0 where the type has none).
    log : str
        What the result can tell: "off", "operation" or "tile".
    device : DeviceSelector or str, optional
        "all" or "sip:N": the device that is current at first.
    limits : Limits or mapping, optional
        How many events, how much simulated time and how much host time the session may take:
        `kb.Limits(events=10**7, simulated_ns=1e9, host_s=60)`, or a mapping with these names. Without them it has no
        limit.
    races : bool
        With data, whether accesses to the same bytes that nothing orders are an error.

    Raises
    ------
    RaceError
        Later, if two accesses race; the message names both lines.
    ConfigError
        If the machine is wrong, or a limit is not a number > 0.
    LimitError
        Later, from what was running when a limit was passed; the message names the line of the kernel or rank.

    Examples
    --------
    >>> with session("preset:small", data=True) as torch:
    ...     a = torch.ones(4, 4, dtype=torch.float16, device="ahbm")
    ...     a.numpy().sum()
    np.float16(16.0)
    """
    engine = GraphEngine(resolve_topology(machine), data, log=log, races=races)
    return RuntimeContext(engine, device, limits=limits)
