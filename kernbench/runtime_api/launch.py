"""Launching a kernel: which PEs run it, and what they get for its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.host import Host
from kernbench.runtime_api.tensor import Tensor
from kernbench.triton_emu.runner import check_plain


def launch(host: Host, sip: int, name: str, kernel: Callable[..., object], args: Sequence[Any]) -> None:
    """Queue `kernel` on the PEs of a SIP that hold a shard of a tensor among `args`.

    Raises
    ------
    RuntimeError
        If a tensor is on another device, or none is among the arguments.
    TypeError
        If an argument is an array, or a tensor on the host, or the kernel does not take these arguments.
    """
    _check_signature(name, kernel, args)
    tensors = []
    values = []
    for i, arg in enumerate(args):
        where = f"launch of {name!r}: argument {i}"
        if isinstance(arg, np.ndarray) and arg.ndim:
            raise TypeError(f'{where} is a numpy array; a kernel takes device tensors: torch.from_numpy(a).to("ahbm")')
        if not isinstance(arg, DeviceTensor):
            if isinstance(arg, Tensor):
                shape = tuple(arg.shape)
                raise TypeError(f'{where} is a tensor on the host, {shape}; expected one on a device: .to("ahbm")')
            values.append(arg)
            continue
        if arg.device.index != sip:
            raise RuntimeError(
                f"{where}, tensor {arg.name!r}, is on {arg.device}, but the current device is ahbm:{sip}; choose with "
                'torch.ahbm.set_device(...), or move it: .to("ahbm")'
            )
        tensors.append(arg)
        values.append(arg.pointer)
    targets = sorted({pe for tensor in tensors for pe in tensor.pes})
    if not targets:
        raise RuntimeError(
            f"launch of {name!r}: no argument is a tensor with elements on ahbm:{sip}; a kernel runs where its tensors "
            'are: create one with device="ahbm"'
        )
    host.launch(sip, targets, kernel, tuple(values), name, [tensor._handle for tensor in tensors])


def _check_signature(name: str, kernel: Callable[..., object], args: Sequence[Any]) -> None:
    """Refuse at the launch what would fail on a PE."""
    check_plain(kernel)
    try:
        signature = inspect.signature(kernel)
    except ValueError:
        return
    try:
        signature.bind(*args, tl=None)
    except TypeError as error:
        label = getattr(kernel, "__name__", repr(kernel))
        raise TypeError(
            f"launch of {name!r}: kernel {label}{signature} cannot be called with {len(args)} arguments and tl: "
            f"{error}; a kernel takes the launch's arguments, then tl by name"
        ) from None
