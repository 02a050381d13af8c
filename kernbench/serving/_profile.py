"""Step times from measured times of layers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kernbench.errors import ArgumentError, ConfigError, MissingFileError, quote

if TYPE_CHECKING:
    import pandas as pd

_DENSE, _PER_SEQUENCE = ("layer", "tokens", "time_us"), ("layer", "sequences", "time_us")
_ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
_ONCE = ("embedding", "final_layernorm")  # in a step; the others are in each layer
_CALLS = {"layernorm": 2}  # in a layer; the others once
CAPTURED = (1, 2, 4, *range(8, 257, 8))


class LayerProfile:
    """Step times from measured times of layers, for `kb.serving.run`.

    Parameters
    ----------
    attention, dense, per_sequence : str or Path
        CSV files with times of one layer [us], in the format of LLMServingSim's profiles (`profiler/perf`): attention
        by `prefill_chunk`, `kv_prefill`, `n_decode` and `kv_decode` (a chunk of a prompt after `kv_prefill` tokens,
        beside `n_decode` requests with `kv_decode` earlier tokens each), others by `layer` and `tokens`, and what
        follows the last layer by `layer` and `sequences`. Lines that begin with # are comments.
    layers : int
        Layers of the model.
    kv_heads : int
        Heads of keys and values on the device.
    multiprocessors : int
        Multiprocessors of the device, as its data sheet says.
    captured : sequence of int
        Sizes of CUDA graphs: a step with fewer tokens is padded to the next. By default vLLM's for up to 128 requests.

    Raises
    ------
    ConfigError
        If a file has other columns, or times that are none.
    ArgumentError
        When called with more tokens, requests or context than the profile has.

    Notes
    -----
    Between measured points, times are interpolated linearly. The profile has equal contexts only; T(k, c) is the
    measured time of k requests with context c. For unequal contexts c_1 <= ... <= c_n, the requests of a batch are
    taken to run at the same time and to share the device, as thread blocks do:
    T(n, c_1) + sum over i > 1 of T(n - i + 1, c_i) - T(n - i + 1, c_(i-1)), but at least the mean over i of T(n, c_i),
    their work. Decodes alone take this mean if FlashAttention splits contexts over several blocks, which balances them:
    if n * kv_heads < 1.6 * multiprocessors (`num_splits_heuristic` of flash-attention 2, n padded). Where it does not,
    no request is faster than one alone and unsplit, which the profile has beside its smallest chunk. Further prompts
    in a step add their time alone, less that of a launch. No constant is fitted to results of an engine.

    Examples
    --------
    >>> LayerProfile("attention.csv", "dense.csv", "per_sequence.csv", layers=32, kv_heads=8, multiprocessors=188)
    Traceback (most recent call last):
    ...
    kernbench.errors.MissingFileError: attention.csv: cannot be read (No such file or directory); pass a profile
    """

    def __init__(
        self,
        attention: str | Path,
        dense: str | Path,
        per_sequence: str | Path,
        *,
        layers: int,
        kv_heads: int,
        multiprocessors: int,
        captured: Sequence[int] = CAPTURED,
    ) -> None:
        table = _read(attention, _ATTENTION)
        self._layers, self._captured = layers, sorted(captured)
        self._unsplit = 1.6 * multiprocessors / kv_heads  # requests from which on contexts are not split
        self._tokens, self._dense_us = _summed(_read(dense, _DENSE), "tokens", layers)
        self._sequences, self._head_us = _summed(_read(per_sequence, _PER_SEQUENCE), "sequences", 1)
        self._batches: dict[tuple[int, int], _Batches] = {}
        self._chunks: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        ordered = table.sort_values(list(_ATTENTION[:4]))[list(_ATTENTION)].to_numpy(float)
        for rows in _groups(ordered[ordered[:, 2] > 0], 2):
            self._batches[int(rows[0, 0]), int(rows[0, 1])] = _Batches(rows[:, 2:], Path(attention))
        for rows in _groups(ordered[ordered[:, 2] == 0], 1):
            self._chunks[int(rows[0, 0])] = rows[:, 1], rows[:, 4]
        smallest = min(self._chunks)
        self._launch_us = float(self._chunks[smallest][1].min())
        self._beside_smallest = self._batches[smallest, 0]

    def __call__(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> float:
        """Return the time of a step [ns]; `kb.serving.run` says what the arguments are."""
        decoded = len(contexts)
        tokens = self._padded(decoded + sum(chunk for chunk, _ in prefill))
        us = _at(self._tokens, self._dense_us, tokens, "tokens") + self._layers * self._attention(prefill, contexts)
        return 1000 * (us + _at(self._sequences, self._head_us, decoded + len(prefill), "requests"))

    def _padded(self, n: int) -> int:
        return self._captured[bisect_left(self._captured, n)] if n <= self._captured[-1] else n

    def _attention(self, prefill: Sequence[tuple[int, int]], contexts: Sequence[int]) -> float:
        before = np.sort(np.array(contexts, float) - 1)
        if not prefill:
            batches = self._batches[0, 0]
            if self._padded(len(before)) < self._unsplit:
                return batches.balanced(before)
            return batches.shared(before, self._beside_smallest)
        work = [chunk * (kept + chunk / 2) for chunk, kept in prefill]
        largest = int(np.argmax(work))
        others = [self._chunk(*each) - self._launch_us for i, each in enumerate(prefill) if i != largest]
        us = sum(max(0.0, each) for each in others)
        if not contexts:
            return us + self._chunk(*prefill[largest])
        chunk, kept = prefill[largest]
        chunks = sorted({each for each, _ in self._batches if each})
        for near, share in _bracket(chunks, chunk, "tokens of a chunk"):
            measured = sorted(earlier for each, earlier in self._batches if each == near)
            for earlier, part in _bracket(measured, kept, "tokens before a chunk"):
                us += share * part * self._batches[near, earlier].shared(before)
        return us

    def _chunk(self, chunk: int, kept: int) -> float:
        """Attention of a chunk of a prompt, alone [us]."""
        near = _bracket(sorted(self._chunks), chunk, "tokens of a chunk")
        return sum(share * _at(*self._chunks[each], kept, "tokens before a chunk") for each, share in near)


class _Batches:
    """Times of batches by the number of requests that decode, and their equal contexts."""

    def __init__(self, rows: np.ndarray, path: Path) -> None:
        measured, self._contexts = np.unique(rows[:, 0]), np.unique(rows[:, 1])
        if len(rows) != len(measured) * len(self._contexts):
            context = next(c for c in self._contexts if (rows[:, 1] == c).sum() != len(measured))
            raise ConfigError(
                f"{path}: kv_decode = {context:g} is not measured once for each n_decode; complete the file"
            )
        us = rows[:, 2].reshape(len(measured), -1)
        counts = np.arange(int(measured[-1]) + 1)
        self._us = np.stack([np.interp(counts, measured, column) for column in us.T], axis=1)

    def _placed(self, contexts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the measured context below each of some sorted ones, and the share of the next in an interpolation."""
        if len(contexts) >= len(self._us):
            raise ArgumentError(_beyond(len(contexts), len(self._us) - 1, "requests that decode"))
        if contexts[-1] > self._contexts[-1]:
            raise ArgumentError(_beyond(int(contexts[-1]), int(self._contexts[-1]), "tokens of context"))
        contexts = np.maximum(contexts, self._contexts[0])
        i = np.clip(np.searchsorted(self._contexts, contexts) - 1, 0, len(self._contexts) - 2)
        return i, (contexts - self._contexts[i]) / (self._contexts[i + 1] - self._contexts[i])

    def _at(self, counts: np.ndarray | int, i: np.ndarray, share: np.ndarray) -> np.ndarray:
        return self._us[counts, i] * (1 - share) + self._us[counts, i + 1] * share

    def balanced(self, contexts: np.ndarray) -> float:
        """Return the time of requests whose work is spread evenly over the device."""
        return float(self._at(len(contexts), *self._placed(contexts)).mean())

    def shared(self, contexts: np.ndarray, alone: _Batches | None = None) -> float:
        """Return the time of requests with sorted contexts that share the device, each at most as fast as alone."""
        i, share = self._placed(contexts)
        counts = np.arange(len(contexts), 0, -1)
        own = self._at(counts, i, share)
        more = own[1:] - self._at(counts[1:], i[:-1], share[:-1])
        if alone is not None:
            more = np.maximum(more, np.diff(alone._at(1, *alone._placed(contexts))))
        return max(float(self._at(len(contexts), i, share).mean()), float(own[0] + more.sum()))


def _groups(rows: np.ndarray, columns: int) -> list[np.ndarray]:
    """Split ordered rows where one of the first columns changes."""
    return np.split(rows, np.flatnonzero((np.diff(rows[:, :columns], axis=0) != 0).any(axis=1)) + 1)


def _read(path: str | Path, columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    try:
        table = pd.read_csv(path, comment="#")
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: cannot be read ({error.strerror}); pass a profile") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is no CSV ({error}); pass a file with the columns {','.join(columns)}") from error
    for name in columns:
        if name not in table:
            raise ConfigError(f"{path}: column {name} is missing; pass a file with the columns {','.join(columns)}")
        if name != "layer" and not (pd.to_numeric(table[name], errors="coerce") >= 0).all():
            row = int((~(pd.to_numeric(table[name], errors="coerce") >= 0)).argmax())
            value = table[name].iloc[row]
            raise ConfigError(f"{path}: row {row + 1}: {name} = {quote(value)} must be a number from 0; correct it")
    return table


def _summed(table: pd.DataFrame, by: str, layers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes of a table, and the time of all calls of a step."""
    sizes = np.unique(table[by])
    us = np.zeros(len(sizes))
    for layer, group in table.sort_values(by).groupby("layer"):
        calls = 1 if layer in _ONCE else layers * _CALLS.get(str(layer), 1)
        us += calls * np.interp(sizes, group[by], group["time_us"])
    return sizes, us


def _at(sizes: np.ndarray, us: np.ndarray, n: int, what: str) -> float:
    if n > sizes[-1]:
        raise ArgumentError(_beyond(n, int(sizes[-1]), what))
    return float(np.interp(n, sizes, us))


def _bracket(sizes: Sequence[int], n: int, what: str) -> list[tuple[int, float]]:
    """Return the measured sizes around `n`, with their shares in a linear interpolation."""
    if n > sizes[-1]:
        raise ArgumentError(_beyond(n, sizes[-1], what))
    i = bisect_left(sizes, n)
    if i == 0 or sizes[i] == n:
        return [(sizes[i], 1.0)]
    share = (n - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
    return [(sizes[i - 1], 1 - share), (sizes[i], share)]


def _beyond(n: int, most: int, what: str) -> str:
    return (
        f"a step has {n} {what}, but the profile ends at {most}; lower the limit of the policy, or leave requests out"
    )
