"""Scene of a critical path: a row with a slider for each resource, predictions for the slider's stops, the tornado."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernbench.analysis._records import Records
from kernbench.analysis._resources import Reason
from kernbench.analysis._what_if._predictions import COVERED, Prediction, Tornado, is_time, swing, tornado_of, what_if
from kernbench.analysis.why import Why
from kernbench.config._overrides import value_at
from kernbench.errors import KernbenchError, StateError
from kernbench.viz._fields import fields
from kernbench.viz.charts import first_upper

_Message = Mapping[str, Any]

# Stops of a slider. A kernel answers predictions for all; a scene without a kernel contains those in the middle.
_FACTORS = (*(step * 2.0**octave for octave in range(-4, 4) for step in (1.0, 1.25, 1.5, 1.75)), 16.0)
PREDICTED = slice(_FACTORS.index(0.25), _FACTORS.index(4.0) + 1)
_ROWS = 8
_SMALLEST = 0.01  # share of a row
SMALLEST_BAR = 0.001


def why_section(why: Why, records: Records) -> dict[str, Any]:
    device, host = ([x for x in why if x.host is of_host] for of_host in (False, True))
    shown = [x for x in device if x.share >= _SMALLEST][:_ROWS]
    return {
        "latency_ns": why.path.makespan_ps / 1000,
        "device_ns": sum(x.ns for x in device),
        "host_ns": sum(x.ns for x in host),
        "rows": [_row(x, records) for x in shown],
        "rest_ns": sum(x.ns for x in device[len(shown) :]),
        "host": [{"label": first_upper(x.what), "ns": x.ns} for x in host[:_ROWS]],
    }


def predicted(section: Mapping[str, Any], records: Records) -> dict[str, Any]:
    rows = [
        row | {"predicted": [_predicted(records, values) for values in row["stops"][PREDICTED]]}
        if "stops" in row
        else row
        for row in section["rows"]
    ]
    return {**section, "rows": rows, "tornado": tornado_rows(tornado_of(records), records.spec)}


def tornado_rows(found: Tornado, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        _field(path, spec)
        | {
            "predicted": [x and x.ratio for x in bars],
            "range": [x and [ns / x.simulated_ns for ns in (x.low_ns, x.high_ns)] for x in bars],
            "exact": [x and x.exact_ratio for x in bars],
        }
        for path, bars in found.rows
        if any(x and abs(swing(x)) >= SMALLEST_BAR for x in bars)
    ]


def handle_why(message: _Message, records: Records) -> dict[str, Any] | None:
    """Answer a question of the view; None for any other message.

    The questions are `{"do": "tornado"}` and `{"do": "what_if", "id": number, "values": {path: value}, "latency_ns":
    latency}` of the run that the view shows. If another run has replaced it meanwhile, there is no prediction.
    """
    what = message.get("do")
    try:
        if what == "tornado":
            return {"do": what, "rows": tornado_rows(tornado_of(records), records.spec)}
        if what == "what_if":
            if message["latency_ns"] != records.makespan_ps / 1000:
                raise StateError("another run is shown now")
            return {"do": what, "id": message["id"], "predicted": _times(what_if(records, message["values"]))}
    except KernbenchError as error:
        return {"do": what, "id": message.get("id"), "predicted": None, "error": str(error)}
    return None


def _row(reason: Reason, records: Records) -> dict[str, Any]:
    together = [path for path in (*reason.fields, *reason.together) if path in COVERED]
    row: dict[str, Any] = {
        "label": first_upper(reason.what), "resource": reason.resource, "others": reason.others, "kind": reason.kind,
        "ns": reason.ns, "share": reason.share, "impl": reason.impl,
    }  # fmt: skip
    if not together or not value_at(records.spec, together[0]):
        return row
    return row | {
        "fields": [_field(path, records.spec) for path in together],
        "stops": [_scaled(records.spec, together, factor) for factor in _FACTORS],
        "first": PREDICTED.start,
    }


def _predicted(records: Records, values: Mapping[str, float]) -> list[float] | None:
    """Predicted latency [ns] and its range; None for an invalid machine."""
    try:
        return _times(what_if(records, values))
    except KernbenchError:
        return None


def _times(found: Prediction) -> list[float]:
    return [found.predicted_ns, found.low_ns, found.high_ns]


def _scaled(spec: Mapping[str, Any], paths: Sequence[str], factor: float) -> dict[str, float]:
    """Values of fields that are changed together: the first one times `factor`, the others in step."""
    time = is_time(paths[0])
    return {
        path: float(f"{value_at(spec, path) * (factor if is_time(path) is time else 1 / factor):.6g}") for path in paths
    }


def _field(path: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    known = fields()[path]
    return {"path": path, "label": known.label, "unit": known.unit, "value": value_at(spec, path)}
