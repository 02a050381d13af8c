"""What a table is asked: fronts by the definition, effects and sensitivity by hand."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import ConfigError, KernbenchError
from kernbench.sweeps.pareto import pareto
from kernbench.sweeps.sensitivity import effects, sensitivity, sensitivity_plan, steps_along

SMALL = "preset:small"
PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=25)


@settings(max_examples=25)
@given(PAIRS)
def test_a_front_holds_what_nothing_beats_and_nothing_else(pairs):
    table = pd.DataFrame(pairs, columns=["a", "b"])
    front = {tuple(row) for row in pareto(table, ["a", "b"]).itertuples(index=False)}
    best = {p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)}
    assert front == best


def test_more_may_be_better_and_points_without_a_value_are_left_out():
    table = pd.DataFrame({"rate": [1.0, 2.0, 3.0, None], "area": [1.0, 1.0, 2.0, 0.5]})
    assert list(pareto(table, ["area", "rate"], maximize=["rate"])["rate"]) == [2, 3]
    with pytest.raises(KernbenchError, match="column 'aera' is not in the table; did you mean area"):
        pareto(table, ["aera"])
    with pytest.raises(KernbenchError, match=r"maximize = 'rate' is none of metrics = \['area'\]; add it there"):
        pareto(table, ["area"], maximize=["rate"])


def test_effects_of_axes():
    rows = [{"x": x, "y": y, "t": x * y * y} for x in (1, 2) for y in (1, 10)]
    found = effects(pd.DataFrame(rows), ["x", "y"], "t")
    assert list(found["axis"]) == ["y", "x"]
    assert found["factor"].tolist() == pytest.approx([100, 2])
    assert found["best"].tolist() == [1, 1]
    assert found["settings"].tolist() == [2, 2]


def test_none_is_a_setting_of_an_axis():
    rows = [{"x": x, "y": y, "t": x * (100 if y is None else x)} for x in (1, 2) for y in (None, "best")]
    found = effects(pd.DataFrame(rows), ["x", "y"], "t")
    assert found.set_index("axis")["settings"].to_dict() == {"x": 2, "y": 2}


def test_what_each_step_buys_and_costs():
    rows = [{"x": x, "y": y, "t": 100 / x + 10 * (y == "b"), "area_mm2": x} for x in (1, 2, 4) for y in "ab"]
    found = steps_along(pd.DataFrame(rows), ["x", "y"], "t")
    assert list(found["step"]) == ["1 to 2", "2 to 4", "a to b"]
    first = found.iloc[0]
    assert (first["most_pct"], first["least_pct"]) == pytest.approx((50, 100 * (1 - 60 / 110)))
    assert first["gain_pct"] == pytest.approx(100 * (1 - (0.5 * 60 / 110) ** 0.5))
    assert found["cost_pct"].tolist() == pytest.approx([100, 100, 0])
    assert found["settings"].tolist() == [2, 2, 3]
    assert found.iloc[2]["gain_pct"] < 0


def law(machine, *, x: float = 10.0, n: int = 4, free: float = 1.0):
    return {"t": machine.config.cube.ucie.bw_gbs**-1 * n**2 * x}


def test_sensitivity_by_hand():
    found = sensitivity(
        SMALL,
        law,
        {
            "ucie": ["cube.ucie.bw_gbs"],
            "x": ["x"],
            "n": ["n"],
            "free": ["free"],
            "more SIPs": {"up": {"system.sips.count": 2}},
        },
        parameters={"x": 10.0, "n": 4, "free": 1.0},
        workers=1,
        cache=False,
        progress=False,
    )
    ranked = found.ranked("t").set_index("factor")
    assert list(ranked.index[:2]) == ["n", "x"]
    assert ranked.loc["x", ["down_pct", "up_pct", "gain_pct"]].tolist() == pytest.approx([-20, 20, 20])
    # A whole number moves by one at least: 4 becomes 3 or 5.
    assert ranked.loc["n", ["down_pct", "up_pct"]].tolist() == pytest.approx([-43.75, 56.25])
    assert ranked.loc["ucie", "first"] == "up"
    assert ranked.loc["ucie", "gain_pct"] == pytest.approx(100 * (1 - 1 / 1.2))
    assert 0 < ranked.loc["ucie", "area_pct"] < ranked.loc["more SIPs", "area_pct"]
    assert ranked.loc["more SIPs", "area_pct"] == pytest.approx(100, abs=1)
    assert ranked.loc["free", "gain_pct"] == 0


def test_a_factor_without_a_number_asks_for_settings():
    with pytest.raises(ConfigError, match="'ring_1d' has no number to change; give settings"):
        sensitivity_plan(SMALL, law, ["system.sips.topology"])
