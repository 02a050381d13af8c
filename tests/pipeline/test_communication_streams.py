"""Several SIPs for a rank, and communication of a rank that shares a stream."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.errors import ArgumentError
from kernbench.pipeline import orders, run
from kernbench.runtime_api._multiprocessing import ProcessRaisedException
from tests.pipeline.machines import add, machine, message, stage_of

WIDE = {"sips_per_rank": 2}


def experts(layers, unit):
    """Return a stage of layers with an all-to-all before and after their experts, over the SIPs of a rank."""
    made = {}

    def stage(torch, action, x, y, group):
        own = made.setdefault(torch.distributed.get_rank(), [message(torch).view(64, 64) for _ in range(3)])
        rows, n = own[0], unit * (2 if action.kind == "B" else 1)
        for i in range(layers):
            torch.launch(f"{action} attention", add, rows if x is None or i else x, own[1], n)
            torch.distributed.all_to_all_single(own[2], own[1], group=group, async_op=True).block_current_stream()
            torch.launch(f"{action} experts", add, own[2], own[1], n)
            torch.distributed.all_to_all_single(rows, own[1], group=group, async_op=True).block_current_stream()
        if y is not None:
            torch.launch(f"{action} result", add, rows, y, 1)

    return stage


def of(schedule, streams, *, unit=160, microbatches=4):
    """Run four layers over two ranks with two SIPs each, in two or four stages."""
    stages = 2 if schedule == "Interleaved1F1B" else 1
    table, stage = orders(schedule, 2, microbatches, stages), experts(2 // stages, unit)
    return run(table, stage, machine(4), message=message, communication_streams=streams, **WIDE)


@pytest.mark.slow
def test_an_early_receive_blocks_the_all_to_all_and_a_second_stream_removes_it():
    """torchtitan issue 2209, pytorch issue 172668: interleaved 1F1B of experts is slower than expected."""
    separate, one, two = (of("Interleaved1F1B", streams).latency_ns for streams in (None, 1, 2))
    plain = of("1F1B", None).latency_ns
    assert separate < plain < one  # the smaller bubble is lost
    assert one > 1.15 * two
    assert two < 1.02 * separate


def test_a_stage_waits_for_the_all_to_all_behind_the_receive():
    """In one stream, the all-to-all of an action ends after the receive that is queued before it."""
    table = {0: ["0F0", "0SEND_F0", "2RECV_F0", "0F1", "2F0"], 1: ["1RECV_F0", "1F0", "1SEND_F0"]}
    last = {}
    for streams in (1, 2):
        found = run(table, experts(1, 50), machine(4), message=message, communication_streams=streams, **WIDE)
        spans = {str(span.action): span for span in found.spans}
        exchanges = [x for x in found.result.launches if x.sip == 0 and x.name.startswith("all_to_all")]
        last[streams] = exchanges[2].start_ps, spans["1F0"].end_ps  # the first one of 0F1, and what the receive needs
    assert last[1][0] > last[1][1]
    assert last[2][0] < last[2][1]


def test_ranks_that_both_send_first_in_one_stream_are_a_deadlock():
    """pytorch issue 172668: each waits until the other receives; here the messages do not fit into the queues."""

    def large(torch):
        return torch.zeros(1 << 15, dtype="f16", device="ahbm")

    table = {
        0: ["0F0", "0F1", "0SEND_F0", "0SEND_F1", "2RECV_F0", "2F0"],
        1: ["1RECV_F0", "1F0", "1SEND_F0", "1RECV_F1", "1F1"],
    }

    def stage(torch, action, x, y):
        if y is not None:
            torch.launch(str(action), add, y, y, 1)
        elif x is not None:
            torch.launch(str(action), add, x, x, 1)

    assert run(table, stage, machine(2), message=large).latency_ns > 0
    with pytest.raises(ProcessRaisedException, match=r"DeadlockError: (?s:.*)rank 1, .* stream waits for recv"):
        run(table, stage, machine(2), message=large, communication_streams=1)


def test_each_sip_of_a_rank_sends_to_its_place():
    found = run(orders("1F1B", 2, 2), lambda torch, action, x, y, _: stage_of(5)(torch, action, x, y), machine(4),
                message=message, **WIDE)  # fmt: skip
    assert len(found.spans) == 8
    assert found.peak_activations == [2, 1]
    messages = {x.sip for x in found.result.launches if x.name.startswith("message")}
    assert messages == {0, 1, 2, 3}


def test_other_numbers_of_streams_are_refused():
    with pytest.raises(ArgumentError, match="communication_streams = 3: expected None, 1 or 2"):
        run(orders("1F1B", 2, 2), stage_of(1), machine(2), message=message, communication_streams=3)


def test_streams_contend_on_the_links_that_they_share():
    def times(what):
        def program(rank, torch):
            dist = torch.distributed
            dist.init_process_group("ahbm")
            x, y, z = (message(torch) for _ in range(3))
            works = []
            if "message" in what:
                works.append(dist.irecv(z, 1) if rank == 0 else dist.isend(z, 0))
            if "all_to_all" in what:
                works.append(dist.all_to_all_single(y, x, async_op=True))
            for work in works:
                work.wait()

        with kb.session(machine(2, {"system.sip_link.bw_gbs": 8}), data=False) as torch:
            torch.multiprocessing.spawn(program, (torch,), nprocs=2)
        own = [x for x in torch.result.launches if x.sip == 0]
        return {x.name.split()[0]: x.done_ps - x.begin_ps for x in own}

    alone = times(["message"]) | times(["all_to_all"])
    both = times(["message", "all_to_all"])
    assert both["all_to_all"] > 1.2 * alone["all_to_all"]
    assert both["message"] >= alone["message"]
