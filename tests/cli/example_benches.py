"""Benches that end in each way a bench can end; tests name them by their dotted path."""

from __future__ import annotations

import numpy as np

from kernbench.errors import KernbenchError, VerificationError


def copies(torch):
    """Copies 4 KiB to the device and back."""
    print("hello from the bench")
    x = torch.from_numpy(np.arange(1024, dtype=np.float32)).to("ahbm")
    x.cpu()


def idle(torch):
    """Asks nothing."""


def fails(torch):
    """Meets an error that kernbench raises on purpose."""
    raise KernbenchError("first line\nsecond line")


def crashes(torch):
    """Has a bug."""
    raise RuntimeError("a bug in the bench")


def wrong(torch):
    """Finds a wrong number."""
    copies(torch)
    raise VerificationError("element 3 is 4.0, expected 5.0")


def endless(torch):
    """Reads for ever."""
    x = torch.zeros(4, device="ahbm")
    while True:
        x.cpu()
