"""The parallel groups of the calling rank, as Megatron-LM's module of that name keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from kernbench.errors import ArgumentError, StateError
from kernbench.runtime_api.process_group import ProcessGroup
from kernbench.tp.rank_groups import ORDER, check_order, rank_groups

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

_NAMES = {"tp": "tensor model", "pp": "pipeline model", "dp": "data", "cp": "context"}


@dataclass(frozen=True, slots=True)
class ParallelState:
    """What a rank knows: its machine, and its groups by axis."""

    torch: RuntimeContext
    groups: Mapping[str, ProcessGroup]


# Ranks are greenlets of one process; Megatron's module has one state for each process.
_states: WeakKeyDictionary[greenlet, ParallelState] = WeakKeyDictionary()


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    *,
    context_parallel_size: int = 1,
    order: str = ORDER,
    torch: RuntimeContext,
) -> None:
    """Make the groups of all axes; every rank of the world calls it.

    What the sizes leave of the world is data parallel. Pipelines have groups here and nothing else; experts ("ep" in
    the order) are not modelled.

    Parameters
    ----------
    tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size : int
        Ranks of a group of each axis.
    order : str
        All axes, the one whose ranks are next to each other first.
    torch : RuntimeContext
        The machine, with `torch.distributed` initialized.

    Raises
    ------
    StateError
        If the rank has groups already, or `torch.distributed` is not initialized.
    ArgumentError
        If a size is not an int, or the sizes do not divide the world, or the order does
        not fit them.
    """
    if getcurrent() in _states:
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
    dist = torch.distributed
    if not dist.is_initialized():
        raise StateError("initialize_model_parallel: torch.distributed.init_process_group() has to come first")
    world = dist.get_world_size()
    sizes = {"tp": tensor_model_parallel_size, "cp": context_parallel_size, "pp": pipeline_model_parallel_size}
    sizes["dp"] = data_size(world, sizes)
    check_order(order, sizes)
    groups: dict[str, ProcessGroup] = {}
    for axis in _NAMES:
        for ranks in rank_groups(sizes, axis, order):
            group = dist.new_group(ranks)  # all ranks, members or not
            if isinstance(group, ProcessGroup):
                groups[axis] = group
    _states[getcurrent()] = ParallelState(torch, groups)


def data_size(world: int, sizes: Mapping[str, int]) -> int:
    """Return the size of the data axis: what `sizes` leave of the world.

    Raises
    ------
    ArgumentError
        If a size is below 1, or their product does not divide the world.
    """
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
    """Return whether the calling rank has its groups."""
    return getcurrent() in _states


def destroy_model_parallel() -> None:
    """Forget the groups of the calling rank."""
    _states.pop(getcurrent(), None)


def state() -> ParallelState:
    """Return what the calling rank knows.

    Raises
    ------
    StateError
        If `initialize_model_parallel` has not been called by it.
    """
    found = _states.get(getcurrent())
    if found is None:
        raise StateError(
            "model parallel groups are not initialized on this rank; call "
            "parallel_state.initialize_model_parallel(..., torch=torch) first"
        )
    return found


def _group(axis: str) -> ProcessGroup:
    return state().groups[axis]


def get_tensor_model_parallel_group() -> ProcessGroup:
    """Return the calling rank's group of the tensor axis."""
    return _group("tp")


def get_pipeline_model_parallel_group() -> ProcessGroup:
    """Return the calling rank's group of the pipeline axis."""
    return _group("pp")


def get_data_parallel_group() -> ProcessGroup:
    """Return the calling rank's group of the data axis."""
    return _group("dp")


def get_context_parallel_group() -> ProcessGroup:
    """Return the calling rank's group of the context axis."""
    return _group("cp")


def get_tensor_model_parallel_rank() -> int:
    """Return the calling rank's number in its tensor group."""
    return get_tensor_model_parallel_group().rank()


def get_pipeline_model_parallel_rank() -> int:
    """Return the calling rank's number in its pipeline group."""
    return get_pipeline_model_parallel_group().rank()


def get_data_parallel_rank() -> int:
    """Return the calling rank's number in its data group."""
    return get_data_parallel_group().rank()


def get_context_parallel_rank() -> int:
    """Return the calling rank's number in its context group."""
    return get_context_parallel_group().rank()


def get_tensor_model_parallel_world_size() -> int:
    """Return the ranks of a tensor group."""
    return get_tensor_model_parallel_group().size()


def get_pipeline_model_parallel_world_size() -> int:
    """Return the ranks of a pipeline group."""
    return get_pipeline_model_parallel_group().size()


def get_data_parallel_world_size() -> int:
    """Return the ranks of a data group."""
    return get_data_parallel_group().size()


def get_context_parallel_world_size() -> int:
    """Return the ranks of a context group."""
    return get_context_parallel_group().size()
