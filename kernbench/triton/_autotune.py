"""Autotuning by simulated time: the configurations of `@triton.autotune`, each run on a new machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import inf
from typing import Any

from kernbench.errors import KernelError, OutOfMemoryError
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api.context import RuntimeContext, current_session
from kernbench.triton._arguments import TypedPointer, is_host, is_pointer, tensor_of
from kernbench.triton._language import StaticAssertError
from kernbench.triton._owner import TIMES_ONLY
from kernbench.triton._session import On, computed
from kernbench.triton._translate import decoration, raw


@dataclass(frozen=True)
class Trial:
    """One configuration: its launch's time [ns], and the resource that takes most of it on the device.

    The time is infinite if the configuration exceeds the memory of a PE, or fails a `static_assert`; `limit` says why.
    """

    config: Any
    ns: float
    limit: str

    @property
    def values(self) -> dict[str, Any]:
        return dict(self.config.kwargs)


@dataclass(frozen=True)
class Tuning:
    """Result of autotuning: the trials, the fastest first; displays itself in a terminal and in a notebook.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    trials : tuple of Trial
        Each configuration that was not pruned; of equal times, in the order of the configurations.
    """

    kernel: str
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        return self.trials[0]

    def _rows(self) -> list[tuple[str, str, str]]:
        named = [", ".join(f"{k}={v}" for k, v in trial.values.items()) or "(no values)" for trial in self.trials]
        times = [f"{trial.ns:,.2f}" if trial.ns < inf else "cannot run" for trial in self.trials]
        return list(zip(named, times, (trial.limit for trial in self.trials), strict=True))

    def __len__(self) -> int:
        return len(self.trials)

    def __getitem__(self, i: int) -> Trial:
        return self.trials[i]

    def __str__(self) -> str:
        rows = [("config", "ns", "limit"), *self._rows()]
        first, second = (max(len(row[i]) for row in rows) for i in range(2))
        return "\n".join(
            [f"{self.kernel}: {len(self)} configurations, the fastest first"]
            + [f"  {a:<{first}}  {b:>{second}}  {c}" for a, b, c in rows]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td>{escape(a)}</td><td style='text-align:right'>{escape(b)}</td>"
            f"<td style='text-align:left'>{escape(c)}</td></tr>"
            for a, b, c in self._rows()
        )
        title = f"{escape(self.kernel)}: {len(self)} configurations, the fastest first"
        head = "<tr><th>config</th><th>time [ns]</th><th style='text-align:left'>limit</th></tr>"
        return f"<table><caption>{title}</caption><thead>{head}</thead><tbody>{cells}</tbody></table>"


def _pruned(tuner: Any, configs: Sequence[Any], named: dict[str, Any], kwargs: dict[str, Any]) -> list[Any]:
    early, model = getattr(tuner, "early_config_prune", None), getattr(tuner, "perf_model", None)
    left = list(configs)
    if early:
        left = list(early(left, named, **kwargs))
        if not left:
            raise KernelError(f"autotune of {raw(tuner).__name__}: early_config_prune leaves no configuration")
    if model:
        top = tuner.configs_top_k
        count = int(len(left) * top) if isinstance(top, float) and top <= 1.0 else int(top)
        if len(left) > max(1, count):
            left.sort(key=lambda config: model(**named, **kwargs, **config.all_kwargs()))
            left = left[: max(1, count)]
    return left


def _copied(x: Any, on: On, torch: RuntimeContext, values: bool) -> Any:
    """Copy an argument to another session: a device tensor with its placement; host tensors are shared."""
    if not isinstance(x, DeviceTensor):
        if not is_pointer(x) or is_host(x):
            return x
        holder = tensor_of(x, "an argument", on.torch._host)
        copy = _copied(holder, on, torch, values)
        return x if copy is holder else TypedPointer(copy, x.data_ptr() - holder.data_ptr(), x.dtype)
    layout = x.layout
    whole = torch.empty(layout.shape, dtype=layout.dtype, dp=layout.dp, device=None if layout.dp else "ahbm")
    assert isinstance(whole, DeviceTensor)
    if values:
        source = x._host.engine.memory.peek(layout.read_pieces)
        torch.engine.memory.poke(whole.layout.write_pieces, whole.layout.scatter(layout.gather(source)))
    return DeviceTensor(whole._host, whole._handle, whole._layout, x._offset, x.shape, x._stride)


def _trial(on: On, fn: Any, config: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Trial:
    for values in (False, True):
        torch = RuntimeContext(type(on.torch.engine)(on.torch.engine.machine, values))
        try:
            with torch:
                block = On(torch, on.placement, on.dp)
                own = [_copied(x, on, torch, values) for x in args]
                named = {k: _copied(v, on, torch, values) for k, v in kwargs.items()}
                _prepare(config, fn, own, named)
                block.run(fn, own, {**named, **config.all_kwargs()}, grid)
        except (OutOfMemoryError, StaticAssertError) as error:
            return Trial(config, inf, str(error))
        except KernelError as error:
            if values or TIMES_ONLY not in str(error):
                raise
            continue
        launch = torch.result.launches[-1]
        why = torch.result.why(launch)
        reason = next((r for r in why if not r.host), None)
        return Trial(config, (launch.end_ps - launch.start_ps) / 1000, "" if reason is None else reason.what)
    raise AssertionError("unreachable")


def _prepare(config: Any, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if getattr(config, "pre_hook", None) is not None:
        config.pre_hook({**dict(zip(fn.arg_names, args, strict=False)), **kwargs, **config.all_kwargs()})


def _tune(
    on: On, tuner: Any, fn: Any, configs: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any], grid: Any
) -> Tuning:
    name = raw(fn).__name__
    named = dict(zip(fn.arg_names, args, strict=False))
    for config in configs:
        twice = sorted(set(config.kwargs) & {*named, *kwargs})
        if twice:
            raise ValueError(f"autotune of {name}: {twice[0]!r} is set by a configuration, and by the launch")
    left = _pruned(tuner, configs, named, kwargs)
    trials = [_trial(on, fn, config, grid, args, kwargs) for config in left]
    found = Tuning(name, tuple(sorted(trials, key=lambda trial: trial.ns)))
    if found.best.ns == inf:
        raise KernelError(f"autotune of {name}: no configuration can run: {found.best.limit}")
    return found


def _key(on: On, tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    named = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    chosen_by = [named[k] for k in tuner.keys if k in named and isinstance(named[k], (int, float, str, bool))]
    types = [str(v.dtype) for v in named.values() if hasattr(v, "dtype")]
    return (on.torch.engine.machine.hash, on.placement, str(on.dp), *chosen_by, *types)


def fastest_arguments(on: On, tuner: Any, args: Sequence[Any], kwargs: dict[str, Any], grid: Any) -> dict[str, Any]:
    """Return the arguments of the fastest configuration; trials are cached by the tuner's key."""
    known = on.tuned.setdefault(id(tuner), {})
    key = _key(on, tuner, args, kwargs)
    if key not in known:
        known[key] = (
            tuner.configs[0]
            if len(tuner.configs) == 1
            else (_tune(on, tuner, tuner.fn, tuner.configs, args, kwargs, grid).best.config)
        )
    tuner.best_config = known[key]
    _prepare(known[key], tuner, args, kwargs)
    return dict(known[key].all_kwargs())


def autotune(
    kernel: Any,
    grid: Any,
    *args: Any,
    configs: Sequence[Any] | None = None,
    torch: RuntimeContext | None = None,
    placement: str = "round-robin",
    dp: Any = None,
    **kwargs: Any,
) -> Tuning:
    """Simulate each configuration of a kernel on the machine of a session; return their times, the fastest first.

    Each runs on a fresh machine of the same kind, without values unless control flow or addresses of the kernel depend
    on them. The session's own clock does not move, and arguments keep their values.

    Parameters
    ----------
    kernel : kernel
        Decorated with `@triton.autotune`, or with `@triton.jit` alone if `configs` are given.
    grid : tuple or callable
        As in `kernel[grid]`.
    *args : object
        The launch's arguments, without those that a configuration sets.
    configs : sequence of triton.Config or of dict, optional
        Configurations to try; by default those of the decorator, pruned by its rules.
    torch : RuntimeContext, optional
        The session; by default the one that is open.
    placement, dp : optional
        As for `kb.triton.on`.
    **kwargs : object
        The launch's arguments by name.

    Returns
    -------
    Tuning
        A table of (configuration, ns, limiting resource) that displays itself; `best` is the fastest.

    Raises
    ------
    KernelError
        If no configuration can run.
    ValueError
        If there are no configurations.

    Examples
    --------
    >>> with kb.session() as torch:  # doctest: +SKIP
    ...     kb.triton.autotune(kernels.matmul, grid, a, b, c, M, N, K, configs=[{"BLOCK": 32}, {"BLOCK": 64}])
    """
    tuner = kernel
    while decoration(tuner) == "Heuristics":
        kwargs |= computed(tuner, args, kwargs)
        tuner = tuner.fn
    fn = tuner
    if decoration(tuner) == "Autotuner":
        fn = tuner.fn
        wanted = tuner.configs if configs is None else configs
    else:
        wanted = configs or ()
    if not wanted:
        raise ValueError(
            f"autotune of {raw(kernel).__name__}: no configurations; give configs=, or use @triton.autotune"
        )
    on = On(current_session() if torch is None else torch, placement, dp)
    return _tune(on, tuner, fn, [_config(c) for c in wanted], args, kwargs, grid)


def _config(config: Any) -> Any:
    if not isinstance(config, Mapping):
        return config
    from kernbench.triton._module import Config

    return Config(config)
