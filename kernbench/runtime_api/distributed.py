"""`torch.distributed`: collectives between ranks, on the PEs of their devices."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kernbench.ccl.install import AlgorithmLike
from kernbench.errors import StateError, quote
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api._devices import HostProgram, Start, warn
from kernbench.runtime_api._process_group import (
    NON_GROUP_MEMBER,
    Algorithms,
    GroupMember,
    Groups,
    ProcessGroup,
)
from kernbench.runtime_api.collective import Collectives
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import Call, Coalesced, Exchange, LaunchCall, P2POp, ReduceOp, TensorPart, Work

GroupLike = ProcessGroup | int | None
_Root = tuple[str, int | None, int | None] | tuple[str, int | None, int | None, int]  # src or dst, and a default


BACKEND = "ahbm"


@dataclass(frozen=True, slots=True)
class World:
    """As torch's `torch.distributed.group`: `WORLD` is the calling rank's world."""

    WORLD: ProcessGroup | None


class DistributedNames:
    GroupMember = GroupMember
    P2POp = P2POp
    ProcessGroup = ProcessGroup
    ReduceOp = ReduceOp
    Work = Work


class Distributed(DistributedNames):
    """`torch.distributed`: a rank drives a SIP, and a collective is a launch on each rank's PEs.

    Tensors have the same placement on every rank, and the PEs that hold a shard process it. A call
    without `async_op` returns when this rank's part is complete, and then None; with it, it returns a `Work` at once.
    A collective starts when its last rank has called it, and on each device after the device's earlier work.
    """

    def __init__(self, host: HostProgram, collectives: Collectives) -> None:
        self._host = host
        self._groups = Groups(host, collectives)
        self._coalescing: dict[int, Coalesced] = {}
        host.at_ranks_end.append(self._coalescing.clear)

    # -- groups

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self._host.rank_index in self._groups.scope.world

    def init_process_group(
        self, backend: str | None = None, init_method: str | None = None, timeout: object = None, world_size: int = -1,
        rank: int = -1, store: object = None, group_name: str = "", pg_options: Algorithms | None = None,
        device_id: object = None,
    ) -> None:  # fmt: skip
        """Make the calling rank a member of the world: all ranks of its spawn.

        Called before `spawn`, it makes a world of all SIPs of the machine, which the ranks of every later spawn
        inherit; only with `world_size=1` it makes a world of the program alone. A rank waits for all others. Takes no
        simulated time: queues are installed, by messages through the machine, when a group first uses them.

        Parameters
        ----------
        backend : str, optional
            "ahbm", the only one.
        init_method, timeout : optional
            As in torch; ignored, as ranks share a process.
        world_size, rank : int, optional
            Must equal those of the spawn.
        store, group_name : optional
            As `init_method`.
        pg_options : mapping, optional
            Maps a collective to an algorithm, or the name of one, that the world uses for it; by default the best
            with torch's meaning is chosen.
        device_id : optional
            As `init_method`.
        """
        self._host.check_open()
        scope, me, ranks = self._groups.scope, self._host.rank_index, self._host.ranks
        if ranks is not None and ranks.current is not None:
            size = len(ranks.ranks)
        else:
            ranks, size = None, 1 if world_size == 1 else self._host.n_devices
        if me in scope.world:
            raise ValueError("trying to initialize the default process group twice!")
        _check_backend(backend)
        algorithms = _algorithms(pg_options)
        if rank not in (-1, me) or world_size not in (-1, size):
            raise ValueError(
                f"init_process_group: rank = {rank}, world_size = {world_size}, but this is rank {me} of {size}; leave "
                "them out, and start as many ranks as there shall be: torch.multiprocessing.spawn(fn, nprocs=...)"
            )
        if ranks is None:
            devices = [self._host.current] if size == 1 else range(size)
            scope.world[me] = self._groups.make(range(size), devices, algorithms)
            scope.is_inherited = world_size != 1
            return
        if scope.entering is None:
            scope.entering = self._groups.make(range(size), range(size), algorithms)
        world = scope.world[me] = scope.entering
        if all(scope.world.get(r) is world for r in world.ranks):
            scope.entering = None
        world.call(Call("init_process_group", {"pg_options": algorithms})).wait()

    def destroy_process_group(self, group: ProcessGroup | None = None) -> None:
        """Leave a group; by default the world, and every group in it."""
        scope, me = self._groups.scope, self._host.rank_index
        found = self._groups.find(group)
        for each in (found, *found.children):
            each.leave(each.ranks if self._groups.speaks_for_all else (me,))
        if found is scope.world[me]:
            del scope.world[me]
            scope.is_inherited = False

    def get_backend(self, group: ProcessGroup | None = None) -> str:
        self._groups.find(group)
        return BACKEND

    def get_rank(self, group: ProcessGroup | int | None = None) -> int:
        """Return the calling rank's number in a group (the world); -1 if it is not a member."""
        return -1 if group == NON_GROUP_MEMBER else self._groups.find(group).rank()

    def get_world_size(self, group: ProcessGroup | int | None = None) -> int:
        """Return the number of ranks of a group (the world); -1 if the caller is not a member."""
        return -1 if self.get_rank(group) < 0 else self._groups.find(group).size()

    def new_group(
        self, ranks: Sequence[int] | None = None, timeout: object = None, backend: str | None = None,
        pg_options: Algorithms | None = None, use_local_synchronization: bool = False, group_desc: str | None = None,
        device_id: object = None, sort_ranks: bool = True,
    ) -> ProcessGroup | int:  # fmt: skip
        """Return a group of some ranks; `GroupMember.NON_GROUP_MEMBER` for the other ranks.

        Every rank of the world calls it, members or not, in the same order among its collectives of the world, and
        waits for all. Before `spawn` the program calls it once for all ranks, and always gets the group.

        Parameters
        ----------
        ranks : sequence of int, optional
            Global ranks; by default all.
        timeout : optional
            As for `init_process_group`.
        backend : str, optional
            "ahbm", the only one.
        pg_options : mapping, optional
            As for `init_process_group`.
        use_local_synchronization, group_desc, device_id : optional
            As in torch; ignored, as ranks share a process.
        sort_ranks : bool
            Number the members by their global ranks; else in the order of `ranks`.
        """
        world = self._groups.find(None)
        _check_backend(backend)
        algorithms = _algorithms(pg_options)
        members = list(world.ranks if ranks is None else ranks)
        if sort_ranks:
            members.sort()
        strangers = [rank for rank in members if rank not in world.ranks]
        if strangers or len(set(members)) < len(members) or not members:
            raise ValueError(
                f"new_group: ranks = {quote(ranks)}: expected different ranks of the world, 0 to {world.size() - 1}"
            )
        if self._groups.speaks_for_all:
            return self._groups.split(world, members, algorithms)
        meeting, work = world.meet(Call("new_group", {"ranks": members, "pg_options": algorithms}))
        if not meeting.shared:
            meeting.shared = dict.fromkeys(world.ranks, self._groups.split(world, members, algorithms))
        work.wait()
        group: ProcessGroup = meeting.shared[world.rank()]
        return group if world.rank() in members else NON_GROUP_MEMBER

    def new_subgroups(
        self, group_size: int | None = None, group: ProcessGroup | None = None, timeout: object = None,
        backend: str | None = None, pg_options: Algorithms | None = None, group_desc: str | None = None,
    ) -> tuple[ProcessGroup | int, list[ProcessGroup | int]]:  # fmt: skip
        """Split a group (the world) into groups of `group_size` neighbouring ranks; every rank of the world calls it.

        Returns the calling rank's group and all groups, each as `new_group` returns it. By default one group has as
        many ranks as the machine has SIPs. The other parameters are those of `new_group`.

        Raises
        ------
        ValueError
            If `group_size` does not divide the number of ranks.
        """
        ranks = self._groups.find(group).ranks
        size = self._host.n_devices if group_size is None else group_size
        if size < 1 or len(ranks) % size:
            raise ValueError(f"new_subgroups: group_size = {size} must divide the {len(ranks)} ranks of the group")
        parts = [ranks[i : i + size] for i in range(0, len(ranks), size)]
        made = [self.new_group(part, backend=backend, pg_options=pg_options) for part in parts]
        own = (found for part, found in zip(parts, made, strict=True) if self._host.rank_index in part)
        return next(own, NON_GROUP_MEMBER), made

    def get_process_group_ranks(self, group: ProcessGroup | None = None) -> list[int]:
        """Return the global ranks of a group (the world), in its order."""
        return list(self._groups.find(group).ranks)

    def get_global_rank(self, group: ProcessGroup | None, group_rank: int) -> int:
        found = self._groups.find(group)
        if not 0 <= group_rank < found.size():
            raise ValueError(f"group rank {quote(group_rank)} is not part of group {found.ranks}")
        return found.ranks[group_rank]

    def get_group_rank(self, group: ProcessGroup | None, global_rank: int) -> int:
        found = self._groups.find(group)
        if global_rank not in found.ranks:
            raise ValueError(f"global rank {quote(global_rank)} is not part of group {found.ranks}")
        return found.index(global_rank)

    @property
    def group(self) -> World:
        """`group.WORLD`: the default group of collectives; None before there is one."""
        return World(self._groups.scope.world.get(self._host.rank_index))

    # -- collectives

    def all_reduce(
        self, tensor: Tensor, op: ReduceOp | str = ReduceOp.SUM, group: GroupLike = None, async_op: bool = False
    ) -> Work | None:
        """Reduce the tensors of all ranks, element by element; every rank's tensor becomes the result.

        A group whose algorithm has another contribution reduces each cube's or PE's shard instead;
        its launches say so in the result.
        """
        return self._collective("all_reduce", group, async_op, tensor, op)

    def broadcast(
        self, tensor: Tensor, src: int | None = None, group: GroupLike = None, async_op: bool = False,
        group_src: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Copy the tensor of rank `src` to every rank's."""
        return self._collective("broadcast", group, async_op, tensor, root=("src", src, group_src))

    def reduce(
        self, tensor: Tensor, dst: int | None = None, op: ReduceOp | str = ReduceOp.SUM, group: GroupLike = None,
        async_op: bool = False, group_dst: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Reduce the tensors of all ranks into that of rank `dst`; the others' are undefined afterwards."""
        return self._collective("reduce", group, async_op, tensor, op, ("dst", dst, group_dst))

    def all_gather_single(
        self, output_tensor: Tensor, input_tensor: Tensor, group: GroupLike = None, async_op: bool = False
    ) -> Work | None:
        """Gather all ranks' inputs, concatenated along dim 0 or stacked, in every rank's output."""
        own = "input", input_tensor
        return self._packed("all_gather_single", group, async_op, own, ("output", output_tensor))

    all_gather_into_tensor = all_gather_single  # torch's older name

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, op: ReduceOp | str = ReduceOp.SUM, group: GroupLike = None,
        async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        """Reduce all ranks' `input`, and scatter the result: rank i's `output` becomes part i."""
        return self._packed("reduce_scatter_single", group, async_op, ("output", output), ("input", input), op)

    reduce_scatter_tensor = reduce_scatter_single  # torch's older name

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None, group: GroupLike = None, async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        """Send the i-th part of `input` along dim 0 to rank i; `output` becomes the parts from all, in order.

        Parts are equal unless their sizes are given: `input_split_sizes[i]` rows go to rank i, and
        `output_split_sizes[i]` rows are received from it.
        """
        if (found := self._enter(group, "all_to_all_single")) is None:
            return None
        target = self._checked(found, "all_to_all_single", output, "output")
        source = self._checked(found, "all_to_all_single", input, "input")
        _check_types("all_to_all_single", target, source)
        sends = _splits(found, "input", source, input_split_sizes)
        receives = _splits(found, "output", target, output_split_sizes)
        terms = {"dtype": str(source.dtype), "row": tuple(source.shape[1:])}
        return self._done(found.call(Exchange("all_to_all", terms, sends=sends, receives=receives)), async_op)

    def barrier(
        self, group: GroupLike = None, async_op: bool = False, device_ids: object = None, timeout: object = None
    ) -> Work | None:
        """Wait for all ranks: one PE of each device notifies the others. `device_ids` and `timeout` are ignored."""
        found = self._enter(group, "barrier")
        return None if found is None else self._done(found.call(LaunchCall("barrier")), async_op)

    def monitored_barrier(self, group: GroupLike = None, timeout: object = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks, on the host: it takes no simulated time.

        A rank that ends without calling it is named in the DeadlockError of the others, whatever `timeout` and
        `wait_all_ranks` are.
        """
        if (found := self._enter(group, "monitored_barrier")) is not None:
            found.call(Call("monitored_barrier")).wait()

    # -- lists of tensors

    def all_gather(
        self, tensor_list: Sequence[Tensor], tensor: Tensor, group: GroupLike = None, async_op: bool = False
    ) -> Work | None:
        """Gather rank i's tensor in `tensor_list[i]`, on every rank."""
        return self._packed("all_gather", group, async_op, ("tensor", tensor), ("tensor_list", tensor_list))

    def reduce_scatter(
        self, output: Tensor, input_list: Sequence[Tensor], op: ReduceOp | str = ReduceOp.SUM,
        group: GroupLike = None, async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        """Reduce all ranks' `input_list[i]` into rank i's `output`."""
        return self._packed("reduce_scatter", group, async_op, ("output", output), ("input_list", input_list), op)

    def gather(
        self, tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int | None = None,
        group: GroupLike = None, async_op: bool = False, group_dst: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Gather rank i's tensor in `gather_list[i]` of rank `dst` (default: 0); the other ranks pass no list."""
        root = "dst", dst, group_dst, 0
        return self._rooted("gather", group, async_op, tensor, root, "gather_list", gather_list)

    def scatter(
        self, tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int | None = None,
        group: GroupLike = None, async_op: bool = False, group_src: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Scatter `scatter_list[i]` of rank `src` (default: 0) to rank i's tensor; the other ranks pass no list."""
        root = "src", src, group_src, 0
        return self._rooted("scatter", group, async_op, tensor, root, "scatter_list", scatter_list)

    def all_to_all(
        self, output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: GroupLike = None,
        async_op: bool = False,
    ) -> Work | None:  # fmt: skip
        """Send `input_tensor_list[i]` to rank i; receive from rank i in `output_tensor_list[i]`, which is as large."""
        if (found := self._enter(group, "all_to_all")) is None:
            return None
        sent = _parts(self._list(found, "all_to_all", "input_tensor_list", input_tensor_list, None))
        received = _parts(self._list(found, "all_to_all", "output_tensor_list", output_tensor_list, None))
        return self._done(found.call(Exchange("all_to_all", sends=sent, receives=received)), async_op)

    # -- messages: matched by source, target, tag and order

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
        if (work := self._receive("recv", tensor, src, group, tag, group_src)) is None:
            return -1
        work.wait()
        assert work.source is not None, "a message that has arrived has a sender"
        return self.get_global_rank(self._groups.find(group), work.source)

    def isend(
        self, tensor: Tensor, dst: int | None = None, group: GroupLike = None, tag: int = 0,
        group_dst: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Start sending a tensor to a rank; the tensor may be written again when the handle is complete."""
        if (found := self._enter(group, "isend")) is None:
            return None
        target = self._peer_of(found, "dst", dst, group_dst)
        own = self._checked(found, "isend", tensor)
        return found.mailbox.send(
            Exchange("message", _kind(own), label="send", sends={1: TensorPart(own)}, tag=tag), target, tag
        ).detach()

    def irecv(
        self, tensor: Tensor, src: int | None = None, group: GroupLike = None, tag: int = 0,
        group_src: int | None = None,
    ) -> Work | None:  # fmt: skip
        """Start receiving a tensor, from any rank unless one is named."""
        work = self._receive("irecv", tensor, src, group, tag, group_src)
        return None if work is None else work.detach()

    def batch_isend_irecv(self, p2p_op_list: Sequence[P2POp]) -> list[Work]:
        """Start sends and receives, all before any is waited for; return their handles."""
        if not p2p_op_list or not all(isinstance(op, P2POp) for op in p2p_op_list):
            raise ValueError(
                f"p2p_op_list = {quote(p2p_op_list)}: expected a list of torch.distributed.P2POp, not empty"
            )
        works = [op.op(op.tensor, op.peer, op.group, op.tag, op.group_peer) for op in p2p_op_list]
        return [work for work in works if work is not None]

    # -- objects

    def all_gather_object(self, object_list: list[Any], obj: Any, group: GroupLike = None) -> None:
        """Gather a copy of rank i's `obj` in `object_list[i]`, on every rank.

        Objects, here and in the three functions below, are pickled and pass through the host: they take no simulated
        time.
        """
        if (found := self._enter(group, "all_gather_object")) is not None:
            _fill("all_gather_object: object_list", object_list, self._objects(found, "all_gather_object", obj))

    def gather_object(
        self, obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: GroupLike = None,
        group_dst: int | None = None,
    ) -> None:  # fmt: skip
        """Gather a copy of rank i's `obj` in `object_gather_list[i]` of rank `dst` (default: 0)."""
        if (found := self._enter(group, "gather_object")) is None:
            return
        root = self._member(found, "dst", dst, group_dst, 0)
        self._check_root(found, "gather_object: object_gather_list", object_gather_list, root)
        objects = self._objects(found, "gather_object", obj, root)
        if object_gather_list is not None:
            _fill("gather_object: object_gather_list", object_gather_list, objects)

    def broadcast_object_list(
        self, object_list: list[Any], src: int | None = None, group: GroupLike = None, device: object = None,
        group_src: int | None = None,
    ) -> None:  # fmt: skip
        """Replace the objects in every rank's list by copies of those in the list of rank `src` (default: 0)."""
        if (found := self._enter(group, "broadcast_object_list")) is None:
            return
        root = self._member(found, "src", src, group_src, 0)
        given = object_list if found.rank() == root else None
        objects = self._objects(found, "broadcast_object_list", given, root)
        if given is None:
            _fill("broadcast_object_list: object_list", object_list, objects[root])

    def scatter_object_list(
        self, scatter_object_output_list: list[Any], scatter_object_input_list: Sequence[Any] | None = None,
        src: int | None = None, group: GroupLike = None, group_src: int | None = None,
    ) -> None:  # fmt: skip
        """Set the first entry of rank i's output list to a copy of `scatter_object_input_list[i]` of rank `src`."""
        if (found := self._enter(group, "scatter_object_list")) is None:
            return
        root = self._member(found, "src", src, group_src, 0)
        if not scatter_object_output_list:
            raise ValueError("scatter_object_list: scatter_object_output_list is empty; expected at least one entry")
        given = scatter_object_input_list if found.rank() == root else None
        if found.rank() == root and (given is None or len(given) != found.size()):
            raise ValueError(
                f"scatter_object_list: scatter_object_input_list = {quote(given)}; expected {found.size()} objects on "
                f"rank {found.ranks[root]}, one for each rank"
            )
        scatter_object_output_list[0] = self._objects(found, "scatter_object_list", given, root)[root][found.rank()]

    def _objects(self, group: ProcessGroup, name: str, obj: Any, root: int | None = None) -> list[Any]:
        """Wait for the call of every member on the host, and return copies of their objects."""
        data = pickle.dumps(obj)
        meeting, work = group.meet(Call(name, _terms(group, root=root)))
        meeting.shared[group.rank()] = data
        work.wait()
        return [pickle.loads(meeting.shared[m]) for m in range(group.size())]  # noqa: S301  pickled above, in this process

    # -- order

    def cooperative_yield(self) -> None:
        """Let the other ranks run as far as they can at this simulated time; an extension of torch.

        Each of them runs until it waits for the clock, or yields itself. Without other ranks it does nothing.
        """
        if self._host.ranks is not None:
            self._host.ranks.yield_turn()

    @contextmanager
    def _coalescing_manager(
        self, group: GroupLike = None, device: object = None, async_ops: bool = False
    ) -> Iterator[Coalesced]:
        """Queue the collectives of a with-block in order, and wait once, at its end.

        With `async_ops` the block does not wait: call `wait()` on the object that it yields. `device` is ignored.
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

    # -- shared helpers

    def _collective(
        self, name: str, group: GroupLike, async_op: bool, tensor: Tensor, op: ReduceOp | str | None = None,
        root: _Root | None = None,
    ) -> Work | None:  # fmt: skip
        if (found := self._enter(group, name)) is None:
            return None
        own = self._checked(found, name, tensor)
        member = None if root is None else self._member(found, *root)
        return self._launch(found, async_op, name, {"tensor": own}, [(own, 1)], op, member)

    def _rooted(
        self, name: str, group: GroupLike, async_op: bool, tensor: Tensor, root: _Root, what: str,
        given: Sequence[Tensor] | None,
    ) -> Work | None:  # fmt: skip
        """Gather or scatter: the root also passes a list, one tensor for each rank."""
        if (found := self._enter(group, name)) is None:
            return None
        own, member = self._checked(found, name, tensor), self._member(found, *root)
        self._check_root(found, f"{name}: {what}", given, member)
        mine, listed = (
            {member: TensorPart(own)},
            _parts([] if given is None else self._list(found, name, what, given, own)),
        )
        sends, receives = (mine, listed) if name == "gather" else (listed, mine)
        call = Exchange(name, _terms(found, root=member), {"tensor": own}, sends=sends, receives=receives)
        return self._done(found.call(call), async_op)

    def _packed(
        self, name: str, group: GroupLike, async_op: bool, own: tuple[str, Tensor],
        joint: tuple[str, Tensor | Sequence[Tensor]], op: ReduceOp | str | None = None,
    ) -> Work | None:  # fmt: skip
        """Gather every rank's part in `joint`, a tensor or a list; with `op`, reduce every rank's `joint` to parts.

        Kernels take one run of bytes: other tensors are copied before a reduction, or after a gather.
        """
        if (found := self._enter(group, name)) is None:
            return None
        n, (label, given) = found.size(), joint
        part = self._checked(found, name, own[1], own[0])
        tensors = {"input" if op is None else "output": part}
        if isinstance(given, Sequence):
            parts = self._list(found, name, label, given, part)
        else:
            whole = tensors[label] = self._checked(found, name, given, label)
            parts = [whole]
            _check_types(name, whole, part)
            if whole.numel() != part.numel() * n:
                raise ValueError(
                    f"{name}: {tuple(whole.shape)} has {whole.numel()} elements; expected {n} x {part.numel()}, as "
                    f"{tuple(part.shape)} of each of {n} ranks"
                )
        pack, copies = found.packer.packed(self._host, parts, part, n, unpack=op is None)
        if op is None:
            return self._launch(found, async_op, "all_gather", tensors, [(part, 1), (pack, n)], after=copies)
        return self._launch(found, async_op, "reduce_scatter", tensors, [(pack, n), (part, 1)], op, before=copies)

    def _launch(
        self, group: ProcessGroup, async_op: bool, name: str, tensors: Mapping[str, DeviceTensor],
        args: Sequence[tuple[DeviceTensor, int]], op: ReduceOp | str | None = None, root: int | None = None,
        before: Sequence[Start] = (), after: Sequence[Start] = (),
    ) -> Work | None:  # fmt: skip
        kind = None if op is None else ReduceOp.of(op)
        options: dict[str, object] = {} if kind in (None, ReduceOp.SUM) else {"op": kind.value}
        if root is not None:
            options["root"] = root
        terms = _terms(group, kind, root)
        call = LaunchCall(name, terms, tensors, args=args, options=options, before=before, after=after)
        return self._done(group.call(call), async_op)

    def _receive(
        self, name: str, tensor: Tensor, src: int | None, group: GroupLike, tag: int, group_src: int | None
    ) -> Work | None:
        if (found := self._enter(group, name)) is None:
            return None
        source = None if src is None and group_src is None else self._peer_of(found, "src", src, group_src)
        own = self._checked(found, name, tensor)
        call = Exchange("message", _kind(own), label="recv", receives={0: TensorPart(own)}, tag=tag)
        return found.mailbox.receive(call, source, tag)

    # -- arguments

    def _peer_of(self, group: ProcessGroup, what: str, rank: int | None, group_rank: int | None) -> int:
        member = self._member(group, what, rank, group_rank)
        if member == group.rank():
            raise ValueError(f"{what} = {group.ranks[member]} is the calling rank itself; use copy_")
        return member

    def _enter(self, group: GroupLike, name: str) -> ProcessGroup | None:
        """Return the group of a call; None, with a warning, if the caller is not a member, as in torch."""
        found = None if group == NON_GROUP_MEMBER else self._groups.find(group)
        if self._groups.speaks_for_all and found is not None and found.size() > 1:
            raise StateError(
                f"{name}: no rank is running: {found!r} was made before spawn; call it in a rank: "
                f"torch.multiprocessing.spawn(fn, nprocs={self._groups.find(None).size()})"
            )
        if found is None or found.rank() < 0:
            self._groups.find(None)
            warn(f"Running {name} on global rank {self._host.rank_index} which does not belong to the given group.")
            return None
        return found

    def _member(
        self, group: ProcessGroup, what: str, rank: int | None, group_rank: int | None, default: int | None = None
    ) -> int:
        """Return the member that a global rank or a rank in the group denotes; exactly one must be given."""
        if rank is None and group_rank is None:
            rank = default
        if (rank is None) == (group_rank is None):
            raise ValueError(f"{what} = {rank}, group_{what} = {group_rank}: expected one of them")
        if rank is None:
            assert group_rank is not None
            rank = self.get_global_rank(group, group_rank)
        return self.get_group_rank(group, rank)

    def _checked(self, group: ProcessGroup, name: str, tensor: Tensor, what: str = "tensor") -> DeviceTensor:
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

    def _done(self, work: Work, async_op: bool) -> Work | None:
        """Return the handle, or wait and return None; inside a coalescing manager, the manager waits."""
        coalesced = self._coalescing.get(self._host.rank_index)
        if coalesced is not None:
            coalesced.works.append(work.detach())
            return None
        if async_op:
            return work.detach()
        work.wait()
        return None

    def _check_root(self, group: ProcessGroup, what: str, given: object, root: int) -> None:
        if (given is not None) != (group.rank() == root):
            raise ValueError(
                f"{what} is given by rank {group.ranks[root]}, and by no other; this is rank {self._host.rank_index}"
            )

    def _list(
        self, group: ProcessGroup, name: str, what: str, given: Sequence[Tensor], like: DeviceTensor | None
    ) -> list[DeviceTensor]:
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


def _algorithms(pg_options: Algorithms | None) -> dict[str, AlgorithmLike]:
    if not isinstance(pg_options, Mapping | None):
        raise TypeError(
            f"pg_options = {quote(pg_options)}: expected an algorithm for each of some collectives: "
            '{"all_reduce": ...}'
        )
    return dict(pg_options or {})


def _check_backend(backend: str | None) -> None:
    if backend not in (None, BACKEND):
        raise ValueError(f"backend = {quote(backend)} is unknown; the only one here is {BACKEND!r}")


def _check_types(name: str, output: DeviceTensor, input: DeviceTensor) -> None:
    if output.dtype is not input.dtype:
        raise TypeError(f"{name}: tensors of {output.dtype} and {input.dtype}; expected one type")


def _terms(group: ProcessGroup, op: ReduceOp | None = None, root: int | None = None) -> dict[str, object]:
    return ({"op": op} if op else {}) | ({} if root is None else {"root": group.ranks[root]})


def _kind(tensor: DeviceTensor) -> dict[str, object]:
    return {"shape": tuple(tensor.shape), "dtype": str(tensor.dtype)}


def _parts(tensors: Sequence[DeviceTensor]) -> dict[int, TensorPart]:
    return {i: TensorPart(tensor) for i, tensor in enumerate(tensors)}


def _fill(what: str, target: list[Any], objects: Sequence[Any]) -> None:
    if len(target) != len(objects):
        raise ValueError(f"{what} has {len(target)} entries; expected {len(objects)}, one for each object")
    target[:] = objects


def _splits(group: ProcessGroup, what: str, tensor: DeviceTensor, sizes: Sequence[int] | None) -> dict[int, TensorPart]:
    n, size = tensor.shape[0] if tensor.dim() else 0, group.size()
    if sizes is None:
        if not tensor.dim() or n % size:
            raise ValueError(
                f"all_to_all_single: {what} {tuple(tensor.shape)}: {size} ranks do not divide dim 0; give "
                f"{what}_split_sizes"
            )
        sizes = [n // size] * size
    if len(sizes) != size or sum(sizes) != n or min(sizes) < 0:
        raise ValueError(
            f"all_to_all_single: {what}_split_sizes = {quote(list(sizes))}: expected {size} sizes whose sum is {n}, "
            f"dim 0 of {tuple(tensor.shape)}"
        )
    return {i: TensorPart(tensor, sum(sizes[:i]), rows) for i, rows in enumerate(sizes)}
