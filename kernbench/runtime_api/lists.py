"""The part of `torch.distributed` whose tensors come in lists, one for each rank."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.exchange import Route, between
from kernbench.runtime_api.messaging import GroupLike, Messaging
from kernbench.runtime_api.process_group import ProcessGroup
from kernbench.runtime_api.reduce_op import ReduceOp
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import Call, Work


class Lists(Messaging):
    """Collectives on lists of tensors, each of them like the one that every rank gives."""

    def all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, group: GroupLike = None, async_op: bool = False
    ) -> Work | None:
        """Let `tensor_list[i]` become rank i's tensor, on every rank."""
        if (found := self._enter(group, "all_gather")) is None:
            return None
        part = self._checked(found, "all_gather", tensor)
        parts = self._list(found, "all_gather", "tensor_list", tensor_list, part)
        pack, after = found.packer.packed(self._host, parts, part, found.size(), unpack=True)
        return self._done(
            found.call(Call("all_gather", {"input": part}, own=(pack, found.size()), after=after)), async_op
        )

    def reduce_scatter(
        self, output: Tensor, input_list: Sequence[Tensor], op: ReduceOp | str = ReduceOp.SUM,
        group: GroupLike = None, async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        """Join all ranks' `input_list[i]` in rank i's `output`."""
        if (found := self._enter(group, "reduce_scatter")) is None:
            return None
        part = self._checked(found, "reduce_scatter", output, "output")
        parts = self._list(found, "reduce_scatter", "input_list", input_list, part)
        pack, before = found.packer.packed(self._host, parts, part, found.size(), unpack=False)
        call = Call("reduce_scatter", {"output": part}, ReduceOp.of(op), own=(pack, found.size()), before=before)
        return self._done(found.call(call), async_op)

    def gather(
        self, tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int | None = None,
        group: GroupLike = None, async_op: bool = False, group_dst: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Let `gather_list[i]` of rank `dst` (0 unless given) become rank i's tensor; the other ranks give no list."""
        if (found := self._enter(group, "gather")) is None:
            return None
        own = self._checked(found, "gather", tensor)
        root = self._root(found, "dst", dst, group_dst)
        parts = self._rooted(found, "gather", "gather_list", gather_list, own, root)
        return self._done(found.call(Call("gather", {"tensor": own}, root=root, own=parts, ways=_gather)), async_op)

    def scatter(
        self, tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int | None = None,
        group: GroupLike = None, async_op: bool = False, group_src: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Let rank i's tensor become `scatter_list[i]` of rank `src` (0 unless given); the others give no list."""
        if (found := self._enter(group, "scatter")) is None:
            return None
        own = self._checked(found, "scatter", tensor)
        root = self._root(found, "src", src, group_src)
        parts = self._rooted(found, "scatter", "scatter_list", scatter_list, own, root)
        return self._done(found.call(Call("scatter", {"tensor": own}, root=root, own=parts, ways=_scatter)), async_op)

    def all_to_all(
        self, output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: GroupLike = None,
        async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        """Send `input_tensor_list[i]` to rank i; `output_tensor_list[i]` becomes what comes from it."""
        if (found := self._enter(group, "all_to_all")) is None:
            return None
        lists = [
            self._list(found, "all_to_all", what, given, None)
            for what, given in (
                ("input_tensor_list", input_tensor_list),
                ("output_tensor_list", output_tensor_list),
            )
        ]
        return self._done(found.call(Call("all_to_all", own=tuple(lists), ways=_all_to_all)), async_op)

    def _done(self, work: Work, async_op: bool) -> Work | None:
        """Return the handle, or wait and return nothing; inside a coalescing manager, leave the waiting to it."""
        coalesced = self._coalescing.get(self._host.rank_index)
        if coalesced is not None:
            coalesced.works.append(work.detach())
            return None
        if async_op:
            return work.detach()
        work.wait()
        return None

    def _root(self, group: ProcessGroup, what: str, rank: int | None, group_rank: int | None) -> int:
        return self._member(group, what, 0 if rank is None and group_rank is None else rank, group_rank)

    def _rooted(
        self, group: ProcessGroup, name: str, what: str, given: Sequence[Tensor] | None, like: DeviceTensor, root: int
    ) -> tuple[DeviceTensor, ...]:
        """Return the list of the root; nothing elsewhere."""
        if (given is not None) != (group.rank() == root):
            raise ValueError(
                f"{name}: {what} is given by rank {group.ranks[root]}, and by no other; this is rank "
                f"{self._host.rank_index}"
            )
        return () if given is None else tuple(self._list(group, name, what, given, like))

    def _list(
        self, group: ProcessGroup, name: str, what: str, given: Sequence[Tensor], like: DeviceTensor | None
    ) -> list[DeviceTensor]:
        """Return a list of one tensor for each rank, each with the elements of `like`."""
        if len(given) != group.size():
            raise ValueError(f"{name}: {what} has {len(given)} tensors; expected {group.size()}, one for each rank")
        found = [self._checked(group, name, t, f"{what}[{i}]") for i, t in enumerate(given)]
        for i, t in enumerate(found):
            if like is not None and (t.numel(), t.dtype) != (like.numel(), like.dtype):
                raise ValueError(
                    f"{name}: {what}[{i}] is {tuple(t.shape)} {t.dtype}; expected it to be like the other tensor, "
                    f"{tuple(like.shape)} {like.dtype}"
                )
        return found


def _gather(calls: list[Call]) -> list[Route]:
    root = calls[0].root or 0
    pairs = zip(calls, calls[root].own, strict=True)
    return [between(i, call.tensors["tensor"], root, part) for i, (call, part) in enumerate(pairs)]


def _scatter(calls: list[Call]) -> list[Route]:
    root = calls[0].root or 0
    pairs = zip(calls, calls[root].own, strict=True)
    return [between(root, part, i, call.tensors["tensor"]) for i, (call, part) in enumerate(pairs)]


def _all_to_all(calls: list[Call]) -> list[Route]:
    return [
        between(r, sender.own[0][j], j, receiver.own[1][r])
        for r, sender in enumerate(calls)
        for j, receiver in enumerate(calls)
    ]
