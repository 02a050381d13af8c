// The machine: nested templates on a canvas, from the system down to the parts of a PE.

const LEVELS = ["system", "sip", "cube", "pe"];
const LARGEST_SCALE = 4000;
/** Kinds of components that the log has no work of. */
const PASSIVE = new Set(["host", "switch", "sip_switch", "nic", "nic_switch", "io", "io_noc", "pcie_ep", "router", "ucie"]);

/** The critical path by resource. */
class PathShares {
  constructor({ resources, steps }) {
    this.share = new Map();
    this.steps = steps;
    this.resources = resources.map((id) => (id.includes(".pe_fetch_store.") ? id.slice(0, id.lastIndexOf(".")) : id));
    this.total = 0;
    for (const [, , , , , , parts] of steps) {
      for (const [resource, , ps] of parts) {
        const id = this.resources[resource];
        this.share.set(id, (this.share.get(id) ?? 0) + ps);
        this.total += ps;
      }
    }
  }

  /** Returns the time [ps] of a component or link on the path, with all that is inside it. */
  of(id) {
    let ps = this.share.get(id) ?? 0;
    if (id.includes("->")) return ps;
    for (const [other, more] of this.share) {
      if (other.startsWith(`${id}.`) && other.split("->").every((end) => end.startsWith(`${id}.`))) ps += more;
    }
    return ps;
  }

  /** Returns the resources of the step at a time [ns]. */
  at(t) {
    return new Set(this.#parts(t).map(([resource]) => this.resources[resource]));
  }

  /** Returns what takes most of the step at a time [ns], as [id, its time in ps]; none of a run without steps. */
  owner(t) {
    const longest = this.#parts(t).toSorted((a, b) => b[2] - a[2]).slice(0, 1);
    return longest.map(([resource, , ps]) => [this.resources[resource], ps]);
  }

  #parts(t) {
    return (this.steps.find(([, end]) => t * 1000 < end) ?? this.steps.at(-1))?.[6] ?? [];
  }
}

class MachineView {
  constructor(root, shared, send) {
    this.shared = shared;
    this.send = send;
    this.loads = null;
    this.path = null;
    this.system = null;
    this.camera = { x: 0, y: 0, k: 1 };
    this.heat = node("canvas.kbp-heat", { "aria-hidden": "true" });
    const list = `kbp-list-${(MachineView.count = (MachineView.count ?? 0) + 1)}`;
    this.labels = node("canvas.kbp-labels", {
      tabindex: "0", role: "application", "aria-describedby": list,
      "aria-label": "Machine. Arrow keys select a neighbour, Enter opens it, Escape goes out, plus and minus zoom, Home shows the whole machine.",
    });
    this.tip = node("div.kbp-tip", { hidden: true });
    this.said = node("div.kbp-unseen", { "aria-live": "polite" });
    this.list = node("ul.kbp-unseen", { id: list });
    this.trail = node("nav.kbp-trail", { "aria-label": "Level" });
    this.legend = node(
      "div.kbp-legend", {}, node("span.kbp-legend-title", {}, "Busy share of time"), node("span", {}, "0 %"),
      node("span.kbp-ramp"), node("span", {}, "100 %"),
    );
    const press = (text, label, act) =>
      node("button.kbp-button", { type: "button", title: label, "aria-label": label, onclick: act }, text);
    this.root = node(
      "div.kbp-machine", {}, this.heat, this.labels, this.trail, this.legend,
      node(
        "div.kbp-zoom", {}, press("+", "Zoom in", () => this.zoomBy(1.6)), press("−", "Zoom out", () => this.zoomBy(1 / 1.6)),
        press("⌂", "Whole machine", () => this.home()),
      ),
      this.tip, this.said, this.list,
    );
    root.append(this.root);
    this.onChange = (event) => this.#changed(event.detail);
    shared.addEventListener("change", this.onChange);
    this.endTheme = followTheme(root.closest(".kbp-picture"), () => this.#themed());
    this.resized = new ResizeObserver(() => this.#resize());
    this.resized.observe(this.root);
    this.#listen();
  }

  destroy() {
    this.shared.removeEventListener("change", this.onChange);
    this.endTheme();
    this.resized.disconnect();
    cancelAnimationFrame(this.frame);
    cancelAnimationFrame(this.moving);
    this.root.remove();
  }

  setScene(header, buffers) {
    const { machine, run, path } = header;
    const old = this.machine;
    this.machine = machine;
    if (old !== machine) Object.values(machine.templates).forEach(Part.prepare);
    // A change of a value keeps the view; a change of the geometry starts anew.
    const shape = JSON.stringify(Object.values(machine.templates).map(({ w, h, boxes }) => [w, h, boxes.map((box) => [box.id, box.at])]));
    if (!this.system || shape !== this.shape) {
      this.shape = shape;
      this.system = new Part(machine.templates.system, "", 0, 0, 1);
      this.fitted = false;
      this.home(false);
    } else if (old !== machine) {
      this.system = new Part(machine.templates.system, "", 0, 0, 1);
    }
    this.loads = run ? Loads.of(run, buffers, machine.counts) : null;
    this.path = path ? new PathShares(path) : null;
    this.#legend();
    this.#trail();
    this.#draw(true);
  }

  /** Shows one moment of a run under way; `index` has the names of its loads. */
  setLive(index, frame) {
    if (index !== this.liveNames) {
      this.liveNames = index;
      this.liveIndex = new LoadIndex(index.links, index.nodes, this.machine.counts);
    }
    this.loads = new Loads(this.liveIndex, 1, Math.max(frame.now_ns, 1), bytes(frame.link_load), bytes(frame.node_load));
    this.path = null;
    this.#legend("Busy share since the last update");
    this.#draw(false);
  }

  /** Returns where a component or link is: its part, its box or line, and a rectangle [mm]; null if nowhere. */
  locate(id) {
    const [from, to] = id.split("->");
    let part = this.system;
    for (let found = null; ; ) {
      const { prefix, template } = part;
      const local = from.slice(prefix.length);
      if (to !== undefined) {
        const far = to.startsWith(prefix) ? to.slice(prefix.length) : null;
        const line = template.lines.find(({ a, b }) => a && ((a === local && b === far) || (b === local && a === far)));
        if (line) {
          const [x0, y0, x1, y1] = line.box;
          return { part, line, rect: part.rect([x0, y0, x1 - x0, y1 - y0]), kind: line.kind };
        }
      }
      let box = template.byId.get(local);
      for (let at = local.indexOf("."); !box && at > 0; at = local.indexOf(".", at + 1)) box = template.byId.get(local.slice(0, at));
      if (!box) return to === undefined ? found : null;
      found = { part, box, rect: part.rect(box), kind: box.kind };
      if (!box.template || (to === undefined && prefix + box.id === id)) return to === undefined ? found : null;
      part = part.open(box, this.machine.templates);
    }
  }

  /** Returns what a user calls a component or link, and where it is. */
  name(id) {
    const found = this.locate(id);
    if (!found) return { label: id, place: "" };
    const outer = placeText(found.part.prefix.slice(0, -1));
    if (found.line) {
      const ends = id.split("->").map((end) => placeText(end.slice(found.part.prefix.length)));
      return { label: this.machine.kinds[found.kind].label, place: [outer, ends.join(" → ")].filter(Boolean).join(": ") };
    }
    const rest = id.slice(found.part.prefix.length + found.box.id.length).replace(".", " ");
    const slice = /hbm_ctrl\.pe(\d+)$/.exec(id);
    return { label: found.box.label + (rest && `:${rest}`), place: slice ? `${outer}, PE ${slice[1]}` : outer };
  }

  /** Selects a component or link and moves the camera to it. */
  reveal(id) {
    const found = this.locate(id);
    this.shared.selected = id;
    if (!found) return;
    const [x, y, w, h] = found.rect;
    const more = found.line ? Math.max(w, h) : 0.15 * Math.max(w, h);
    this.lookAt([x - more, y - more, w + 2 * more, h + 2 * more]);
  }

  // Camera

  home(animated = true) {
    if (!this.system) return;
    const { w, h } = this.system.template;
    this.lookAt([0, 0, w, h], animated, 1);
  }

  /** Moves the camera so that a rectangle [mm] fills the view. */
  lookAt([x, y, w, h], animated = true, fill = 0.86) {
    const { width, height } = this.size();
    if (!width || !height) return;
    const k = Math.min(LARGEST_SCALE, (width / w) * fill, (height / h) * fill);
    const goal = { x: x + w / 2 - width / 2 / k, y: y + h / 2 - height / 2 / k, k };
    this.fitted = true;
    cancelAnimationFrame(this.moving);
    if (!animated || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.#place(goal);
      return;
    }
    const from = { ...this.camera };
    const begin = performance.now();
    const step = (now) => {
      const done = Math.max(0, Math.min(1, (now - begin) / 280));
      const ease = 1 - (1 - done) ** 3;
      // The scale changes evenly in its logarithm, around the point that does not move.
      const scale = from.k * (goal.k / from.k) ** ease;
      const share = Math.abs(goal.k / from.k - 1) < 1e-3 ? ease : (1 / from.k - 1 / scale) / (1 / from.k - 1 / goal.k);
      this.#place({ x: from.x + (goal.x - from.x) * share, y: from.y + (goal.y - from.y) * share, k: scale });
      if (done < 1) this.moving = requestAnimationFrame(step);
    };
    this.moving = requestAnimationFrame(step);
  }

  /** Zooms around a point of the view [px], by default its middle. */
  zoomBy(factor, px, py) {
    const { width, height } = this.size();
    const [x, y] = [px ?? width / 2, py ?? height / 2];
    const { camera } = this;
    const k = Math.max(this.#smallest(), Math.min(LARGEST_SCALE, camera.k * factor));
    cancelAnimationFrame(this.moving);
    this.#place({ x: camera.x + x / camera.k - x / k, y: camera.y + y / camera.k - y / k, k });
  }

  panBy(dx, dy) {
    const { camera } = this;
    cancelAnimationFrame(this.moving);
    this.#place({ ...camera, x: camera.x - dx / camera.k, y: camera.y - dy / camera.k });
  }

  size() {
    return { width: this.width ?? 0, height: this.height ?? 0 };
  }

  #smallest() {
    const { width, height } = this.size();
    const { w, h } = this.system.template;
    return Math.min(width / w, height / h);
  }

  #place(camera) {
    const { w, h } = this.system.template;
    const { width, height } = this.size();
    // The middle of the view stays on the machine; what is smaller than the view is in its middle.
    const clamp = (value, size, whole) =>
      (size >= whole ? (whole - size) / 2 : Math.max(-size / 2, Math.min(whole - size / 2, value)));
    this.whole = camera.k <= this.#smallest() * 1.001;
    this.camera = { k: camera.k, x: clamp(camera.x, width / camera.k, w), y: clamp(camera.y, height / camera.k, h) };
    const { part, level } = this.#around(this.camera.x + width / 2 / camera.k, this.camera.y + height / 2 / camera.k);
    if (part !== this.focus) {
      this.focus = part;
      this.shared.level = level;
      this.shared.focus = part.prefix.slice(0, -1);
      this.#trail();
    }
    this.#draw(true);
  }

  /** Returns the innermost part that fills much of the view, and its level. */
  #around(x, y) {
    let part = this.system;
    let level = 0;
    for (;;) {
      const box = part.template.boxes.find((b) => b.template && inside(part.rect(b), x, y));
      if (!box || part.rect(box)[2] * this.camera.k < Math.max(OPENS[box.template], this.width * 0.3)) break;
      part = part.open(box, this.machine.templates);
      level += 1;
    }
    return { part, level: LEVELS[level] };
  }

  #trail() {
    const steps = [];
    for (let part = this.focus ?? this.system; part; part = part.parent) {
      const go = () => (part.box ? this.lookAt(part.parent.rect(part.box)) : this.home());
      const last = !steps.length;
      steps.unshift(node("button.kbp-link", { type: "button", onclick: go, ...(last && { "aria-current": "location" }) }, part.box?.label ?? "System"));
    }
    this.trail.replaceChildren(...steps.flatMap((step, i) => (i ? [node("span", { "aria-hidden": "true" }, "›"), step] : [step])));
    this.#describeAll();
  }

  #legend(title = "Busy share of time") {
    this.legend.hidden = !this.loads;
    this.legend.querySelector(".kbp-legend-title").textContent = title;
  }

  /** Lists the components of the present level with their loads, for those who do not see the canvas. */
  #describeAll() {
    const { part = this.system } = { part: this.focus };
    if (!part || this.shared.playing) return;
    const items = part.template.boxes.filter((box) => box.kind !== "router" && box.kind !== "ucie").slice(0, 80);
    this.list.replaceChildren(...items.map((box) => node("li", {}, `${box.label}: ${this.#loadText(part.prefix + box.id)}`)));
  }

  // Drawing

  #resize() {
    const before = this.size();
    this.width = this.root.clientWidth;
    this.height = this.root.clientHeight;
    const ratio = devicePixelRatio || 1;
    for (const canvas of [this.heat, this.labels]) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(this.height * ratio);
    }
    if (!this.system || !this.width) return;
    const { x, y, k } = this.camera;
    if (!this.fitted || this.whole) this.home(false);
    else this.#place({ x: x + (before.width - this.width) / 2 / k, y: y + (before.height - this.height) / 2 / k, k });
    // Canvases are empty now: no frame without a picture.
    this.all = true;
    this.#paint();
  }

  #themed() {
    this.colours = null;
    this.#draw(true);
  }

  #changed(names) {
    if (names.has("t")) this.#draw(false);
    if (["selected", "hovered", "path"].some((name) => names.has(name))) this.#draw(true);
    if (names.has("selected")) this.said.textContent = this.shared.selected ? this.#sentence(this.shared.selected) : "";
    if (names.has("playing")) this.#describeAll();
  }

  /** Draws in the next frame: the loads, and with `all` the outlines and labels, too. */
  #draw(all) {
    this.all ||= all;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.#paint();
    });
  }

  #paint() {
    if (!this.system || !this.width || !this.root.isConnected) return;
    countRedraw("machine");
    this.colours ??= readColours(this.root);
    const ratio = devicePixelRatio || 1;
    const sheet = new Sheet(this, this.all);
    sheet.part(this.system, 0);
    const pen = this.heat.getContext("2d", { alpha: false });
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    sheet.paintLoads(pen);
    if (this.all) {
      const top = this.labels.getContext("2d");
      top.setTransform(ratio, 0, 0, ratio, 0, 0);
      sheet.paintLabels(top);
    }
    this.all = false;
  }

  // Hands and keys

  #listen() {
    const { labels } = this;
    const at = (event) => {
      const box = labels.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    labels.addEventListener("wheel", (event) => {
      if (!this.system) return;
      // Where there is nothing more to zoom out, the page scrolls on.
      if (event.deltaY > 0 && this.camera.k <= this.#smallest() * 1.001) return;
      event.preventDefault();
      const pixels = event.deltaY * (event.deltaMode === 1 ? 16 : 1);
      this.zoomBy(Math.exp(-pixels * (event.ctrlKey ? 0.01 : 0.0016)), ...at(event));
    }, { passive: false });
    const hands = new Map();
    let moved = 0;
    labels.addEventListener("pointerdown", (event) => {
      labels.setPointerCapture(event.pointerId);
      hands.set(event.pointerId, at(event));
      moved = 0;
    });
    labels.addEventListener("pointermove", (event) => {
      const now = at(event);
      const before = hands.get(event.pointerId);
      if (!before) {
        this.#hover(now);
        return;
      }
      moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
      if (hands.size === 2) {
        const other = [...hands].find(([id]) => id !== event.pointerId)[1];
        const apart = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]);
        this.zoomBy(apart(now) / Math.max(1, apart(before)), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      } else if (moved > 3) {
        this.panBy(now[0] - before[0], now[1] - before[1]);
        this.tip.hidden = true;
      }
      hands.set(event.pointerId, now);
    });
    const leave = (event) => {
      if (hands.delete(event.pointerId) && moved <= 3 && event.type === "pointerup") {
        this.shared.selected = this.#find(...at(event))?.id ?? null;
      }
    };
    labels.addEventListener("pointerup", leave);
    labels.addEventListener("pointercancel", leave);
    labels.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
      this.shared.hovered = null;
    });
    labels.addEventListener("dblclick", (event) => {
      const found = this.#find(...at(event));
      if (found) this.lookAt(found.rect);
    });
    labels.addEventListener("keydown", (event) => {
      const act = {
        "+": () => this.zoomBy(1.4), "=": () => this.zoomBy(1.4), "-": () => this.zoomBy(1 / 1.4), Home: () => this.home(),
        ArrowLeft: () => this.#step(-1, 0), ArrowRight: () => this.#step(1, 0),
        ArrowUp: () => this.#step(0, -1), ArrowDown: () => this.#step(0, 1),
        Enter: () => this.#enter(), Escape: () => this.#out(), " ": () => this.shared.play(),
      }[event.key];
      if (!act || !this.system || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
  }

  /** Selects the next component in a direction, among those of the same part. */
  #step(dx, dy) {
    const found = this.shared.selected && this.locate(this.shared.selected);
    const part = found?.part ?? this.focus ?? this.system;
    const middle = ([x, y, w, h]) => [x + w / 2, y + h / 2];
    const { camera } = this;
    const from = middle(found?.rect ?? [camera.x, camera.y, this.width / camera.k, this.height / camera.k]);
    let [best, least] = [null, Infinity];
    for (const box of part.template.boxes) {
      if (box === found?.box || box.kind === "io") continue;
      const to = middle(part.rect(box));
      const [along, across] = [(to[0] - from[0]) * dx + (to[1] - from[1]) * dy, (to[0] - from[0]) * dy - (to[1] - from[1]) * dx];
      const cost = found ? along + 2 * Math.abs(across) : Math.hypot(along, across);
      if ((!found || along > 1e-6) && cost < least) [best, least] = [box, cost];
    }
    if (best) this.#select(part, best);
  }

  #select(part, box) {
    this.shared.selected = part.prefix + box.id;
    const [x, y, w, h] = part.rect(box);
    const { camera, width, height } = this;
    const [px, py] = [(x + w / 2 - camera.x) * camera.k, (y + h / 2 - camera.y) * camera.k];
    if (px < 0 || py < 0 || px > width || py > height) this.panBy(width / 2 - px, height / 2 - py);
  }

  /** Opens the selected component: the camera moves to it, and its first part is selected. */
  #enter() {
    const found = this.shared.selected && this.locate(this.shared.selected);
    if (!found) return this.#step(0, 0);
    this.lookAt(found.rect);
    if (!found.box?.template) return undefined;
    const part = found.part.open(found.box, this.machine.templates);
    const first = part.template.boxes.find((box) => box.template) ?? part.template.boxes[0];
    this.shared.selected = part.prefix + first.id;
    return undefined;
  }

  /** Goes out: from a component to the one that contains it, and from the outermost to nothing. */
  #out() {
    const found = this.shared.selected && this.locate(this.shared.selected);
    const { part } = found ?? { part: this.focus };
    this.shared.selected = found && part.box ? part.parent.prefix + part.box.id : null;
    const around = part?.parent;
    if (around?.box) this.lookAt(around.parent.rect(around.box));
    else this.home();
  }

  #hover([px, py]) {
    const found = this.#find(px, py);
    this.shared.hovered = found?.id ?? null;
    this.tip.hidden = !found;
    if (!found) return;
    const { label, place } = this.name(found.id);
    this.tip.replaceChildren(node("b", {}, label), node("div", {}, place), node("div", {}, this.loads ? this.#loadText(found.id) : ""), node("code", {}, found.id));
    const [width, height] = [this.tip.offsetWidth, this.tip.offsetHeight];
    this.tip.style.left = `${Math.max(0, Math.min(px + 14, this.width - width - 4))}px`;
    this.tip.style.top = `${py + 18 + height > this.height ? Math.max(0, py - height - 8) : py + 18}px`;
  }

  #sentence(id) {
    const { label, place } = this.name(id);
    return [label, place, this.#loadText(id)].filter(Boolean).join(", ");
  }

  #loadText(id) {
    if (!this.loads) return "no run yet";
    const share = this.loads.share(id, this.shared.t);
    if (share === null && PASSIVE.has(this.locate(id)?.kind)) return "its links carry the load";
    return share === null ? "never busy in this run" : `busy ${percentText(share)} at ${nsText(this.shared.t)}`;
  }

  /** Returns what is drawn at a point of the view [px]: a box, or the nearest line. */
  #find(px, py) {
    if (!this.system) return null;
    const { camera } = this;
    const [x, y] = [camera.x + px / camera.k, camera.y + py / camera.k];
    let part = this.system;
    let found = null;
    for (;;) {
      const { template, prefix } = part;
      const line = this.#wired(part) && nearestLine(part, x, y, 5 / camera.k);
      const hit = template.boxes.filter((box) => inside(part.rect(box), x, y)).at(-1);
      if (line && (!hit || hit.template || hit.kind === "io")) {
        const ids = [`${prefix}${line.a}->${prefix}${line.b}`, `${prefix}${line.b}->${prefix}${line.a}`];
        const busy = (id) => this.loads?.share(id, this.shared.t) ?? -1;
        const [x0, y0, x1, y1] = line.box;
        return { id: busy(ids[1]) > busy(ids[0]) ? ids[1] : ids[0], rect: part.rect([x0, y0, x1 - x0, y1 - y0]) };
      }
      if (!hit || (template === this.machine.templates.cube && !this.#wired(part) && !hit.template)) return found;
      const rect = part.rect(hit);
      found = { id: prefix + hit.id, rect };
      if (!hit.template || rect[2] * camera.k < OPENS[hit.template]) return found;
      part = part.open(hit, this.machine.templates);
    }
  }

  #wired(part) {
    return part.template !== this.machine.templates.cube || part.template.w * part.scale * this.camera.k >= WIRED;
  }
}

const WORDS = [
  [/^sip(\d+)\.io\.noc$/, "SIP $1"], [/^sip(\d+)\.io\.pcie_ep$/, "SIP $1"], [/hbm_ctrl\.pe(\d+)/, "HBM slice $1"],
  [/\bsip(\d+)/, "SIP $1"], [/\bcube(\d+)/, "cube $1"], [/\bpe(\d+)/, "PE $1"], [/ucie_([ewns])\.conn(\d+)/, (_, side, n) => `port ${side.toUpperCase()}${n}`],
  [/io\.ucie_r(\d+)\.conn(\d+)/, "IO port $1-$2"], [/io\.noc/, "IO network"], [/io\.pcie_ep/, "PCIe endpoint"], [/io\.io_cpu/, "IO CPU"],
  [/pe_dma/, "DMA"], [/pe_cpu/, "CPU"], [/m_cpu/, "cube CPU"], [/sram/, "SRAM"], [/\br(\d+)c(\d+)/, "r$1c$2"], [/^host$/, "host"], [/^switch$/, "PCIe switch"],
];

/** Returns an id in words: "sip0.cube3.pe1" as "SIP 0, cube 3, PE 1". */
function placeText(id) {
  return WORDS.reduce((text, [what, word]) => text.replace(what, word), id).replaceAll(".", ", ");
}
