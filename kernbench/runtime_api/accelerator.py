"""`torch.ahbm` and `torch.accelerator`: devices, their queues, their memory."""

from __future__ import annotations

from contextlib import AbstractContextManager

from kernbench.runtime_api import stream
from kernbench.runtime_api.host import Host
from kernbench.runtime_api.types import Device, DeviceLike


class Ahbm:
    """`torch.ahbm`, the device module: a device is a SIP."""

    Stream = stream.Stream

    def __init__(self, host: Host) -> None:
        self._host = host

    def is_available(self) -> bool:
        """Return whether there is a device."""
        return True

    def device_count(self) -> int:
        """Return the number of SIPs."""
        return self._host.n_devices

    def current_device(self) -> int:
        """Return the index of the calling rank's device."""
        return self._host.current

    def set_device(self, device: DeviceLike) -> None:
        """Make `device` the calling rank's."""
        self._host.set_current(device)

    def device(self, device: DeviceLike) -> AbstractContextManager[None]:
        """Make `device` the calling rank's inside a with-block."""
        return self._host.on(device)

    def synchronize(self, device: DeviceLike | None = None) -> None:
        """Run the clock until everything queued on `device` (the current one) is complete."""
        self._host.synchronize(self._host.index(device))

    def current_stream(self, device: DeviceLike | None = None) -> stream.Stream:
        """Return the queue of `device` (the current one); each device has one."""
        return self._host.stream(self._host.index(device))

    def Event(self, enable_timing: bool = False) -> stream.Event:
        """Return a mark to put into a stream; `elapsed_time` is simulated time in ms."""
        return stream.Event(self.current_stream, enable_timing)


class Accelerator:
    """`torch.accelerator`: the same devices under torch's general names."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def is_available(self) -> bool:
        """Return whether there is a device."""
        return True

    def device_count(self) -> int:
        """Return the number of SIPs."""
        return self._host.n_devices

    def current_accelerator(self, check_available: bool = False) -> Device:
        """Return the type of device that this machine has."""
        return Device("ahbm")

    def current_device_index(self) -> int:
        """Return the index of the calling rank's device."""
        return self._host.current

    def set_device_index(self, device: DeviceLike) -> None:
        """Make `device` the calling rank's."""
        self._host.set_current(device)

    def device_index(self, device: DeviceLike) -> AbstractContextManager[None]:
        """Make `device` the calling rank's inside a with-block."""
        return self._host.on(device)

    def synchronize(self, device: DeviceLike | None = None) -> None:
        """Run the clock until everything queued on `device` (the current one) is complete."""
        self._host.synchronize(self._host.index(device))

    def memory_allocated(self, device_index: DeviceLike | None = None) -> int:
        """Return the bytes of the tensors that the program has on a device; copies of replicated parts count."""
        return self._host.memory.allocated[self._host.index(device_index)]

    def max_memory_allocated(self, device_index: DeviceLike | None = None) -> int:
        """Return the most bytes that the program had in tensors at a time, since the start or the last reset."""
        return self._host.memory.peak[self._host.index(device_index)]

    def reset_peak_memory_stats(self, device_index: DeviceLike | None = None) -> None:
        """Begin to watch for the most bytes anew."""
        sip = self._host.index(device_index)
        self._host.memory.peak[sip] = self._host.memory.allocated[sip]
