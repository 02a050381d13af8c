"""The parallel groups of the calling rank, as in Megatron-LM's module of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from numbers import Integral
from weakref import WeakKeyDictionary

import numpy as np
from greenlet import getcurrent, greenlet

from kernbench.dtensor._device_mesh import DEVICE_TYPE, DeviceMesh
from kernbench.errors import ArgumentError, StateError
from kernbench.runtime_api._process_group import ProcessGroup
from kernbench.runtime_api.context import RuntimeContext, current_session

_AXES = ("tp", "cp", "ep", "dp", "pp")
_ORDER = "tp-cp-ep-dp-pp"


def rank_groups(sizes: Mapping[str, int], axes: str, order: str = _ORDER) -> list[list[int]]:
    """Return the groups of ranks that differ only along `axes`.

    Parameters
    ----------
    sizes : mapping
        Size of each axis; a missing axis has size 1.
    axes : str
        One axis, such as "tp", or several: "tp-cp".
    order : str
        All axes, the one with neighbouring ranks first.

    Returns
    -------
    list of list of int
        Each group ascending, groups by their first rank.

    Raises
    ------
    ArgumentError
        If the order does not match the sizes.

    Examples
    --------
    >>> rank_groups({"tp": 2, "dp": 3}, "tp"), rank_groups({"tp": 2, "dp": 3}, "dp")
    ([[0, 1], [2, 3], [4, 5]], [[0, 2, 4], [1, 3, 5]])
    """
    names = check_order(order, sizes)
    wanted = axes.split("-")
    unknown = [axis for axis in wanted if axis not in _AXES]
    if unknown:
        raise ArgumentError(f"axes = {axes!r}: {unknown[0]!r} is unknown; known: {', '.join(_AXES)}")
    shape = [sizes.get(name, 1) for name in names]
    grid = np.arange(prod(shape)).reshape(shape[::-1]).transpose()
    inside = [i for i, name in enumerate(names) if name in wanted]
    outside = [i for i in range(len(names)) if i not in inside]
    size = prod(shape[i] for i in inside)
    groups = grid.transpose(outside[::-1] + inside[::-1]).reshape(-1, size)
    return sorted(groups.tolist())


def check_order(order: str, sizes: Mapping[str, int]) -> list[str]:
    """Split an order string into axes; raise for an unknown or duplicate axis, or if one of size > 1 is missing."""
    names = order.split("-")
    for name in names:
        if name not in _AXES:
            raise ArgumentError(f"order = {order!r}: {name!r} is unknown; known: {', '.join(_AXES)}")
        if names.count(name) > 1:
            raise ArgumentError(f"order = {order!r}: {name!r} is a duplicate")
    for name, size in sizes.items():
        if size > 1 and name not in names:
            raise ArgumentError(f"order = {order!r}: {name!r} has size {size}, but is not in the order; add it")
    return names


_NAMES = {"tp": "tensor model", "pp": "pipeline model", "dp": "data", "cp": "context"}


@dataclass(frozen=True, slots=True)
class ParallelState:
    """A rank's machine and world, and the ranks of the world as a mesh with an axis for each of `_NAMES`."""

    torch: RuntimeContext
    world: ProcessGroup | None
    mesh: DeviceMesh

    def group(self, axis: str) -> ProcessGroup:
        return self.mesh.get_group(axis)


# Ranks are greenlets of one process; Megatron's module has one state per process.
_states: WeakKeyDictionary[greenlet, ParallelState] = WeakKeyDictionary()


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1, pipeline_model_parallel_size: int = 1, *, context_parallel_size: int = 1,
    order: str = _ORDER, torch: RuntimeContext | None = None,
) -> None:  # fmt: skip
    """Create the groups of all axes; called by every rank of the world, or by the program once before `spawn`.

    The remaining factor of the world is data parallel. Pipelines only have groups here; experts ("ep" in
    the order) are not modelled.

    Parameters
    ----------
    tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size : int
        Ranks of a group of each axis.
    order : str
        All axes, the one with neighbouring ranks first.
    torch : RuntimeContext, optional
        The session, with `torch.distributed` initialized; by default the current one.

    Raises
    ------
    StateError
        If the rank has groups already, or `torch.distributed` is not initialized.
    ArgumentError
        If a size is not an int, or the sizes do not divide the world, or the order does
        not fit them.
    """
    if _found() is not None:
        raise StateError(
            "initialize_model_parallel: this rank has its groups already; call destroy_model_parallel() first"
        )
    given: dict[str, object] = {
        "tensor_model_parallel_size": tensor_model_parallel_size,
        "pipeline_model_parallel_size": pipeline_model_parallel_size,
        "context_parallel_size": context_parallel_size,
    }
    for name, size in given.items():
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise ArgumentError(f"initialize_model_parallel: {name} = {size!r}; expected an int >= 1")
    torch = torch or current_session()
    dist = torch.distributed
    if not dist.is_initialized():
        raise StateError("initialize_model_parallel: torch.distributed.init_process_group() has to come first")
    world = dist.get_world_size()
    sizes = {"tp": tensor_model_parallel_size, "cp": context_parallel_size, "pp": pipeline_model_parallel_size}
    sizes["dp"] = data_size(world, sizes)
    axes = [axis for axis in dict.fromkeys((*check_order(order, sizes), *_NAMES)) if axis in _NAMES][::-1]
    grid = np.arange(world).reshape([sizes[axis] for axis in axes])
    mesh = DeviceMesh(DEVICE_TYPE, grid, mesh_dim_names=axes, torch=torch)
    _states[getcurrent()] = ParallelState(torch, dist.group.WORLD, mesh)


def data_size(world: int, sizes: Mapping[str, int]) -> int:
    """Size of the data axis: the world over the product of `sizes`; raise if that does not divide."""
    product = 1
    for axis, size in sizes.items():
        if size < 1:
            raise ArgumentError(f"initialize_model_parallel: the {_NAMES[axis]} parallel size is {size}; expected >= 1")
        product *= size
    if world % product:
        factors = " x ".join(f"{_NAMES[axis]} {size}" for axis, size in sizes.items())
        raise ArgumentError(
            f"initialize_model_parallel: a world of {world} ranks is not divisible by {product} ({factors})"
        )
    return world // product


def model_parallel_is_initialized() -> bool:
    return _found() is not None


def destroy_model_parallel() -> None:
    _states.pop(getcurrent(), None)


def state() -> ParallelState:
    found = _found()
    if found is None:
        raise StateError(
            "model parallel groups are not initialized on this rank; call "
            "parallel_state.initialize_model_parallel(...) first"
        )
    return found


def _found() -> ParallelState | None:
    """Return the state of the calling rank, or the one inherited from the program that spawned it."""
    caller = me = getcurrent()
    while caller is not None:
        found = _states.get(caller)
        if found is not None and found.torch.is_open:
            is_member = caller is me or found.world is found.torch.distributed.group.WORLD
            return found if is_member else None
        caller = caller.parent
    return None


def get_tensor_model_parallel_group() -> ProcessGroup:
    return state().group("tp")


def get_pipeline_model_parallel_group() -> ProcessGroup:
    return state().group("pp")


def get_data_parallel_group() -> ProcessGroup:
    return state().group("dp")


def get_context_parallel_group() -> ProcessGroup:
    return state().group("cp")


def get_tensor_model_parallel_rank() -> int:
    return get_tensor_model_parallel_group().rank()


def get_pipeline_model_parallel_rank() -> int:
    return get_pipeline_model_parallel_group().rank()


def get_data_parallel_rank() -> int:
    return get_data_parallel_group().rank()


def get_context_parallel_rank() -> int:
    return get_context_parallel_group().rank()


def get_tensor_model_parallel_world_size() -> int:
    return get_tensor_model_parallel_group().size()


def get_pipeline_model_parallel_world_size() -> int:
    return get_pipeline_model_parallel_group().size()


def get_data_parallel_world_size() -> int:
    return get_data_parallel_group().size()


def get_context_parallel_world_size() -> int:
    return get_context_parallel_group().size()
