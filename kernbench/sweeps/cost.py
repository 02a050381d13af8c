"""What a machine costs, beside its time: proxies from its file, for comparing machines, not for building them."""

from __future__ import annotations

from kernbench.config import MachineConfig
from kernbench.sweeps.keys import Row


def machine_columns(config: MachineConfig) -> Row:
    """Return size and bandwidths of a machine, as columns of a table."""
    cube = config.cube
    mesh = config.sip.cube_mesh
    narrow = min(mesh.w, mesh.h)
    pes = config.n_pes
    return {
        "sips": config.n_sips,
        "cubes": config.n_sips * config.cubes_per_sip,
        "pes": pes,
        "hbm_gbs": pes * cube.hbm.channels * cube.hbm.channel_bw_gbs * cube.hbm.efficiency,
        "bisection_gbs": narrow * cube.ucie.connections * cube.ucie.bw_gbs if mesh.w * mesh.h > 1 else 0.0,
    }
