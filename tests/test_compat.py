"""Programs written for the reference design: its names, with its signatures and meanings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kernbench import tp
from kernbench.benches import milestone_1h_ccl, milestone_1h_gemm, milestone_gqa_llama70b
from kernbench.benches.registry import resolve
from kernbench.ccl import diagnostics
from kernbench.ccl.diagnostics import IpcqDeadlock, log_send, pointer_dump, reload_trace_setting, trace_enabled
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.ccl.sfr_config import configure_sfr_intercube_multisip, configure_sfr_intracube_pe_ring
from kernbench.cli.main import main
from kernbench.config import default_ccl_path
from kernbench.errors import AllocationError, ConfigError, PlacementError
from kernbench.policy.address.allocator import AddressConfig, PEMemAllocator
from kernbench.policy.placement.dp import DPPolicy, ShardSpec
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import deploy_tensor
from kernbench.runtime_api.types import DeviceSelector, resolve_device
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies import GemmStudy
from kernbench.topology.builder import Machine, resolve_topology

SMALL = {"base": "small", "system": {"sips": {"count": 2}}, "sip": {"cube_mesh": {"w": 2, "h": 2}}}


@pytest.fixture(scope="module")
def topology() -> Machine:
    return resolve_topology(SMALL)


# -- kernbench.ccl.install


def test_the_example(capsys):
    merged = resolve_algorithm_config(load_ccl_config())
    print(merged["algorithm"], merged.get("n_elem"))
    assert capsys.readouterr().out == "auto 1024\n"


def test_a_configuration_is_a_mapping():
    config = load_ccl_config(default_ccl_path())
    assert set(config) == {"defaults", "algorithms"}
    assert config["defaults"]["algorithm"] == "auto"
    assert config["algorithms"]["ring_allreduce_hbm"]["buffer_kind"] == "hbm"


@pytest.mark.parametrize("name", load_ccl_config(default_ccl_path()).algorithms)
def test_an_entry_lies_over_the_defaults(name):
    config = load_ccl_config(default_ccl_path())
    merged = resolve_algorithm_config(config, name)
    assert {"algorithm", "module", "topology", "buffer_kind", "n_slots", "slot_size", "n_elem"} <= set(merged)
    assert merged == resolve_algorithm_config(config, algorithm=name)
    assert merged == resolve_algorithm_config(config=config, algorithm=name)
    entry = config.algorithms[name]
    assert (merged["algorithm"], merged["module"]) == (name, entry.module)
    assert merged["buffer_kind"] == (entry.buffer_kind or "tcm")
    ours = resolve_algorithm_config(name, config)
    assert (ours.name, ours.buffer_kind) == (name, merged["buffer_kind"])


def test_the_defaults_name_the_algorithm():
    merged = resolve_algorithm_config({"defaults": {"algorithm": "intercube_allreduce", "n_slots": 7}})
    assert (merged["algorithm"], merged["n_slots"], merged["slot_size"]) == ("intercube_allreduce", 7, 4096)
    with pytest.raises(ConfigError, match=r"'intercube' is unknown; did you mean intercube_allreduce"):
        resolve_algorithm_config(load_ccl_config(), "intercube")


# -- kernbench.ccl.sfr_config


def send_east(t_ptr, n, *, tl):
    """Send this PE's row to the cube east of it, which stores it over its own."""
    cube = tl.program_id(1)
    if cube % 2 == 0:
        tl.send("E", tl.load(t_ptr + cube * n, shape=(n,), dtype="f16"))
    else:
        tl.store(t_ptr + cube * n, tl.recv("W", shape=(n,), dtype="f16"))


def pass_round(t_ptr, n, *, tl):
    """Send this PE's row to the next PE of the cube."""
    pe = tl.program_id(0)
    tl.send("local_E", tl.load(t_ptr + pe * n, shape=(n,), dtype="f16"))
    tl.store(t_ptr + pe * n, tl.recv("local_W", shape=(n,), dtype="f16"))


@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
def test_launches_use_the_queues_of_a_configuration(topology, kind):
    engine = GraphEngine(topology, enable_data=True)
    cfg = resolve_algorithm_config(load_ccl_config(), "intercube_allreduce") | {"buffer_kind": kind}
    configure_sfr_intercube_multisip(engine, topology.topology_obj.spec, cfg)
    configure_sfr_intracube_pe_ring(engine, topology.topology_obj.spec, cfg)
    with RuntimeContext(engine=engine, target_device=resolve_device("sip:0", 2), spec=topology.spec) as torch:
        rows = np.arange(64, dtype=np.float16).reshape(4, 16)
        cubes = torch.from_numpy(rows).to("ahbm:0", dp=DPPolicy(cube="row_wise", pe="replicate", num_pes=1))
        torch.launch("east", send_east, cubes, 16)
        assert np.array_equal(cubes.numpy(), rows[[0, 0, 2, 2]])
        ring = torch.from_numpy(np.arange(128, dtype=np.float16).reshape(8, 16)).to(
            "ahbm:0", dp=DPPolicy(cube="replicate", pe="row_wise", num_cubes=1)
        )
        torch.launch("round", pass_round, ring, 16)
        assert np.array_equal(ring.numpy()[:, 0], [112, 0, 16, 32, 48, 64, 80, 96])
    assert {ring.kind for ring in diagnostics.rings(engine)} == {kind}


def waits_for_nobody(t_ptr, *, tl):
    tl.recv("E", shape=(4,), dtype="f16")


def test_a_receive_without_a_send_is_a_deadlock(topology):
    engine = GraphEngine(topology)
    configure_sfr_intercube_multisip(engine, topology.spec, resolve_algorithm_config(load_ccl_config()))
    dump = pointer_dump(engine)
    assert "sip0.cube0.pe0 E <-> sip0.cube1.pe0: ring of 4 x 4096 B" in dump
    with RuntimeContext(engine) as torch:
        x = torch.zeros(4, 16, dtype="f16", device="ahbm", dp=DPPolicy(num_cubes=1, num_pes=1))
        torch.launch("waits", waits_for_nobody, x)
        with pytest.raises(IpcqDeadlock, match="recv of 8 B from E"):
            x.numpy()


# -- kernbench.ccl.diagnostics


def test_the_trace_setting_is_read_once(monkeypatch, capsys):
    monkeypatch.setenv("KERNBENCH_CCL_TRACE", "1")
    assert reload_trace_setting()
    log_send("sip0.cube0.pe0", "E", nbytes=8)
    monkeypatch.delenv("KERNBENCH_CCL_TRACE")
    assert trace_enabled()
    assert not reload_trace_setting()
    log_send("sip0.cube0.pe0", "E", nbytes=8)
    assert capsys.readouterr().err == "send sip0.cube0.pe0 E nbytes=8\n"
    with pytest.raises(AttributeError, match="no attribute 'log_recv'"):
        diagnostics.log_recv  # noqa: B018


# -- run_bench


def copies_one_row(torch):
    torch.zeros(4, device="ahbm", dtype="f16").numpy()


def asks_for_nothing(torch):
    pass


def test_a_bench_runs_on_what_its_factory_makes(topology):
    given = []

    def engine_factory(made_for, device):
        given.append((made_for, device))
        return GraphEngine(getattr(made_for, "topology_obj", made_for), enable_data=True)

    done = run_bench(
        topology=topology, bench_fn=copies_one_row, device=resolve_device("sip:1", 2), engine_factory=engine_factory
    )
    assert done.completion.ok is True
    assert done.completion == "OK"
    [(made_for, device)] = given
    assert made_for.topology_obj.spec["system"]["sips"]["count"] == 2
    assert isinstance(device, DeviceSelector)
    nothing = run_bench(topology=topology, bench_fn=asks_for_nothing, engine_factory=GraphEngine)
    assert (nothing.completion, nothing.completion.ok) == ("NO_REQUESTS", False)


# -- placement and memory

MIB = 1 << 20
SIZES = AddressConfig(
    sip_count=2, cubes_per_sip=2, pes_per_cube=2, hbm_bytes_per_cube=4 * MIB, hbm_slices_per_cube=2,
    tcm_bytes_per_pe=MIB, tcm_scheduler_reserved_bytes=MIB // 2, sram_bytes_per_cube=MIB,
)  # fmt: skip


def allocators():
    places = [(sip, cube, pe) for sip in range(2) for cube in range(2) for pe in range(2)]
    return {
        (sip, cube, pe): PEMemAllocator(rack_id=0, sip_id=sip, cube_id=cube, pe_id=pe, cfg=SIZES)
        for sip, cube, pe in places
    }


def test_a_shard_says_where_it_is():
    shard = ShardSpec(sip=0, cube=1, pe=2, offset_bytes=64, nbytes=32)
    assert shard == ShardSpec(0, 1, 2, 64, 32)
    with pytest.raises(AttributeError, match="pe_index"):
        shard.pe_index  # noqa: B018
    with pytest.raises(TypeError, match="pe_index"):
        ShardSpec(sip=0, cube=0, pe_index=0, offset_bytes=0, nbytes=1)


@pytest.mark.parametrize("kind", ["hbm", "tcm"])
def test_a_tensor_has_memory_for_each_shard(kind):
    memory = allocators()
    placement = [ShardSpec(0, 0, pe, offset_bytes=pe * 1024, nbytes=1024) for pe in range(2)]
    handle = deploy_tensor(name="x", shape=(2, 512), dtype="f16", placement=placement, allocators=memory, mem_kind=kind)
    assert [(s.sip, s.cube, s.pe, s.offset_bytes, s.nbytes) for s in handle.shards] == [
        (0, 0, 0, 0, 1024),
        (0, 0, 1, 1024, 1024),
    ]
    assert {SIZES.locate(s.pa).component for s in handle.shards} == {"hbm_ctrl" if kind == "hbm" else "pe_tcm"}
    assert (handle.name, handle.shape, handle.dtype.itemsize) == ("x", (2, 512), 2)


def test_a_shard_that_does_not_fit_leaves_all_memory_free():
    memory = allocators()
    placement = [ShardSpec(0, 0, 0, 0, MIB), ShardSpec(0, 0, 1, MIB, 3 * MIB)]
    options = {"name": "x", "shape": (2 * MIB,), "dtype": "f16", "allocators": memory}
    with pytest.raises(AllocationError, match="no room for 3145728 B"):
        deploy_tensor(**options, placement=placement)
    assert memory[0, 0, 0].hbm.free_bytes == 2 * MIB
    with pytest.raises(PlacementError, match=r"allocators has none for \(sip, cube, pe\) = \(3, 0, 0\)"):
        deploy_tensor(**options, placement=[ShardSpec(3, 0, 0, 0, 1)])
    with pytest.raises(ConfigError, match="mem_kind = 'dram' is unknown"):
        deploy_tensor(**options, placement=placement, mem_kind="dram")


# -- ranks and tensor parallelism


def test_names_of_megatron_are_at_the_root_of_the_package():
    regions = ("copy_to", "reduce_from", "scatter_to", "gather_from")
    for name in ("ColumnParallelLinear", "RowParallelLinear", *(f"{r}_tensor_model_parallel_region" for r in regions)):
        assert callable(getattr(tp, name))


def test_groups_are_set_up_before_the_ranks(topology):
    seen = []
    with RuntimeContext(GraphEngine(topology, enable_data=True)) as torch:
        torch.distributed.init_process_group(backend="ahbm")
        tp.initialize_model_parallel(torch.distributed.get_world_size())

        def work(rank):
            torch.ahbm.set_device(rank)
            column = tp.ColumnParallelLinear(32, 64, torch=torch)
            row = tp.RowParallelLinear(64, 16, torch=torch)
            y = row(column(torch.full((4, 32), 1.0, dtype="f16", device="ahbm")))
            seen.append((tp.get_tensor_model_parallel_rank(), tp.get_tensor_model_parallel_world_size(), y.numpy()))

        torch.multiprocessing.spawn(work, args=(), nprocs=2)
    assert [(rank, world) for rank, world, _ in sorted(seen, key=lambda each: each[0])] == [(0, 2), (1, 2)]
    assert seen[0][2].shape == (4, 16)
    assert np.array_equal(seen[0][2], seen[1][2])


@pytest.fixture
def by_cubes(tmp_path, monkeypatch):
    (tmp_path / "ccl.yaml").write_text("defaults: {algorithm: intercube_allreduce}\n")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("by_cubes")
def test_an_all_reduce_sums_over_all_cubes_of_all_sips(topology):
    got = {}
    with RuntimeContext(GraphEngine(topology, enable_data=True)) as torch:
        torch.distributed.init_process_group(backend="ahbm")

        def work(rank):
            torch.ahbm.set_device(rank)
            rows = np.arange(4 * 16, dtype=np.float16).reshape(4, 16) + 100 * rank
            t = torch.from_numpy(rows).to("ahbm", dp=DPPolicy(cube="row_wise", pe="replicate", num_pes=1))
            torch.distributed.all_reduce(t, op="sum")
            got[rank] = rows, t.numpy()

        torch.multiprocessing.spawn(work, args=(), nprocs=2)
    total = sum(rows.sum(axis=0) for rows, _ in got.values())
    for _, values in got.values():
        assert np.array_equal(values, np.tile(total, (4, 1)))


# -- benches, artifacts and the command line


def test_benches_have_their_names(topology):
    bench = resolve("ipcq_allreduce")
    assert (bench.name, bench is resolve("ccl-allreduce")) == ("ccl-allreduce", True)
    assert bench.description
    engine = GraphEngine(topology, enable_data=True)
    with RuntimeContext(engine=engine, target_device=resolve_device("all", 2), spec=topology.spec) as torch:
        bench.run(torch)
    assert torch.checks == 2


@pytest.mark.parametrize(
    "module", [milestone_1h_gemm, milestone_1h_ccl, milestone_gqa_llama70b], ids=lambda module: module.__name__
)
def test_milestones_are_modules(module):
    assert resolve(module.__name__.rpartition(".")[2]).function is module.run
    assert isinstance(module._OUTPUT_DIR, Path)


def test_probe_takes_its_case(capsys):
    assert main(["probe", "--case", "pe-local-hbm", "--list", "--topology", "preset:small"]) == 0
    assert capsys.readouterr().out.startswith("own-slice-read ")


def test_the_gemm_report_has_its_files(tmp_path):
    GemmStudy().report("preset:small", folder=tmp_path, shapes=[[16, 16, 16]], timeline=[16, 16, 16])
    written = {path.name for path in tmp_path.iterdir()}
    assert written >= {
        "gemm_mac_utilization_measured.png",
        "gemm_mac_utilization_theoretical_vs_measured.png",
        "gemm_stage_breakdown.png",
    }
    sweep = json.loads((tmp_path / "gemm_sweep.json").read_text())
    assert (sweep["version"], sweep["tile_sizes"]) == (1, {"m": 32, "k": 64, "n": 32})
    assert [row["shape"] for row in sweep["rows"]] == ["16x16x16"] * 6
