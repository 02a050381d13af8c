"""A backend that keeps what it is given, and a short way to a `tl` on it."""

from kernbench._dtypes import as_dtype
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu.testing import MockBackend, MockMemory
from kernbench.triton_emu.tl_context import TLContext


class Recorder(MockBackend):
    def __init__(self, memory=None, data=True):
        super().__init__(memory, data)
        self.commands = []
        self.blocked = []
        self.dropped = []

    def submit(self, command):
        self.commands.append(command)
        super().submit(command)

    def block(self, on):
        self.blocked.append(on)

    def drop(self, value):
        # Values stay, so that tests can look at the commands afterwards.
        self.dropped.append(value)

    @property
    def names(self):
        return [command.name for command in self.commands]


def program(*arrays, data=True, pe=(0, 0), grid=(1, 1)):
    """Return a tl, its recorder, and a pointer to each array."""
    memory = MockMemory()
    pointers = [memory.add(f"x{i}", array) for i, array in enumerate(arrays)]
    backend = Recorder(memory, data)
    return TLContext(backend, pe, grid), backend, *pointers


def pointer(dtype="f16", va=1 << 20):
    return Pointer(va, as_dtype(dtype))
