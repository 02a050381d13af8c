"""`torch.distributed`: collectives between ranks, on the PEs of their devices."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kernbench.errors import CollectiveMismatchError, quote
from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.exchange import Route, rows_between
from kernbench.runtime_api.lists import Lists
from kernbench.runtime_api.messaging import GroupLike
from kernbench.runtime_api.p2p import P2POp
from kernbench.runtime_api.process_group import GroupMember, ProcessGroup
from kernbench.runtime_api.reduce_op import ReduceOp
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import Call, Coalesced, Meeting, Work


class DistributedNames:
    """The classes of `torch.distributed`."""

    GroupMember = GroupMember
    P2POp = P2POp
    ProcessGroup = ProcessGroup
    ReduceOp = ReduceOp
    Work = Work


class Distributed(DistributedNames, Lists):
    """`torch.distributed`: a rank drives a SIP, and a collective is a launch on each rank's PEs.

    Tensors are spread in the same way on every rank, and every shard is worked on by the PEs that hold it. A call
    without `async_op` returns when this rank's part is complete, and then None; with it, it returns a `Work` at once.
    A collective starts when its last rank has called it, and on each device after what the device was asked before.
    """

    def all_reduce(
        self, tensor: Tensor, op: ReduceOp | str = ReduceOp.SUM, group: GroupLike = None, async_op: bool = False
    ) -> Work | None:
        """Join the tensors of all ranks, element by element; every rank's tensor becomes the result.

        A group that was opened with an algorithm of another contribution joins each cube's or PE's shard instead;
        its launches say so in the result.
        """
        if (found := self._enter(group, "all_reduce")) is None:
            return None
        own = self._checked(found, "all_reduce", tensor)
        return self._done(found.call(Call("all_reduce", {"tensor": own}, ReduceOp.of(op))), async_op)

    def broadcast(
        self, tensor: Tensor, src: int | None = None, group: GroupLike = None, async_op: bool = False,
        group_src: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Copy the tensor of rank `src` to every rank's."""
        if (found := self._enter(group, "broadcast")) is None:
            return None
        root = self._member(found, "src", src, group_src)
        own = self._checked(found, "broadcast", tensor)
        return self._done(found.call(Call("broadcast", {"tensor": own}, root=root)), async_op)

    def reduce(
        self, tensor: Tensor, dst: int | None = None, op: ReduceOp | str = ReduceOp.SUM, group: GroupLike = None,
        async_op: bool = False, group_dst: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Join the tensors of all ranks in that of rank `dst`; the others' are undefined afterwards."""
        if (found := self._enter(group, "reduce")) is None:
            return None
        root = self._member(found, "dst", dst, group_dst)
        own = self._checked(found, "reduce", tensor)
        return self._done(found.call(Call("reduce", {"tensor": own}, ReduceOp.of(op), root)), async_op)

    def all_gather_single(
        self, output_tensor: Tensor, input_tensor: Tensor, group: GroupLike = None, async_op: bool = False
    ) -> Work | None:
        """Let every rank's output become the concatenation along dim 0, or the stack, of all ranks' inputs."""
        if (found := self._enter(group, "all_gather_single")) is None:
            return None
        joint, part = self._pair(found, "all_gather_single", output_tensor, input_tensor)
        pack, after = found.packer.packed(self._host, [joint], part, found.size(), unpack=True)
        tensors = {"output": joint, "input": part}
        return self._done(found.call(Call("all_gather", tensors, own=(pack, found.size()), after=after)), async_op)

    all_gather_into_tensor = all_gather_single  # torch's older name of it

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, op: ReduceOp | str = ReduceOp.SUM, group: GroupLike = None,
        async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        """Join all ranks' `input`; rank i's `output` becomes the i-th of as many parts as there are ranks."""
        if (found := self._enter(group, "reduce_scatter_single")) is None:
            return None
        joint, part = self._pair(found, "reduce_scatter_single", input, output)
        pack, before = found.packer.packed(self._host, [joint], part, found.size(), unpack=False)
        tensors = {"output": part, "input": joint}
        call = Call("reduce_scatter", tensors, ReduceOp.of(op), own=(pack, found.size()), before=before)
        return self._done(found.call(call), async_op)

    reduce_scatter_tensor = reduce_scatter_single  # torch's older name of it

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None, group: GroupLike = None, async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        """Send the i-th part of `input` along dim 0 to rank i; `output` becomes the parts from all, in order.

        Parts are equal unless their sizes are given: `input_split_sizes[i]` rows go to rank i, and
        `output_split_sizes[i]` come from it.
        """
        if (found := self._enter(group, "all_to_all_single")) is None:
            return None
        target = self._checked(found, "all_to_all_single", output, "output")
        source = self._checked(found, "all_to_all_single", input, "input")
        if source.dtype is not target.dtype:
            raise TypeError(f"all_to_all_single: output is {target.dtype}, input {source.dtype}; expected one type")
        own = (
            source, _splits(found, "input", source, input_split_sizes),
            target, _splits(found, "output", target, output_split_sizes),
        )  # fmt: skip
        more = {"dtype": str(source.dtype), "row": tuple(source.shape[1:])}
        return self._done(found.call(Call("all_to_all", more=more, own=own, ways=_split_ways)), async_op)

    def barrier(
        self, group: GroupLike = None, async_op: bool = False, device_ids: object = None, timeout: object = None
    ) -> Work | None:
        """Let every rank wait for all: one PE of each device tells the others. The last two are torch's, not used."""
        found = self._enter(group, "barrier")
        return None if found is None else self._done(found.call(Call("barrier")), async_op)

    def monitored_barrier(self, group: GroupLike = None, timeout: object = None, wait_all_ranks: bool = False) -> None:
        """Let every rank wait for all, on the host: it takes no simulated time.

        A rank that ends without calling it is named in the DeadlockError of the others, whatever `timeout` and
        `wait_all_ranks` are.
        """
        self._meet(group, Call("monitored_barrier", runs=False))

    # -- objects

    def all_gather_object(self, object_list: list[Any], obj: Any, group: GroupLike = None) -> None:
        """Let `object_list[i]` become a copy of rank i's `obj`, on every rank.

        Objects, here and in the three functions below, are pickled and pass through the host: they take no simulated
        time.
        """
        objects = self._objects(group, "all_gather_object", obj)
        if objects is not None:
            _fill("all_gather_object: object_list", object_list, objects)

    def gather_object(
        self, obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: GroupLike = None,
        group_dst: int | None = None,
    ) -> None:  # fmt: skip
        """Let `object_gather_list[i]` of rank `dst` (0 unless given) become a copy of rank i's `obj`."""
        if (found := self._enter(group, "gather_object")) is None:
            return
        root = self._root(found, "dst", dst, group_dst)
        if (object_gather_list is not None) != (found.rank() == root):
            raise ValueError(
                f"gather_object: object_gather_list is given by rank {found.ranks[root]}, and by no other; this is "
                f"rank {self._host.rank_index}"
            )
        objects = self._objects(found, "gather_object", obj, root)
        if objects is not None and object_gather_list is not None:
            _fill("gather_object: object_gather_list", object_gather_list, objects)

    def broadcast_object_list(
        self, object_list: list[Any], src: int | None = None, group: GroupLike = None, device: object = None,
        group_src: int | None = None,
    ) -> None:  # fmt: skip
        """Let the objects in every rank's list become copies of those in the list of rank `src` (0 unless given)."""
        if (found := self._enter(group, "broadcast_object_list")) is None:
            return
        root = self._root(found, "src", src, group_src)
        given = object_list if found.rank() == root else None
        objects = self._objects(found, "broadcast_object_list", given, root)
        if objects is not None and given is None:
            _fill("broadcast_object_list: object_list", object_list, objects[root])

    def scatter_object_list(
        self, scatter_object_output_list: list[Any], scatter_object_input_list: Sequence[Any] | None = None,
        src: int | None = None, group: GroupLike = None, group_src: int | None = None,
    ) -> None:  # fmt: skip
        """Let the first entry of rank i's output list become a copy of `scatter_object_input_list[i]` of rank `src`."""
        if (found := self._enter(group, "scatter_object_list")) is None:
            return
        root = self._root(found, "src", src, group_src)
        if not scatter_object_output_list:
            raise ValueError("scatter_object_list: scatter_object_output_list is empty; expected at least one entry")
        given = scatter_object_input_list if found.rank() == root else None
        if found.rank() == root and (given is None or len(given) != found.size()):
            raise ValueError(
                f"scatter_object_list: scatter_object_input_list = {quote(given)}; expected {found.size()} objects on "
                f"rank {found.ranks[root]}, one for each rank"
            )
        objects = self._objects(found, "scatter_object_list", given, root)
        if objects is not None:
            scatter_object_output_list[0] = objects[root][found.rank()]

    def _objects(self, group: GroupLike, name: str, obj: Any, root: int | None = None) -> list[Any] | None:
        """Return copies of what every member gives; None for who is no member."""
        meeting = self._meet(group, Call(name, root=root, own=(pickle.dumps(obj),), runs=False))
        if meeting is None:
            return None
        given = [meeting.calls[m].own[0] for m in range(len(meeting.members))]
        return [pickle.loads(data) for data in given]  # noqa: S301  pickled above, in this process

    def _meet(self, group: GroupLike, call: Call) -> Meeting | None:
        """Wait for the call of every member on the host; None for who is no member."""
        if (found := self._enter(group, call.name)) is None:
            return None
        meeting, work = found.meet(call)
        work.wait()
        return meeting

    # -- order

    def cooperative_yield(self) -> None:
        """Let the other ranks run as far as they can at this simulated time; an extension, not torch's.

        Each of them runs until it waits for the clock, or yields itself. Without other ranks it does nothing.
        """
        if self._host.ranks is not None:
            self._host.ranks.give_way()

    @contextmanager
    def _coalescing_manager(
        self, group: GroupLike = None, device: object = None, async_ops: bool = False
    ) -> Iterator[Coalesced]:
        """Queue the collectives of a with-block one behind another, and wait once, at its end.

        With `async_ops` the block does not wait: call `wait()` on what it yields. `device` is torch's, not used.
        """
        me = self._host.rank_index
        if me in self._coalescing:
            raise RuntimeError("_coalescing_manager: with-blocks of it cannot be nested")
        self._enter(group, "_coalescing_manager")
        coalesced = self._coalescing[me] = Coalesced()
        try:
            yield coalesced
        finally:
            del self._coalescing[me]
        if not async_ops:
            coalesced.wait()

    def _pair(self, group: ProcessGroup, name: str, joint: Tensor, part: Tensor) -> tuple[DeviceTensor, DeviceTensor]:
        """Return the tensor that holds every rank's part, and the part, checked."""
        gathers = name.startswith("all_gather")
        whole = self._checked(group, name, joint, "output" if gathers else "input")
        own = self._checked(group, name, part, "input" if gathers else "output")
        if whole.dtype is not own.dtype:
            raise TypeError(f"{name}: tensors of {whole.dtype} and {own.dtype}; expected one type")
        if whole.numel() != own.numel() * group.size():
            raise ValueError(
                f"{name}: {tuple(whole.shape)} has {whole.numel()} elements; expected {group.size()} x {own.numel()}, "
                f"as {tuple(own.shape)} of each of {group.size()} ranks"
            )
        return whole, own


def _fill(what: str, target: list[Any], objects: Sequence[Any]) -> None:
    if len(target) != len(objects):
        raise ValueError(f"{what} has {len(target)} entries; expected {len(objects)}, one for each object")
    target[:] = objects


def _splits(group: ProcessGroup, what: str, tensor: DeviceTensor, sizes: Sequence[int] | None) -> list[int]:
    """Return the rows of each rank's part of a tensor."""
    n, size = tensor.shape[0] if tensor.dim() else 0, group.size()
    if sizes is None:
        if not tensor.dim() or n % size:
            raise ValueError(
                f"all_to_all_single: {what} {tuple(tensor.shape)}: {size} ranks do not divide dim 0; give "
                f"{what}_split_sizes"
            )
        return [n // size] * size
    if len(sizes) != size or sum(sizes) != n or min(sizes) < 0:
        raise ValueError(
            f"all_to_all_single: {what}_split_sizes = {quote(list(sizes))}: expected {size} sizes whose sum is {n}, "
            f"dim 0 of {tuple(tensor.shape)}"
        )
    return list(sizes)


def _split_ways(calls: list[Call]) -> list[Route]:
    """Return what moves in an all-to-all.

    Raises
    ------
    CollectiveMismatchError
        If a rank expects another number of rows than is sent to it.
    """
    found = []
    for r, sender in enumerate(calls):
        source, to_send, _, _ = sender.own
        for j, receiver in enumerate(calls):
            _, _, target, to_get = receiver.own
            if to_send[j] != to_get[r]:
                raise CollectiveMismatchError(
                    f"all_to_all_single: rank {r} of the group sends {to_send[j]} rows to rank {j}, which expects "
                    f"{to_get[r]}; input_split_sizes = {to_send}, output_split_sizes there = {to_get}"
                )
            if to_send[j]:
                found.append(rows_between(r, source, sum(to_send[:j]), j, target, sum(to_get[:r]), to_send[j]))
    return found
