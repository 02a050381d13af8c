// Drawing the machine: what one frame shows, sorted by colour.

const SHADES = 24;
/** Width [px] from which the inside of a box is drawn. */
const OPENS = { sip: 70, cube: 24, pe: 250 };
/** Width [px] of a cube from which its routers and links are drawn. */
const WIRED = 150;
/** Width [px] of a cube below which its UCIe connections are one line. */
const BUNDLED = 60;

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
