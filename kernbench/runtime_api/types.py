"""Names of devices: `torch.device`, and the `--device` of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernbench.errors import quote

_TYPES = ("ahbm", "cpu")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Device:
    """`torch.device`: a type ("ahbm" or "cpu") and perhaps an index. "ahbm:1" is SIP 1.

    Parameters
    ----------
    type : str, int or Device
        "ahbm", "ahbm:1", "cpu"; an integer is the index of an ahbm device.
    index : int, optional
        Index; None means the current device of the caller.

    Examples
    --------
    >>> Device("ahbm:1")
    device(type='ahbm', index=1)
    >>> str(Device(0)), str(Device("cpu"))
    ('ahbm:0', 'cpu')
    """

    type: str
    index: int | None

    def __init__(self, type: str | int | Device, index: int | None = None) -> None:
        if isinstance(type, Device):
            name, number = type.type, type.index if index is None else index
        elif isinstance(type, int) and not isinstance(type, bool):
            name, number = "ahbm", type
        elif isinstance(type, str):
            name, number = _parsed(type, index)
        else:
            raise TypeError(f"device = {quote(type)} must be a string, an index or a torch.device")
        if number is not None and number < 0:
            raise RuntimeError(f"device index = {number} must be >= 0")
        object.__setattr__(self, "type", name)
        object.__setattr__(self, "index", number)

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{index})"


def _parsed(text: str, index: int | None) -> tuple[str, int | None]:
    match = re.fullmatch(rf"({'|'.join(_TYPES)})(?::(\d+))?", text)
    if match is None or (match[2] and index is not None):
        raise RuntimeError(f"device = {quote(text)} is not a device; expected one of: ahbm, ahbm:<index>, cpu")
    return match[1], int(match[2]) if match[2] else index


DeviceLike = str | int | Device


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """The device on which a run begins: SIP `sip`, or with None or "all" the first.

    Every SIP of the machine is accessible either way; "all" only states that the program uses them.

    Examples
    --------
    >>> DeviceSelector("all"), DeviceSelector(1)
    (DeviceSelector(sip=None), DeviceSelector(sip=1))
    """

    sip: int | str | None = None

    def __post_init__(self) -> None:
        match = re.fullmatch(r"all|sip:(\d+)", self.sip) if isinstance(self.sip, str) else None
        if match is not None:
            object.__setattr__(self, "sip", None if match[1] is None else int(match[1]))
        elif self.sip is not None and (type(self.sip) is not int or self.sip < 0):
            raise ValueError(f"device = {self.sip!r} selects nothing; expected all or sip:N")

    @property
    def first(self) -> int:
        assert not isinstance(self.sip, str)
        return self.sip or 0

    def __str__(self) -> str:
        return "all" if self.sip is None else f"sip:{self.sip}"


def resolve_device(device: str | DeviceSelector | None, n_sips: int | None = None) -> DeviceSelector:
    """Parse "all" (or None) or "sip:N".

    Raises ValueError if it is neither, or if a machine of `n_sips` SIPs has no SIP N.

    >>> resolve_device("sip:1")
    DeviceSelector(sip=1)
    """
    selector = device if isinstance(device, DeviceSelector) else DeviceSelector(device)
    if n_sips is not None and selector.first >= n_sips:
        raise ValueError(f"device = {selector}: the machine has {n_sips} SIPs, sip:0 to sip:{n_sips - 1}")
    return selector
