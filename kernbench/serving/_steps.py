"""Step times from simulated parts of a model: a layer, attention and the head, each at captured sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._registry import hint
from kernbench.config._files import read_json
from kernbench.errors import ArgumentError, ConfigError, MissingModuleError, PointError, quote
from kernbench.serving._requests import check_count
from kernbench.sweeps._sweep import sweep
from kernbench.topology.builder import Machine, resolve_topology

if TYPE_CHECKING:
    import pandas as pd

# Fields of their config.json (Meta, April 2024).
MODELS = {
    "llama3-8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 32, "vocab_size": 128256,
    },
    "llama3-70b": {
        "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8,
        "num_hidden_layers": 80, "vocab_size": 128256,
    },
}  # fmt: skip
_FIELDS = tuple(MODELS["llama3-8b"])
_OTHER = ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank")  # of experts, of latent attention
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 512, 2048, 8192)


def part_ns(
    machine: Machine, *, part: str, requests: int, tokens: int, context: int, tp: int, model: Mapping[str, int]
) -> dict[str, Any]:
    """Return the time of a part of a step [ns], without short attention in a layer, and its limit: a study."""
    from kernbench.torch._serving import simulate

    result = simulate(machine, part, model, tp, requests, tokens, context)
    counted = [x for x in result.launches if part != "layer" or not x.operators[0].startswith("attention")]
    launches = sum(x.ns for x in result.launches)
    return {
        "ns": sum(x.ns for x in counted),
        "host_ns": max(0.0, round(result.latency_ns - launches, 3)),
        "nbytes": sum(x.nbytes for x in counted),
        "limit": result.why()[0].what,
    }


class SimulatedSteps:
    """Step times of a model on a machine: `kb.serving.steps` returns them; call them as `kb.serving.run` does.

    Attributes
    ----------
    table : DataFrame
        A row for each simulated part: `part` (layer, attention or head), `requests`, `tokens` of each, `context`, `ns`,
        `host_ns`, `nbytes` and `limit`.
    """

    def __init__(self, table: pd.DataFrame, layers: int) -> None:
        self.table, self._layers = table, layers

    @cached_property
    def _padded_ns(self) -> dict[str, dict[int, float]]:
        """Of layer and head: time by captured size."""
        rows = {part: self.table[self.table["part"] == part] for part in ("layer", "head")}
        return {part: dict(zip(x["requests"].tolist(), x["ns"].tolist(), strict=True)) for part, x in rows.items()}

    @cached_property
    def _sizes(self) -> list[int]:
        return sorted(self._padded_ns["layer"])

    @cached_property
    def _host_ns(self) -> float:
        return float(self.table["host_ns"].max())

    @cached_property
    def _decode(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """By batch: contexts, and the time of attention."""
        return self._attention(self.table["tokens"] == 1, "requests")

    @cached_property
    def _chunks(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """By tokens of a chunk: contexts with the chunk, and the time of attention."""
        return self._attention(self.table["tokens"] > 1, "tokens")

    def _attention(self, which: pd.Series[bool], by: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        rows = self.table[which & (self.table["part"] == "attention")].sort_values("context")
        found = {n: rows[rows[by] == n] for n in rows[by].tolist()}
        return {n: (x["context"].to_numpy(float), x["ns"].to_numpy()) for n, x in found.items()}

    def parts(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> dict[str, float]:
        """Return the parts of a step's time [ns]; they sum to what a call returns.

        Parameters
        ----------
        prefill : sequence of (int, int)
            Chunks of prompts: tokens, and tokens before them.
        contexts : sequence of int
            Tokens that each decoded token attends to.
        """
        sequences, tokens = len(prefill) + len(contexts), len(contexts) + sum(n for n, _ in prefill)
        return {
            "layers": self._layers * self._padded("layer", tokens),
            "attention_decode": self._layers * sum(self._batch(each) for each in self._split(contexts)),
            "attention_prefill": self._layers * sum(self._chunk(n, before) for n, before in prefill),
            "head": self._padded("head", sequences),
            "host": self._host_ns,
        }

    def __call__(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> float:
        """Return the time of a step [ns]."""
        return sum(self.parts(prefill, contexts).values())

    def _next(self, n: int) -> int:
        return self._sizes[bisect_left(self._sizes, n)]

    def _padded(self, part: str, n: int) -> float:
        """Return the time for `n` tokens, padded to a captured size; more than the largest are several runs."""
        whole, rest = divmod(n, self._sizes[-1])
        sizes = [self._sizes[-1]] * whole + [self._next(rest)] * (rest > 0)
        return sum(self._padded_ns[part][size] for size in sizes)

    def _split(self, contexts: Sequence[int]) -> list[Sequence[int]]:
        most = self._sizes[-1]
        return [contexts[i : i + most] for i in range(0, len(contexts), most)]

    def _batch(self, contexts: Sequence[int]) -> float:
        size = self._next(len(contexts))
        measured, ns = self._decode[size]
        self._check(max(contexts), measured)
        missing = size - len(contexts)
        return float((np.interp(contexts, measured, ns).sum() + missing * ns[0]) / size)

    def _chunk(self, tokens: int, before: int) -> float:
        sizes = sorted(self._chunks)
        most, ns = sizes[-1], 0.0
        while tokens > most:
            ns += self._at(most, before)
            tokens, before = tokens - most, before + most
        i = bisect_left(sizes, tokens)
        if i == 0 or sizes[i] == tokens:
            return ns + self._at(sizes[i], before)
        share = (tokens - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        return ns + (1 - share) * self._at(sizes[i - 1], before) + share * self._at(sizes[i], before)

    def _at(self, chunk: int, before: int) -> float:
        measured, ns = self._chunks[chunk]
        self._check(before + chunk, measured)
        return float(np.interp(before + chunk, measured, ns))

    def _check(self, context: int, measured: np.ndarray) -> None:
        if context > measured[-1]:
            raise ArgumentError(
                f"a step has a context of {context} tokens, but the longest simulated is {measured[-1]:.0f}; pass "
                "kb.serving.steps a longer one in contexts=..."
            )


def steps(
    model: str | Path | Mapping[str, Any],
    machine: Machine | str | Path | Mapping[str, Any] | None = None,
    *,
    tp: int = 1,
    sizes: Sequence[int] = SIZES,
    contexts: Sequence[int] = CONTEXTS,
    folder: str | Path | None = None,
    workers: int | None = None,
    progress: bool | Callable[..., object] = True,
) -> SimulatedSteps:
    """Simulate the parts of a decoder model on a machine, as step times for `kb.serving.run`; needs PyTorch.

    Parameters
    ----------
    model : str, Path or mapping
        "llama3-8b", "llama3-70b", a Hugging Face config.json, or its content. A dense decoder of Llama's kind.
    machine : Machine, str, Path or mapping, optional
        As for `kb.load`.
    tp : int
        SIPs over which each layer is distributed; the machine has at least as many.
    sizes : sequence of int
        Captured sizes: a step with fewer tokens or requests is padded to the next, one with more than the largest runs
        a layer several times.
    contexts : sequence of int
        Contexts at which attention is simulated, in tokens; the last is the longest that a step may have.
    folder, workers, progress
        As for `kb.sweep`. Finished parts are kept: an interrupted call resumes, a second one simulates nothing.

    Returns
    -------
    SimulatedSteps
        The time of any step, and the table of its parts.

    Raises
    ------
    ArgumentError
        If the model is unknown or of another kind, or does not divide by `tp`.
    ConfigError
        If a config.json has no such field.
    MissingModuleError
        If PyTorch or transformers is not installed.
    PointError
        If a part cannot be simulated.

    Notes
    -----
    A step is `layers * (layer + attention) + head + host`: launches of a graph do not overlap. A layer has the
    collectives of tensor parallelism; the host's time is that of one graph. Attention of a batch is interpolated
    linearly between contexts, and a batch of unequal contexts takes the mean of its requests, which is an estimate:
    kernels split each context over the PEs. Prompts attend one after another. The embedding and the collection of
    logits over SIPs are left out.

    Examples
    --------
    >>> import kernbench as kb
    >>> steps = kb.serving.steps("llama3-8b", {"system.sips.count": 8}, tp=8)  # doctest: +SKIP
    >>> steps(prefill=[(256, 0)], contexts=[900] * 64)  # doctest: +SKIP
    """
    fields = _fields(model)
    loaded = resolve_topology(machine)
    if not all(map(find_spec, ("torch", "transformers"))):
        raise MissingModuleError("kb.serving.steps needs PyTorch: pip install 'kernbench[torch,frontends]'")
    sizes, contexts = _ascending("sizes", sizes), _ascending("contexts", contexts)
    _check_tp(fields, tp, loaded)
    layers = fields.pop("num_hidden_layers")
    points = [{"part": part, "requests": n, "tokens": 1, "context": 0} for part in ("layer", "head") for n in sizes]
    points += [{"part": "attention", "requests": n, "tokens": 1, "context": c} for n in sizes for c in contexts]
    points += [
        {"part": "attention", "requests": 1, "tokens": n, "context": n + before}
        for n in _chunk_sizes(sizes, contexts[-1])
        for before in (0, *(c for c in contexts if c < contexts[-1] - n), contexts[-1] - n)
    ]
    found = sweep(
        loaded, part_ns, points=points, parameters={"tp": tp, "model": fields}, folder=folder, workers=workers,
        progress=progress,
    )  # fmt: skip
    failed = found.table[found.table["status"] != "ok"]
    if len(failed):
        row = failed.iloc[0]
        raise PointError(f"{row['part']} of {row['requests']} requests, context {row['context']}: {row['error']}")
    columns = ["part", "requests", "tokens", "context", "ns", "host_ns", "nbytes", "limit"]
    return SimulatedSteps(found.table[columns], layers)


def _chunk_sizes(sizes: Sequence[int], longest: int) -> list[int]:
    """Return every second captured size from 16 tokens on, and the largest, below the longest context."""
    return sorted(n for n in {*[n for n in sizes if n >= 16][::2], max(2, sizes[-1])} if n < longest) or [2]


def _ascending(name: str, values: Sequence[int]) -> list[int]:
    for n in values:
        check_count(name, n)
    if not values:
        raise ArgumentError(f"{name} = {quote(values)} must have a number")
    return sorted(set(values))


def _fields(model: str | Path | Mapping[str, Any]) -> dict[str, int]:
    """Return the fields of a model that decide its times."""
    where = "model"
    if isinstance(model, str) and model in MODELS:
        model = MODELS[model]
    elif isinstance(model, str | Path):
        path = Path(model)
        if path.suffix != ".json":
            raise ArgumentError(f"model = {quote(str(model))} is unknown; {hint(model, MODELS)}; or a config.json")
        where = str(path)
        model = read_json(path, "config.json of Hugging Face", "pass another file")
    if not isinstance(model, Mapping):
        raise ConfigError(f"{where}: must hold the fields {', '.join(_FIELDS)}")
    other = [name for name in _OTHER if model.get(name)]
    if other:
        raise ArgumentError(
            f"{where}: {other[0]} = {model[other[0]]}: only dense decoders of Llama's kind are supported"
        )
    wrong = [name for name in _FIELDS if type(model.get(name)) is not int or model[name] < 1]
    if wrong:
        name = wrong[0]
        value = quote(model[name]) if name in model else "missing"
        raise ConfigError(
            [f"{where}: {name} = {value} must be an integer of at least 1; complete it"],
            [{"file": where, "key": name, "value": model.get(name), "remedy": "state an integer of at least 1"}],
        )
    fields = {name: int(model[name]) for name in _FIELDS}
    return fields | {"head_dim": int(model.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"])}


def _check_tp(fields: Mapping[str, int], tp: int, machine: Machine) -> None:
    heads = fields["num_key_value_heads"]
    check_count("tp", tp)
    if heads % tp:
        raise ArgumentError(f"tp = {tp} must divide num_key_value_heads = {heads}")
    if tp > machine.config.n_sips:
        raise ArgumentError(
            f"tp = {tp}: the machine has {machine.config.n_sips} SIPs; load it with system.sips.count={tp} or more"
        )
