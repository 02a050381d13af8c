// The machine as parts: where each occurrence of a template is drawn, and what is at a place.

const UNKNOWN = -2;

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
