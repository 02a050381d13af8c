"""Requests as tables: generated arrivals, and traces."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._registry import hint
from kernbench._units import MIB
from kernbench.config._files import read_text
from kernbench.errors import ArgumentError, ConfigError, quote

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("arrival_s", "input_len", "output_len")
_AZURE = {"TIMESTAMP": "arrival_s", "ContextTokens": "input_len", "GeneratedTokens": "output_len"}
_MOONCAKE = {"timestamp": "arrival_s", "input_length": "input_len", "output_length": "output_len"}
_FORMATS = (
    f"a CSV with the header {','.join(_AZURE)} (Azure) or {','.join(_COLUMNS)}, or JSON lines with the keys "
    f"{', '.join(_MOONCAKE)} and hash_ids (Mooncake)"
)
_MOST_BYTES, _MOST_FAULTS = 512 * MIB, 10
_MOST_TOKENS = 10**9


def generate(
    n: int,
    *,
    request_rate: float,
    input_len: int | tuple[float, float],
    output_len: int | tuple[float, float],
    burstiness: float = 1.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Return requests with random arrivals, and lengths that are fixed or lognormal.

    Parameters
    ----------
    n : int
        Number of requests.
    request_rate : float
        Mean arrivals per second; infinity lets all arrive at once.
    input_len, output_len : int or (float, float)
        Tokens of a prompt and of an output: a number, or (median, sigma) of a lognormal distribution.
    burstiness : float
        Shape of the gamma distribution of the times between arrivals, as in `vllm bench serve`: 1 is a Poisson process,
        less is more bursty, more is more even.
    seed : int
        Of the random numbers: equal arguments give equal tables.

    Returns
    -------
    DataFrame
        `arrival_s`, `input_len` and `output_len` of each request.

    Raises
    ------
    ArgumentError
        If an argument is out of its range.

    Examples
    --------
    >>> generate(3, request_rate=10, input_len=100, output_len=(50, 0.5))[["input_len"]].T
                 0    1    2
    input_len  100  100  100
    """
    import pandas as pd

    check_count("n", n)
    if not request_rate > 0:
        raise ArgumentError(f"request_rate = {quote(request_rate)} must be above 0, in requests per second")
    if not 0 < burstiness < math.inf:
        raise ArgumentError(f"burstiness = {quote(burstiness)} must be a finite number above 0")
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(burstiness, 1 / (request_rate * burstiness), n)
    lengths = {
        name: _lengths(name, value, n, rng) for name, value in zip(_COLUMNS[1:], (input_len, output_len), strict=True)
    }
    return pd.DataFrame({"arrival_s": np.cumsum(gaps), **lengths})


def check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ArgumentError(f"{name} = {quote(value)} must be an integer of at least 1")


def _lengths(name: str, value: int | tuple[float, float], n: int, rng: np.random.Generator) -> np.ndarray:
    pair: Sequence[float] = value if isinstance(value, Sequence) else (value, 0)
    if len(pair) != 2 or not 1 <= pair[0] <= _MOST_TOKENS or not 0 <= pair[1] < 10:
        raise ArgumentError(
            f"{name} = {quote(value)} must be a number of tokens from 1, or (median, sigma) of a lognormal distribution"
        )
    drawn = rng.lognormal(math.log(pair[0]), pair[1], n)
    return np.clip(np.rint(drawn), 1, _MOST_TOKENS).astype(np.int64)


def read_trace(path: str | Path) -> pd.DataFrame:
    """Read the requests of a trace of Azure (CSV) or Mooncake (JSON lines).

    Parameters
    ----------
    path : str or Path
        The file. Azure's columns are TIMESTAMP, ContextTokens and GeneratedTokens; arrival_s, input_len and output_len
        are read as they are. Mooncake's keys are timestamp [ms], input_length, output_length and hash_ids.

    Returns
    -------
    DataFrame
        `arrival_s`, from 0 at the first request, `input_len`, `output_len`, and of Mooncake `hash_ids`, in order of
        arrival.

    Raises
    ------
    ConfigError
        If the file is in another format, or values are impossible: with file, line, key, value and remedy of each.

    Notes
    -----
    Formats: https://github.com/Azure/AzurePublicDataset (LLM inference traces 2023 and 2024; cite Patel et al.,
    Splitwise, ISCA 2024) and https://github.com/kvcache-ai/Mooncake (Qin et al., Mooncake, FAST 2025). A hash of
    Mooncake names 512 tokens and all before them.
    """
    import pandas as pd

    path = Path(path)
    text = read_text(path, _MOST_BYTES, f"pass {_FORMATS}")
    faults = _Faults(path)
    rows = list(_mooncake(text, faults) if text.lstrip().startswith("{") else _csv(text, faults))
    if not rows and not faults.texts:
        faults.add(1, "file", "", f"has no request; pass {_FORMATS}")
    if faults.texts:
        raise ConfigError(faults.texts, faults.records)
    table = pd.DataFrame(rows).sort_values("arrival_s", kind="stable", ignore_index=True)
    table["arrival_s"] -= table["arrival_s"].iloc[0]
    return table


class _Faults:
    """Faults of a file, the first ones in words, each with file, line, key, value and remedy."""

    def __init__(self, path: Path) -> None:
        self.path, self.texts = path, list[str]()
        self.records: list[dict[str, Any]] = []

    def add(self, line: int, key: str, value: object, remedy: str) -> None:
        if len(self.texts) == _MOST_FAULTS:
            return
        self.texts.append(
            f"{self.path}: line {line}: {key} = {quote(value)} {remedy}"
            if value != ""
            else (f"{self.path}: line {line}: {key} {remedy}")
        )
        self.records.append({"file": str(self.path), "line": line, "key": key, "value": value, "remedy": remedy})


def _csv(text: str, faults: _Faults) -> Iterator[dict[str, Any]]:
    lines = csv.reader(text.splitlines())
    header: list[str] = []
    for cells in lines:
        if not any(cells) or cells[0].lstrip().startswith("#"):
            continue
        line = lines.line_num
        if not header:
            header = [cell.strip() for cell in cells]
            names = {_AZURE.get(name, name): name for name in header}
            for missing in sorted(set(_COLUMNS) - names.keys()):
                faults.add(line, "header", ",".join(cells), f"has no column {missing}; pass {_FORMATS}")
                return
            continue
        if len(cells) != len(header):
            faults.add(line, "cells", len(cells), f"must be {len(header)}, as in the header; complete the line")
            continue
        row = dict(zip(header, cells, strict=True))
        key = names["arrival_s"]
        arrival = _time(row[key])
        if arrival is None:
            faults.add(line, key, row[key], "must be seconds or a date and time; correct it")
        yield {
            "arrival_s": arrival,
            **{name: _tokens(row[names[name]], names[name], line, faults) for name in _COLUMNS[1:]},
        }


def _time(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        try:
            head, _, digits = text.strip().partition(".")
            seconds = datetime.fromisoformat(head).replace(tzinfo=UTC).timestamp() + float(f"0.{digits or 0}")
        except (TypeError, ValueError):
            return None
    return seconds if 0 <= seconds < math.inf else None


def _tokens(text: object, key: str, line: int, faults: _Faults) -> int:
    value = 0
    if isinstance(text, str | int) and not isinstance(text, bool):
        with suppress(ValueError):
            value = int(text)
    if not 1 <= value <= _MOST_TOKENS:
        faults.add(line, key, text, "must be an integer of at least 1; correct it or remove the line")
    return value


def _mooncake(text: str, faults: _Faults) -> Iterator[dict[str, Any]]:
    for line, content in enumerate(text.splitlines(), 1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            faults.add(line, "line", content[:80], "must be a JSON object; correct it or remove the line")
            continue
        absent = [key for key in _MOONCAKE if key not in row]
        for key in absent:
            close = hint(key, row) if row else "the line is empty"
            faults.add(line, key, "", f"is missing ({close}); add it")
        if absent:
            continue
        at = row["timestamp"]
        if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < math.inf:
            faults.add(line, "timestamp", at, "must be a number of ms from 0; correct it")
            continue
        lengths = {name: _tokens(row[key], key, line, faults) for key, name in list(_MOONCAKE.items())[1:]}
        hashes = row.get("hash_ids", [])
        if not isinstance(hashes, list) or not all(type(each) is int and each >= 0 for each in hashes):
            faults.add(line, "hash_ids", hashes, "must be a list of integers from 0; correct it or leave it out")
        yield {"arrival_s": at / 1000, **lengths, "hash_ids": hashes}


def checked(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of requests, or refuse the first value that is impossible."""
    absent = [name for name in _COLUMNS if name not in getattr(table, "columns", ())]
    if absent:
        raise ArgumentError(
            f"requests: column {absent[0]} is missing; pass a DataFrame with {', '.join(_COLUMNS)}, as of "
            "kb.serving.generate or kb.serving.read_trace"
        )
    if not len(table):
        raise ArgumentError("requests: the table is empty; pass a row for each request")
    for name in _COLUMNS:
        values = np.asarray(table[name])
        good = np.zeros(len(values), bool)
        if values.dtype.kind in "iuf":
            good = (
                (values >= 0) & np.isfinite(values) if name == "arrival_s" else (values >= 1) & (values == values // 1)
            )
        if not good.all():
            row = int(np.argmin(good))
            what = "a finite number of seconds from 0" if name == "arrival_s" else "an integer of at least 1"
            raise ArgumentError(
                f"requests: row {row}: {name} = {quote(table[name].iloc[row])} must be {what}; correct it"
            )
    return table.reset_index(drop=True)
