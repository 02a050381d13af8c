"""Calibration: known values are recovered, what the data cannot see is named, and no held-out row reaches the fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml

import kernbench as kb
from kernbench.errors import ArgumentError, ConfigError
from kernbench.studies._references import Reference
from kernbench.studies.calibration import HELD_OUT, TRAINING, _student, fit, floor, held_out
from kernbench.studies.fidelity import WORKLOADS
from kernbench.topology.builder import resolve_topology

EFFICIENCY, CLOCK = "cube.hbm.efficiency", "cube.pe.pe_math.clock_ghz"
# A device in closed form: launch, bytes over a bandwidth, operations over a rate.
TRUTH = np.array([5000.0, 1500.0, 300_000.0])
BYTES, FLOPS = np.meshgrid(np.logspace(3, 9, 6), np.logspace(6, 11, 6))


def took(values):
    launch, bw, rate = values[:3]
    return launch + np.maximum(BYTES.ravel() / bw, FLOPS.ravel() / rate)


def fitted(seed, predict=lambda many: np.array([took(x) for x in many]), start=TRUTH, wide=4.0):
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.02, BYTES.size))
    return fit(predict, took(TRUTH) * noise, np.array(start) * 1.4, np.array(start) / wide, np.array(start) * wide)


def test_known_values_are_inside_their_intervals():
    inside = np.array([(x.low <= TRUTH) & (x.high >= TRUTH) for x in map(fitted, range(100))])
    assert (inside.sum(axis=0) >= 90).all(), inside.sum(axis=0)


def test_without_noise_the_values_are_exact():
    found = fit(lambda many: np.array([took(x) for x in many]), took(TRUTH), TRUTH * 0.6, TRUTH / 4, TRUTH * 4)
    assert found.values == pytest.approx(TRUTH, rel=1e-4)


def test_a_value_beyond_its_bounds_ends_at_the_nearer_one():
    found = fitted(0, start=TRUTH * [1, 1, 0.2], wide=2.0)
    assert found.values[2] == pytest.approx(TRUTH[2] * 0.2 * 2)


def test_a_value_without_effect_is_not_fitted():
    found = fitted(1, lambda many: np.array([took(x) for x in many]), [*TRUTH, 7.0])
    assert found.seen.tolist() == [True, True, True, False]
    assert found.before[3] == np.inf
    assert found.values[3] == pytest.approx(7.0 * 1.4)


@pytest.mark.parametrize(("effect", "seen"), [(0.01, False), (0.05, True)])
def test_a_value_is_fitted_from_a_standard_error_of_20_percent_on(effect, seen):
    # A time is times x ** effect: the error of x is 2 % / effect / sqrt(36), which is 33 or 7 %.
    found = fit(
        lambda many: np.array([5000.0 * x[0] ** effect * np.ones(36) for x in many]),
        np.full(36, 5000.0), np.ones(1), np.ones(1) / 4, np.ones(1) * 4,
    )  # fmt: skip
    assert found.before == pytest.approx(0.02 / effect / 6)
    assert found.seen.tolist() == [seen]


def test_of_two_values_that_act_alike_one_is_fitted():
    found = fitted(2, lambda many: np.array([took([x[0], x[1] * x[3] / 7, x[2]]) for x in many]), [*TRUTH, 7.0])
    assert found.seen[[0, 2]].all()
    assert found.seen.sum() == 3
    assert found.values[1] * found.values[3] == pytest.approx(TRUTH[1] * 7, rel=0.05)


@pytest.mark.parametrize(("degrees", "quantile"), [(5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)])
def test_students_t_is_that_of_the_tables(degrees, quantile):
    assert _student(degrees) == pytest.approx(quantile, abs=2e-3)


def test_the_floor_is_the_distance_from_the_best_monotone_curve():
    off = floor(["a", "a", "a", "b"], [1, 2, 3, 1], np.exp([1.0, 3.0, 2.0, 9.0]))
    assert off == pytest.approx([0, 0.5, -0.5, 0])  # 3 and 2 are pooled to 2.5


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Products on a machine whose HBM reaches 70 %."""
    path = tmp_path_factory.mktemp("measured") / "mine.csv"
    machine = kb.load("preset:small", overrides={EFFICIENCY: 0.7})
    lines = ["workload,parameters,value,unit,source"]
    for k in (64, 128):
        for m in (64, 128, 256):
            ns = WORKLOADS["gemm"].run(machine, m=m, k=k, n=64)
            lines.append(f"gemm,m={m}; k={k}; n=64,{ns},ns,mine")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_simulator_is_fitted_to_its_own_times(measured, tmp_path):
    found = kb.calibrate("preset:small", measured, [EFFICIENCY, CLOCK])
    share, clock = found.fields.to_dict("records")
    assert share["fitted"] == pytest.approx(0.7, rel=0.01)
    assert (clock["status"], clock["fitted"]) == ("not seen by the data: unchanged", 1.0)
    held = found.errors[found.errors["rows"] == HELD_OUT]
    assert held["median_pct"].max() < 1 < 10 < held["data_sheet_pct"].max()
    families = found.table.groupby("family")["rows"].nunique()
    assert families.tolist() == [1, 1]
    path = found.save(tmp_path / "mine.yaml")
    assert kb.load(path).hash == found.machine.hash
    (line,) = [line for line in path.read_text().splitlines() if "calibrated" in line]
    assert "efficiency: 0.7" in line
    assert "data sheet 1; held-out median error" in line
    assert yaml.safe_load(path.read_text())["cube"]["hbm"]["efficiency"] == found.machine.config.cube.hbm.efficiency


def test_no_held_out_row_reaches_the_fit(measured, tmp_path):
    before = kb.calibrate("preset:small", measured, [EFFICIENCY], split="size")
    lines = measured.read_text().splitlines()
    for i, row in enumerate(before.table["rows"], 1):
        if row == HELD_OUT:
            *start, value, unit, source = lines[i].split(",")
            lines[i] = ",".join([*start, str(10 * float(value)), unit, source])
    path = tmp_path / "other.csv"
    path.write_text("\n".join(lines) + "\n")
    after = kb.calibrate("preset:small", path, [EFFICIENCY], split="size")
    assert after.fields.equals(before.fields)
    assert set(after.table["rows"]) == {TRAINING, HELD_OUT}
    assert after.errors["largest_pct"].max() > 80


def test_the_larger_half_of_each_family_is_held_out(measured):
    rows = kb.calibrate("preset:small", measured, [EFFICIENCY], split="size").table
    assert rows["rows"].tolist() == [TRAINING, TRAINING, HELD_OUT] * 2


def test_the_seed_draws_the_random_half():
    rows = [Reference("gemm", {"m": m}, 1.0, "ns", "", "") for m in range(20)]
    first, second = (held_out(rows, "random", seed) for seed in (0, 1))
    assert sum(first) == sum(second) == 10
    assert first != second
    assert 0 < sum(first[:10]) < 10


@pytest.mark.parametrize(
    ("free", "said"),
    [
        (["cube.hbm.channels"], r"free: cube.hbm.channels = 8 is no rate, time or share"),
        (["cube.hbm.timings"], r"cube.hbm.timings is unknown; did you mean timing\?"),
        (
            ["system.host.launch_ns"],
            "free: system.host.launch_ns = 0: state bounds, as in system.host.launch_ns=1:1000",
        ),
        ({EFFICIENCY: (0.9, 0.1)}, "must be two numbers above 0, the smaller one first"),
        ({EFFICIENCY: (0.5, 2.0)}, "cube.hbm.efficiency = 2.0 must be <= 1"),
    ],
)
def test_wrong_fields_are_refused(measured, free, said):
    with pytest.raises(ConfigError, match=said):
        kb.calibrate("preset:small", measured, free)


def test_what_cannot_be_split_is_refused(measured, tmp_path):
    one = tmp_path / "one.csv"
    one.write_text("\n".join(measured.read_text().splitlines()[:4]) + "\n")
    with pytest.raises(ArgumentError, match=r"all rows are of one family \(gemm .*\); use size or random"):
        kb.calibrate("preset:small", one, [EFFICIENCY])
    with pytest.raises(ArgumentError, match="split = 'halves' is unknown; known: family, size, random"):
        held_out([], "halves", 0)
    with pytest.raises(ArgumentError, match="free names no field"):
        kb.calibrate("preset:small", measured, [])


def test_a_value_at_a_bound_says_so(measured):
    found = kb.calibrate("preset:small", measured, {EFFICIENCY: (0.8, 1.0)}, split="size")
    (share,) = found.fields.to_dict("records")
    assert share["fitted"] == pytest.approx(0.8)
    assert share["status"] == "fitted: at a bound"
    assert f"fitted: {EFFICIENCY}" in repr(found)


def test_a_fit_that_made_the_error_of_other_rows_larger_says_so(measured):
    found = kb.calibrate("preset:small", measured, [EFFICIENCY])
    assert repr(found).splitlines()[0].endswith(" % fitted")
    worse = replace(found, errors=found.errors.assign(data_sheet_pct=1.0, median_pct=2.0))
    assert repr(worse).splitlines()[0].endswith("error 1 % before, 2 % fitted: worse than before")


def test_too_few_rows_that_can_run_are_listed(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text(
        "workload,parameters,value,unit,source\n"
        "gemm,m=64; k=64; n=64,900,ns,mine\nall_reduce,bytes=1024; ranks=8,5,us,mine\n"
    )
    said = r"^1 rows of measurements that can run .* at least 2\nall_reduce 1 KiB, ranks 8 \(.*\): it has 8 ranks"
    with pytest.raises(ArgumentError, match=said):
        kb.calibrate("preset:small", path, [EFFICIENCY])


def test_rows_that_cannot_run_are_listed(measured, tmp_path):
    path = tmp_path / "more.csv"
    path.write_text(measured.read_text() + "all_reduce,bytes=1024; ranks=8,5,us,mine\n")
    found = kb.calibrate(resolve_topology("preset:small"), path, [EFFICIENCY])
    assert list(found.refused.values()) == ["it has 8 ranks, the machine has 1 SIPs; change system.sips.count"]
    assert "not comparable: all_reduce" in repr(found)


def test_collectives_above_the_limit_are_left_out_and_named(measured, tmp_path):
    path = tmp_path / "more.csv"
    row = "all_reduce,bytes=65536; ranks=2; system.sips.count=2,5,us,mine\n"
    path.write_text(measured.read_text() + row)
    [refused] = kb.calibrate("preset:small", path, [EFFICIENCY], most_bytes=65535).refused.values()
    assert refused == "65,536 B are more than most_bytes = 65,535"
    assert not kb.calibrate("preset:small", path, [EFFICIENCY], most_bytes=65536).refused
