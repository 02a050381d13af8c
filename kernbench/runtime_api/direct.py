"""`torch.collective`: an algorithm on tensors, one for each device, from a program that drives them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernbench.ccl.install import AlgorithmLike, CclLike, load_ccl_config, resolve_algorithm_config
from kernbench.ccl.plan import Plan, plan
from kernbench.config import AUTO
from kernbench.errors import CollectiveMismatchError, quote
from kernbench.runtime_api.collective import title
from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.tensor import Tensor

if TYPE_CHECKING:
    from kernbench.ccl.group import Place, Target
    from kernbench.runtime_api.host import Host
    from kernbench.triton_emu.handles import Pointer

Given = Tensor | Sequence[Tensor]


def collective(
    host: Host,
    tensors: Sequence[Given],
    algorithm: AlgorithmLike | None,
    config: CclLike | None,
    name: str | None,
    n_slots: int | None,
    call: dict[str, Any],
) -> Plan:
    """Queue a collective on the devices of `tensors`, and return what it came to.

    Raises
    ------
    ConfigError
        If the algorithm does not run there.
    CollectiveMismatchError
        If the devices' tensors are not alike.
    TypeError, ValueError
        If there are none, they are empty, or not on a device.
    """
    given = _given(tensors)
    firsts = [own[0] for own in given]
    sips = [_sip(tensor) for tensor in firsts]
    _check_alike(firsts)
    places = {_sip(tensor): tensor.pes for tensor in firsts}
    planned = _planned(host, firsts, algorithm, config, n_slots, sips, places)
    buffers: dict[Place, list[Pointer]] = {}
    n_elem: dict[Place, int] = {}
    for own in given:
        for cube, pe in own[0].pes:
            place = _sip(own[0]), cube, pe
            buffers[place] = [_shard(tensor, cube, pe)[0] for tensor in own]
            n_elem[place] = _shard(own[0], cube, pe)[1]
    starts = host.collectives.starts(planned, "direct", buffers, n_elem, name or title(planned.algorithm), call)
    for own in given:
        host.start(_sip(own[0]), starts[_sip(own[0])], [tensor._handle for tensor in own])
    return planned


def _sip(tensor: DeviceTensor) -> int:
    return tensor._handle.sip


def _given(tensors: object) -> list[tuple[DeviceTensor, ...]]:
    """Return the tensors of each device, checked one by one."""
    if not isinstance(tensors, Sequence) or isinstance(tensors, str):
        raise TypeError(
            f"collective: {quote(tensors, 160)} is no sequence; give a list with one tensor for each device: [x, y]"
        )
    if not tensors:
        raise ValueError("collective: no tensors; give a list with one for each device")
    return [_on_device(i, each) for i, each in enumerate(tensors)]


def _on_device(i: int, given: object) -> tuple[DeviceTensor, ...]:
    found: list[DeviceTensor] = []
    for tensor in given if isinstance(given, list | tuple) and given else (given,):
        if not isinstance(tensor, DeviceTensor) or (found and tensor.device != found[0].device):
            raise TypeError(
                f"collective: tensor {i} is {quote(tensor, 160)}; expected one on a device (and, of several, all on "
                'the same): .to("ahbm:0")'
            )
        if not tensor.shards:
            raise ValueError(f"collective: tensor {i} is {tuple(tensor.shape)}, which is empty; leave the call out")
        found.append(tensor)
    return tuple(found)


def _check_alike(tensors: Sequence[DeviceTensor]) -> None:
    kinds = {(tuple(tensor.shape), tensor.dtype) for tensor in tensors}
    if len(kinds) != 1 or len({_sip(tensor) for tensor in tensors}) != len(tensors):
        said = "\n".join(f"  {tensor.device}: {tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors)
        raise CollectiveMismatchError(f"collective: expected one tensor of one shape and type for each device:\n{said}")
    cuts = [[s.index for s in sorted(tensor.shards, key=lambda s: (s.cube, s.pe))] for tensor in tensors]
    for tensor, cut in zip(tensors, cuts, strict=True):
        if cut != cuts[0] or tensor.stride() != tensors[0].stride():
            raise CollectiveMismatchError(
                f"collective: the tensor of {tensor.device} is cut in another way than that of {tensors[0].device}, "
                f"into {len(cut)} and {len(cuts[0])} shards; place them with the same DPPolicy on every device"
            )


def _planned(
    host: Host,
    tensors: Sequence[DeviceTensor],
    algorithm: AlgorithmLike | None,
    config: CclLike | None,
    n_slots: int | None,
    sips: Sequence[int],
    places: dict[int, list[Target]],
) -> Plan:
    if algorithm is None:
        config = load_ccl_config(config, host.config)
        algorithm = config.defaults.algorithm
    own: dict[str, Any] = {} if n_slots is None else {"n_slots": n_slots}
    if algorithm != AUTO:
        found = resolve_algorithm_config(algorithm, config, host.config)
        return plan(replace(found, **own), host.config, sips, places)
    first, known = tensors[0], load_ccl_config(config, host.config)
    if own:
        entries = {name: replace(entry, **own) for name, entry in known.algorithms.items()}
        known = replace(known, algorithms=entries)
    itemsize = first.dtype.itemsize
    nbytes = max(_shard(first, *target)[1] for target in first.pes) * itemsize
    return host.collectives.chosen(known, "all_reduce", nbytes, itemsize, sips, first.pes)


def _shard(tensor: DeviceTensor, cube: int, pe: int) -> tuple[Pointer, int]:
    """Return where a PE's part of a tensor is, and its elements; of one that it has none of, the tensor's start."""
    own = [s for s in tensor.shards if (s.cube, s.pe) == (cube, pe)]
    first = min((s.offset for s in own), default=0) // tensor.dtype.itemsize
    return tensor.pointer + first, sum(s.nbytes for s in own) // tensor.dtype.itemsize
