"""The part of `torch.distributed` that sends tensors from one rank to another."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from kernbench.errors import StateError, quote
from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.exchange import Route, between
from kernbench.runtime_api.groups import Groups
from kernbench.runtime_api.p2p import P2POp
from kernbench.runtime_api.process_group import NON_GROUP_MEMBER, ProcessGroup
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import Call, Work

GroupLike = ProcessGroup | int | None


class Messaging(Groups):
    """Sends and receives, matched by source, target, tag and order; the ranks' tensors may lie in different ways."""

    def send(
        self, tensor: Tensor, dst: int | None = None, group: GroupLike = None, tag: int = 0,
        group_dst: int | None = None,
    ) -> None:  # fmt: skip
        """Send a tensor to a rank; return when it has left."""
        work = self.isend(tensor, dst, group, tag, group_dst)
        if work is not None:
            work.wait()

    def recv(
        self, tensor: Tensor, src: int | None = None, group: GroupLike = None, tag: int = 0,
        group_src: int | None = None,
    ) -> int:  # fmt: skip
        """Receive a tensor, from any rank unless one is named; return the global rank that has sent it."""
        if (found := self._enter(group, "recv")) is None:
            return -1
        source = None if src is None and group_src is None else self._peer_of(found, "src", src, group_src)
        work, sender = found.mailbox.receive(self._message(found, "recv", tensor), source, tag)
        work.wait()
        return found.ranks[sender()]

    def isend(
        self, tensor: Tensor, dst: int | None = None, group: GroupLike = None, tag: int = 0,
        group_dst: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Send a tensor to a rank, and go on; the tensor may be written again when the handle is complete."""
        if (found := self._enter(group, "isend")) is None:
            return None
        target = self._peer_of(found, "dst", dst, group_dst)
        return found.mailbox.send(self._message(found, "isend", tensor), target, tag).detach()

    def irecv(
        self, tensor: Tensor, src: int | None = None, group: GroupLike = None, tag: int = 0,
        group_src: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Receive a tensor, from any rank unless one is named, and go on."""
        if (found := self._enter(group, "irecv")) is None:
            return None
        source = None if src is None and group_src is None else self._peer_of(found, "src", src, group_src)
        return found.mailbox.receive(self._message(found, "irecv", tensor), source, tag)[0].detach()

    def batch_isend_irecv(self, p2p_op_list: Sequence[P2POp]) -> list[Work]:
        """Begin sends and receives, all before any is waited for; return a handle of each."""
        if not p2p_op_list or not all(isinstance(op, P2POp) for op in p2p_op_list):
            raise ValueError(
                f"p2p_op_list = {quote(p2p_op_list)}: expected a list of torch.distributed.P2POp, not empty"
            )
        works = [op.op(op.tensor, op.peer, group=op.group, tag=op.tag, **self._peer(op)) for op in p2p_op_list]
        return [work for work in works if work is not None]

    def _peer_of(self, group: ProcessGroup, what: str, rank: int | None, group_rank: int | None) -> int:
        """Return the number of another member."""
        member = self._member(group, what, rank, group_rank)
        if member == group.rank():
            raise ValueError(f"{what} = {group.ranks[member]} is the calling rank itself; use copy_")
        return member

    @staticmethod
    def _peer(op: P2POp) -> dict[str, int]:
        key = "group_dst" if op.op.__name__ == "isend" else "group_src"
        return {} if op.group_peer is None else {key: op.group_peer}

    def _message(self, group: ProcessGroup, name: str, tensor: Tensor) -> Call:
        own = self._checked(group, name, tensor)
        more = {"shape": tuple(own.shape), "dtype": str(own.dtype)}
        return Call("message", more=more, own=(own,), ways=_ways, end=name.removeprefix("i"))

    def _enter(self, group: GroupLike, name: str) -> ProcessGroup | None:
        """Return the group of a call; None, with a warning, for who is no member, as in torch."""
        found = None if group == NON_GROUP_MEMBER else self._group(group)
        if self._speaks_for_all and found is not None and found.size() > 1:
            raise StateError(
                f"{name}: no rank is running: {found!r} was made before spawn; call it in a rank: "
                f"torch.multiprocessing.spawn(fn, nprocs={self._group(None).size()})"
            )
        if found is None or found.rank() < 0:
            self._group(None)
            warnings.warn(
                f"Running {name} on global rank {self._host.rank_index} which does not belong to the given group.",
                stacklevel=3,
            )
            return None
        return found

    def _member(self, group: ProcessGroup, what: str, rank: int | None, group_rank: int | None) -> int:
        """Return the number in the group that `src` or `dst`, or its spelling in the group, means."""
        if (rank is None) == (group_rank is None):
            raise ValueError(f"{what} = {rank}, group_{what} = {group_rank}: expected one of them")
        if group_rank is not None:
            self.get_global_rank(group, group_rank)
            return group_rank
        assert rank is not None
        return self.get_group_rank(group, rank)

    def _checked(self, group: ProcessGroup, name: str, tensor: Tensor, what: str = "tensor") -> DeviceTensor:
        """Return a tensor of the calling rank's device that a collective can work on."""
        rank, device = self._host.rank_index, group.devices[group.rank()]
        if not isinstance(tensor, DeviceTensor):
            raise TypeError(f'{name}: {what} is {quote(tensor, 160)}; expected one on ahbm:{device}: .to("ahbm")')
        if tensor.sip != device:
            raise RuntimeError(
                f"{name}: {what} {tensor.name!r} is on {tensor.device}, but rank {rank} drives ahbm:{device}; create "
                f'it with device="ahbm" in the rank, or move it: .to("ahbm:{device}")'
            )
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: {what} {tensor.name!r} is not contiguous; copy it: .contiguous()")
        return tensor


def _ways(calls: list[Call]) -> list[Route]:
    return [between(0, calls[0].own[0], 1, calls[1].own[0])]
