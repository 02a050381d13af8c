"""The links of a run on the machine's geometry, coloured by how busy they were, as a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.patches import Rectangle

from kernbench.analysis.utilization import hottest
from kernbench.topology import _naming as naming
from kernbench.viz import _palette as palette
from kernbench.viz.figures import TEXT, Figure, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kernbench.topology._views import Point
    from kernbench.topology.builder import Machine

MOST_SIPS = 4
_IO_W, _IO_GAP, _SIP_GAP = 9.0, 5.0, 12.0  # [mm]
_ABOVE, _BELOW = 25.0, 8.0  # room for the host, and for links between SIPs [mm]
_OFFSET = 0.32  # of the two directions of a link from its middle [mm]
_COLOURS = ListedColormap(colormaps["YlOrRd"].resampled(320)(range(96, 320)))


class Plan:
    """Where every node of some SIPs is drawn: cubes as in the cube view, side by side, the IO chiplet in the west."""

    def __init__(self, machine: Machine, sips: list[int]) -> None:
        view, mesh = machine.views["cube"], machine.config.sip.cube_mesh
        self.view, self.sips, self.w, self.h = view, sips, mesh.w, mesh.h
        self.width, self.height = mesh.w * view.width, mesh.h * view.height
        self.pitch = _IO_W + _IO_GAP + self.width + _SIP_GAP
        self._in_cube = {box.id: box for box in view.boxes}

    def cube(self, sip: int, cube: int) -> Point:
        """Return the north-west corner of a cube."""
        row, col = divmod(cube, self.w)
        west = self.sips.index(sip) * self.pitch + _IO_W + _IO_GAP
        return west + col * self.view.width, row * self.view.height

    def chiplet(self, sip: int) -> Point:
        """Return the north-west corner of a SIP's IO chiplet."""
        return self.sips.index(sip) * self.pitch, 0.0

    def place(self, node_id: str) -> Point:
        """Return where a node is drawn."""
        at = naming.parse(node_id)
        if at.sip is None:
            middle = ((len(self.sips) - 1) * self.pitch + _IO_W) / 2
            return middle, -(14.0 if at.kind == "switch" else 22.0)
        if at.cube is None:
            x, _ = self.chiplet(at.sip)
            if at.kind == "ucie":
                port = self._in_cube[naming.ucie(0, 0, "w", at.conn or 0)]
                return x + _IO_W, (at.row or 0) * self.view.height + port.centre[1]
            down = {"pcie_ep": 0.02, "io_noc": 0.5, "io_cpu": 0.98}[at.kind]
            return x + 0.35 * _IO_W, down * self.height
        x, y = self.cube(at.sip, at.cube)
        if at.pe is None:
            there = node_id.replace(naming.cube(at.sip, at.cube), naming.cube(0, 0), 1)
            px, py = self._in_cube[there].centre
        else:
            box = self._in_cube[naming.pe(0, 0, at.pe)]
            offset = {"pe_dma": -0.3, "hbm_ctrl": 0.3}.get(at.kind, 0.0)
            px, py = box.centre[0] + offset * box.w, box.centre[1]
        return x + px, y + py

    def line(self, link: str) -> list[Point]:
        """Return how a directed link is drawn: right of the middle, as seen in its direction."""
        src, dst = link.split("->")
        a, b = self.place(src), self.place(dst)
        if naming.parse(src).kind == naming.parse(dst).kind == "io_noc":
            under = self.height + 4 + (1 if a[0] < b[0] else 2.5)
            return [a, (a[0], under), (b[0], under), b]
        (ax, ay), (bx, by) = a, b
        length = max(1e-9, ((bx - ax) ** 2 + (by - ay) ** 2) ** 0.5)
        dx, dy = -(by - ay) / length * _OFFSET, (bx - ax) / length * _OFFSET
        return [(ax + dx, ay + dy), (bx + dx, by + dy)]


def link_heatmap(share: Mapping[str, float], machine: Machine, *, title: str, note: str = "") -> Figure:
    """Draw the share of time that each link was busy, on the machine's geometry; the hottest link is named.

    Parameters
    ----------
    share : mapping of str to float
        Busy share of each directed link that carried anything, as `kernbench.analysis.utilization.shares` returns it.
    machine : Machine
        Machine of the run.
    title : str
        What ran.
    note : str
        What else to know.

    Notes
    -----
    At most four SIPs are drawn, those with the busiest links; each link has two lines, traffic keeping to the right.
    """
    if not share:
        raise ValueError("no link carried anything: nothing to draw")
    drawn = _Drawn(share, machine)
    plan, first = drawn.plan, drawn.first
    left_out = f"; {drawn.left_out} SIPs with less traffic not drawn" if drawn.left_out else ""
    under = caption(len(share), machine.hash, f"links, traffic keeps right{left_out}   {note}".rstrip())
    above = _ABOVE if any(naming.HOST in link.split("->") for link in share) else 6.0
    below = _BELOW if len(plan.sips) > 1 else 1.0
    across, down = len(plan.sips) * plan.pitch - _SIP_GAP + 4, plan.height + above + below
    wide = 7.0 if len(plan.sips) == 1 else 9.0
    heading = f"{title}\nhottest: {first}{drawn.more}, busy {share[first]:.1%}"
    figure = new_figure(wide, 0.87 * wide * down / across + 0.9, heading, under)
    axes = figure.subplots()
    axes.set(xlim=(-2, across - 2), ylim=(plan.height + below, -above), aspect="equal")
    axes.axis("off")
    _backdrop(axes, plan)
    norm = Normalize(0, 1)
    axes.add_collection(
        LineCollection(
            list(drawn.lines.values()),
            colors=[_COLOURS(norm(share[link])) for link in drawn.lines],
            linewidths=[1.4 + 2.2 * share[link] for link in drawn.lines],
            zorder=2,
        )
    )
    if first in drawn.lines:
        points = drawn.lines[first]
        (ax, ay), (bx, by) = points[len(points) // 2 - 1], points[len(points) // 2]
        axes.plot((ax + bx) / 2, (ay + by) / 2, "o", ms=9, mfc="none", mec="black", mew=1.2, zorder=4)
    bar = figure.colorbar(ScalarMappable(norm, _COLOURS), ax=axes, shrink=0.6, pad=0.01, format="{x:.0%}")
    bar.set_label("share of time busy (circle: the hottest)", fontsize=TEXT)
    bar.ax.tick_params(labelsize=TEXT)
    return figure


def _backdrop(axes: Axes, plan: Plan) -> None:
    """Draw chiplets, dies and, pale, the links that there are."""
    mesh = [list(line.points) for line in plan.view.lines]
    for name in (naming.HOST, naming.SWITCH):
        px, py = plan.place(name)
        if py > axes.get_ylim()[1]:
            axes.plot(px, py, "s", ms=4, color=palette.DARK_GREY, zorder=3)
            axes.text(px + 1.5, py, name, fontsize=TEXT, va="center", zorder=3)
    for sip in plan.sips:
        x, y = plan.chiplet(sip)
        axes.add_patch(Rectangle((x, y), _IO_W, plan.height, facecolor="none", edgecolor=palette.GREY, lw=0.8))
        axes.text(x + _IO_W + _IO_GAP, y - 1.5, f"SIP {sip}", fontsize=TEXT, weight="bold", va="bottom")
        for cube in range(plan.w * plan.h):
            west, north = plan.cube(sip, cube)
            corner, inset = (west + 0.6, north + 0.6), 1.2
            w, h = plan.view.width - inset, plan.view.height - inset
            axes.add_patch(Rectangle(corner, w, h, facecolor="none", edgecolor=palette.LIGHT_GREY, lw=0.8))
            moved = [[(px + west, py + north) for px, py in points] for points in mesh]
            axes.add_collection(LineCollection(moved, colors=palette.LIGHT_GREY, linewidths=0.4, zorder=1))
            middle = (west + plan.view.width / 2, north + plan.view.height / 2)
            axes.text(*middle, str(cube), fontsize=TEXT, ha="center", va="center", color=palette.GREY)
        for name in (naming.pcie_ep(sip), naming.io_noc(sip)):
            px, py = plan.place(name)
            axes.plot(px, py, "s", ms=3, color=palette.DARK_GREY, zorder=3)
            axes.text(px + 1, py, name.rsplit(".", 1)[1], fontsize=TEXT, va="center", zorder=3)


class _Drawn:
    """The links that are drawn, the busiest last: those of the SIPs with most traffic."""

    def __init__(self, share: Mapping[str, float], machine: Machine) -> None:
        ends = {link: {at.sip for at in map(naming.parse, link.split("->")) if at.sip is not None} for link in share}
        total: Counter[int] = Counter()
        for link, sips in ends.items():
            total.update(dict.fromkeys(sips, share[link]))
        shown = sorted(sorted(total, key=lambda sip: (-total[sip], sip))[:MOST_SIPS]) or [0]
        self.left_out = max(0, len(total) - len(shown))
        self.plan = Plan(machine, shown)
        order = sorted((link for link in share if ends[link] <= set(shown)), key=lambda link: share[link])
        self.lines = {link: self.plan.line(link) for link in order}
        self.first = hottest(share)
        equal = sum(value == share[self.first] for value in share.values()) - 1
        self.more = f" and {equal} more" if equal else ""
