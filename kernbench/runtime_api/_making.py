"""Values of large tensors, computed by a thread while the program continues."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kernbench.runtime_api._device_tensor import DeviceTensor
    from kernbench.sim_engine._memory_store import MemoryStore

_LEAST = 1 << 20  # elements of a tensor that is filled by the thread
Told = Callable[[int], None]  # called with the number of elements that have been computed since the last call


class ValueMaker:
    """Fills tensors in the order of the calls: each gets the same values as without a thread."""

    def __init__(self, memory: MemoryStore) -> None:
        self._memory = memory
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[np.ndarray] | None = None

    def fill(self, tensor: DeviceTensor, make: Callable[[Told], np.ndarray]) -> Future[np.ndarray]:
        """Fill a tensor with `make(told)`, of its shape; return these values."""
        itemsize, memory = tensor.dtype.itemsize, self._memory
        idle = self._last is None or self._last.done()
        if idle and tensor.numel() < _LEAST:
            made: Future[np.ndarray] = Future()
            made.set_result(make(lambda _: None))
            tensor.poke(made.result())
            return made
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "kernbench values")

        def told(n: int) -> None:
            memory.made_bytes += n * itemsize

        made = self._thread.submit(make, told)
        self._last = self._thread.submit(lambda: tensor.bytes_of(made.result()))
        memory.due_bytes += tensor.numel() * itemsize
        tensor.poke_later(self._last)
        return made

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
