"""The record of what the host queues: what each operation follows, and what a collective moves."""

from __future__ import annotations

from kernbench.analysis._records import Communication, Records
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small
from tests.runtime_api.ranks import on_ranks

DP = DPPolicy(cube="row_wise", pe="row_wise")
PLACEMENT = (("cube", "row_wise"), ("pe", "row_wise"))


def touch(p, *, tl):
    tl.store(p, tl.load(p, shape=(16,)) + 1.0)


def touch_often(p, n, *, tl):
    for _ in range(n):
        touch(p, tl=tl)


def recorded(program, n=2):
    """Return by SIP a list of (numbers in `after`, in `waited`, what it is, its launches); numbers are of the list."""
    with session(small(max(n, 2))) as torch:
        on_ranks(program, n, torch=torch, data=False)
    records = torch.result.records
    found, own = {}, {}
    for i, x in enumerate(records.operations):
        each = found.setdefault(x.sip, [])
        own[i] = len(each)
        assert all(records.operations[k].sip == x.sip for k in (*x.after, *x.waited))
        launches = [launch for launch in records.launches if launch.operation == i]
        what = x.communication or launches[0].name
        each.append((*([own[k] for k in before] for before in (x.after, x.waited)), what, [y.name for y in launches]))
    return found, records


def test_operations_follow_their_streams_and_the_host():
    def program(torch, rank):
        dist = torch.distributed
        x, y = (torch.zeros(64, 64, device="ahbm", dp=DP) for _ in "xy")
        torch.launch("first", touch, x)
        work = dist.all_reduce(x, op="max", async_op=True)
        torch.launch("beside", touch, y)
        work.wait()
        torch.launch("then", touch, x)
        torch.launch("last", touch, x)

    found, _ = recorded(program)
    call = Communication(
        "all_reduce", (0, 1), 16384, (("tensor", (64, 64), "torch.float32", PLACEMENT),), (("op", "max"),)
    )
    for sip in (0, 1):
        assert [x[:3] for x in found[sip]] == [
            ([], [], "first"),
            ([0], [], call),
            ([0], [], "beside"),
            ([2], [1], "then"),  # its stream does not wait for the collective, but the host has
            ([3], [], "last"),
        ]


def test_a_blocked_stream_follows_the_message():
    def program(torch, rank):
        x = torch.zeros(16, device="ahbm")
        if rank == 0:
            return torch.distributed.isend(x, 1, tag=5).wait()
        torch.distributed.irecv(x, 0, tag=5).block_current_stream()
        return torch.launch("then", touch, x)

    found, _ = recorded(program)
    shape = (16,), "torch.float32", (("num_cubes", 1), ("num_pes", 1))
    assert [x[:3] for x in found[0]] == [
        ([], [], Communication("send", (0, 1), 64, (("input", *shape),), (("tag", 5),)))
    ]
    assert [x[:3] for x in found[1]] == [
        ([], [], Communication("recv", (0, 1), 64, (("output", *shape),), (("tag", 5),))),
        ([0], [], "then"),
    ]


def test_a_synchronize_is_waiting_for_all_streams():
    def program(torch, rank):
        x = torch.zeros(64, 64, device="ahbm", dp=DP)
        torch.distributed.all_reduce(x, async_op=True)
        torch.ahbm.synchronize()
        torch.launch("then", touch, x)

    found, _ = recorded(program)
    assert found[0][1][:3] == ([], [0], "then")


def test_an_operation_may_launch_several_kernels_and_a_saved_run_has_all():
    def program(torch, rank):
        dist = torch.distributed
        x, y = torch.zeros(8, 64, device="ahbm", dp=DP), torch.zeros(16, 64, device="ahbm", dp=DP)
        dist.all_gather_single(y, x)
        sizes = [[10, 6], [6, 10]][rank]
        dist.all_to_all_single(y, torch.zeros(16, 64, device="ahbm", dp=DP), sizes, sizes)

    found, _ = recorded(program)
    (_, _, gather, names), (_, _, exchange, _) = found[1]
    assert (gather.name, gather.nbytes, [x[0] for x in gather.tensors]) == ("all_gather", 2048, ["input", "output"])
    assert [name.split()[0] for name in names] == ["all_gather", "unpack"]
    rows = (0, 6), (1, 10)
    assert (exchange.name, exchange.nbytes, exchange.options) == (
        "all_to_all",
        4096,
        (("sends", rows), ("receives", rows)),
    )


def test_programs_run_between_the_message_to_the_device_and_its_answer():
    def times(n):
        with session(small()) as torch:
            x = torch.zeros(16, device="ahbm")
            torch.ahbm.synchronize()
            torch.launch("touch", touch_often, x, n)
        (launch,) = torch.result.launches
        assert launch.start_ps < launch.begin_ps < launch.done_ps < launch.end_ps
        return launch.end_ps - launch.start_ps, launch.done_ps - launch.begin_ps

    (all_1, kernel_1), (all_9, kernel_9) = times(1), times(9)
    assert all_9 - all_1 == kernel_9 - kernel_1 > 0  # the rest does not depend on the kernel


def test_a_saved_run_has_its_operations(tmp_path):
    def program(torch, rank):
        torch.distributed.all_reduce(torch.zeros(64, device="ahbm"))

    _, records = recorded(program)
    loaded = Records.load(records.save(tmp_path / "run.npz"))
    assert (loaded.operations, loaded.launches) == (records.operations, records.launches)
    assert {x.operation for x in loaded.launches} == {0, 1}
