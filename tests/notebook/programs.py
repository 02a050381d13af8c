"""Programs of a user's own, for the explorer to run."""

from __future__ import annotations

import sys
import threading

import numpy as np

# Set by the program when it is under way, and awaited by it where a test says so.
started, going = threading.Event(), threading.Event()


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


def spinning(torch, *, kernel: bool = False, catches: bool = False):
    """Never end, and never ask the engine for anything: in the program, or in a kernel."""

    def spin(*_, tl=None):
        started.set()
        while True:
            try:
                sum(range(1000))
            except Exception:
                if not catches:
                    raise

    if not kernel:
        spin()
    torch.launch("spin", spin, torch.ones(4, 4, dtype=torch.float16, device="ahbm"))
    torch.ahbm.synchronize()


def exits(torch):
    """Leave the interpreter."""
    sys.exit(3)


def patient(torch, *, size: int = 4):
    """Work on the host before the first launch and after the last one, each time until a test lets it go on."""
    going.wait()
    x = torch.zeros(size, device="ahbm")
    torch.launch("k", lambda *_, tl: None, x)
    x.numpy()
    going.clear()
    going.wait()
