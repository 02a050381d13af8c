// The machine: nested templates on a canvas, from the system down to the parts of a PE.

const LEVELS = ["system", "sip", "cube", "pe"];
const SHADES = 24;
/** Width [px] from which the inside of a box is drawn. */
const OPENS = { sip: 70, cube: 24, pe: 250 };
/** Width [px] of a cube from which its routers and links are drawn. */
const WIRED = 150;
/** Width [px] of a cube below which its UCIe connections are one line. */
const BUNDLED = 60;
const LARGEST_SCALE = 4000;
const UNKNOWN = -2;
/** Kinds of components that the log has no work of. */
const PASSIVE = new Set(["host", "switch", "io", "io_noc", "pcie_ep", "router", "ucie"]);

/** One occurrence of a template: where it is drawn, and where its loads are found. */
class Part {
  constructor(template, prefix, x, y, scale, flip, parent, box) {
    Object.assign(this, { template, prefix, x, y, scale, parent, box });
    this.flipX = flip?.[0] ?? false;
    this.flipY = flip?.[1] ?? false;
    this.inside = new Map();
  }

  /** Adds to a template what every occurrence needs. */
  static prepare(template) {
    template.byId = new Map(template.boxes.map((box) => [box.id, box]));
    for (const line of template.lines) {
      const xs = line.p.filter((_, i) => i % 2 === 0);
      const ys = line.p.filter((_, i) => i % 2 === 1);
      line.box = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
      line.lanes = lanes(line.p);
    }
    // Where there is no room for each, the connections of one side are one line, as busy as the busiest.
    const bundles = new Map();
    template.lines.forEach(({ kind, a, b }, i) => {
      const key = a ? [kind, a, b].map((word) => word.replace(/\.conn\d+$/, "")).join(" ") : i;
      bundles.set(key, [...(bundles.get(key) ?? []), i]);
    });
    template.bundles = [...bundles.values()];
    template.single = template.lines.map((_, i) => [i]);
  }

  /** Returns left, top, width and height [mm] of a box, or of any [x, y, w, h] of the template. */
  rect(box) {
    const [x, y, w, h] = Array.isArray(box) ? box : box.at;
    const { template, scale } = this;
    return [
      this.x + (this.flipX ? template.w - x - w : x) * scale, this.y + (this.flipY ? template.h - y - h : y) * scale,
      w * scale, h * scale,
    ];
  }

  /** Returns the occurrence inside a box that has a template. */
  open(box, templates) {
    let part = this.inside.get(box);
    if (!part) {
      const template = templates[box.template];
      const [x, y, w, h] = this.rect(box);
      const scale = Math.min(w / template.w, h / template.h);
      const left = x + (w - template.w * scale) / 2;
      const top = y + (h - template.h * scale) / 2;
      part = new Part(template, `${this.prefix}${box.id}.`, left, top, scale, box.flip, this, box);
      this.inside.set(box, part);
    }
    return part;
  }

  /** Forgets the rows of other loads. Rows are looked up when they are first drawn. */
  follow(index) {
    if (this.index === index) return;
    this.index = index;
    this.boxRows = new Int32Array(this.template.boxes.length).fill(UNKNOWN);
    this.lineRows = new Int32Array(2 * this.template.lines.length).fill(UNKNOWN);
  }

  /** Returns the row of the load of box `i`, -1 for none. */
  boxRow(i) {
    if (this.boxRows[i] === UNKNOWN) this.boxRows[i] = this.index.nodes.get(this.prefix + this.template.boxes[i].id) ?? -1;
    return this.boxRows[i];
  }

  /** Returns the row of the load of line `i` in its direction, or with `back` in the other one; -1 for none. */
  lineRow(i, back) {
    const at = 2 * i + back;
    if (this.lineRows[at] === UNKNOWN) {
      const { a, b } = this.template.lines[i];
      const [from, to] = back ? [b, a] : [a, b];
      this.lineRows[at] = this.index.links.get(`${this.prefix}${from}->${this.prefix}${to}`) ?? -1;
    }
    return this.lineRows[at];
  }

  /** Finds which of its boxes and lines are on the critical path, once for each path. */
  trace(path) {
    if (this.path === path) return;
    this.path = path;
    const { template, prefix } = this;
    this.boxOnPath = template.boxes.map((box) => path.share.has(prefix + box.id));
    this.lineOnPath = template.lines.map(({ a, b }) =>
      Boolean(a) && (path.share.has(`${prefix}${a}->${prefix}${b}`) || path.share.has(`${prefix}${b}->${prefix}${a}`)));
  }
}

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
    const step = this.steps.find(([start, end]) => start <= t * 1000 && t * 1000 < end);
    return new Set(step?.[6].map(([resource]) => this.resources[resource]));
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

function inside([x, y, w, h], px, py) {
  return px >= x && py >= y && px <= x + w && py <= y + h;
}

/** Returns the line with links that passes nearest to a point [mm], if within `reach`. */
function nearestLine(part, x, y, reach) {
  const [px, py] = [(x - part.x) / part.scale, (y - part.y) / part.scale];
  const { template } = part;
  const [tx, ty] = [part.flipX ? template.w - px : px, part.flipY ? template.h - py : py];
  let best = null;
  let least = (reach / part.scale) ** 2;
  for (const line of template.lines) {
    if (!line.a) continue;
    for (let i = 0; i + 3 < line.p.length; i += 2) {
      const [ax, ay] = [line.p[i], line.p[i + 1]];
      const [dx, dy] = [line.p[i + 2] - ax, line.p[i + 3] - ay];
      const along = Math.max(0, Math.min(1, ((tx - ax) * dx + (ty - ay) * dy) / (dx * dx + dy * dy || 1)));
      const away = (ax + along * dx - tx) ** 2 + (ay + along * dy - ty) ** 2;
      if (away < least) [best, least] = [line, away];
    }
  }
  return best;
}

/** Returns for each corner of a line the vector to its right, so that each direction has a lane. */
function lanes(p) {
  const n = p.length / 2;
  const out = new Float32Array(p.length);
  const normal = (i) => {
    const [dx, dy] = [p[2 * i + 2] - p[2 * i], p[2 * i + 3] - p[2 * i + 1]];
    const length = Math.hypot(dx, dy) || 1;
    return [-dy / length, dx / length];
  };
  for (let i = 0; i < n; i++) {
    const [a, b] = [normal(Math.max(0, i - 1)), normal(Math.min(n - 2, i))];
    const [x, y] = [a[0] + b[0], a[1] + b[1]];
    const scale = 2 / Math.max(0.5, x * x + y * y);
    out[2 * i] = x * scale;
    out[2 * i + 1] = y * scale;
  }
  return out;
}

/** Reads the tokens that the canvas needs, as numbers and colours. */
function readColours(root) {
  const style = getComputedStyle(root);
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const solid = (name) => {
    pen.fillStyle = "#000";
    pen.fillStyle = style.getPropertyValue(name).trim();
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
  const mix = (a, b, share) => css(a.map((value, c) => Math.round(value + (b[c] - value) * share)));
  const stops = [0, 1, 2, 3].map((i) => solid(`--kbp-load-${i}`));
  const ramp = Array.from({ length: SHADES }, (_, i) => {
    const at = (i / (SHADES - 1)) * 3;
    const low = Math.min(2, Math.floor(at));
    return mix(stops[low], stops[low + 1], at - low);
  });
  const [bg, text] = [solid("--kbp-bg"), solid("--kbp-text")];
  return {
    ramp, bg: css(bg), text: css(text), font: style.fontFamily,
    ...Object.fromEntries(["muted", "outline", "accent", "path"].map((name) => [name, css(solid(`--kbp-${name}`))])),
    depth: [0, 0.035, 0.065, 0.095, 0.13].map((share) => mix(bg, text, share)),
  };
}

const TEXT_WIDTHS = new Map();

function textWidth(pen, font, text) {
  const key = `${font}|${text}`;
  if (!TEXT_WIDTHS.has(key)) {
    pen.font = font;
    TEXT_WIDTHS.set(key, pen.measureText(text).width);
  }
  return TEXT_WIDTHS.get(key);
}

/** What one frame draws, sorted by colour so that each colour is set once. */
class Sheet {
  constructor(view, labelled) {
    Object.assign(this, { view, labelled, camera: view.camera, loads: view.loads, width: view.width, height: view.height });
    this.templates = view.machine.templates;
    this.bin = view.loads?.bin(view.shared.t) ?? 0;
    this.path = view.shared.path ? view.path : null;
    this.now = this.path?.at(view.shared.t);
    this.pen = view.labels.getContext("2d");
    const shades = () => Array.from({ length: SHADES }, () => []);
    // Rectangles as x, y, w, h; lines as their points, each ended by NaN.
    this.fills = view.colours.depth.map(() => []);
    this.tiles = shades();
    this.gauges = shades();
    this.busy = shades();
    this.idle = [];
    this.inner = [];
    this.traced = [];
    this.tracedNow = [];
    this.tracedBoxes = [];
    this.outlines = [];
    this.texts = [];
    this.marks = [];
  }

  part(part, depth) {
    const { camera, loads, view, path } = this;
    const { template } = part;
    if (loads) part.follow(loads.index);
    if (path) part.trace(path);
    const k = part.scale * camera.k;
    const left = (part.x - camera.x) * camera.k;
    const top = (part.y - camera.y) * camera.k;
    const cube = template === this.templates.cube;
    const wired = !cube || template.w * k >= WIRED;
    const { selected, hovered } = view.shared;
    const { boxes } = template;
    const opened = [];
    for (let i = 0; i < boxes.length; i++) {
      const box = boxes[i];
      const [bx, by, bw, bh] = box.at;
      const x = left + (part.flipX ? template.w - bx - bw : bx) * k;
      const y = top + (part.flipY ? template.h - by - bh : by) * k;
      const [w, h] = [bw * k, bh * k];
      if (x > this.width || y > this.height || x + w < 0 || y + h < 0 || (w < 1 && h < 1)) continue;
      if (this.labelled && (selected || hovered)) {
        const id = part.prefix + box.id;
        if (id === selected || id === hovered) this.marks.push([x, y, w, h, id === selected]);
      }
      if (!wired && !box.template) continue;
      if (path && part.boxOnPath[i]) this.tracedBoxes.push(x, y, w, h);
      const load = loads ? this.#load(loads.node, part.boxRow(i)) : 0;
      if (box.template && w >= OPENS[box.template]) {
        this.fills[Math.min(depth + 1, 4)].push(x, y, w, h);
        if (this.labelled) {
          this.outlines.push(x, y, w, h);
          this.#title(box, x, y, w, h, k);
        }
        opened.push(box);
      } else {
        this.#box(box, x, y, w, h, load, depth);
      }
    }
    if (wired) this.#lines(part, left, top, k);
    for (const box of opened) this.part(part.open(box, this.templates), depth + 1);
  }

  #load(data, row) {
    return row < 0 ? 0 : data[row * this.loads.bins + this.bin];
  }

  /** A box without its inside: a tile in the colour of its load if small, else a label and a gauge. */
  #box(box, x, y, w, h, load, depth) {
    const room = w >= 40 && h >= 20 && box.kind !== "router" && box.kind !== "ucie";
    const shade = Math.min(SHADES - 1, Math.floor((load / 256) * SHADES));
    if (load && !room) this.tiles[shade].push(x, y, w, h);
    else this.fills[Math.min(depth + (box.kind === "io" ? 1 : 2), 4)].push(x, y, w, h);
    if (room && load) {
      const bar = Math.max(4, Math.min(12, h * 0.1));
      this.gauges[shade].push(x, y + h - bar, Math.max(2, (w * load) / 255), bar);
    }
    if (!this.labelled) return;
    if (w > 5 && h > 3) this.outlines.push(x, y, w, h);
    if (room || (box.kind === "router" && w > 34) || box.kind === "io") this.#label(box, x, y, w, h);
  }

  /** The label of an open box: above it where the gap has room, else inside where its own margin has. */
  #title(box, x, y, w, h, k) {
    const u = this.templates.cube.w / 6;
    const above = { sip: 0.1 * Math.min(...box.at.slice(2)), cube: 0.5 * u, pe: 0 }[box.template] * k;
    const within = { sip: 0.8 * u * k, cube: 0.4 * u * k, pe: 0.06 * h }[box.template];
    const size = Math.max(11, Math.min(16, Math.max(above, within) * 0.62));
    if (Math.max(above, within) < 11 || textWidth(this.pen, this.#font(600, size), box.label) > w - 4) return;
    const cubes = box.template === "sip" ? this.templates.sip.byId.get("cube0").at[0] * k : 0; // beside the PCIe link
    if (above >= 11) this.texts.push([box.label, x + cubes + 1, y - 3, size, "left", 600]);
    else this.texts.push([box.label, x + 6, y + (within + size * 0.75) / 2, size, "left", 600]);
  }

  #font(weight, size) {
    return `${weight} ${size}px ${this.view.colours.font}`;
  }

  #label(box, x, y, w, h) {
    const across = w - 6;
    const size = Math.round(Math.max(11, Math.min(18, Math.min(h / 5, w / 8))));
    const small = Math.max(11, size - 3);
    const fits = (text, px, weight, room) => textWidth(this.pen, this.#font(weight, px), text) <= room;
    if (box.kind === "io") {
      if (w > 70) this.texts.push([box.label, x + 1, y - 4, size, "left", 600]);
      return;
    }
    // On one line, on two, or upright; else not at all.
    const words = box.label.split(" ");
    const half = Math.ceil(words.length / 2);
    const two = [words.slice(0, half).join(" "), words.slice(half).join(" ")];
    let [heads, head] = [[box.label], size];
    if (!fits(box.label, head, 600, across)) head = 11;
    if (!fits(box.label, 11, 600, across)) {
      if (words.length > 1 && h >= 34 && two.every((text) => fits(text, 11, 600, across))) {
        heads = two;
      } else {
        if (h > 2 * w && w > 16 && fits(box.label, 12, 600, h - 8)) this.texts.push([box.label, x + w / 2, y + h / 2, 12, "upright", 600]);
        return;
      }
    }
    const whole = heads.length * head * 1.25;
    const room = whole + box.detail.length * small * 1.4 + 14 < h && box.detail.every((text) => fits(text, small, 400, across));
    const lines = room ? box.detail : [];
    let at = y + (h - whole - lines.length * small * 1.4) / 2 - head * 0.3;
    for (const text of heads) this.texts.push([text, x + w / 2, (at += head * 1.25), head, "center", 600]);
    for (const text of lines) this.texts.push([text, x + w / 2, (at += small * 1.4), small, "center", 400]);
  }

  #lines(part, left, top, k) {
    const { loads, path } = this;
    const { template, flipX, flipY } = part;
    const { lines, w, h } = template;
    const lane = Math.max(1.1, Math.min(3.5, k * (template === this.templates.system ? 0.35 : 0.05)));
    const apart = template === this.templates.system ? k * w > 500 : k * this.templates.cube.w > 260;
    const small = template === this.templates.sip && k * this.templates.cube.w < BUNDLED;
    for (const members of small ? template.bundles : template.single) {
      const i = members[members.length >> 1];
      const line = lines[i];
      let [x0, y0, x1, y1] = line.box;
      if (flipX) [x0, x1] = [w - x1, w - x0];
      if (flipY) [y0, y1] = [h - y1, h - y0];
      if (left + x0 * k > this.width || left + x1 * k < 0 || top + y0 * k > this.height || top + y1 * k < 0) continue;
      const { p } = line;
      const add = (list, offset) => {
        for (let j = 0; j < p.length; j += 2) {
          const x = left + (flipX ? w - p[j] : p[j]) * k;
          const y = top + (flipY ? h - p[j + 1] : p[j + 1]) * k;
          list.push(x + offset * line.lanes[j], y + offset * line.lanes[j + 1]);
        }
        list.push(NaN);
      };
      if (!line.a) {
        add(this.inner, 0);
        continue;
      }
      let [there, back] = [0, 0];
      for (const member of loads ? members : []) {
        there = Math.max(there, this.#load(loads.link, part.lineRow(member, 0)));
        back = Math.max(back, this.#load(loads.link, part.lineRow(member, 1)));
      }
      const shade = (load) => (load ? this.busy[Math.min(SHADES - 1, Math.floor((load / 256) * SHADES))] : this.idle);
      if (apart) {
        add(shade(there), lane);
        add(shade(back), -lane);
      } else {
        add(shade(Math.max(there, back)), 0);
      }
      if (path && members.some((member) => part.lineOnPath[member])) {
        const ids = [`${part.prefix}${line.a}->${part.prefix}${line.b}`, `${part.prefix}${line.b}->${part.prefix}${line.a}`];
        add(this.now.has(ids[0]) || this.now.has(ids[1]) ? this.tracedNow : this.traced, 0);
      }
      if (this.labelled) {
        const { selected, hovered } = this.view.shared;
        for (const id of [selected, hovered]) {
          if (!id?.includes("->") || !id.startsWith(part.prefix)) continue;
          const [a, b] = id.split("->").map((end) => end.slice(part.prefix.length));
          if ((a === line.a && b === line.b) || (a === line.b && b === line.a)) {
            const points = [];
            add(points, apart ? (a === line.a ? lane : -lane) : 0);
            this.marks.push([points, id === selected]);
          }
        }
      }
    }
  }

  paintLoads(pen) {
    const { colours } = this.view;
    pen.fillStyle = colours.bg;
    pen.fillRect(0, 0, this.width, this.height);
    const rects = (list, colour) => {
      if (!list.length) return;
      pen.fillStyle = colour;
      if (list.length > 4000) {
        for (let i = 0; i < list.length; i += 4) pen.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
        return;
      }
      pen.beginPath();
      for (let i = 0; i < list.length; i += 4) pen.rect(list[i], list[i + 1], list[i + 2], list[i + 3]);
      pen.fill();
    };
    this.fills.forEach((list, i) => rects(list, colours.depth[i]));
    pen.lineJoin = "round";
    pen.lineCap = "butt";
    strokeAll(pen, this.traced, colours.path, 5);
    strokeAll(pen, this.tracedNow, colours.path, 9);
    strokeAll(pen, this.inner, colours.outline, 0.7);
    strokeAll(pen, this.idle, colours.outline, 0.9);
    const thin = Math.min(1, 0.5 + (this.templates.cube.w * this.camera.k) / 300);
    this.busy.forEach((points, i) => strokeAll(pen, points, colours.ramp[i], thin * (1.6 + (2.2 * i) / SHADES)));
    this.tiles.forEach((list, i) => rects(list, colours.ramp[i]));
    this.gauges.forEach((list, i) => rects(list, colours.ramp[i]));
    pen.strokeStyle = colours.path;
    pen.lineWidth = 2.5;
    for (let i = 0; i < this.tracedBoxes.length; i += 4) {
      const [x, y, w, h] = this.tracedBoxes.slice(i, i + 4);
      pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
    }
  }

  paintLabels(pen) {
    const { colours } = this.view;
    pen.clearRect(0, 0, this.width, this.height);
    pen.strokeStyle = colours.outline;
    pen.lineWidth = 1;
    pen.beginPath();
    const { outlines } = this;
    for (let i = 0; i < outlines.length; i += 4) {
      pen.rect(Math.round(outlines[i]) + 0.5, Math.round(outlines[i + 1]) + 0.5, Math.round(outlines[i + 2]), Math.round(outlines[i + 3]));
    }
    pen.stroke();
    for (const [text, x, y, size, align, weight] of this.texts) {
      pen.font = this.#font(weight, size);
      pen.fillStyle = weight > 400 ? colours.text : colours.muted;
      pen.textAlign = align === "upright" ? "center" : align;
      if (align !== "upright") {
        pen.fillText(text, x, y);
        continue;
      }
      pen.save();
      pen.translate(x, y);
      pen.rotate(-Math.PI / 2);
      pen.fillText(text, 0, 4);
      pen.restore();
    }
    for (const mark of this.marks) {
      const isSelected = mark.at(-1);
      if (Array.isArray(mark[0])) {
        pen.globalAlpha = 0.45;
        strokeAll(pen, mark[0], colours.accent, isSelected ? 10 : 7);
        pen.globalAlpha = 1;
        continue;
      }
      const [x, y, w, h] = mark;
      pen.strokeStyle = colours.accent;
      pen.lineWidth = isSelected ? 3 : 1.5;
      pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
    }
  }
}

/** Strokes lines given as their points, each line ended by NaN. */
function strokeAll(pen, points, colour, width) {
  if (!points.length) return;
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.beginPath();
  for (let i = 0, first = true; i < points.length; ) {
    if (Number.isNaN(points[i])) {
      first = true;
      i += 1;
      continue;
    }
    if (first) pen.moveTo(points[i], points[i + 1]);
    else pen.lineTo(points[i], points[i + 1]);
    first = false;
    i += 2;
  }
  pen.stroke();
}
