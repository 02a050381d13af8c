"""A still of the picture, for readers without a kernel: the part of the machine that worked, with loads and path."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.analysis.result import INCOMPLETE
from kernbench.config._files import replacing
from kernbench.errors import ArgumentError
from kernbench.viz import _palette as palette
from kernbench.viz._machine_layout import machine_section

if TYPE_CHECKING:
    from kernbench.topology.builder import Machine
    from kernbench.viz._scene import Scene

_WIDTH, _HEIGHT, _HEAD = 680.0, 480.0, 30.0  # [px]
_INSIDE = {"sip": 80.0, "cube": 80.0, "pe": 200.0}  # smallest width at which the inside of a part is drawn [px]
_TEXT = 11.0  # [px]
_LEVELS = 6
_PARTS = {"light": "#f1f3f5", "dark": "#22262d"}
_PE = re.compile(r"sip\d+\.cube\d+\.pe\d+")
_PART = re.compile(r"(sip\d+)(?:\.(cube\d+)(?:\.(?:hbm_ctrl\.)?(pe\d+))?)?")
_ENGINE = re.compile(r"(sip\d+\.cube\d+\.pe\d+)\.(?:pe_dma|pe_fetch_store\.\w+|pe_gemm|pe_math)$")
_MEMORY = re.compile(r"sip\d+\.cube\d+\.(?:hbm_ctrl\.pe\d+|sram)$")
_BUSIEST = 3


def still_svg(scene: Scene) -> str:
    """Still of a scene as SVG; equal scenes give equal text.

    Without a run it shows the machine; with one, the smallest part of the machine that contains all PEs that worked,
    with the mean load of links and components while PEs worked.
    """
    header, _ = scene
    if "run" not in header:
        return view_svg(header["machine"], "system")
    loads, window = _loads(scene)
    pes = [name for name in loads.nodes if _PE.match(name)]
    drawing = _Drawing(header["machine"], loads, _on_path(header, window), worked=pes)
    foot = [f"Load: share of the time busy from {window[0]:,.1f} to {window[1]:,.1f} ns; {_of(header['machine'])}"]
    return _page(still_title(header), drawing, foot, _legend(loads, "path" in header))


def view_svg(machine: Mapping[str, Any], view: str) -> str:
    """Drawing of a machine's section in a scene: "system", "sip", "cube" or "pe"."""
    template = machine["templates"][view]
    kinds = {line["kind"]: machine["kinds"].get(line["kind"]) for line in template["lines"]}
    links = [f"{kind['label']}: {kind['detail'][0]}" for kind in kinds.values() if kind and kind["detail"]]
    return _page(
        f"{machine['name']}, {template['title']}", _Drawing(machine, view=view), [*_filled(links), _of(machine)]
    )


def _filled(links: Sequence[str]) -> list[str]:
    """Join links into as few lines as the width allows."""
    lines = list(links[:1])
    for text in links[1:]:
        if _length(f"{lines[-1]}; {text}") <= _WIDTH - 24:
            lines[-1] += f"; {text}"
        else:
            lines.append(text)
    return lines


def _of(machine: Mapping[str, Any]) -> str:
    return f"machine {machine['hash'][:12]}"


@dataclass(frozen=True, slots=True)
class Still:
    """A drawing as the text of an SVG file; a notebook shows it."""

    svg: str

    def png(self) -> bytes:
        import vl_convert
        from PIL import Image

        packed = BytesIO()
        Image.open(BytesIO(vl_convert.svg_to_png(self.svg, scale=2))).save(packed, "png", optimize=True)
        return packed.getvalue()

    _repr_png_ = png

    @property
    def bundle(self) -> dict[str, str]:
        """For readers without a kernel: they drop or refuse SVG."""
        return {"image/png": b64encode(self.png()).decode()}

    def save(self, path: str | Path) -> Path:
        """Write an SVG or a PNG, by the end of the file's name; equal drawings give equal bytes."""
        path, makers = Path(path), {".svg": self.svg.encode, ".png": self.png}
        if path.suffix not in makers:
            raise ArgumentError(f"{path}: the name must end in {' or '.join(makers)}")
        with replacing(path) as part:
            part.write_bytes(makers[path.suffix]())
        return path


def link_heatmap(share: Mapping[str, float], machine: Machine, *, title: str, note: str = "") -> Still:
    """Draw the share of time that each link was busy, in the smallest part of the machine that contains these links.

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

    Raises
    ------
    ValueError
        No link carried anything.
    """
    if not share:
        raise ValueError("no link carried anything: nothing to draw")
    section = machine_section(machine)
    loads = _Loads(links=share)
    drawing = _Drawing(section, loads, worked=[end for link in share for end in link.split("->")])
    foot = [note, f"Load: share of the time busy, of {len(share)} links; {_of(section)}"]
    return Still(_page(title, drawing, [text for text in foot if text], _legend(loads)))


def _page(title: str, drawing: _Drawing, foot: Sequence[str], legend: str = "") -> str:
    drawing.draw()
    return still_page(title, "".join(drawing.parts), drawing.height, foot, legend)


def still_page(title: str, drawn: str, height: float, foot: Sequence[str], legend: str = "") -> str:
    """Frame of a still around what is drawn, `height` [px] high: title, legend and lines of a caption."""
    below = _HEAD + height
    lines = below + (44 if legend else 8)
    whole = lines + 8 + 16 * len(foot)
    shape = f'viewBox="0 0 {_WIDTH:g} {whole:.0f}" width="{_WIDTH:g}" style="max-width:100%;height:auto"'
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="kb-still" role="img" {shape}>',
            f"<title>{escape(title)}</title>",
            _STYLE,
            f'<rect class="b" width="100%" height="100%" rx="4"/><text class="t" x="12" y="20">{escape(title)}</text>',
            f'<svg y="{_HEAD:g}" width="{_WIDTH:g}" height="{height:.1f}">{drawn}</svg>',
            f'<g transform="translate(0 {below + 18:.0f})">{legend}</g>' if legend else "",
            *(
                f'<text class="m" x="12" y="{lines + 16 * (i + 1) - 4:.0f}">{escape(text)}</text>'
                for i, text in enumerate(foot)
            ),
            "</svg>",
        ]
    )


def still_title(header: Mapping[str, Any]) -> str:
    """One line: the machine, and the run on it."""
    machine, run = header["machine"]["name"], header.get("run")
    if run is None:
        return str(machine)
    incomplete = "" if run["complete"] else f" ({INCOMPLETE})"
    return f"{run['name']}: {run['end_ns']:,.1f} ns on {machine}{incomplete}"


def _style() -> str:
    def colours(name: str) -> str:
        theme = palette.THEMES[name]
        ramp = "".join(
            f".kb-still .f{i}{{fill:{colour}}}.kb-still .s{i}{{stroke:{colour}}}"
            for i, colour in enumerate(_ramp(theme))
        )
        return (
            f".kb-still{{color:{theme['text']}}}.kb-still .b,.kb-still .i{{fill:{theme['bg']}}}"
            f".kb-still .p{{fill:{_PARTS[name]}}}.kb-still text{{fill:{theme['text']}}}"
            f".kb-still .m{{fill:{theme['muted']}}}.kb-still .i,.kb-still .p,.kb-still .o{{stroke:{theme['outline']}}}"
            f".kb-still .c{{stroke:{theme['path']}}}{ramp}"
        )

    light, dark = map(colours, palette.THEMES)
    return (
        f"<style>.kb-still text{{font:{_TEXT:g}px system-ui,sans-serif}}"
        ".kb-still .t{font:600 13px system-ui,sans-serif}"
        ".kb-still .o,.kb-still .c,.kb-still .w{fill:none}.kb-still .i,.kb-still .p,.kb-still .o{stroke-width:.8}"
        ".kb-still .w{stroke-width:2.4}"
        f".kb-still .c{{stroke-width:1.6;stroke-dasharray:5 3}}{light}"
        f"@media(prefers-color-scheme:dark){{{dark}}}</style>"
    )


def _ramp(theme: Mapping[str, str]) -> Iterator[str]:
    stops = [theme[f"load-{i}"] for i in range(4)]
    rgb = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops])
    for at in np.linspace(0, len(stops) - 1, _LEVELS):
        mixed = [round(float(np.interp(at, range(len(stops)), rgb[:, channel]))) for channel in range(3)]
        yield "#" + "".join(f"{value:02x}" for value in mixed)


_STYLE = _style()


def _length(text: str) -> float:
    return sum(7.2 if letter.isupper() else 6.0 for letter in text)


def _level(load: float) -> int:
    return min(_LEVELS - 1, int(load * _LEVELS))


@dataclass(frozen=True, slots=True)
class _Loads:
    links: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, float] = field(default_factory=dict)
    # Of boxes, as in the picture: a PE is as busy as its busiest engine, a cube and a SIP as their PEs on average.
    parts: Mapping[str, float] = field(default_factory=dict)


_IDLE = _Loads()


def _loads(scene: Scene) -> tuple[_Loads, tuple[float, float]]:
    """Mean loads while PEs worked, and that window [ns]."""
    header, buffers = scene
    run = header["run"]
    bins = run["bins"]
    node, link = (
        np.frombuffer(buffers[f"{kind}_load"], np.uint8).reshape(len(run[f"{kind}s"]), bins) / 255
        for kind in ("node", "link")
    )
    pes = [i for i, name in enumerate(run["nodes"]) if _ENGINE.match(name)]
    busy = np.flatnonzero((node[pes] if pes else node).any(axis=0)) if len(node) else np.arange(0)
    first, last = (int(busy[0]), int(busy[-1]) + 1) if len(busy) else (0, bins)
    links, nodes = (
        dict(zip(run[f"{kind}s"], loads[:, first:last].mean(axis=1).tolist(), strict=True))
        for kind, loads in (("link", link), ("node", node))
    )
    parts = dict(nodes)
    for name, load in nodes.items():  # "pe_fetch_store.fetch" and ".store" are drawn as one box
        whole = name.rpartition(".")[0]
        parts[whole] = max(load, parts.get(whole, 0.0))
    pe_loads: dict[str, np.ndarray] = {}
    for i, name in enumerate(run["nodes"]):
        if found := _ENGINE.match(name):
            pe_loads[found[1]] = np.maximum(node[i, first:last], pe_loads.get(found[1], 0))
    counts = header["machine"]["counts"]
    for pe, loads in pe_loads.items():
        sip, cube, _ = pe.split(".")
        load = parts[pe] = float(loads.mean())
        for part, n in ((f"{sip}.{cube}", counts["pes"]), (sip, counts["pes"] * counts["cubes"])):
            parts[part] = parts.get(part, 0.0) + load / n
    return _Loads(links, nodes, parts), (first * run["end_ns"] / bins, last * run["end_ns"] / bins)


def _on_path(header: Mapping[str, Any], window: tuple[float, float]) -> frozenset[str]:
    path = header.get("path", {"resources": [], "steps": []})
    inside = [step for step in path["steps"] if step[0] < window[1] * 1000 and step[1] > window[0] * 1000]
    return frozenset(path["resources"][part[0]] for step in inside for part in step[-1])


@dataclass(frozen=True, slots=True)
class _Place:
    """Placement of a template's instance: corner [px], and pixels per unit, negative where it is mirrored."""

    x: float
    y: float
    sx: float
    sy: float

    def point(self, x: float, y: float) -> tuple[float, float]:
        return self.x + x * self.sx, self.y + y * self.sy

    def rect(self, at: Sequence[float]) -> tuple[float, float, float, float]:
        (x0, y0), (x1, y1) = self.point(at[0], at[1]), self.point(at[0] + at[2], at[1] + at[3])
        return min(x0, x1), min(y0, y1), abs(x1 - x0), abs(y1 - y0)

    def inner(self, box: Mapping[str, Any], template: Mapping[str, Any]) -> _Place:
        x, y, w, h = box["at"]
        right, down = box.get("flip", (False, False))
        sx, sy = w / template["w"] * self.sx, h / template["h"] * self.sy
        px, py = self.point(x + w if right else x, y + h if down else y)
        return _Place(px, py, -sx if right else sx, -sy if down else sy)


class _Drawing:
    """The shapes of a machine in a frame, loads by level.

    The frame is a `view`, or the smallest part of the machine that contains the components that `worked`.
    """

    def __init__(
        self,
        machine: Mapping[str, Any],
        loads: _Loads = _IDLE,
        path: frozenset[str] = frozenset(),
        *,
        view: str = "",
        worked: Iterable[str] = (),
    ) -> None:
        self._templates, self._loads, self._path = machine["templates"], loads, path
        self._shapes: dict[str, list[str]] = {"p": [], "o": [], "i": []}  # containers, idle lines, boxes in them
        self._fills: list[list[str]] = [[] for _ in range(_LEVELS)]
        self._wires: list[list[str]] = [[] for _ in range(_LEVELS)]
        self._thread: list[str] = []
        self._texts: list[str] = []
        x, y, w, h = self._frame(view, worked)
        scale = min(_WIDTH / w, _HEIGHT / h)
        self.height = h * scale
        self._root = _Place((_WIDTH - w * scale) / 2 - x * scale, -y * scale, scale, scale)

    def draw(self) -> None:
        self._draw("system", "", self._root)

    @property
    def parts(self) -> Iterator[str]:
        levels = {"w s": self._wires, "f": self._fills}
        loaded = {kind: {f"{kind}{i}": shapes for i, shapes in enumerate(each)} for kind, each in levels.items()}
        shapes = {**self._shapes, **loaded["f"]}
        for kind in ("p", "o", *loaded["w s"], "i", *loaded["f"]):
            if paths := {**shapes, **loaded["w s"]}[kind]:
                yield f'<path class="{kind}" d="{"".join(paths)}"/>'
        if self._thread:
            yield f'<path class="c" d="{"".join(self._thread)}"/>'
        yield from self._texts

    def _frame(self, view: str, worked: Iterable[str]) -> tuple[float, float, float, float]:
        found = sorted({match.groups("") if (match := _PART.match(name)) else ("", "", "") for name in worked})
        sip, cube, pe = found[0] if found else ("sip0", "cube0", "pe0")
        system = self._templates["system"]
        if view == "system" or not (view or (found and sip and found[-1][0] == sip)):
            return 0, 0, system["w"], system["h"]
        rect, place = self._instance("system", sip, _Place(0, 0, 1, 1))
        if view in ("cube", "pe") or (not view and cube and len({part[:2] for part in found}) == 1):
            rect, place = self._instance("sip", cube, place)
            if view == "pe":
                rect, place = self._instance("cube", pe, place)
            elif not view and pe and len(found) == 1:
                return self._tile(pe, place)
        x, y, w, h = rect
        return x - 0.04 * w, y - 0.04 * h, 1.08 * w, 1.08 * h

    def _tile(self, pe: str, place: _Place) -> tuple[float, float, float, float]:
        """Bounds of a PE with its HBM slice and router."""
        boxes = {box["id"]: box for box in self._templates["cube"]["boxes"]}
        lines = self._templates["cube"]["lines"]
        routers = [line["b"] for line in lines if line["a"] == f"{pe}.pe_dma"]
        x, y, w, h = _union([place.rect(boxes[name]["at"]) for name in (pe, f"hbm_ctrl.{pe}", *routers)])
        return x - 0.1 * w, y - 0.02 * h, 1.2 * w, 1.04 * h

    def _instance(self, level: str, name: str, place: _Place) -> tuple[tuple[float, float, float, float], _Place]:
        box = next(box for box in self._templates[level]["boxes"] if box["id"] == name)
        return place.rect(box["at"]), place.inner(box, self._templates[box["template"]])

    def _draw(self, level: str, prefix: str, place: _Place) -> None:
        template = self._templates[level]
        for line in template["lines"]:
            self._draw_line(line, prefix, place)
        for box in template["boxes"]:
            rect = place.rect(box["at"])
            if not self._visible(rect):
                continue
            name, inner = prefix + box["id"], box.get("template")
            if inner and rect[2] >= _INSIDE[inner]:
                self._shapes["p"].append(_rect_path(rect))
                self._label_above(rect, box["label"])
                self._draw(inner, f"{name}.", place.inner(box, self._templates[inner]))
            else:
                self._draw_box(name, box, rect)

    def _draw_line(self, line: Mapping[str, Any], prefix: str, place: _Place) -> None:
        values = line["p"]
        points = [place.point(x, y) for x, y in zip(values[::2], values[1::2], strict=True)]
        xs, ys = zip(*points, strict=True)
        if not self._visible((min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))):
            return
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        a, b = prefix + line["a"], prefix + line["b"]
        links = (f"{a}->{b}", f"{b}->{a}") if line["a"] and line["b"] else ()
        load = max((self._loads.links.get(link, 0.0) for link in links), default=0.0)
        (self._wires[_level(load)] if load >= _LEAST else self._shapes["o"]).append(path)
        if any(link in self._path for link in links):
            self._thread.append(path)

    def _draw_box(self, name: str, box: Mapping[str, Any], rect: tuple[float, float, float, float]) -> None:
        load, path = self._loads.parts.get(name, 0.0), _rect_path(rect)
        self._shapes["p" if box["kind"] in ("io", "hbm") else "i"].append(path)
        label = box["label"]
        words = label.removeprefix("IO ").split()  # the labels in an IO chiplet begin with it
        texts = [f"{label} {load:.0%}", *box["detail"]] if load >= _LEAST else [label, *box["detail"]]
        if box["kind"] == "io":  # contains other boxes
            self._label_above(rect, label, "end")
        written = box["kind"] != "io" and any(
            self._write(rect, lines) for lines in (texts, [label], words[-1:] if words[-1].isdigit() else words)
        )
        if load >= _LEAST:
            x, y, w, h = rect
            thick = max(5.0, h / 5)
            bar = (x, y + h - thick, w * load, thick) if written else (x, y + h * (1 - load), w, h * load)
            self._fills[_level(load)].append(_rect_path(bar))
        if any(resource == name or resource.startswith(f"{name}.") for resource in self._path if "->" not in resource):
            self._thread.append(path)

    def _write(self, rect: tuple[float, float, float, float], lines: Sequence[str]) -> bool:
        """Write as many lines as fit; return whether the first one did."""
        x, y, w, h = rect
        fitting = [line for line in lines[: max(0, int((h - 6) // (1.3 * _TEXT)))] if _length(line) <= w - 2]
        if not fitting or fitting[0] != lines[0]:
            return False
        top = y + (h - max(5.0, h / 5)) / 2 - (len(fitting) - 1) * 0.65 * _TEXT + 0.36 * _TEXT
        for i, line in enumerate(fitting):
            at = f'x="{x + w / 2:.1f}" y="{top + i * 1.3 * _TEXT:.1f}"'
            self._texts.append(f'<text text-anchor="middle" {at}>{escape(line)}</text>')
        return True

    def _label_above(self, rect: tuple[float, float, float, float], label: str, anchor: str = "start") -> None:
        x, y, w, _ = rect
        if y > _TEXT and _length(label) <= w:
            at = x + 1 if anchor == "start" else x + w - 1
            self._texts.append(f'<text text-anchor="{anchor}" x="{at:.1f}" y="{y - 3:.1f}">{escape(label)}</text>')

    def _visible(self, rect: tuple[float, float, float, float]) -> bool:
        x, y, w, h = rect
        return x < _WIDTH and y < self.height and x + w > 0 and y + h > 0


_LEAST = 0.005


def _union(rects: Sequence[tuple[float, float, float, float]]) -> tuple[float, float, float, float]:
    left, top = min(x for x, *_ in rects), min(y for _, y, *_ in rects)
    return left, top, max(x + w for x, _, w, _ in rects) - left, max(y + h for _, y, _, h in rects) - top


def _rect_path(rect: tuple[float, float, float, float]) -> str:
    x, y, w, h = rect
    return f"M{x:.1f} {y:.1f}h{w:.1f}v{h:.1f}h{-w:.1f}z"


def _legend(loads: _Loads, path: bool = False) -> str:
    x = 46 + 22 * _LEVELS
    shapes = ['<text class="m" x="12">0 %</text>']
    shapes += [
        f'<rect class="f{level}" x="{40 + 22 * level}" y="-9" width="22" height="10"/>' for level in range(_LEVELS)
    ]
    shapes.append(f'<text class="m" x="{x}">100 % busy</text>')
    x += 90
    if path:
        shapes.append(f'<path class="c" d="M{x} -4h28"/><text class="m" x="{x + 34}">critical path</text>')
    servers = {name: load for name, load in loads.nodes.items() if _ENGINE.match(name) or _MEMORY.match(name)}
    busiest = sorted({**loads.links, **servers}.items(), key=lambda item: (-item[1], item[0]))[:_BUSIEST]
    texts = [f"{name} {load:.0%}" for name, load in busiest]
    while len(texts) > 1 and _length(", ".join(texts)) > _WIDTH - 80:
        texts.pop()
    return "".join([*shapes, f'<text x="12" y="18">busiest: {escape(", ".join(texts))}</text>'])


def machine_html(machine: Machine) -> str:
    section = machine_section(machine)
    unfold = "".join(
        f"<details><summary>{escape(section['templates'][view]['title'])}</summary>{view_svg(section, view)}</details>"
        for view in ("sip", "cube", "pe")
    )
    return f"<div><code>{escape(repr(machine))}</code></div>{view_svg(section, 'system')}{unfold}"
