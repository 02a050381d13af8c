"""ccl.yaml is read and refused as machine files are."""

from __future__ import annotations

import copy

import pytest

from kernbench import config
from kernbench.errors import ConfigError

DEFAULT = config.load_yaml(config.default_ccl_path())

KEYS = ("buffer_kind", "backpressure", "n_slots", "slot_size", "vc_chunk_size", "ipcq_credit_size_bytes")


def with_defaults(**changes) -> dict:
    content = copy.deepcopy(DEFAULT)
    content["defaults"] |= changes
    return content


def test_the_packaged_file():
    defaults = config.read_ccl(config.default_ccl_path()).defaults
    assert (defaults.buffer_kind, defaults.n_slots, defaults.slot_size) == ("tcm", 4, 4096)
    assert (defaults.vc_chunk_size, defaults.ipcq_credit_size_bytes, defaults.backpressure) == (256, 16, "credit")


def test_its_rings_are_those_of_the_machine_file():
    ipcq = config.read_machine(config.preset_path("default")).cube.pe.pe_ipcq
    defaults = config.read_ccl(config.default_ccl_path()).defaults
    assert (ipcq.n_slots, ipcq.slot_bytes, ipcq.credit_bytes) == (
        defaults.n_slots, defaults.slot_size, defaults.ipcq_credit_size_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
def test_kinds_of_rings(kind):
    assert config.read_ccl(with_defaults(buffer_kind=kind)).defaults.buffer_kind == kind


def test_all_faults_at_once():
    content = with_defaults(n_slots=0, buffer_kind="tmc", slots=4, backpressure="none", slot_size="4096")
    del content["defaults"]["vc_chunk_size"]
    with pytest.raises(ConfigError) as caught:
        config.read_ccl(content)
    assert sorted(caught.value.faults) == [
        "ccl: defaults.backpressure = 'none' must be credit",
        "ccl: defaults.buffer_kind = 'tmc' is unknown; did you mean tcm? known: tcm, sram, hbm",
        "ccl: defaults.n_slots = 0 must be >= 1",
        "ccl: defaults.slot_size = '4096' must be a plain number, not text [B]",
        f"ccl: defaults.slots is unknown; did you mean n_slots? known: {', '.join(KEYS)}",
        "ccl: defaults.vc_chunk_size is missing; add it; the packaged default has 256 [B]",
    ]


def test_faults_of_a_file_carry_its_name(tmp_path):
    path = tmp_path / "ccl.yaml"
    path.write_text("default: {}\n")
    with pytest.raises(ConfigError) as caught:
        config.read_ccl(path)
    assert [line.partition(";")[0] for line in caught.value.faults] == [
        "ccl.yaml: defaults is missing",
        "ccl.yaml: default is unknown",
    ]
