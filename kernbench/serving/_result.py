"""Latencies, throughput and goodput of requests, under the names of `vllm bench serve`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._registry import hint
from kernbench.config._files import write_text
from kernbench.errors import ArgumentError, quote
from kernbench.viz import _palette as palette

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from kernbench.serving._run import Replica
    from kernbench.serving._scheduler import Request
    from kernbench.topology.builder import Overrides

_PS, _PS_MS = 10**12, 10**9
_LIMITS = ("ttft_ms", "tpot_ms", "e2el_ms")
_PHASES = {"waiting": palette.GREY, "prefill": palette.VERMILION, "decode": palette.BLUE}
STEP_COLUMNS = (
    "replica", "start_s", "end_s", "prefill_tokens", "decode_tokens", "running", "waiting", "used_blocks",
)  # fmt: skip


class ServingResult:
    """The measurements of served requests: `kb.serving.run` returns one.

    Attributes
    ----------
    requests : DataFrame
        The requests, as passed.
    """

    def __init__(
        self, requests: pd.DataFrame, queue: Sequence[Request], replicas: Sequence[Replica], arguments: tuple[Any, ...]
    ) -> None:
        self.requests = requests
        self._queue, self._replicas, self._arguments = queue, replicas, arguments

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each request, in the order of `requests`.

        `queue_ms` is from arrival to when the first step with the request is scheduled, `ttft_ms` (time to first token)
        from arrival to the first token, `tpot_ms` (time per output token) the mean time between tokens, 0 if there is
        only one, and `e2el_ms` (end-to-end latency) from arrival to the last token. `cached_tokens` of the prompt were
        found in the prefix cache. `transfer_ms` is how long the keys and values were on the way to another replica.
        """
        import pandas as pd

        queue = self._queue
        arrival = np.array([r.arrival for r in queue])
        first, last = (np.array([r.times[i] for r in queue]) for i in (0, -1))
        outputs = np.array([r.output for r in queue])
        return pd.DataFrame(
            {
                "arrival_s": arrival / _PS,
                "input_len": [r.prompt for r in queue],
                "output_len": outputs,
                "queue_ms": (np.array([r.scheduled for r in queue]) - arrival) / _PS_MS,
                "ttft_ms": (first - arrival) / _PS_MS,
                "tpot_ms": (last - first) / np.maximum(outputs - 1, 1) / _PS_MS,
                "e2el_ms": (last - arrival) / _PS_MS,
                "cached_tokens": [r.cached for r in queue],
                "transfer_ms": np.array([r.transfer for r in queue]) / _PS_MS,
                "preemptions": [r.preemptions for r in queue],
                "replica": [r.replicas[-1] for r in queue],
            }
        )

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row for each step: when it ran, its tokens, and the queues and blocks when it was scheduled."""
        import pandas as pd

        table = pd.DataFrame([row for each in self._replicas for row in each.step_rows], columns=list(STEP_COLUMNS))
        table[["start_s", "end_s"]] /= _PS
        return table.sort_values(["start_s", "replica"], kind="stable", ignore_index=True)

    @cached_property
    def replicas(self) -> pd.DataFrame:
        """A row for each replica: its requests, steps, tokens, preemptions, the time average of requests, and load.

        `busy` is the share of the duration in which a step ran.
        """
        import pandas as pd

        end = self._end_ps
        rows = []
        for each in self._replicas:
            steps = each.step_rows
            rows.append(
                {
                    "requests": each.submitted,
                    "steps": len(steps),
                    "tokens": sum(prefill + decode for _, _, _, prefill, decode, *_ in steps),
                    "preemptions": each.scheduler.preemptions,
                    "mean_requests": each.requests_ps / end,
                    "peak_blocks": max((row[-1] for row in steps), default=0),
                    "busy": sum(stop - start for _, start, stop, *_ in steps) / end,
                }
            )
        return pd.DataFrame(rows)

    @property
    def _end_ps(self) -> int:
        return max(r.times[-1] for r in self._queue)

    @property
    def duration_s(self) -> float:
        """Time until the last request is complete [s]; 0 is the zero of `arrival_s`."""
        return self._end_ps / _PS

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The figures of the run, under the names and in the units of `vllm bench serve`, without lists."""
        return {name: value for name, value in self.to_dict().items() if not isinstance(value, list)}

    def goodput(self, **limits: float) -> float:
        """Return the completed requests per second that meet all limits at once.

        Parameters
        ----------
        **limits : float
            `ttft_ms`, `tpot_ms` or `e2el_ms`: the largest value that is good [ms]; at least one.

        Raises
        ------
        ArgumentError
            If there is no limit, or an unknown one.

        Examples
        --------
        >>> from kernbench.serving import generate, run
        >>> requests = generate(100, request_rate=10, input_len=512, output_len=64)
        >>> result = run(requests, lambda prefill, contexts: 1e6)
        >>> result.goodput(ttft_ms=1000, tpot_ms=0.5)
        0.0
        """
        unknown = [name for name in limits if name not in _LIMITS]
        if unknown or not limits:
            what = f"{unknown[0]} is no limit" if unknown else "no limit is given"
            raise ArgumentError(f"goodput: {what}; pass some of {', '.join(f'{name}=...' for name in _LIMITS)}")
        for name, value in limits.items():
            if not value >= 0:
                raise ArgumentError(f"goodput: {name} = {quote(value)} must be a time of at least 0, in ms")
        good = np.logical_and.reduce([self.table[name] <= limit for name, limit in limits.items()])
        return float(good.sum() / self.duration_s)

    def to_dict(self, **limits: float) -> dict[str, Any]:
        """Return what `vllm bench serve --save-result --save-detailed` writes, with the same keys and units.

        Parameters
        ----------
        **limits : float
            As of `goodput`; without any, `request_goodput` is None.
        """
        table, queue = self.table, self._queue
        seconds = self.duration_s
        prompt, output = int(table["input_len"].sum()), int(table["output_len"].sum())
        gaps = [(np.diff(r.times) / _PS).tolist() for r in queue]
        found: dict[str, Any] = {
            "duration": seconds,
            "completed": len(queue),
            "failed": 0,
            "total_input_tokens": prompt,
            "total_output_tokens": output,
            "request_throughput": len(queue) / seconds,
            "request_goodput": self.goodput(**limits) if limits else None,
            "output_throughput": output / seconds,
            "total_token_throughput": (prompt + output) / seconds,
            "input_lens": table["input_len"].tolist(),
            "output_lens": table["output_len"].tolist(),
            "ttfts": (table["ttft_ms"] / 1000).tolist(),
            "itls": gaps,
            "latencies": (table["e2el_ms"] / 1000).tolist(),
            "start_times": table["arrival_s"].tolist(),
            "generated_texts": [""] * len(queue),
            "errors": [""] * len(queue),
            "max_output_tokens_per_s": float(np.bincount(self._seconds_of_tokens()).max()),
            "max_concurrent_requests": self._most_at_once(),
        }
        found |= _spread("ttft", table["ttft_ms"].to_numpy())
        found |= _spread("tpot", table.loc[table["output_len"] > 1, "tpot_ms"].to_numpy())
        found |= _spread("itl", np.concatenate([np.asarray(each) for each in gaps]) * 1000)
        return found | _spread("e2el", table["e2el_ms"].to_numpy())

    def _seconds_of_tokens(self) -> np.ndarray:
        start = min(r.arrival for r in self._queue)
        return np.concatenate([(np.array(r.times) - start) // _PS for r in self._queue])

    def _most_at_once(self) -> int:
        changes = sorted([(r.arrival, 1) for r in self._queue] + [(r.times[-1], -1) for r in self._queue])
        return int(np.cumsum([change for _, change in changes]).max())

    def save(self, path: str | Path, **limits: float) -> None:
        """Write the result as JSON with the keys of `vllm bench serve`.

        Parameters
        ----------
        path : str or Path
            The file; one that exists is replaced.
        **limits : float
            As of `goodput`.
        """
        write_text(Path(path), json.dumps(self.to_dict(**limits)))

    def curve(self, rates: Sequence[float], *, sip_hour: float = 0.0, **limits: float) -> pd.DataFrame:
        """Serve the same requests at other mean rates of arrival.

        Parameters
        ----------
        rates : sequence of float
            Requests per second; the times between arrivals are scaled.
        sip_hour : float
            Cost of a SIP for an hour, in any currency; with it, there is a column `cost_per_million_tokens`.
        **limits : float
            As of `goodput`; without any, there is no column `request_goodput`.

        Returns
        -------
        DataFrame
            `request_rate`, and the `metrics` of each run; rows in the order of `rates`. Also what users and owners
            compare: `tokens_per_s_per_user`, the inverse of the mean TPOT, `tokens_per_s_per_sip`, output tokens per
            second and SIP (of other step times than `kb.serving.steps`: per replica), and with the energy of steps
            `energy_per_token_uj`, per output token.

        Raises
        ------
        ArgumentError
            If a rate is not above 0, a cost is below 0, or all requests arrive at once.
        """
        import pandas as pd

        from kernbench.serving._run import run

        arrivals = self.requests["arrival_s"]
        span = float(arrivals.max() - arrivals.min())
        if span <= 0:
            raise ArgumentError(
                "curve: all requests arrive at once, so that they have no rate; give them times of arrival"
            )
        if not 0 <= sip_hour < math.inf:
            raise ArgumentError(f"curve: sip_hour = {quote(sip_hour)} must be a cost of at least 0")
        rate_here = (len(arrivals) - 1) / span
        steps, policy, how = self._arguments
        rows = []
        for rate in rates:
            if not 0 < rate < math.inf:
                raise ArgumentError(
                    f"curve: rate = {quote(rate)} must be a finite number of requests per second above 0"
                )
            scaled = self.requests.assign(arrival_s=(arrivals - arrivals.min()) * (rate_here / rate))
            rows.append({"request_rate": rate, **run(scaled, steps, policy, **how)._figures(limits)})
        found = pd.DataFrame(rows)
        if sip_hour:
            found["cost_per_million_tokens"] = 1e6 / 3600 * sip_hour / found["tokens_per_s_per_sip"]
        return found

    def what_if(self, overrides: Overrides, *, exact: bool = False, **limits: float) -> pd.DataFrame:
        """Serve the same requests on a machine with some fields changed; needs steps of `kb.serving.steps`.

        Parameters
        ----------
        overrides : mapping or sequence of str
            Fields of the machine file with their new values, as for `kb.load`.
        exact : bool
            Whether the parts of steps are also simulated on the changed machine, which takes minutes, and is kept.
        **limits : float
            As of `goodput`; without any, there is no column `request_goodput`.

        Returns
        -------
        DataFrame
            The columns of `curve` for the step times `now`, `predicted` and with `exact` `simulated`, as its index. A
            prediction scales the critical path of each part of a step, so that it is too good where another path
            becomes the longest. The policy and transfers between replicas stay as they are.

        Raises
        ------
        ArgumentError
            If the steps are not simulated, or a prediction is impossible: for fields that are no bandwidth, rate or
            latency, and machines with a cache.
        """
        import pandas as pd

        from kernbench.serving._run import run
        from kernbench.serving._steps import SimulatedSteps

        steps, policy, how = self._arguments
        if not isinstance(steps, SimulatedSteps):
            raise ArgumentError("what_if: the step times are not those of a machine; serve with kb.serving.steps(...)")
        tables = {"now": steps, "predicted": steps.what_if(overrides)}
        tables |= {"simulated": steps.with_(overrides)} if exact else {}
        results = [run(self.requests, table, policy, **how) for table in tables.values()]
        return pd.DataFrame([result._figures(limits) for result in results], index=list(tables))

    def _figures(self, limits: Mapping[str, float]) -> dict[str, Any]:
        found = self.to_dict(**limits)
        row = {name: value for name, value in found.items() if not isinstance(value, list) and value is not None}
        return {**row, **self._per_token(found)}

    def _per_token(self, found: Mapping[str, Any]) -> dict[str, float]:
        sips = len(self._replicas) * getattr(self._arguments[0], "tp", 1)
        energy = sum(each.energy_uj for each in self._replicas)
        tpot = found["mean_tpot_ms"]
        return {
            "tokens_per_s_per_user": 1000 / tpot if tpot else math.inf,
            "tokens_per_s_per_sip": found["output_throughput"] / sips,
        } | ({"energy_per_token_uj": energy / found["total_output_tokens"]} if energy else {})

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """A row for each phase of each request: `request`, `replica`, `phase`, `start_s` and `end_s`.

        A request waits until its first step is scheduled, is in prefill until its first token, then in decode: with
        `prefill_replicas` on another replica, and with the transfer of its keys and values.
        """
        import pandas as pd

        rows = []
        for r in self._queue:
            times = (r.arrival, r.scheduled, r.times[0], r.times[-1])
            where = r.replicas[0], r.replicas[0], r.replicas[-1]
            for replica, phase, start, end in zip(where, _PHASES, times, times[1:], strict=False):
                rows.append((r.index, replica, phase, start / _PS, end / _PS))
        return pd.DataFrame(rows, columns=["request", "replica", "phase", "start_s", "end_s"])

    def __repr__(self) -> str:
        found = self.metrics
        rates = f"{found['request_throughput']:.2f} requests/s, {found['output_throughput']:,.0f} output tokens/s"
        lines = [
            f"{found['completed']} requests in {found['duration']:.1f} s: {rates}",
            f"{'':6}{'mean':>11}{'median':>11}{'p99':>11}  [ms]",
        ]
        for name in ("ttft", "tpot", "itl", "e2el"):
            values = (found[f"{kind}_{name}_ms"] for kind in ("mean", "median", "p99"))
            lines.append(f"{name:6}" + "".join(f"{value:>11,.2f}" for value in values))
        return "\n".join(lines)

    def plot(self, ax: Axes, kind: str = "load") -> None:
        """Fill axes of matplotlib with running and waiting requests over time, or with each request's phases.

        Parameters
        ----------
        ax : matplotlib.axes.Axes
            Axes of your own figure.
        kind : str
            "load", or "requests": a line for each request, from top to bottom.

        Raises
        ------
        ArgumentError
            If the kind is unknown.
        """
        if kind not in ("load", "requests"):
            raise ArgumentError(f"plot: kind = {quote(kind)} is unknown; {hint(kind, ('load', 'requests'))}")
        if kind == "load":
            for name in ("running", "waiting"):
                ax.step(self.steps["start_s"], self.steps[name], where="post", label=name)
        else:
            for phase, own in self.timeline.groupby("phase", sort=False):
                ax.hlines(own["request"], own["start_s"], own["end_s"], _PHASES[str(phase)], label=str(phase))
            ax.invert_yaxis()
        ax.set_xlabel("time [s]")
        ax.set_ylabel("requests" if kind == "load" else "request")
        ax.legend()


def _spread(name: str, values: np.ndarray) -> dict[str, float]:
    """Return the figures of `vllm bench serve` of a metric; 0 if it has no value, as there."""
    if not len(values):
        values = np.zeros(1)
    found = {"mean": values.mean(), "median": np.median(values), "std": values.std(), "p99": np.percentile(values, 99)}
    return {f"{kind}_{name}_ms": float(value) for kind, value in found.items()}
