"""DTensor: a tensor distributed over the ranks of a device mesh, each rank's part over the PEs of its device."""

from __future__ import annotations

from kernbench.dtensor._api import DTensor, distribute_tensor, empty, full, ones, rand, randn, zeros
from kernbench.dtensor._device_mesh import DeviceMesh, init_device_mesh
from kernbench.dtensor._placements import Partial, Replicate, Shard

__all__ = [
    "DTensor",
    "DeviceMesh",
    "Partial",
    "Replicate",
    "Shard",
    "distribute_tensor",
    "empty",
    "full",
    "init_device_mesh",
    "ones",
    "rand",
    "randn",
    "zeros",
]
