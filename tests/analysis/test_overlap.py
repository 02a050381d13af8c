"""Hidden and exposed communication on rows whose overlap is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.analysis._records import CommandInfo, Records
from kernbench.analysis.breakdown import overlap


def records(rows, makespan):
    """Rows of (kind, pe, start, end) in ps."""
    kinds = ("gemm", "load", "send", "recv", "launch")
    pes = sorted({pe for _, pe, _, _ in rows})
    n = len(rows)
    return Records(
        start_ps=[r[2] for r in rows], end_ps=[r[3] for r in rows], component=np.zeros(n),
        kind=[kinds.index(r[0]) for r in rows], command=[pes.index(r[1]) for r in rows], nbytes=np.zeros(n),
        flops=np.zeros(n), tile=np.full(n, -1), components=("x",), kinds=kinds,
        commands=tuple(CommandInfo("c", 0, 0, pe) for pe in pes), makespan_ps=makespan,
    )  # fmt: skip


def test_parts_of_one_pe():
    found = overlap(records([("gemm", 0, 0, 4000), ("load", 0, 3000, 6000), ("send", 0, 5000, 8000)], 10_000))
    assert (found.work_ns, found.hidden_ns, found.exposed_ns, found.idle_ns) == (5, 1, 2, 2)


def test_means_over_pes():
    found = overlap(records([("gemm", 0, 0, 10_000), ("recv", 1, 0, 10_000)], 10_000))
    assert (found.work_ns, found.hidden_ns, found.exposed_ns, found.idle_ns) == (5, 0, 5, 0)


def test_the_window_cuts():
    found = overlap(records([("gemm", 0, 0, 4000), ("recv", 0, 2000, 9000)], 10_000), (3000, 7000))
    assert (found.work_ns, found.hidden_ns, found.exposed_ns, found.idle_ns) == (0, 1, 3, 0)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["gemm", "load", "send", "recv"]), st.integers(0, 2), st.integers(0, 50), st.integers(1, 20)
        ),
        min_size=1,
    )
)
def test_parts_sum_to_the_window(rows):
    found = overlap(records([(kind, pe, at * 1000, (at + n) * 1000) for kind, pe, at, n in rows], 100_000))
    covered = {name: set() for name in ("work", "messages")}
    for kind, pe, at, n in rows:
        covered["messages" if kind in ("send", "recv") else "work"] |= {(pe, t) for t in range(at, at + n)}
    pes = len({pe for _, pe, _, _ in rows})
    assert found.hidden_ns == pytest.approx(len(covered["work"] & covered["messages"]) / pes)
    assert found.exposed_ns == pytest.approx(len(covered["messages"] - covered["work"]) / pes)
    assert found.work_ns + found.hidden_ns + found.exposed_ns + found.idle_ns == pytest.approx(100)
