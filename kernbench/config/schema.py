"""The keys of a machine file: system, SIP and, from `cube`, the cube; and what follows from them."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Literal

from kernbench.config.cost import Cost
from kernbench.config.cube import Cpu, Cube, Transit
from kernbench.config.values import Count, Gbs, Model, Ns, Version, described


class Sips(Model):
    """The SIPs of a system, and how they are joined."""

    count: Count = described("SIPs")
    topology: Literal["ring_1d", "torus_2d", "mesh_2d", "mesh_2d_no_wrap", "fully_connected"] = described(
        "Links between SIPs; mesh_2d is another name of torus_2d"
    )
    w: Count | None = described("Columns of a two-dimensional topology whose count is no square", default=None)
    h: Count | None = described("Rows of a two-dimensional topology whose count is no square", default=None)


class Wire(Model):
    """A link without a component of its own."""

    bw_gbs: Gbs = described("Each way")
    latency_ns: Ns = described("Each way")


class HostLink(Model):
    """The link between host and switch."""

    bw_gbs_per_sip: Gbs = described("Each way, times the number of SIPs")
    latency_ns: Ns = described("Each way")


class System(Model):
    """What lies outside the SIPs."""

    sips: Sips
    sip_link: Wire
    switch: Transit
    pcie: Wire
    host_link: HostLink


class CubeMesh(Model):
    """The cubes of a SIP."""

    w: Count = described("Cubes in a row")
    h: Count = described("Rows of cubes; row 0 is north")


class IoNoc(Transit):
    """The network of an IO chiplet."""

    port_bw_gbs: Gbs = described("Each port, each way")


class Io(Model):
    """The IO chiplet of a SIP."""

    pcie_ep: Transit
    io_cpu: Cpu
    noc: IoNoc


class Sip(Model):
    """A SIP: the device that one rank drives."""

    cube_mesh: CubeMesh
    io: Io


class MachineConfig(Model):
    """A machine as its file describes it, validated and frozen. `read_machine` makes it, and checks the rules too."""

    schema_version: Version = described("Form of the file")
    system: System
    sip: Sip
    cube: Cube
    cost: Cost

    @property
    def n_sips(self) -> int:
        """SIPs of the machine."""
        return self.system.sips.count

    @property
    def cubes_per_sip(self) -> int:
        """Cubes of a SIP."""
        return self.sip.cube_mesh.w * self.sip.cube_mesh.h

    @property
    def pes_per_cube(self) -> int:
        """PEs of a cube."""
        layout = self.cube.pe_layout
        return len(layout.pe_routers) if layout.pe_routers else layout.pe_per_corner * len(layout.corners)

    @property
    def pes_per_sip(self) -> int:
        """PEs of a SIP."""
        return self.cubes_per_sip * self.pes_per_cube

    @property
    def n_pes(self) -> int:
        """PEs of the machine."""
        return self.n_sips * self.pes_per_sip

    @cached_property
    def hash(self) -> str:
        """The sha256 of the validated content: neither comments, nor the order of keys, nor 1 for 1.0 change it.

        Costs are not in it: no result of a simulation depends on them.
        """
        spec = {name: value for name, value in self.to_spec().items() if name != "cost"}
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
