"""A grid of ranks with one or more axes, and a process group for each line of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from kernbench.errors import ArgumentError, StateError
from kernbench.runtime_api._process_group import ProcessGroup

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

DEVICE_TYPE = "ahbm"


class DeviceMesh:
    """A grid of ranks, as seen by the calling rank.

    Parameters
    ----------
    device_type : str
        "ahbm".
    mesh : array of int
        Global ranks.
    mesh_dim_names : sequence of str, optional
        A name for each axis.
    torch : RuntimeContext
        The machine, with `torch.distributed` initialized.

    Attributes
    ----------
    mesh : array
        The ranks.
    mesh_dim_names : tuple of str or None
    torch : RuntimeContext

    Raises
    ------
    ArgumentError
        If the ranks are not different ranks of the world, or the names do not match the axes.
    """

    def __init__(
        self, device_type: str, mesh: Sequence[int] | np.ndarray, *, mesh_dim_names: Sequence[str] | None = None,
        torch: RuntimeContext,
    ) -> None:  # fmt: skip
        if device_type != DEVICE_TYPE:
            raise ArgumentError(f'DeviceMesh: device_type = {device_type!r}; expected "{DEVICE_TYPE}"')
        ranks = np.asarray(mesh)
        world = torch.distributed.get_world_size()
        if sorted(set(ranks.flat)) != sorted(ranks.flat) or not all(0 <= rank < world for rank in ranks.flat):
            raise ArgumentError(f"DeviceMesh: {ranks.tolist()} are not different ranks of a world of {world}")
        names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        if names is not None and (len(names) != ranks.ndim or len(set(names)) < len(names)):
            raise ArgumentError(f"DeviceMesh: mesh_dim_names = {names}; expected {ranks.ndim} different names")
        self.mesh, self.mesh_dim_names, self.torch = ranks, names, torch
        self._groups: list[list[ProcessGroup]] = []  # per axis: the caller's group, or all before ranks are spawned
        for axis in range(ranks.ndim):
            lines = np.moveaxis(ranks, axis, -1).reshape(-1, ranks.shape[axis])
            made = [torch.distributed.new_group(line.tolist(), sort_ranks=False) for line in lines]  # by all ranks
            self._groups.append([group for group in made if isinstance(group, ProcessGroup)])
        self.draws = 0

    @classmethod
    def of_group(
        cls, group: ProcessGroup | None, torch: RuntimeContext, mesh_dim_names: tuple[str] | None = None
    ) -> DeviceMesh:
        """Return the ranks of a group as a mesh of one axis; without a group, the calling rank alone."""
        mesh = cls.__new__(cls)
        mesh.mesh = np.array([torch._host.rank_index] if group is None else group.ranks)
        mesh.mesh_dim_names, mesh.torch, mesh.draws, mesh._groups = mesh_dim_names, torch, 0, [[]]
        if group is not None:
            mesh._groups[0].append(group)
        return mesh

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mesh.shape)

    @property
    def ndim(self) -> int:
        return int(self.mesh.ndim)

    def size(self, mesh_dim: int | None = None) -> int:
        return prod(self.shape) if mesh_dim is None else self.shape[mesh_dim]

    def get_coordinate(self) -> list[int] | None:
        """Return the calling rank's coordinates; None if it is not in the mesh."""
        found = np.argwhere(self.mesh == self.torch._host.rank_index)
        return found[0].tolist() if len(found) else None

    def coordinate(self) -> list[int]:
        """Return the calling rank's coordinates; raise if it is not in the mesh. An extension of torch."""
        at = self.get_coordinate()
        if at is None:
            raise self._stranger()
        return at

    def _stranger(self) -> StateError:
        return StateError(f"rank {self.torch._host.rank_index} is not in the mesh {self.mesh.tolist()}")

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return the calling rank's index along an axis; optional for a mesh with one axis."""
        return self.coordinate()[self._axis(mesh_dim)]

    def get_group(self, mesh_dim: int | str | None = None) -> ProcessGroup:
        """Return the calling rank's group along an axis; optional for a mesh with one axis."""
        group = next((group for group in self._groups[self._axis(mesh_dim)] if group.rank() >= 0), None)
        if group is None:
            raise self._stranger()
        return group

    def __getitem__(self, name: str) -> DeviceMesh:
        """Return the calling rank's line along the named axis, as a mesh of one axis."""
        return self.of_group(self.get_group(name), self.torch, (name,))

    def _axis(self, mesh_dim: int | str | None) -> int:
        if mesh_dim is None and self.ndim == 1:
            return 0
        if isinstance(mesh_dim, int) and 0 <= mesh_dim < self.ndim:
            return mesh_dim
        names = self.mesh_dim_names or ()
        if mesh_dim in names:
            return names.index(str(mesh_dim))
        known = ", ".join(names) or f"0 to {self.ndim - 1}"
        raise ArgumentError(f"DeviceMesh: axis {mesh_dim!r} does not exist; known: {known}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return np.array_equal(self.mesh, other.mesh) and self.mesh_dim_names == other.mesh_dim_names

    def __hash__(self) -> int:
        return hash((self.mesh.tobytes(), self.mesh_dim_names))

    def __repr__(self) -> str:
        names = "" if self.mesh_dim_names is None else f", mesh_dim_names={self.mesh_dim_names}"
        return f"DeviceMesh({DEVICE_TYPE!r}, {self.mesh.tolist()}{names})"


def init_device_mesh(
    device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None, torch: RuntimeContext
) -> DeviceMesh:
    """Create the grid of all ranks, in row-major order; every rank of the world must call it.

    Parameters
    ----------
    device_type : str
        "ahbm".
    mesh_shape : sequence of int
        Ranks along each axis.
    mesh_dim_names : sequence of str, optional
        A name for each axis.
    torch : RuntimeContext
        The machine; `torch.distributed` is initialized if it is not.
    """
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(DEVICE_TYPE)
    world = torch.distributed.get_world_size()
    if prod(mesh_shape) != world:
        raise ArgumentError(f"init_device_mesh: a mesh of shape {tuple(mesh_shape)} does not hold {world} ranks")
    return DeviceMesh(
        device_type, np.arange(world).reshape(tuple(mesh_shape)), mesh_dim_names=mesh_dim_names, torch=torch
    )
