"""Programs of a user's own, for the explorer to run."""

from __future__ import annotations

import threading

import numpy as np

# Set by the program when it is under way, and awaited by it where a test says so.
started = threading.Event()


def copies(torch, *, count: int = 4, fail: bool = False):
    """Copy a tensor to the device and back, so and so often."""
    print("copying")
    for _ in range(count):
        a = torch.ones(64, 64, dtype=torch.float16, device="ahbm")
        if torch.engine.data:
            assert np.all(a.numpy() == 1)
            torch.checks += 1
    if fail:
        raise ZeroDivisionError("as asked for")
    return f"{count} copies"


def endless(torch, *, nbytes: int = 4096):
    """Copy until told to stop."""
    while True:
        torch.ones(64, 64, dtype=torch.float16, device="ahbm").numpy()
        started.set()


def spins(torch):
    """Launch a kernel that never returns to the engine."""

    def kernel(x, *, tl):
        started.set()
        while True:
            pass

    torch.launch("spins", kernel, torch.zeros(4, device="ahbm"))
