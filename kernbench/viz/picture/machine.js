// The machine: nested templates on a canvas, from the system down to the parts of a PE.

const LEVELS = ["system", "sip", "cube", "pe"];
const SHADES = 24;
/** Width [px] from which the inside of a box is drawn. */
const OPENS = { sip: 90, cube: 26, pe: 110 };
/** Width [px] of a cube from which its routers and links are drawn. */
const WIRED = 150;
const LARGEST_SCALE = 4000;
const ENGINE = /^(sip\d+\.cube\d+\.pe\d+)\.(?:pe_dma|pe_fetch_store\.\w+|pe_gemm|pe_math)$/;

/** The loads of a run, by id: those of the log in bins, or those of one moment of a run under way. */
class Loads {
  constructor(run, link, node_, counts) {
    this.bins = run.bins;
    this.end = run.end_ns;
    this.link = link;
    this.links = new Map(run.links.map((id, row) => [id, row]));
    this.nodes = new Map(run.nodes.map((id, row) => [id, row]));
    this.node = this.#withGroups(run.nodes, node_, counts);
  }

  bin(t) {
    return Math.max(0, Math.min(this.bins - 1, Math.floor((t / this.end) * this.bins)));
  }

  /** Returns the share of a link or component at a time; null if it was never busy. */
  share(id, t) {
    const isLink = id.includes("->");
    const row = (isLink ? this.links : this.nodes).get(id);
    return row === undefined ? null : (isLink ? this.link : this.node)[row * this.bins + this.bin(t)] / 255;
  }

  /** Returns the shares of all bins; null if it was never busy. */
  curve(id) {
    const isLink = id.includes("->");
    const row = (isLink ? this.links : this.nodes).get(id);
    return row === undefined ? null : (isLink ? this.link : this.node).subarray(row * this.bins, (row + 1) * this.bins);
  }

  /** Returns the time at which links and engines together are busiest. */
  hottest() {
    const total = new Float64Array(this.bins);
    for (const [data, rows] of [[this.link, this.links.size], [this.node, this.own]]) {
      for (let row = 0; row < rows; row++) {
        for (let bin = 0; bin < this.bins; bin++) total[bin] += data[row * this.bins + bin];
      }
    }
    return ((total.indexOf(Math.max(...total)) + 0.5) / this.bins) * this.end;
  }

  /** A PE is as busy as its busiest engine; a cube and a SIP as their PEs on average, a stack as its slices. */
  #withGroups(ids, data, counts) {
    this.own = ids.length;
    const { bins } = this;
    const groups = new Map();
    const group = (id) => {
      if (!groups.has(id)) groups.set(id, new Float32Array(bins));
      return groups.get(id);
    };
    ids.forEach((id, row) => {
      const pe = ENGINE.exec(id)?.[1];
      const unit = id.includes(".pe_fetch_store.") ? id.slice(0, id.lastIndexOf(".")) : null;
      for (const target of [pe, unit]) {
        if (!target) continue;
        const sums = group(target);
        for (let bin = 0; bin < bins; bin++) sums[bin] = Math.max(sums[bin], data[row * bins + bin]);
      }
      const slice = id.indexOf(".hbm_ctrl.");
      if (slice > 0) {
        const sums = group(`${id.slice(0, slice)}.hbm`);
        for (let bin = 0; bin < bins; bin++) sums[bin] += data[row * bins + bin] / counts.pes;
      }
    });
    for (const [id, sums] of [...groups]) {
      const parts = id.split(".");
      if (parts.length !== 3 || !parts[2].startsWith("pe")) continue;
      for (const [target, n] of [[`${parts[0]}.${parts[1]}`, counts.pes], [parts[0], counts.pes * counts.cubes]]) {
        const mean = group(target);
        for (let bin = 0; bin < bins; bin++) mean[bin] += sums[bin] / n;
      }
    }
    const all = new Uint8Array((ids.length + groups.size) * bins);
    all.set(data.subarray(0, ids.length * bins));
    let row = ids.length;
    for (const [id, sums] of groups) {
      for (let bin = 0; bin < bins; bin++) all[row * bins + bin] = Math.round(sums[bin]);
      this.nodes.set(id, row++);
    }
    return all;
  }
}

/** One occurrence of a template: where it is drawn, and where its loads are found. */
class Part {
  constructor(template, prefix, x, y, scale, flip, parent) {
    Object.assign(this, { template, prefix, x, y, scale, parent });
    this.flipX = flip?.[0] ?? false;
    this.flipY = flip?.[1] ?? false;
    this.inside = new Map();
    this.loads = null;
  }

  /** Returns left, top, width and height [mm] of a box. */
  rect(box) {
    const [x, y, w, h] = box.at;
    const { template, scale } = this;
    return [
      this.x + (this.flipX ? template.w - x - w : x) * scale,
      this.y + (this.flipY ? template.h - y - h : y) * scale,
      w * scale,
      h * scale,
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
      part = new Part(template, `${this.prefix}${box.id}.`, left, top, scale, box.flip, this);
      this.inside.set(box, part);
    }
    return part;
  }

  /** Finds the rows of the loads of its boxes and lines, once for each set of loads. */
  resolve(loads) {
    if (this.loads === loads) return;
    this.loads = loads;
    const { template, prefix } = this;
    const find = (map, id) => map.get(id) ?? -1;
    this.boxRow = Int32Array.from(template.boxes, (box) => find(loads.nodes, prefix + box.id));
    const name = (line, from, to) => `${prefix}${line[from]}->${prefix}${line[to]}`;
    this.there = Int32Array.from(template.lines, (line) => (line.a ? find(loads.links, name(line, "a", "b")) : -1));
    this.back = Int32Array.from(template.lines, (line) => (line.a ? find(loads.links, name(line, "b", "a")) : -1));
  }
}

class MachineView {
  constructor(root, shared, send) {
    this.shared = shared;
    this.send = send;
    this.loads = null;
    this.system = null;
    this.camera = { x: 0, y: 0, k: 1 };
    this.heat = node("canvas.kbp-heat", { "aria-hidden": "true" });
    this.labels = node("canvas.kbp-labels", { tabindex: "0", role: "application", "aria-label": "Machine" });
    this.tip = node("div.kbp-tip", { hidden: true });
    this.said = node("div.kbp-unseen", { "aria-live": "polite" });
    this.legend = node(
      "div.kbp-legend", {},
      node("span", {}, "busy share of time"), node("span", {}, "0 %"), node("span.kbp-ramp"), node("span", {}, "100 %"),
    );
    const zoom = (text, label, act) => node("button.kbp-button", { type: "button", title: label, "aria-label": label, onclick: act }, text);
    this.root = node(
      "div.kbp-machine", {}, this.heat, this.labels, this.legend,
      node(
        "div.kbp-zoom", {},
        zoom("+", "Zoom in", () => this.zoomBy(1.6)),
        zoom("−", "Zoom out", () => this.zoomBy(1 / 1.6)),
        zoom("⌂", "Whole machine", () => this.home()),
      ),
      this.tip, this.said,
    );
    root.append(this.root);
    this.onChange = (event) => this.#changed(event.detail);
    shared.addEventListener("change", this.onChange);
    this.endTheme = followTheme(root.closest(".kbp-picture") ?? root, () => this.#themed());
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
    const { machine, run } = header;
    if (machine && machine !== this.machine) {
      const same = this.machine && JSON.stringify(this.machine.templates) === JSON.stringify(machine.templates);
      this.machine = machine;
      if (!same) {
        this.system = new Part(machine.templates.system, "", 0, 0, 1, null, null);
        this.fitted = false;
        this.home(false);
      }
    }
    this.loads = run ? new Loads(run, bytes(buffers.link_load), bytes(buffers.node_load), machine.counts) : null;
    this.legend.hidden = !this.loads;
    this.#draw(true);
  }

  /** Shows the loads of one moment of a run under way; `index` says whose they are. */
  setLive(index, frame) {
    this.loads = new Loads(
      { ...index, bins: 1, end_ns: Math.max(frame.now_ns, 1) }, bytes(frame.link_load), bytes(frame.node_load), this.machine.counts,
    );
    this.legend.hidden = false;
    this.#draw(false);
  }

  // Camera

  home(animated = true) {
    if (!this.system) return;
    const { w, h } = this.system.template;
    this.lookAt([0, 0, w, h], animated, 0.98);
  }

  /** Moves the camera so that a rectangle [mm] fills the view. */
  lookAt([x, y, w, h], animated = true, fill = 0.86) {
    const { width, height } = this.size();
    if (!width || !height) return;
    const k = Math.min((width / w) * fill, (height / h) * fill);
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
      const done = Math.min(1, (now - begin) / 260);
      const ease = 1 - (1 - done) ** 3;
      // The scale changes evenly in its logarithm, around the point that stays.
      const k2 = from.k * (goal.k / from.k) ** ease;
      const share = goal.k === from.k ? ease : (1 / from.k - 1 / k2) / (1 / from.k - 1 / goal.k);
      this.#place({ x: from.x + (goal.x - from.x) * share, y: from.y + (goal.y - from.y) * share, k: k2 });
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
    this.#place({ ...camera, x: camera.x - dx / camera.k, y: camera.y - dy / camera.k });
  }

  size() {
    return { width: this.root.clientWidth, height: this.root.clientHeight };
  }

  #smallest() {
    const { width, height } = this.size();
    const { w, h } = this.system.template;
    return 0.9 * Math.min(width / w, height / h);
  }

  #place(camera) {
    const { w, h } = this.system.template;
    const { width, height } = this.size();
    // The middle of the view stays on the machine.
    const clamp = (value, size, whole) => Math.max(-size / 2, Math.min(whole - size / 2, value));
    this.camera = { k: camera.k, x: clamp(camera.x, width / camera.k, w), y: clamp(camera.y, height / camera.k, h) };
    const [x, y] = [this.camera.x + width / 2 / camera.k, this.camera.y + height / 2 / camera.k];
    const { part, level } = this.#around(x, y);
    this.shared.level = level;
    this.shared.focus = part.prefix.slice(0, -1);
    this.#draw(true);
  }

  /** Returns the innermost open part at a point [mm], and its level. */
  #around(x, y) {
    let part = this.system;
    let level = 0;
    for (;;) {
      const box = part.template.boxes.find((b) => b.template && inside(part.rect(b), x, y));
      if (!box || part.rect(box)[2] * this.camera.k < Math.max(OPENS[box.template], this.size().width * 0.4)) break;
      part = part.open(box, this.machine.templates);
      level += 1;
    }
    return { part, level: LEVELS[level] };
  }

  // Drawing

  #resize() {
    const { width, height } = this.size();
    const ratio = devicePixelRatio || 1;
    for (const canvas of [this.heat, this.labels]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    if (!this.fitted) this.home(false);
    this.#draw(true);
  }

  #themed() {
    this.colours = null;
    this.#draw(true);
  }

  #changed(names) {
    if (names.has("t")) this.#draw(false);
    if (names.has("selected") || names.has("hovered")) this.#draw(true);
  }

  /** Draws in the next frame: the loads, and with `all` the outlines and labels, too. */
  #draw(all) {
    this.all ||= all;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.#paint();
      this.all = false;
    });
  }

  #paint() {
    if (!this.system || !this.heat.width || !this.root.isConnected) return;
    countRedraw("machine");
    this.colours ??= readColours(this.root);
    const ratio = devicePixelRatio || 1;
    const sheet = new Sheet(this);
    sheet.part(this.system, 0);
    const pen = this.heat.getContext("2d", { alpha: false });
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    sheet.paintLoads(pen);
    if (this.all) {
      const top = this.labels.getContext("2d");
      top.setTransform(ratio, 0, 0, ratio, 0, 0);
      sheet.paintLabels(top);
    }
  }

  // Hands and keys

  #listen() {
    const { labels } = this;
    const at = (event) => {
      const box = labels.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    labels.addEventListener("wheel", (event) => {
      const out = event.deltaY > 0;
      // A page scrolls on where there is nothing more to zoom out.
      if (out && this.camera.k <= this.#smallest() * 1.001) return;
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
      if (found?.rect) this.lookAt(found.rect);
    });
    labels.addEventListener("keydown", (event) => {
      const act = {
        "+": () => this.zoomBy(1.4), "=": () => this.zoomBy(1.4), "-": () => this.zoomBy(1 / 1.4),
        Home: () => this.home(),
        ArrowLeft: () => this.panBy(60, 0), ArrowRight: () => this.panBy(-60, 0),
        ArrowUp: () => this.panBy(0, 60), ArrowDown: () => this.panBy(0, -60),
        " ": () => this.shared.play(),
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
  }

  #hover([px, py]) {
    const found = this.#find(px, py);
    this.shared.hovered = found?.id ?? null;
    this.tip.hidden = !found;
    if (!found) return;
    this.tip.replaceChildren(...this.#describe(found));
    const { width, height } = this.size();
    this.tip.style.left = `${Math.min(px + 14, Math.max(0, width - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${py + 18 + this.tip.offsetHeight > height ? py - this.tip.offsetHeight - 8 : py + 18}px`;
  }

  #describe(found) {
    const load = this.loads ? [node("br"), this.#loadText(found)] : [];
    return [node("b", {}, found.label), node("br"), node("code", {}, found.id), ...load];
  }

  #loadText(found) {
    const share = this.loads.share(found.id, this.shared.t);
    const back = found.back ? this.loads.share(found.back, this.shared.t) : null;
    const text = share === null ? "idle during the whole run" : `busy ${percentText(share)}`;
    return back === null ? text : `${text}; other direction ${percentText(back)}`;
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
      const line = nearestLine(part, x, y, 5 / camera.k);
      if (line && this.#wired(part)) {
        const ids = [`${prefix}${line.a}->${prefix}${line.b}`, `${prefix}${line.b}->${prefix}${line.a}`];
        const busy = (id) => this.loads?.share(id, this.shared.t) ?? -1;
        if (busy(ids[1]) > busy(ids[0])) ids.reverse();
        return { id: ids[0], back: ids[1], label: LINES[line.kind] ?? "Link", rect: null };
      }
      const hit = template.boxes.filter((box) => inside(part.rect(box), x, y)).at(-1);
      if (!hit) return found;
      const rect = part.rect(hit);
      found = { id: prefix + hit.id, label: hit.label, detail: hit.detail, rect };
      if (!hit.template || rect[2] * camera.k < OPENS[hit.template]) return found;
      part = part.open(hit, this.machine.templates);
    }
  }

  #wired(part) {
    return part.template !== this.machine.templates.cube || part.template.w * part.scale * this.camera.k >= WIRED;
  }
}

const LINES = {
  host: "Host link", pcie: "PCIe link", sip: "SIP link", ucie: "UCIe link", noc: "NoC link", io: "IO chiplet link", attach: "Link to the router",
};

function inside([x, y, w, h], px, py) {
  return px >= x && py >= y && px <= x + w && py <= y + h;
}

/** Returns the line with links that passes nearest to a point [mm], if within `reach`. */
function nearestLine(part, x, y, reach) {
  const px = (x - part.x) / part.scale;
  const py = (y - part.y) / part.scale;
  let best = null;
  let least = (reach / part.scale) ** 2;
  for (const line of part.template.lines) {
    if (!line.a) continue;
    for (let i = 0; i + 3 < line.p.length; i += 2) {
      const [ax, ay, bx, by] = line.p.slice(i, i + 4);
      const [dx, dy] = [bx - ax, by - ay];
      const along = Math.max(0, Math.min(1, ((px - ax) * dx + (py - ay) * dy) / (dx * dx + dy * dy || 1)));
      const away = (ax + along * dx - px) ** 2 + (ay + along * dy - py) ** 2;
      if (away < least) [best, least] = [line, away];
    }
  }
  return best;
}

/** Returns for each corner of a line the vector to its right, so that both directions have a lane. */
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

function readColours(root) {
  const style = getComputedStyle(root);
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const solid = (name) => {
    pen.fillStyle = "#000";
    pen.fillStyle = style.getPropertyValue(name).trim() || "#000";
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
  const stops = [0, 1, 2, 3].map((i) => solid(`--kbp-load-${i}`));
  const ramp = Array.from({ length: SHADES }, (_, i) => {
    const at = (i / (SHADES - 1)) * 3;
    const low = Math.min(2, Math.floor(at));
    return css(stops[low].map((value, c) => Math.round(value + (stops[low + 1][c] - value) * (at - low))));
  });
  const mix = (a, b, share) => css(a.map((value, c) => Math.round(value + (b[c] - value) * share)));
  const [bg, text] = [solid("--kbp-bg"), solid("--kbp-text")];
  return {
    ramp, bg: css(bg), text: css(text), muted: css(solid("--kbp-muted")), outline: css(solid("--kbp-outline")),
    border: css(solid("--kbp-border")), accent: css(solid("--kbp-accent")), font: style.fontFamily,
    depth: [bg, 0.03, 0.06, 0.09, 0.13].map((share) => (typeof share === "number" ? mix(bg, text, share) : css(bg))),
  };
}

/** What one frame draws, sorted by colour so that each colour is set once. */
class Sheet {
  constructor(view) {
    this.view = view;
    this.camera = view.camera;
    this.colours = view.colours;
    this.loads = view.loads;
    this.bin = view.loads?.bin(view.shared.t) ?? 0;
    const { width, height } = view.size();
    Object.assign(this, { width, height });
    this.fills = this.colours.depth.map(() => []);
    this.tiles = Array.from({ length: SHADES }, () => []);
    this.gauges = Array.from({ length: SHADES }, () => []);
    this.idle = [];
    this.busy = Array.from({ length: SHADES }, () => []);
    this.outlines = [];
    this.texts = [];
    this.marks = [];
  }

  part(part, depth) {
    const { camera, loads, view } = this;
    const { template } = part;
    if (loads) part.resolve(loads);
    const k = part.scale * camera.k;
    const left = (part.x - camera.x) * camera.k;
    const top = (part.y - camera.y) * camera.k;
    const cube = template === view.machine.templates.cube;
    const wired = !cube || template.w * k >= WIRED;
    template.boxes.forEach((box, i) => {
      const [bx, by, bw, bh] = box.at;
      const x = left + (part.flipX ? template.w - bx - bw : bx) * k;
      const y = top + (part.flipY ? template.h - by - bh : by) * k;
      const [w, h] = [bw * k, bh * k];
      if (x > this.width || y > this.height || x + w < 0 || y + h < 0) return;
      const selected = view.shared.selected === part.prefix + box.id;
      if (selected || view.shared.hovered === part.prefix + box.id) this.marks.push([x, y, w, h, selected]);
      if (cube && !wired && !box.template) return;
      if (w < 1.2 && h < 1.2) return;
      const load = loads && part.boxRow[i] >= 0 ? loads.node[part.boxRow[i] * loads.bins + this.bin] : 0;
      if (box.template && w >= OPENS[box.template]) {
        this.fills[Math.min(depth + 1, 4)].push(x, y, w, h);
        this.outlines.push(x, y, w, h);
        this.#title(box, x, y, w, h, part.open(box, view.machine.templates), camera.k);
        this.part(part.open(box, view.machine.templates), depth + 1);
      } else {
        this.#box(box, x, y, w, h, load, depth);
      }
    });
    if (wired) this.#lines(part, left, top, k);
  }

  /** A box without its inside: a tile in the colour of its load if small, else a label and a gauge. */
  #box(box, x, y, w, h, load, depth) {
    const shade = Math.min(SHADES - 1, Math.floor((load / 256) * SHADES));
    if (box.kind === "io") {
      this.outlines.push(x, y, w, h);
      this.#label(box, x, y, w, h, true);
      return;
    }
    const room = w >= 34 && h >= 18;
    if (load && !room) this.tiles[shade].push(x, y, w, h);
    else this.fills[Math.min(depth + 2, 4)].push(x, y, w, h);
    if (w > 5 && h > 3) this.outlines.push(x, y, w, h);
    if (!room) return;
    if (load) {
      const bar = Math.max(4, Math.min(10, h * 0.12));
      this.gauges[shade].push(x, y + h - bar, Math.max(2, (w * load) / 255), bar);
    }
    this.#label(box, x, y, w, h, false);
  }

  #title(box, x, y, w, h, part, k) {
    const free = (part.y - (y / k + this.camera.y)) * k; // above the inside
    if (w > 110) this.texts.push([box.label, Math.max(4, x) + 5, Math.max(0, y) + 13, 11, "left", 600, Math.min(w, x + w) - 10, free]);
  }

  #label(box, x, y, w, h, atTop) {
    const across = w - 8;
    const size = Math.min(14, Math.max(11, h / 5));
    const width = (text, px, bold) => text.length * px * (bold ? 0.6 : 0.55);
    let name = box.label;
    if (width(name, size, true) > across) {
      const upright = h > 3 * w && width(name, 12, true) < h - 8;
      if (upright) this.texts.push([name, x + w / 2, y + h / 2, 12, "upright", 600]);
      return;
    }
    const lines = [];
    if (!atTop && h > 46) {
      for (const detail of box.detail) if (width(detail, 11, false) <= across) lines.push(detail);
    }
    const fitting = Math.max(0, Math.floor((h - 12 - size * 1.3) / 15));
    const shown = lines.length <= fitting ? lines : [];
    const whole = size * 1.3 + shown.length * 15;
    let at = atTop ? y + size + 4 : y + (h - whole) / 2 + size;
    this.texts.push([name, x + w / 2, at, size, "center", 600]);
    for (const text of shown) this.texts.push([text, x + w / 2, (at += 15), 11, "center", 400]);
  }

  #lines(part, left, top, k) {
    const { loads } = this;
    const { template } = part;
    const near = k * template.w > 500 || template === this.view.machine.templates.system;
    template.lines.forEach((line, i) => {
      const { p } = line;
      line.lanes ??= lanes(p);
      line.box ??= [Math.min(...even(p)), Math.min(...odd(p)), Math.max(...even(p)), Math.max(...odd(p))];
      const flip = (value, whole, flipped) => (flipped ? whole - value : value);
      let [x0, y0, x1, y1] = line.box;
      if (part.flipX) [x0, x1] = [template.w - x1, template.w - x0];
      if (part.flipY) [y0, y1] = [template.h - y1, template.h - y0];
      if (left + x0 * k > this.width || left + x1 * k < 0 || top + y0 * k > this.height || top + y1 * k < 0) return;
      const there = loads && part.there[i] >= 0 ? loads.link[part.there[i] * loads.bins + this.bin] : 0;
      const back = loads && part.back[i] >= 0 ? loads.link[part.back[i] * loads.bins + this.bin] : 0;
      const path = (lane) => {
        const points = new Float32Array(p.length);
        for (let j = 0; j < p.length; j += 2) {
          points[j] = left + flip(p[j], template.w, part.flipX) * k + lane * line.lanes[j];
          points[j + 1] = top + flip(p[j + 1], template.h, part.flipY) * k + lane * line.lanes[j + 1];
        }
        return points;
      };
      const add = (load, lane) => {
        if (load) this.busy[Math.min(SHADES - 1, Math.floor((load / 256) * SHADES))].push(path(lane));
        else this.idle.push(path(lane));
      };
      if (!line.a || !near) {
        add(Math.max(there, back), 0);
      } else {
        const lane = Math.max(1.2, Math.min(3, k * 0.05));
        add(there, lane);
        add(back, -lane);
      }
    });
  }

  paintLoads(pen) {
    const { colours } = this;
    pen.fillStyle = colours.bg;
    pen.fillRect(0, 0, this.width, this.height);
    const rects = (list, colour) => {
      if (!list.length) return;
      pen.fillStyle = colour;
      pen.beginPath();
      for (let i = 0; i < list.length; i += 4) pen.rect(list[i], list[i + 1], list[i + 2], list[i + 3]);
      pen.fill();
    };
    this.fills.forEach((list, i) => rects(list, colours.depth[i]));
    const strokes = (paths, colour, width) => {
      if (!paths.length) return;
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.beginPath();
      for (const points of paths) {
        pen.moveTo(points[0], points[1]);
        for (let i = 2; i < points.length; i += 2) pen.lineTo(points[i], points[i + 1]);
      }
      pen.stroke();
    };
    pen.lineJoin = "round";
    strokes(this.idle, colours.outline, 0.8);
    this.busy.forEach((paths, i) => strokes(paths, colours.ramp[i], 1.4 + (2.2 * i) / SHADES));
    this.tiles.forEach((list, i) => rects(list, colours.ramp[i]));
    this.gauges.forEach((list, i) => rects(list, colours.ramp[i]));
  }

  paintLabels(pen) {
    const { colours } = this;
    pen.clearRect(0, 0, this.width, this.height);
    pen.strokeStyle = colours.outline;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let i = 0; i < this.outlines.length; i += 4) {
      const [x, y, w, h] = this.outlines.slice(i, i + 4);
      pen.rect(Math.round(x) + 0.5, Math.round(y) + 0.5, Math.round(w), Math.round(h));
    }
    pen.stroke();
    pen.lineJoin = "round";
    for (const [text, x, y, size, align, weight] of this.texts) {
      pen.font = `${weight} ${size}px ${colours.font}`;
      pen.textAlign = align === "upright" ? "center" : align;
      pen.fillStyle = weight > 400 ? colours.text : colours.muted;
      if (align === "upright") {
        pen.save();
        pen.translate(x, y);
        pen.rotate(-Math.PI / 2);
        pen.fillText(text, 0, 4);
        pen.restore();
      } else {
        pen.fillText(text, x, y);
      }
    }
    for (const [x, y, w, h, selected] of this.marks) {
      pen.strokeStyle = colours.accent;
      pen.lineWidth = selected ? 3 : 1.5;
      pen.strokeRect(x - 1, y - 1, w + 2, h + 2);
    }
  }
}

const even = (list) => list.filter((_, i) => i % 2 === 0);
const odd = (list) => list.filter((_, i) => i % 2 === 1);
