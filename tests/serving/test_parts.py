"""Counters of a part of a step."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.serving._parts import _counters
from kernbench.sweeps._energy_area import counters


def test_the_links_of_one_sip_and_from_a_switch_to_it_are_its_share_of_all():
    machine = kb.load("preset:a100_sxm", {"system.sips.count": 4})

    def rank(number):
        torch.ahbm.set_device(number)
        torch.distributed.init_process_group("ahbm", rank=number, world_size=4)
        torch.distributed.all_reduce(torch.empty(65536, dtype="f16", device="ahbm"))
        torch.accelerator.synchronize()

    with kb.session(machine) as torch:
        torch.multiprocessing.spawn(rank, nprocs=4)
    records = torch.result.records
    whole = counters(machine.config, records.links, records.busy_by_component())
    own = _counters(machine, records)
    for part in ("tcm_bytes", "hbm_bytes", "sip_link_bytes", "pcie_bytes"):
        assert whole[part]
        assert 4 * own[part] == pytest.approx(whole[part], rel=1e-3)
