"""What a view is made of: labelled boxes and lines. x runs east, y south, both from the north-west corner."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.units import ps_to_ns

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A labelled rectangle.

    Attributes
    ----------
    id : str
        The node's id, or the name of what holds several.
    kind : str
        Node kind, or "sip", "cube", "pe", "io", "hbm", or the name of a PE's part.
    x, y, w, h : float
        North-west corner and size.
    label : str
        Its name.
    detail : tuple of str
        Further lines: sizes, rates, costs.
    holds : bool
        Other boxes stand in it, so its label belongs at its north edge.
    """

    id: str
    kind: str
    x: float
    y: float
    w: float
    h: float
    label: str
    detail: tuple[str, ...] = ()
    holds: bool = False

    @property
    def centre(self) -> Point:
        """Where lines to the box end."""
        return self.x + self.w / 2, self.y + self.h / 2


@dataclass(frozen=True, slots=True)
class Line:
    """A link between two boxes, or several links drawn as one.

    Attributes
    ----------
    src, dst : str
        Ids of the boxes at its ends.
    kind : str
        "host", "pcie", "sip", "ucie", "noc", "attach" or "inside" (a PE).
    points : tuple of (x, y)
        Where it runs.
    bw_gbs : float or None
        Bandwidth each way, of all links together.
    label : str
        Bandwidth and latency as text; "" where one label serves many lines.
    """

    src: str
    dst: str
    kind: str
    points: tuple[Point, ...]
    bw_gbs: float | None
    label: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """One drawing.

    Attributes
    ----------
    unit : str
        Unit of the coordinates: "mm" where they are true to scale, "" otherwise.
    notes : tuple of str
        What holds for everything in the drawing.
    """

    name: str
    title: str
    width: float
    height: float
    unit: str
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


def between(a: Box, b: Box) -> tuple[Point, ...]:
    """Return the straight line between two boxes' centres, cut at their borders."""
    return _leave(a, b.centre), _leave(b, a.centre)


def rate(bw_gbs: float, links: int = 1) -> str:
    """Return a bandwidth as text.

    >>> rate(128, 4)
    '4 x 128 GB/s'
    """
    return f"{links} x {bw_gbs:g} GB/s" if links > 1 else f"{bw_gbs:g} GB/s"


def ns(ps: int) -> str:
    """Return a time as text."""
    return f"{ps_to_ns(ps):g} ns"


def _leave(box: Box, towards: Point) -> Point:
    x, y = box.centre
    dx, dy = towards[0] - x, towards[1] - y
    reach = min(
        (size / 2 / abs(step) for size, step in ((box.w, dx), (box.h, dy)) if step),
        default=0.0,
    )
    reach = min(reach, 1.0)
    return x + dx * reach, y + dy * reach
