"""Schedules of torch.distributed.pipelining, made by torch's own classes without processes, on simulated ranks."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.schedules import get_schedule_class

from kernbench.errors import DeadlockError
from kernbench.pipeline import orders, run
from kernbench.pipeline._actions import Table
from kernbench.pipeline._timing import lowered, peak_activations, times
from tests.pipeline.machines import machine, message, stage_of

COST = {"F": 1, "I": 1, "W": 1, "B": 2}
SINGLE, V_SHAPED = ("GPipe", "1F1B"), ("ZBVZeroBubble", "DualPipeV")
LOOPED = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")


class Stage:
    """What a schedule asks of a stage before it runs."""

    has_backward, group, mesh, group_rank = True, None, None, 0

    def __init__(self, index, stages, ranks):
        self.group_size, self.stage_index, self.num_stages = ranks, index, stages
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.device, self.submod = torch.device("cpu"), torch.nn.Linear(1, 1)
        self.stage_index_to_group_rank = {i: i % ranks for i in range(stages)}


def made(name, p, m, v):
    """Torch's schedule; skipped where torch's class does not take these numbers."""
    own = [0, 2 * p - 1] if name in V_SHAPED else range(0, p * v, p)
    stages = [Stage(i, p * v, p) for i in own]
    try:
        return get_schedule_class(name)(stages[0] if name in SINGLE else stages, m, loss_fn=lambda a, b: a)
    except ValueError as error:
        pytest.skip(str(error))


CHUNKS = {**dict.fromkeys(SINGLE, (1,)), **dict.fromkeys(LOOPED, (1, 2, 4)), **dict.fromkeys(V_SHAPED, (2,))}
SIZES = [(name, p, m, v) for name, each in CHUNKS.items() for p in (2, 3, 4, 8) for m in (4, 8, 16) for v in each]
QUICK = {(name, 2, 4, min(2, max(each))) for name, each in CHUNKS.items()} | {("1F1B", 4, 8, 1)}
CASES = [pytest.param(*size, marks=() if size in QUICK else pytest.mark.slow) for size in SIZES]


def bubble(table):
    busy = sum(COST[action.kind] for _, action in table.without_messages()) / len(table.ranks)
    return 1 - busy / times(table.without_messages(), lambda action: COST[action.kind], lambda _: 0.0).makespan


@pytest.mark.parametrize(("name", "p", "m", "v"), [size for size in SIZES if size[0] != "1F1B"])
def test_torch_s_orders_end_and_have_the_published_bubble(name, p, m, v):
    table = lowered(Table.of(made(name, p, m, v)))
    times(table, lambda _: 1.0, lambda _: 0.0)
    if name in ("GPipe", "Interleaved1F1B", "LoopedBFS") and m % p == 0:
        assert bubble(table) == pytest.approx((p - 1) / (v * m + p - 1))
    if name in V_SHAPED and m >= 2 * p:  # Qi et al. 2024; DeepSeek-V3 with equal times
        assert bubble(table) == pytest.approx((p - 1) / (6 * m + p - 1))
    if name == "Interleaved1F1B" and m % p == 0:
        assert peak_activations(table) == peak_activations(Table.of(orders(name, p, m, v)))


def accepts(name, p, m):
    """Whether torch 2.15 makes this schedule."""
    if name in ("Interleaved1F1B", "InterleavedZeroBubble"):
        return m % max(1, m // p) == 0
    return m >= {"1F1B": p, "DualPipeV": 2 * p}.get(name, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHUNKS)
def test_all_sizes_that_torch_accepts_end(name):
    each = [*range(1, 5)] if name in LOOPED else CHUNKS[name]
    for p, m, v in product(range(2, 9), (4, 8, 16, 32, 64), each):
        if not accepts(name, p, m):
            with pytest.raises(pytest.skip.Exception):
                made(name, p, m, v)
        elif name == "1F1B":
            with pytest.raises(DeadlockError, match=f"rank {p - 1}, at"):
                lowered(Table.of(made(name, p, m, v)))
            assert times(Table.of(orders(name, p, m)), lambda _: 1.0, lambda _: 0.0).makespan == 2 * (m + p - 1)
        else:
            times(lowered(Table.of(made(name, p, m, v))), lambda _: 1.0, lambda _: 0.0)


@pytest.mark.parametrize(("name", "p", "m", "v"), CASES)
def test_torch_s_orders_run(name, p, m, v):
    schedule = made(name, p, m, v)
    if name == "1F1B":  # torch 2.15 begins with microbatch 1 on the last rank
        with pytest.raises(DeadlockError, match=f"rank {p - 1}, at .*, waits for .*, which no rank runs"):
            run(schedule, stage_of(1), machine(p), message=message)
        schedule = orders(name, p, m)
    found = run(schedule, stage_of(1), machine(p), message=message)
    table = Table.of(schedule)
    assert len(found.spans) == len(list(table.without_messages()))
    assert found.bubble > found.ideal_bubble


@pytest.mark.parametrize("name", ["InterleavedZeroBubble", "DualPipeV"])
def test_messages_are_where_torch_puts_them_and_its_files_are_read(name, tmp_path):
    schedule = made(name, 4, 8, 2)
    tables = {}
    for kind in ("compute_only", "compute_comms"):
        schedule._dump_csv(str(tmp_path / f"{kind}.csv"), kind)
        tables[kind] = Table.of(tmp_path / f"{kind}.csv")
    own, theirs = (
        [[str(a) for a in actions if a.is_compute or a.kind[:4] in ("SEND", "RECV")] for actions in table.ranks]
        for table in (lowered(tables["compute_only"]), tables["compute_comms"])
    )
    if name == "DualPipeV":  # torch sends after both parts of an overlap
        own, theirs = ([sorted(each) for each in table] for table in (own, theirs))
    assert own == theirs


def test_every_kind_of_action_of_torch_is_known():
    for kind in schedules._ComputationType:
        text = f"(0F0;0B1){kind.value}" if kind.value == "OVERLAP_F_B" else f"0{kind.value}0"
        shard = kind.value.endswith(("SHARD", "REDUCE_GRAD"))
        assert Table.of({0: [text.rstrip("0") if shard else text]})
