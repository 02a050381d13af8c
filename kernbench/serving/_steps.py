"""Step times from simulated parts of a model: a layer, attention and the head, each at captured sizes."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._registry import hint
from kernbench.analysis._what_if._predictions import COVERED, is_time
from kernbench.config._files import write_text
from kernbench.config._kinds import DURATION, RATE
from kernbench.config._overrides import leaves
from kernbench.config._schema import settings
from kernbench.errors import ArgumentError, MissingModuleError, PointError, quote
from kernbench.points._cache import default_cache
from kernbench.points._keys import Row, code_version, key_of, only_ours
from kernbench.serving._attention import attention_row
from kernbench.serving._models import check_parallel, experts_of, fields_of, heads_of, kv_blocks, kv_bytes, layers_of
from kernbench.serving._parts import CAPTURED, CONTEXTS, part_row, points_of
from kernbench.serving._requests import check_count
from kernbench.serving._transfer import transfer_ns
from kernbench.sweeps._sweep import sweep
from kernbench.topology.builder import Machine, Overrides, resolve_topology

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client

COLUMNS = ("part", "requests", "tokens", "context", "ns", "host_ns", "limit", "path", "nbytes", "energy_uj")
_SUMMED = ("ns", "energy_uj", "nbytes")


class StepTable:
    """Step times of a model from a table of its parts; call it as `kb.serving.run` does.

    Attributes
    ----------
    table : DataFrame
        A row for each simulated part: `part` (layer, attention or head), `requests`, `tokens` of each, `context` (of
        several requests the mean), `ns`, `host_ns`, `limit`, `path` (time of each resource on the critical path), and
        of one SIP `nbytes` and `energy_uj`.
    """

    def __init__(self, table: pd.DataFrame, model: Mapping[str, Any], tp: int) -> None:
        self.table, self._model, self.tp = table, model, tp
        self._layers: int = model["num_hidden_layers"]
        self._kinds = layers_of(model)

    @cached_property
    def _padded(self) -> dict[str, dict[str, np.ndarray]]:
        """Of layer and head: sizes, and each column by size."""
        return {part: _sorted(self.table[self.table["part"] == part], "requests") for part in (*self._kinds, "head")}

    @cached_property
    def _host_ns(self) -> float:
        return float(self.table["host_ns"].max())

    @cached_property
    def _attention(self) -> dict[bool, dict[int, dict[str, np.ndarray]]]:
        """Of chunks, and of batches: by number of tokens or requests, contexts and each column by context."""
        rows = self.table[self.table["part"] == "attention"]
        found = {}
        for chunk, by in ((True, "tokens"), (False, "requests")):
            own = rows[(rows["tokens"] > 1) == chunk]
            found[chunk] = {n: _sorted(own[own[by] == n], "context") for n in sorted(set(own[by].tolist()))}
        return found

    def parts(
        self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int], column: str = "ns"
    ) -> dict[str, float]:
        """Return the parts of a step; those of its time [ns] sum to what a call returns.

        Parameters
        ----------
        prefill : sequence of (int, int)
            Chunks of prompts: tokens, and tokens before them.
        contexts : sequence of int
            Tokens that each decoded token attends to.
        column : str
            "ns", or of one SIP "energy_uj" or "nbytes".
        """
        sequences, tokens = len(prefill) + len(contexts), len(contexts) + sum(n for n, _ in prefill)
        most = max(self._attention[False])
        batches = [contexts[i : i + most] for i in range(0, len(contexts), most)]
        return {
            "layers": sum(n * self._of(kind, tokens, column) for kind, n in self._kinds.items()),
            "attention_decode": self._layers * sum(self._batch(each, column) for each in batches),
            "attention_prefill": self._layers * sum(self._chunk(n, before, column) for n, before in prefill),
            "head": self._of("head", sequences, column),
            "host": self._host_ns if column == "ns" else 0.0,
        }

    def __call__(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> float:
        """Return the time of a step [ns]."""
        return sum(self.parts(prefill, contexts).values())

    def energy_uj(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> float:
        """Return the energy of a step on all SIPs [uJ]: a proxy (docs/model.md, M1.5)."""
        return self.tp * sum(self.parts(prefill, contexts, "energy_uj").values())

    def why(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> pd.DataFrame:
        """Return what limits a step: for each of its parts the time [ns], the share, and the limit of the largest.

        The limit is that of the nearest simulated size, from its critical path.
        """
        import pandas as pd

        ns, nearest = self.parts(prefill, contexts), self._nearest(prefill, contexts)
        rows = []
        for name, x in ns.items():
            limit = nearest[name]["limit"] if name in nearest else name
            rows.append({"part": name, "ns": x, "share": x / sum(ns.values()), "limit": limit})
        return pd.DataFrame(rows).query("ns > 0").sort_values("ns", ascending=False, ignore_index=True)

    def causes(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> dict[str, float]:
        """Return the time of a step [ns] by resource, longest first: each part has the shares of its critical path.

        The shares are those of the nearest simulated sizes; the sum is the time of the step.
        """
        found: dict[str, float] = defaultdict(float)
        nearest = self._nearest(prefill, contexts)
        for name, ns in self.parts(prefill, contexts).items():
            path = nearest[name]["path"] if name in nearest else {name: 1.0}
            for what, x in path.items() if ns else ():
                found[what] += ns * x / sum(path.values())
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def _nearest(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> dict[str, Any]:
        """Return for each part of a step but the host the row of the nearest simulated size."""
        tokens = len(contexts) + sum(n for n, _ in prefill)
        longest = max(prefill, key=lambda chunk: chunk[0] * sum(chunk), default=(0, 0))
        mean = sum(contexts) / len(contexts) if contexts else 0
        asked = {
            "layers": ("layer", tokens, 1, 0), "head": ("head", len(prefill) + len(contexts), 1, 0),
            "attention_decode": ("attention", len(contexts), 1, mean),
            "attention_prefill": ("attention", 1, longest[0], sum(longest)),
        }  # fmt: skip
        return {name: self._row(*sizes) for name, sizes in asked.items()}

    def _row(self, part: str, requests: int, tokens: int, context: float) -> Any:
        rows = self.table[(self.table["part"] == part) & ((self.table["tokens"] > 1) == (tokens > 1))]
        far = sum(
            (np.log(rows[name] + 1) - np.log(value + 1)).abs()
            for name, value in (("requests", requests), ("tokens", tokens), ("context", context))
        )
        return rows.iloc[int(np.argmin(far))]

    def predicted(self, slowdown: Mapping[str, float]) -> StepTable:
        """Return the table if fields of the machine take `slowdown` times as long: critical paths, scaled."""
        factors = {what: _factor(what, slowdown) for path in self.table["path"] for what in path}
        scaled = [
            ns * sum(x * factors[what] for what, x in path.items()) / sum(path.values())
            for ns, path in zip(self.table["ns"], self.table["path"], strict=True)
        ]
        return StepTable(self.table.assign(ns=scaled), self._model, self.tp)

    def predict_infer_time(self, batch: Any) -> float:
        """Return the time of a step [s], for simulators of serving that take such a predictor.

        Parameters
        ----------
        batch : object
            With a list `reqs` of requests, each with `extend_length` and `past_kv_length`: the tokens that the step
            computes, and those before them. That is the `ScheduleBatch` of SGLang's simulator.
        """
        return self._step_s([(each.extend_length, each.past_kv_length) for each in batch.reqs])

    def _step_s(self, requests: Sequence[tuple[int, int]]) -> float:
        prefill = [(n, before) for n, before in requests if n > 1]
        contexts = [before + 1 for n, before in requests if n == 1]
        return self(prefill, contexts) / 1e9 if requests else 0.0

    def export(self, format: str, path: str | Path) -> Path:
        """Write the step times for another tool, and return the path of the file.

        Parameters
        ----------
        format : str
            "csv": `table`. "sglang-replay": the table of the `replay` predictor of SGLang's simulator, with chunks, and
            with batches of equal contexts; let the predictor take the nearest (`miss_strategy: knn`) for others.
        path : str or Path
            The file; one that exists is replaced.

        Raises
        ------
        ArgumentError
            If the format is unknown.
        """
        if format == "csv":
            return write_text(Path(path), self.table.drop(columns="path").to_csv(index=False, lineterminator="\n"))
        if format != "sglang-replay":
            raise ArgumentError(f"format = {quote(format)} is unknown; {hint(format, ('csv', 'sglang-replay'))}")
        found = {}
        rows = self.table.loc[self.table["part"] == "attention", ["requests", "tokens", "context"]]
        for n, tokens, context in rows.to_numpy(int).tolist():
            requests = [(tokens, context - tokens)] * n
            found[json.dumps(requests)] = self._step_s(requests)
        return write_text(Path(path), json.dumps(found, indent=1))

    def _of(self, part: str, n: int, column: str) -> float:
        """Return a column for `n` tokens, padded to a captured size; more than the largest are several runs."""
        rows = self._padded[part]
        sizes, values = rows["requests"], rows[column]
        whole, rest = divmod(n, int(sizes[-1]))
        return float(whole * values[-1] + (values[bisect_left(sizes, rest)] if rest else 0))

    def _batch(self, contexts: Sequence[int], column: str) -> float:
        rows = self._attention[False]
        sizes = list(rows)
        own = rows[sizes[bisect_left(sizes, len(contexts))]]
        return self._at(own, sum(contexts) / len(contexts), max(contexts), column)

    def _chunk(self, tokens: int, before: int, column: str) -> float:
        rows = self._attention[True]
        sizes = list(rows)
        most, found = sizes[-1], 0.0
        while tokens > most:
            found += self._at(rows[most], before + most, before + most, column)
            tokens, before = tokens - most, before + most
        i, context = bisect_left(sizes, tokens), before + tokens
        if i == 0 or sizes[i] == tokens:
            return found + self._at(rows[sizes[i]], context, context, column)
        share = (tokens - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        near = [self._at(rows[sizes[j]], context, context, column) for j in (i - 1, i)]
        return found + (1 - share) * near[0] + share * near[1]

    def _at(self, rows: Mapping[str, np.ndarray], context: float, longest: int, column: str) -> float:
        most = max(x["context"][-1] for x in self._attention[True].values())
        if longest > most:
            raise ArgumentError(
                f"a step has a context of {longest} tokens, but the longest simulated is {most:.0f}; pass "
                "kb.serving.steps a longer one in contexts=..."
            )
        return float(np.interp(context, rows["context"], rows[column]))


class SimulatedSteps(StepTable):
    """Step times of a model on a machine: `kb.serving.steps` returns them."""

    def __init__(
        self, table: pd.DataFrame, model: Mapping[str, Any], tp: int, machine: Machine, ep: int = 1, skew: float = 0.0
    ) -> None:
        super().__init__(table, model, tp)
        self._machine, self._ep, self._skew = machine, ep, skew

    def with_(self, overrides: Overrides) -> SimulatedSteps:
        """Simulate the same parts on the machine with some fields changed, as `kb.load` takes them."""
        rows = self.table[["part", "requests", "tokens", "context"]]
        sizes = rows.loc[rows["part"] == "layer", "requests"].tolist()
        contexts = rows.loc[(rows["part"] == "attention") & (rows["tokens"] == 1), "context"].unique().tolist()
        return steps(
            self._model, self._machine.with_(overrides), tp=self.tp, ep=self._ep, skew=self._skew, sizes=sizes,
            contexts=contexts,
        )  # fmt: skip

    def what_if(self, overrides: Overrides) -> StepTable:
        """Return the table predicted for some fields changed, from the critical paths of its parts.

        The time of each resource is scaled, and the longest path stays the same one: with faster fields, times are
        longer than predicted where another path becomes the longest.

        Raises
        ------
        ArgumentError
            If a field is no bandwidth, rate or latency, or the machine has a cache, which `with_` simulates.
        """
        now, changed = self._machine, self._machine.with_(overrides)
        if now.config.cube.llc.size_mib:
            raise ArgumentError("what_if: it does not know which requests hit the cache; with_(...) simulates it")
        before, after = leaves(now.spec), leaves(changed.spec)
        fields = [field for field in after if before.get(field) != after[field]]
        wrong = [field for field in fields if field not in COVERED or not before[field]]
        if wrong:
            raise ArgumentError(
                f"what_if: {wrong[0]} = {quote(after[wrong[0]])} is no bandwidth, rate or latency above 0, so that "
                "times do not scale with it; with_(...) simulates it"
            )
        ratios = {field: after[field] / before[field] for field in fields}
        return self.predicted({field: x if is_time(field) else 1 / x for field, x in ratios.items()})

    def exact(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> float:
        """Return the time of a step [ns] with attention simulated for these chunks and contexts, and kept.

        A call takes some tenths of a second for each new batch; calling the object interpolates instead.
        """
        return sum(self.parts(prefill, contexts).values()) + self._layers * self._error_ns(prefill, contexts)

    def _error_ns(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> float:
        most = max(self._attention[False])
        ns = 0.0
        for i in range(0, len(contexts), most):
            batch = contexts[i : i + most]
            ns += self._simulated(1, list(batch)) - self._batch(batch, "ns")
        return ns + sum(self._simulated(n, [before + n]) - self._chunk(n, before, "ns") for n, before in prefill)

    def _simulated(self, tokens: int, contexts: list[int]) -> float:
        machine = self._machine
        asked: Row = {"tokens": tokens, "contexts": contexts, **heads_of(self._model, self.tp), "log": "off"}

        def row() -> Row:
            return attention_row(machine, **asked)

        cache = default_cache() if only_ours(machine) else None
        if cache is None:
            return float(row()["ns"])
        version = code_version()
        key = key_of(__name__, version, machine.hash, asked)
        return float(cache.rows_of(row, key, study=__name__, machine=machine.hash, version=version)["ns"])

    def num_blocks(self, block_size: int = 16, memory_utilization: float = 0.9) -> int:
        """Return the number of blocks of the KV cache that fit beside the weights.

        Parameters
        ----------
        block_size : int
            Tokens of a block, as in `Policy`.
        memory_utilization : float
            Share of the memory that weights and blocks may take: vLLM's `gpu_memory_utilization`, with its default.

        Raises
        ------
        ArgumentError
            If not even one block fits.
        """
        return kv_blocks(self._model, self.tp, self._machine.config, block_size, memory_utilization)

    def kv_transfer_ns(self, tokens: int) -> float:
        """Return the time to send the keys and values of a request to another replica [ns].

        Each SIP of a replica sends its part to one of the next replica, at the same time, over the network of the
        machine, or a ring of SIPs if it has too few. Sizes from 4 KiB to 16 MiB of a SIP are simulated, in seconds, and
        times of others follow linearly.
        """
        return transfer_ns(self._machine, self.tp, kv_bytes(self._model, self.tp) * tokens)


def _factor(resource: str, slowdown: Mapping[str, float]) -> float:
    """Slowdown of a resource; of several fields that set it, the fastest counts."""
    name = resource.removeprefix("wire of the ")
    fields = settings(name, DURATION) if name != resource else settings(name, RATE) or settings(name, DURATION)
    return min((slowdown[field] for field in fields if field in slowdown), default=1.0)


def _sorted(rows: pd.DataFrame, by: str) -> dict[str, np.ndarray]:
    rows = rows.sort_values(by)
    return {name: rows[name].to_numpy(float) for name in (by, *_SUMMED)}


def steps(
    model: Any,
    machine: Machine | str | Path | Mapping[str, Any] | None = None,
    *,
    tp: int = 1,
    ep: int = 1,
    skew: float = 0.0,
    sizes: Sequence[int] = CAPTURED,
    contexts: Sequence[int] = CONTEXTS,
    folder: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | Client | None = None,
    progress: bool | Callable[..., object] = True,
) -> SimulatedSteps:
    """Simulate the parts of a decoder model on a machine, as step times for `kb.serving.run`; needs PyTorch.

    Parameters
    ----------
    model : str, Path, mapping or module
        "llama3-8b", "llama3-70b", "mixtral-8x7b", a Hugging Face config.json, or its content, or a model of
        transformers, of which only the configuration counts. Its `model_type` is llama, mistral,
        qwen2, qwen3, gemma, or of a mixture of experts mixtral, qwen2_moe, qwen3_moe or deepseek_v3.
    machine : Machine, str, Path or mapping, optional
        As for `kb.load`.
    tp : int
        SIPs over which each layer is distributed; the machine has at least as many.
    ep : int
        With experts: 1, and each SIP has a part of each expert, or `tp`, and each has some of the experts; rows are
        sent to them and back.
    skew : float
        With experts: how unequal their shares of the tokens are, as in `kb.torch.Routing`.
    sizes : sequence of int
        Captured sizes: a step with fewer tokens or requests is padded to the next, one with more than the largest runs
        a layer several times.
    contexts : sequence of int
        Contexts at which attention is simulated, in tokens, of batches the mean; the last is the longest that a step
        may have.
    folder, workers, scheduler, progress
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
    collectives of tensor parallelism; the host's time is that of one graph. The head is simulated at every second size.

    Keys and values are packed over the PEs, and each PE attends to those that it holds, as FlashInfer balances work (Ye
    et al., MLSys 2025); requests cut between PEs are merged. A batch is simulated with contexts at the quantiles of a
    lognormal distribution (sigma 0.8), and interpolated linearly in their mean: `exact` simulates the contexts at hand.
    Keys of a prompt are spread over all PEs; its chunks are causal behind the tokens before them, and prompts attend
    one after another. The embedding and the collection of logits over SIPs are left out.

    Examples
    --------
    >>> import kernbench as kb
    >>> machine = kb.load("preset:default", {"system.sips": {"count": 8, "topology": "ring_1d"}})  # doctest: +SKIP
    >>> steps = kb.serving.steps("llama3-8b", machine, tp=8)  # doctest: +SKIP
    >>> steps(prefill=[(256, 0)], contexts=[900] * 64)  # doctest: +SKIP
    """
    fields = fields_of(model)
    loaded = resolve_topology(machine)
    if not all(map(find_spec, ("torch", "transformers"))):
        raise MissingModuleError("kb.serving.steps needs PyTorch: pip install 'kernbench[torch,frontends]'")
    sizes, contexts = _ascending("sizes", sizes), _ascending("contexts", contexts)
    check_parallel(fields, tp, ep, loaded)
    experts = {"layer": {"ep": ep, "skew": skew}} if experts_of(fields) else {}
    points = [x | experts.get(x["part"], {}) for x in points_of(sizes, contexts, layers_of(fields))]
    one_layer = {name: value for name, value in fields.items() if name != "num_hidden_layers"}
    found = sweep(
        loaded, part_row, points=points, parameters={"tp": tp, "model": one_layer}, folder=folder, workers=workers,
        scheduler=scheduler, progress=progress,
    )  # fmt: skip
    failed = found.table[found.table["status"] != "ok"]
    if len(failed):
        row = failed.iloc[0]
        raise PointError(f"{row['part']} of {row['requests']} requests, context {row['context']}: {row['error']}")
    table = found.table[list(COLUMNS)].assign(path=found.table["path"].map(json.loads))
    return SimulatedSteps(table, fields, tp, loaded, ep, skew)


def _ascending(name: str, values: Sequence[int]) -> list[int]:
    for n in values:
        check_count(name, n)
    if not values:
        raise ArgumentError(f"{name} = {quote(values)} must have a number")
    return sorted(set(values))
