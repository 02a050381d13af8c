"""Chakra traces: the schema's wire format, the nodes of a run, and its replay."""

from __future__ import annotations

import struct

import pytest

import kernbench as kb
from kernbench.analysis._chakra import TraceNode, _encoded, _varint, read_nodes
from kernbench.errors import ConfigError, StateError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small
from tests.runtime_api.ranks import on_ranks

DP = DPPolicy(cube="row_wise", pe="row_wise")


def heavy(p, n, *, tl):
    for _ in range(n):
        tl.store(p, tl.load(p, shape=(1024,)) + 1.0)


def program(torch, rank):
    """Launches beside and behind collectives and messages, with waits of the host and of the device."""
    dist = torch.distributed
    x, y, z = (torch.empty(n, 64, dtype=torch.float16, device="ahbm", dp=DP) for n in (64, 128, 128))
    pair = dist.new_group([0, 1])
    torch.launch("heavy", heavy, x, 3)
    work = dist.all_reduce(x, op="max", async_op=True)
    torch.launch("beside", heavy, y, 3)
    work.wait()
    torch.launch("then", heavy, x, 2)
    dist.all_gather_single(y, x)
    if rank == 0:
        dist.isend(x, 1, tag=3).wait()
    else:
        dist.irecv(x, 0, tag=3).block_current_stream()
    torch.launch("last", heavy, x, 3)
    dist.broadcast(x, 1, group=pair)
    dist.reduce_scatter_single(x, y)
    sizes = [[100, 28], [28, 100]][rank]
    dist.all_to_all_single(y, z, sizes, sizes)
    torch.ahbm.synchronize()
    torch.launch("heavy", heavy, x, 3)
    dist.barrier()


LAUNCHES = {"heavy": ("x", 3), "beside": ("y", 3), "then": ("x", 2), "last": ("x", 3)}


def launches(torch):
    tensors = {
        name: torch.empty(n, 64, dtype=torch.float16, device="ahbm", dp=DP) for name, n in (("x", 64), ("y", 128))
    }
    return {
        name: lambda node, x=tensors[which], n=n: torch.launch(node.name, heavy, x, n)
        for name, (which, n) in LAUNCHES.items()
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chakra")
    with session(small(2)) as torch:
        on_ranks(program, torch=torch)
    torch.result.chakra(folder)
    return torch.result, folder


def spans(result):
    """SIP, name, start after the first launch, and duration of all launches."""
    first = min(x.start_ps for x in result.launches)
    return sorted((x.sip, x.name, x.start_ps - first, x.end_ps - x.start_ps) for x in result.launches)


def test_a_replay_takes_the_same_picoseconds(ran):
    result, folder = ran
    again = kb.read_chakra(folder).run(small(2), launches)
    assert spans(again) == spans(result)
    assert len(again.launches) == 28


def test_the_output_of_a_collective_is_apart_from_its_input(tmp_path):
    """In one tensor, receives of more than the slots of a ring would wait for sends, and these for receives."""

    def exchange(torch, rank):
        x, y = (torch.empty(2**18, dtype=torch.float16, device="ahbm") for _ in range(2))
        torch.ahbm.synchronize()
        torch.distributed.all_to_all_single(y, x)

    with session(small(2)) as torch:
        on_ranks(exchange, torch=torch)
    torch.result.chakra(tmp_path)
    assert spans(kb.read_chakra(tmp_path).run(small(2))) == spans(torch.result)


def test_bytes_of_communication_are_equal(ran):
    result, folder = ran
    again = kb.read_chakra(folder).run(small(2))

    def calls(found):
        return [
            (x.sip, x.communication.name, x.communication.nbytes, x.communication.options)
            for x in found.records.operations
            if x.communication is not None
        ]

    assert sorted(calls(again)) == sorted(calls(result))
    assert sum(again.records.links.nbytes) > 0


def test_compute_without_a_launch_is_a_delay(ran):
    result, folder = ran
    again = kb.read_chakra(folder).run(small(2))
    assert {x.name.split()[0] for x in again.launches} == {x.name.split()[0] for x in result.launches} - {*LAUNCHES}
    assert (
        again.latency_ns
        > sum(x.end_ps - x.start_ps for x in result.launches if x.name in LAUNCHES and not x.sip) / 1000
    )


def test_the_table_has_kinds_bytes_and_times(ran):
    _, folder = ran
    table = kb.read_chakra(folder).table.set_index(["rank", "kind"])
    assert table.loc[(0, "compute"), "nodes"] == 5
    assert table.loc[(1, "recv"), "nbytes"] == 64 * 64 * 2
    assert table.loc[(0, "all_to_all"), "nbytes"] == 128 * 64 * 2
    assert "all_reduce" in repr(kb.read_chakra(folder))


def test_nodes_have_the_attributes_of_the_schema(ran):
    result, folder = ran
    nodes = {node.name: node for node in read_nodes(folder / "trace.1.et")}
    reduce, receive, beside = nodes["all_reduce"], nodes["recv"], nodes["beside"]
    assert (reduce.type, receive.type, beside.type) == (7, 6, 4)
    wanted = {"is_cpu_op": False, "comm_type": 0, "comm_size": 8192, "pg_name": "0", "pg_ranks": (0, 1)}
    assert wanted.items() <= reduce.attrs.items()
    assert {"comm_src": 0, "comm_dst": 1, "comm_tag": 3, "comm_size": 8192}.items() <= receive.attrs.items()
    (launch,) = (x for x in result.launches if x.sip == 1 and x.name == "beside")
    assert beside.attrs["duration_ps"] == launch.end_ps - launch.start_ps
    assert beside.start_micros == launch.start_ps // 10**6
    assert nodes["then"].ctrl_deps == (reduce.id,)
    assert nodes["then"].data_deps == (beside.id,)
    assert nodes["last"].data_deps == (nodes["then"].id, receive.id)


# -- the wire format, by hand from et_def.proto


def test_a_node_has_protobuf_s_bytes():
    node = TraceNode(300, "ab", 4, (1,), (2, 300), 5, 6, {"is_cpu_op": False, "comm_size": 8, "pg_ranks": (0, 2)})
    assert _encoded(node) == (
        b"\x08\xac\x02"  # field 1, varint 300 = 0b10_0101100
        b"\x12\x02ab"  # field 2, 2 bytes
        b"\x18\x04"
        b"\x22\x01\x01"  # field 4, packed
        b"\x2a\x03\x02\xac\x02"
        b"\x30\x05\x38\x06"
        b"\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x00"  # field 10: name = 1, bool_val = 27
        b"\x52\x0d\x0a\x09comm_size\x48\x08"  # int64_val = 9
        b"\x52\x10\x0a\x08pg_ranks\x52\x04\x0a\x02\x00\x02"  # int64_list = 10 { values = 1 }
    )


def write(path, *messages):
    path.write_bytes(b"".join(_varint(len(m)) + m for m in (b"\x0a\x050.0.4", *messages)))
    return path


def test_nodes_of_other_writers_are_read(tmp_path):
    """Numbers that are not packed, fields of other types, and attributes of any kind."""
    attributes = b"".join(
        b"\x52" + _varint(len(a)) + a
        for a in (
            b"\x0a\x01d\x19" + struct.pack("<d", 1.5),
            b"\x0a\x01f\x2d" + struct.pack("<f", 0.5),
            b"\x0a\x01n\x48" + b"\xff" * 9 + b"\x01",  # int64 -1
            b"\x0a\x01s\xea\x01\x02hi",
            b"\x0a\x01l\xe2\x01\x02\x0a\x00",  # bool_list, which is not read
        )
    )
    message = b"\x08\x07\x12\x01a\x18\x04\x28\x01\x28\x02" + b"\x42\x02\x0a\x00" + attributes
    first, second = (bytes((8, i, 24, 4)) for i in (1, 2))
    node = read_nodes(write(tmp_path / "a.0.et", first, second, message))[2]
    assert node.data_deps == (1, 2)
    assert dict(node.attrs) == {"d": 1.5, "f": 0.5, "n": -1, "s": "hi", "l": None}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "it has no nodes"),
        ([b"\x08\x01", b"\x08\x01"], "two nodes have one id"),
        ([b"\x08\x01\x12\x05ab"], "a field is cut off"),
        ([b"\x08\x80"], "it ends within a number"),
        ([b"\x08" + b"\xff" * 11], "a number has more than 64 bits"),
        ([b"\x0b"], "wire type 3 is unknown"),
        ([b"\x0a\x01a"], "field 1 of a node is something else"),
    ],
)  # fmt: skip
def test_a_bad_file_gets_one_error(tmp_path, messages, message):
    write(tmp_path / "a.0.et", *messages)
    with pytest.raises(ConfigError, match=message) as caught:
        kb.read_chakra(tmp_path)
    assert "a.0.et" in str(caught.value)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (b"\x08\x01\x2a\x01\x01", r"rank 0, node 1 \(\): depends on itself through other nodes"),
        (b"\x08\x01\x18\x07", r"rank 0, node 1 \(\): attribute comm_type is missing"),
        (b"\x08\x01\x18\x05\x52\x0d\x0a\x09comm_size\x48\x08", "attribute comm_dst is missing"),
        (
            b"\x08\x01\x18\x07\x52\x0d\x0a\x09comm_size\x48\x08\x52\x0d\x0a\x09comm_type\x48\x3f",
            r"a collective of type 63 cannot be replayed; known: \('all_reduce'",
        ),
    ],
)
def test_what_a_simulation_needs_is_asked_for_before_it_starts(tmp_path, node, message):
    write(tmp_path / "a.0.et", node)
    trace = kb.read_chakra(tmp_path)
    with pytest.raises(ConfigError, match=message):
        trace.run("preset:small")


def test_dependencies_on_nodes_that_are_not_there_are_counted(tmp_path):
    write(tmp_path / "a.0.et", b"\x08\x01\x18\x04\x2a\x02\x05\x06", b"\x08\x02\x18\x04\x22\x01\x01")
    trace = kb.read_chakra(tmp_path)
    assert (trace.missing, [node.data_deps for node in trace.ranks[0]]) == (2, [(), ()])
    assert trace.ranks[0][1].ctrl_deps == (1,)
    assert "without 2 dependencies" in repr(trace)


@pytest.mark.parametrize("size", [1, 5, 40, 200])
def test_a_file_that_is_cut_off_is_refused(ran, tmp_path, size):
    _, folder = ran
    (tmp_path / "trace.0.et").write_bytes((folder / "trace.0.et").read_bytes()[:-size])
    with pytest.raises(ConfigError, match="its last message is cut off"):
        kb.read_chakra(tmp_path)


def test_a_folder_is_checked(ran, tmp_path):
    result, folder = ran
    with pytest.raises(ConfigError, match="has no Chakra trace"):
        kb.read_chakra(tmp_path)
    (tmp_path / "trace.1.et").write_bytes((folder / "trace.1.et").read_bytes())
    with pytest.raises(ConfigError, match="none of rank 0"):
        kb.read_chakra(tmp_path)
    (tmp_path / "other.1.et").touch()
    with pytest.raises(ConfigError, match="give each trace its own folder"):
        kb.read_chakra(tmp_path)
    with pytest.raises(ConfigError, match=r"other\.1\.et: the folder has a trace of another run"):
        result.chakra(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.1.et", "trace.1.et"]


def test_a_run_without_operations_has_no_trace(tmp_path):
    with session("preset:small") as torch:
        pass
    with pytest.raises(StateError, match="what the host queued"):
        torch.result.chakra(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_foreign_collective_is_simulated_by_its_bytes(tmp_path):
    attributes = b"\x52\x0d\x0a\x09comm_type\x48\x00\x52\x0f\x0a\x09comm_size\x48\x80\x80\x01"  # all_reduce of 16 KiB
    compute = b"\x08\x01\x12\x02mm\x18\x04\x38\x07"  # 7 us
    for rank in (0, 1):
        write(tmp_path / f"app.{rank}.et", compute, b"\x08\x02\x12\x02ar\x18\x07\x2a\x01\x01" + attributes)
    result = kb.read_chakra(tmp_path).run(small(2))
    assert [x.communication.nbytes for x in result.records.operations] == [16384, 16384]
    (first, second) = result.launches
    assert min(first.start_ps, second.start_ps) > 7_000_000
