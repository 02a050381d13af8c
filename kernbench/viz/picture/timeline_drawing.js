// Drawing the timeline: boxes are written into pixels, column by column; text, lines and what moves with the mouse or the clock above.

const ALPHAS = 32; // shades of a stage, by the share of a column that it is busy
const MOST_ARROWS = 150; // drawn at once
const ENGINES = ["composite", "dma_in", "fetch", "gemm", "math", "store_tcm", "dma_out", "recv", "send"];

class TimelineDrawing {
  #frame = 0;
  #stale = new Set();
  #colours = null;

  /** Draws a place on two canvases in an area; `marked` returns what is under the mouse, chosen, found, or dragged. */
  constructor(area, place, shared, marked) {
    Object.assign(this, { area, place, shared, marked });
    [this.rowsCanvas, this.marks] = area.querySelectorAll("canvas");
    this.picture = area.closest(".kbp-picture") ?? document.documentElement;
    // The theme is an attribute of the picture's root.
    this.themes = new MutationObserver(() => this.#theme());
    this.themes.observe(this.picture, { attributes: true });
  }

  destroy() {
    this.themes.disconnect();
    cancelAnimationFrame(this.#frame);
  }

  /** Takes the comparison of the runs of the place. */
  setRuns(comparison) {
    this.comparison = comparison;
    this.whole = this.place.runs.map((run) => {
      const rows = run.rows.flatMap(([, stage], row) => (ENGINES.includes(stage) && stage !== "composite" ? [row] : []));
      return new Cover(rows.map((row) => run.pieces(row)));
    });
  }

  /** Draws "rows" or "marks" in the next frame. */
  redraw(what) {
    this.#stale.add(what);
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #theme() {
    if (this.#colours?.theme === this.picture.dataset.kbpTheme) return;
    this.#colours = null;
    this.redraw("rows");
  }

  #readColours() {
    const style = getComputedStyle(this.area);
    const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const read = (name) => {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = style.getPropertyValue(`--kbp-${name}`).trim();
      pen.fillRect(0, 0, 1, 1);
      return [...pen.getImageData(0, 0, 1, 1).data.subarray(0, 3)];
    };
    const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
    const word = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    const background = read("bg");
    const mix = (colour, share) => background.map((x, i) => Math.round(x + (colour[i] - x) * share));
    const shades = (colour) => Uint32Array.from({ length: ALPHAS }, (_, i) => (i ? word(mix(colour, 0.25 + (0.75 * i) / (ALPHAS - 1))) : word(background)));
    const light = ([r, g, b]) => [r, g, b].reduce((sum, x, i) => sum + [0.2126, 0.7152, 0.0722][i] * ((x / 255 + 0.055) / 1.055) ** 2.4, 0);
    const stages = {};
    const { stages: known, counters } = this.place.rows;
    const like = { ...Object.fromEntries([...Object.keys(known), "load"].map((stage) => [stage, stage])), ...Object.fromEntries(Object.entries(counters).map(([quantity, [, , stage]]) => [quantity, stage])) };
    for (const [stage, of] of Object.entries(like)) {
      const colour = read(`stage-${of.replaceAll("_", "-")}`);
      stages[stage] = { css: css(colour), shades: shades(colour), text: light(colour) > 0.179 ? "#000" : "#fff" };
    }
    const named = Object.fromEntries(["bg", "text", "muted", "border", "accent", "path", "surface", "outline"].map((name) => [name, css(read(name))]));
    this.#colours = {
      theme: this.picture.dataset.kbpTheme, ...named, stages, background: word(background), grid: word(mix(read("text"), 0.08)),
      band: word(mix(read("text"), 0.05)), more: shades(read("path")), less: shades(read("accent")), font: style.getPropertyValue("font-family") || "sans-serif",
    };
  }

  #draw() {
    if (!this.place.runs.length || !this.area.clientWidth) return;
    this.place.measure(this.area);
    const ratio = devicePixelRatio || 1;
    const [width, height] = [this.place.width, this.place.height].map((px) => Math.round(px * ratio));
    if (width !== this.marks.width || height !== this.marks.height || ratio !== this.ratio) {
      this.ratio = ratio;
      for (const canvas of [this.rowsCanvas, this.marks]) Object.assign(canvas, { width, height });
      this.#stale.add("rows");
    }
    if (!this.#colours) this.#readColours();
    if (this.#stale.has("rows")) this.#drawRows();
    this.#drawMarks();
    this.#stale.clear();
    countRedraw("timeline");
  }

  #drawRows() {
    const { ratio } = this, { width, height, top } = this.place;
    const pen = this.rowsCanvas.getContext("2d", { alpha: false });
    const colours = this.#colours;
    const columns = Math.max(1, Math.round((width - GUTTER) * ratio)), lines = Math.max(1, Math.round((height - top) * ratio));
    if (this.pixels?.width !== columns || this.pixels.height !== lines) {
      this.pixels = new ImageData(columns, lines);
      this.words = new Uint32Array(this.pixels.data.buffer);
      this.share = new Float64Array(columns);
      this.share2 = new Float64Array(columns);
    }
    this.words.fill(colours.background);
    this.perColumn = (this.place.window[1] - this.place.window[0]) / columns;
    const ticks = this.#ticks();
    for (const { x } of ticks) {
      const column = Math.round((x - GUTTER) * ratio);
      if (column >= 0 && column < columns) for (let line = 0; line < lines; line++) this.words[line * columns + column] = colours.grid;
    }
    this.texts = [];
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = colours.bg;
    pen.fillRect(0, 0, this.rowsCanvas.width, this.rowsCanvas.height);
    const visible = this.place.rows.visible.filter((each) => each.y + each.height > this.place.scroll && each.y < this.place.scroll + height - top);
    for (const each of visible) this.#paint(each, each.y - this.place.scroll);
    pen.putImageData(this.pixels, Math.round(GUTTER * ratio), Math.round(top * ratio));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#drawTexts(pen);
    this.comparison.shade(pen, this.place, colours);
    this.#drawLabels(pen, visible);
    this.#drawTop(pen, ticks);
  }

  /** Fills pixels: lines and columns of the device, from below the axis. */
  #fill(y0, y1, x0, x1, word) {
    const { words } = this, width = this.pixels.width;
    const last = Math.min(this.pixels.height, y1);
    for (let y = Math.max(0, y0); y < last; y++) words.fill(word, y * width + x0, y * width + x1);
  }

  #paint(each, y) {
    const { ratio } = this;
    const px = (value) => Math.round(value * ratio);
    if (each.children) {
      this.#fill(px(y), px(y + each.height) - 1, 0, this.pixels.width, this.#colours.band);
      if (!each.open) (each.counters ? this.#paintCounters : this.#paintGroup).call(this, each, y);
      return;
    }
    if (each.track.counters) {
      each.track.counters.forEach((counter, number) => {
        const from = y + 1 + number * (each.parts[0] + 3);
        if (counter >= 0) this.#paintCurve(each.track, number, px(from), px(from + each.parts[0]));
      });
      return;
    }
    if (each.track.stage === "load") {
      this.#paintLoad(each.track.component, px(y + 2), px(y + each.height - 2));
      return;
    }
    let from = y + 1;
    each.track.rows.forEach((row, number) => {
      const to = from + each.parts[number];
      if (row >= 0) {
        const run = this.place.runs[number], lanes = run.lanes(row), shades = this.#colours.stages[each.track.stage].shades;
        const n = lanes.length, height = to - from - 2;
        lanes.forEach((lane, i) => {
          const y0 = px(from + (height * i) / n), y1 = Math.max(y0 + 1, px(from + (height * (i + 1)) / n) - (n > 1 ? 1 : 0));
          this.#paintLane(run, lane, y0, y1, shades, each.track.stage);
        });
      }
      from = to + 3;
      if (number === 0 && each.track.rows.length > 1) this.#paintDifference(each.track.rows, px(to - 1), px(to + 2));
    });
  }

  /** Paints each interval that is at least a column wide as a box, and what is shorter as the share of its column that it covers. */
  #paintLane(run, lane, y0, y1, shades, stage) {
    if (y1 <= 0 || y0 >= this.pixels.height) return;
    const { start, end, work, interval } = lane;
    const { perColumn } = this, columns = this.pixels.width, from = this.place.window[0] - run.shift;
    const readable = y1 - y0 >= 11 * this.ratio, weak = run.columns.busy;
    let i = above(end, from), free = 0;
    while (i < start.length) {
      const a = (start[i] - from) / perColumn, b = (end[i] - from) / perColumn;
      if (a >= columns) break;
      if (b - a >= 1.5) {
        const x0 = Math.max(free, Math.round(a)), x1 = Math.min(columns, Math.max(x0 + 1, Math.round(b)));
        const share = weak ? run.busy(interval[i]) / (end[i] - start[i]) : 1;
        // A gap of a pixel parts a box from the one before.
        const gap = x1 - x0 > 3 && a >= 0 ? 1 : 0;
        if (x1 > x0) this.#fill(y0, y1, x0 + gap, x1, shades[Math.max(1, Math.round(share * (ALPHAS - 1)))]);
        if (readable && x1 - x0 > 34 * this.ratio) this.texts.push([run, interval[i], stage, x0 / this.ratio, x1 / this.ratio, (y0 + y1) / 2 / this.ratio]);
        free = Math.max(free, x1);
        i++;
        continue;
      }
      const column = Math.max(free, Math.floor(a));
      if (column >= columns) break;
      const t0 = from + column * perColumn, t1 = t0 + perColumn;
      const j = above(start, t1, i); // the first interval that begins in a later column
      let covered = work[j] - work[i];
      if (start[i] < t0) covered -= ((t0 - start[i]) / Math.max(1, end[i] - start[i])) * (work[i + 1] - work[i]);
      if (end[j - 1] > t1) covered -= ((end[j - 1] - t1) / (end[j - 1] - start[j - 1])) * (work[j] - work[j - 1]);
      this.#fill(y0, y1, column, column + 1, shades[Math.max(1, Math.min(ALPHAS - 1, Math.round((covered / perColumn) * (ALPHAS - 1))))]);
      free = column + 1;
      i = j - 1 >= i && end[j - 1] > t1 ? Math.max(i, j - 1) : Math.max(j, i + 1);
    }
  }

  /** Paints a counter in a run: in each column, as high as its largest value there. */
  #paintCurve(track, number, y0, y1) {
    const run = this.place.runs[number], peak = this.place.rows.peak(track), { shades } = this.#colours.stages[track.stage];
    run.counterColumns(this.share, track.counters[number], this.place.window[0] - run.shift, this.perColumn);
    for (let column = 0; column < this.share.length; column++) {
      const share = this.share[column] / peak;
      if (share) this.#fill(y1 - Math.max(1, Math.round(share * (y1 - y0))), y1, column, column + 1, shades[ALPHAS - 1]);
    }
  }

  /** Paints a closed group of counters: a strip for each, as dark as its value. */
  #paintCounters(each, y) {
    const { ratio } = this, height = (each.height - 4) / each.tracks.length / this.place.runs.length;
    each.tracks.forEach((track, i) => track.counters.forEach((counter, number) => {
      if (counter < 0) return;
      const run = this.place.runs[number], peak = this.place.rows.peak(track), y0 = y + 1 + (number * each.tracks.length + i) * height;
      run.counterColumns(this.share, counter, this.place.window[0] - run.shift, this.perColumn);
      this.#paintShares(Math.round(y0 * ratio), Math.max(Math.round((y0 + height) * ratio) - (height > 4 ? 1 : 0), Math.round(y0 * ratio) + 1), (column) => this.share[column] / peak, this.#colours.stages[track.stage].shades);
    }));
  }

  /** Paints a closed group: a strip for each stage, as dark as the share of its rows that are busy. */
  #paintGroup(each, y) {
    const { ratio } = this;
    const half = this.place.runs.length > 1 ? (each.height - 6) / 2 : each.height - 4;
    this.place.runs.forEach((run, number) => {
      const loads = Object.keys(this.place.rows.stages).map((stage) => [stage, this.place.rows.loadOf(each, number, stage)]).filter(([stage, load]) => load && this.#inStrip(each, stage));
      const y0 = y + 1 + number * (half + 3), height = half / Math.max(1, loads.length);
      loads.forEach(([stage, load], i) => {
        load.cover.columns(this.share, this.place.window[0] - run.shift, this.perColumn);
        const shades = this.#colours.stages[stage].shades;
        this.#paintShares(Math.round((y0 + i * height) * ratio), Math.max(Math.round((y0 + (i + 1) * height) * ratio) - (height > 4 ? 1 : 0), Math.round((y0 + i * height) * ratio) + 1), (column) => this.share[column] / load.rows, shades);
      });
    });
  }

  #inStrip(each, stage) {
    if (stage === "messages") return !each.works || each.id === "host";
    return stage !== "composite" || !each.tracks.some((track) => track.stage === "fetch");
  }

  /** Paints a strip; neighbours of one shade at once. */
  #paintShares(y0, y1, share, shades) {
    const columns = this.pixels.width;
    let begin = 0, before = 0;
    for (let column = 0; column <= columns; column++) {
      const value = column < columns ? share(column) : 0;
      const level = column < columns && value > 1e-9 ? Math.max(1, Math.min(ALPHAS - 1, Math.round(value * (ALPHAS - 1)))) : 0;
      if (level === before && column < columns) continue;
      if (before) this.#fill(y0, y1, begin, column, shades[before]);
      begin = column;
      before = level;
    }
  }

  /** Paints where the second run is busier than the first, and where less. */
  #paintDifference(rows, y0, y1) {
    const columns = (number, out) => {
      if (rows[number] < 0) out.fill(0);
      else this.place.runs[number].cover(rows[number]).columns(out, this.place.window[0] - this.place.runs[number].shift, this.perColumn);
    };
    columns(0, this.share);
    columns(1, this.share2);
    this.#paintShares(y0, y1, (column) => this.share2[column] - this.share[column], this.#colours.more);
    this.#paintShares(y0, y1, (column) => this.share[column] - this.share2[column], this.#colours.less);
  }

  #paintLoad(id, y0, y1) {
    const from = this.place.window[0] - this.place.last.shift, shades = this.#colours.stages.load.shades;
    for (let column = 0; column < this.pixels.width; column++) {
      const share = this.place.rows.loads.at(id, from + (column + 0.5) * this.perColumn);
      if (share) this.#fill(y1 - Math.max(1, Math.round(share * (y1 - y0))), y1, column, column + 1, shades[ALPHAS - 1]);
    }
  }

  /** Returns the marks of the axis: place, time and text, with the unit that fits their distance. */
  #ticks() {
    const [from, to] = this.place.window;
    const least = 96 * this.place.perPx;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = power * [1, 2, 5, 10].find((x) => x * power >= least);
    const [unit, by] = step < 1e5 ? ["ns", 1e3] : step < 1e8 ? ["us", 1e6] : ["ms", 1e9];
    const digits = Math.max(0, -Math.floor(Math.log10(step / by) + 1e-9));
    const ticks = [];
    for (let n = Math.ceil(from / step); n * step <= to; n++) {
      const text = ((n * step || 0) / by).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
      ticks.push({ x: this.place.xOf(n * step), text: `${text} ${unit}` });
    }
    return ticks;
  }

  #drawTexts(pen) {
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, this.place.top, this.place.width - GUTTER, this.place.height - this.place.top);
    pen.clip();
    pen.font = `11px ${this.#colours.font}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (const [run, interval, stage, x0, x1, y] of this.texts) {
      pen.fillStyle = this.#colours.stages[stage].text;
      const text = this.#fit(pen, this.#short(run, interval, x1 - x0), x1 - x0 - 8);
      if (text) pen.fillText(text, GUTTER + x0 + 5, this.place.top + y + 0.5);
    }
    pen.restore();
  }

  #short(run, interval, width) {
    const tile = run.columns.tile[interval], count = run.columns.count?.[interval];
    if (count > 1) return width < 70 ? `× ${countText(count)}` : `${countText(count)} intervals`;
    const title = run.title(interval);
    return tile >= 0 && width < 7 * title.length ? title.split(", ").at(-1).replace(width < 60 ? /^\D+/ : "", "") : title;
  }

  /** Returns the text, cut to a width; empty if nothing readable is left. */
  #fit(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    let n = Math.floor(text.length * (width / pen.measureText(text).width)) - 1;
    while (n > 1 && pen.measureText(`${text.slice(0, n)}…`).width > width) n--;
    return n > 1 ? `${text.slice(0, n)}…` : "";
  }

  #drawLabels(pen, visible) {
    const colours = this.#colours, top = this.place.top;
    pen.save();
    pen.fillStyle = colours.bg;
    pen.fillRect(0, top, GUTTER, this.place.height - top);
    pen.beginPath();
    pen.rect(0, top, GUTTER, this.place.height - top);
    pen.clip();
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (const each of visible) {
      const y = top + each.y - this.place.scroll, middle = y + (each.open ? GROUP : each.height) / 2;
      let x = 6 + 13 * each.depth;
      if (each.children) {
        pen.fillStyle = colours.surface;
        pen.fillRect(0, y, GUTTER, each.height - 1);
        pen.fillStyle = colours.muted;
        pen.beginPath();
        if (each.open) pen.moveTo(x, middle - 2.5), pen.lineTo(x + 8, middle - 2.5), pen.lineTo(x + 4, middle + 3);
        else pen.moveTo(x + 1.5, middle - 4), pen.lineTo(x + 7, middle), pen.lineTo(x + 1.5, middle + 4);
        pen.fill();
        x += 13;
      } else {
        pen.fillStyle = colours.stages[each.track.stage].css;
        pen.fillRect(x, middle - 4, 8, 8);
        x += 13;
      }
      pen.fillStyle = colours.text;
      pen.font = `${each.children ? "600 " : ""}12px ${colours.font}`;
      const letters = this.place.runs.length > 1 && !each.open && each.track?.stage !== "load" ? 16 : 0;
      pen.fillText(this.#fit(pen, each.label, GUTTER - x - 6 - letters), x, middle + 0.5);
      if (letters) {
        pen.font = `11px ${colours.font}`;
        pen.fillStyle = colours.muted;
        const [first, second] = each.track ? [y + each.parts[0] / 2, y + each.parts[0] + 4 + each.parts[1] / 2] : [y + each.height / 4, y + (3 * each.height) / 4];
        pen.fillText("A", GUTTER - 14, first);
        pen.fillText("B", GUTTER - 14, second);
      }
    }
    pen.restore();
    pen.fillStyle = colours.border;
    pen.fillRect(GUTTER - 1, OVERVIEW, 1, this.place.height - OVERVIEW);
  }

  #drawTop(pen, ticks) {
    const colours = this.#colours, { width } = this.place;
    pen.font = `11px ${colours.font}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.fillStyle = colours.text;
    pen.fillText(this.#fit(pen, this.place.runs.length > 1 ? `A: ${this.place.runs[0].name}` : `Whole run: ${timeText(this.place.last.end)}`, GUTTER - 12), 6, this.place.runs.length > 1 ? 10 : 17);
    if (this.place.runs.length > 1) pen.fillText(this.#fit(pen, `B: ${this.place.last.name}`, GUTTER - 12), 6, 26);
    this.#drawOverview(pen);
    pen.fillStyle = colours.surface;
    pen.fillRect(0, OVERVIEW, width, AXIS);
    pen.fillStyle = colours.muted;
    pen.fillText(`${timeText(this.place.window[1] - this.place.window[0])} shown`, 6, OVERVIEW + AXIS / 2);
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, OVERVIEW, width - GUTTER, AXIS);
    pen.clip();
    for (const { x, text } of ticks) {
      pen.fillStyle = colours.outline;
      pen.fillRect(Math.round(x), OVERVIEW + AXIS - 6, 1, 6);
      pen.fillStyle = colours.text;
      pen.fillText(text, x + 4, OVERVIEW + AXIS / 2);
    }
    pen.restore();
    pen.fillStyle = colours.border;
    pen.fillRect(0, OVERVIEW + AXIS - 1, width, 1);
    if (this.place.path) this.#drawPathRow(pen);
  }

  #drawOverview(pen) {
    const colours = this.#colours, width = this.place.width - GUTTER, height = OVERVIEW - 4;
    const curves = this.whole.map((cover, number) => {
      const out = new Float64Array(Math.max(1, Math.floor(width)));
      cover.columns(out, -this.place.runs[number].shift, this.place.end / out.length);
      return out;
    });
    const most = Math.max(1e-9, ...curves.map((curve) => Math.max(...curve)));
    curves.forEach((out, number) => {
      const last = number === curves.length - 1;
      pen.beginPath();
      if (last) pen.moveTo(GUTTER, height);
      out.forEach((value, x) => pen.lineTo(GUTTER + x + 0.5, height - (value / most) * (height - 6)));
      pen.lineTo(GUTTER + width, height);
      pen.fillStyle = pen.strokeStyle = last ? colours.stages.load.css : colours.text;
      if (last) pen.fill();
      else pen.stroke();
    });
    const x0 = GUTTER + Math.max(0, this.place.window[0] / this.place.end) * width, x1 = GUTTER + Math.min(1, this.place.window[1] / this.place.end) * width;
    pen.fillStyle = colours.bg;
    pen.globalAlpha = 0.7;
    pen.fillRect(GUTTER, 0, x0 - GUTTER, OVERVIEW - 1);
    pen.fillRect(x1, 0, this.place.width - x1, OVERVIEW - 1);
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(x0 + 1, 1, Math.max(3, x1 - x0 - 2), OVERVIEW - 3);
    pen.lineWidth = 1;
  }

  #drawPathRow(pen) {
    const colours = this.#colours, y = OVERVIEW + AXIS;
    pen.fillStyle = colours.text;
    pen.font = `600 12px ${colours.font}`;
    pen.fillText("Critical path", 6, y + STEP / 2);
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, y, this.place.width - GUTTER, STEP);
    pen.clip();
    pen.font = `11px ${colours.font}`;
    let free = GUTTER;
    for (const [start, end, , , what] of this.place.path.steps) {
      const x0 = Math.max(free, this.place.xOf(start)), x1 = Math.min(this.place.width, this.place.xOf(end));
      if (x1 <= free) continue;
      if (x0 >= this.place.width) break;
      pen.globalAlpha = 0.22;
      pen.fillStyle = colours.path;
      pen.fillRect(x0, y + 2, Math.max(1, x1 - x0), STEP - 5);
      pen.globalAlpha = 1;
      pen.fillRect(x0, y + 2, x1 - x0 > 2 ? 1.5 : 1, STEP - 5);
      if (x1 - x0 > 40) {
        pen.fillStyle = colours.text;
        pen.fillText(this.#fit(pen, what, x1 - x0 - 8), x0 + 5, y + STEP / 2);
      }
      free = Math.max(x1, Math.floor(x0) + 1);
    }
    pen.restore();
    pen.fillStyle = colours.border;
    pen.fillRect(0, y + STEP - 1, this.place.width, 1);
  }

  // What moves with the mouse or the clock.

  #drawMarks() {
    const { ratio, shared } = this, { width, height, top } = this.place, colours = this.#colours;
    const { pointer, picked, focused, match, dragged, area } = this.marked();
    const pen = this.marks.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(0, top, width, height - top);
    pen.clip();
    for (const each of this.place.rows.visible) {
      const y = top + each.y - this.place.scroll;
      if (y + each.height < top || y > height) continue;
      const selected = shared.selected && each.id === shared.selected;
      if (selected || each === pointer?.node) {
        pen.globalAlpha = selected ? 0.16 : 0.08;
        pen.fillStyle = colours.accent;
        pen.fillRect(0, y, selected ? width : GUTTER, each.height);
        pen.globalAlpha = 1;
        if (selected) pen.fillRect(0, y, 3, each.height);
      }
      if (each.key === focused && document.activeElement === this.marks) {
        pen.strokeStyle = colours.accent;
        pen.lineWidth = 2;
        pen.strokeRect(1, y + 1, GUTTER - 3, each.height - 2);
      }
    }
    pen.beginPath();
    pen.rect(GUTTER, top, width - GUTTER, height - top);
    pen.clip();
    if (this.place.path && shared.path) this.#drawThread(pen);
    this.#drawArrows(pen, [pointer?.hit, picked]);
    if (match) this.#outline(pen, match, colours.text, 2);
    if (pointer?.hit) this.#outline(pen, pointer.hit, colours.text, 1);
    if (picked) this.#outline(pen, picked, colours.accent, 2.5);
    if (area) this.#drawArea(pen, area);
    pen.restore();
    this.comparison.label(pen, this.place, colours);
    this.#drawClock(pen);
    const bar = this.place.bar();
    if (!bar) return;
    pen.globalAlpha = dragged === "bar" ? 0.8 : 0.45;
    pen.fillStyle = colours.text;
    pen.beginPath();
    pen.roundRect(width - BAR + 2, bar.y, BAR - 4, bar.height, 3);
    pen.fill();
    pen.globalAlpha = 1;
  }

  #drawArea(pen, area) {
    const [x0, x1] = area.window.map((t) => this.place.xOf(t)), y = this.place.top + area.top - this.place.scroll;
    pen.fillStyle = pen.strokeStyle = this.#colours.accent;
    pen.lineWidth = 1.5;
    pen.globalAlpha = 0.14;
    pen.fillRect(x0, y, x1 - x0, area.bottom - area.top);
    pen.globalAlpha = 1;
    pen.strokeRect(x0, y, x1 - x0, area.bottom - area.top);
  }

  #drawClock(pen) {
    const colours = this.#colours, t = this.shared.t * 1000, x = this.place.xOf(t);
    const whole = GUTTER + (t / this.place.end) * (this.place.width - GUTTER);
    pen.fillStyle = colours.text;
    pen.fillRect(whole - 0.5, 2, 1, OVERVIEW - 5);
    if (x < GUTTER - 1 || x > this.place.width) return;
    pen.fillRect(x - 0.75, OVERVIEW + AXIS - 8, 1.5, this.place.height);
    pen.font = `600 11px ${colours.font}`;
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    const text = timeText(Math.round(t)), half = pen.measureText(text).width / 2 + 6;
    const middle = Math.max(GUTTER + half, Math.min(this.place.width - half, x));
    pen.beginPath();
    pen.roundRect(middle - half, OVERVIEW + 3, 2 * half, 17, 4);
    pen.fill();
    pen.fillStyle = colours.bg;
    pen.fillText(text, middle, OVERVIEW + 12);
  }

  #outline(pen, hit, colour, width) {
    const box = this.place.box(hit);
    if (!box || box.closed) return;
    pen.strokeStyle = this.#colours.bg;
    pen.lineWidth = width + 2;
    const x = Math.max(GUTTER - 4, box.x0), w = Math.max(2, Math.min(this.place.width + 4, box.x1) - x);
    pen.strokeRect(x, box.y, w, box.height);
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.strokeRect(x, box.y, w, box.height);
  }

  /** Draws the critical path as a thread: along each step in its row, and to that of the next step that has one. */
  #drawThread(pen) {
    const run = this.place.runs.length - 1, { shift } = this.place.last;
    const points = [];
    let before = null;
    for (const [start, end, row, interval] of this.place.path.steps) {
      const x0 = this.place.xOf(start + shift), x1 = this.place.xOf(end + shift);
      if (row < 0) continue;
      if (x1 < GUTTER - 50 || x0 > this.place.width + 50) {
        before = null;
        continue;
      }
      const box = this.place.box({ run, row, interval });
      if (!box) continue;
      points.push([x0, x1, box.y + Math.max(box.height / 2, box.height - 3), before !== null]); // below the text
      before = row;
    }
    const trace = () => {
      pen.beginPath();
      let last = null;
      for (const [x0, x1, y, joined] of points) {
        if (last && joined) pen.lineTo(x0, last[1]), pen.lineTo(x0, y);
        else pen.moveTo(x0, y);
        pen.lineTo(Math.max(x1, x0 + 0.5), y);
        last = [x1, y];
      }
      pen.stroke();
    };
    pen.lineJoin = "round";
    pen.strokeStyle = this.#colours.bg;
    pen.lineWidth = 6;
    trace();
    pen.strokeStyle = this.#colours.path;
    pen.lineWidth = 3;
    trace();
    pen.lineJoin = "miter";
  }

  /** Draws the arrows of what is under the mouse or chosen; all of them if few are in the window. */
  #drawArrows(pen, hits) {
    this.place.runs.forEach((run, number) => {
      const { arrow_ps: sent, arrow_to: to } = run.columns;
      const chosen = new Set();
      for (const hit of hits) if (hit?.run === number) for (const i of run.arrowsOf(hit.interval)) chosen.add(i);
      const all = [];
      if (sent.length) {
        const [from, until] = this.place.window.map((t) => t - run.shift);
        for (const i of run.sent) {
          if (sent[i] > until) break;
          if (run.columns.start[to[i]] >= from) all.push(i);
          if (all.length > MOST_ARROWS) break;
        }
      }
      if (all.length <= MOST_ARROWS) for (const i of all) if (!chosen.has(i)) this.#arrow(pen, number, i, false);
      for (const i of chosen) this.#arrow(pen, number, i, true);
    });
  }

  #arrow(pen, number, i, strong) {
    const run = this.place.runs[number], { arrow_from: from, arrow_to: to, arrow_ps: sent, start } = run.columns;
    const a = this.place.box({ run: number, row: run.rowOf(from[i]), interval: from[i] }), b = this.place.box({ run: number, row: run.rowOf(to[i]), interval: to[i] });
    if (!a || !b || (!strong && (a.closed || b.closed)) || (a.closed && b.closed && a.y === b.y)) return;
    const x0 = this.place.xOf(sent[i] + run.shift), x1 = this.place.xOf(start[to[i]] + run.shift);
    const y0 = a.y + a.height / 2, y1 = b.y + b.height / 2;
    if (Math.max(y0, y1) < this.place.top || Math.min(y0, y1) > this.place.height) return;
    const bend = Math.max(12, Math.min(60, (x1 - x0) / 2));
    const line = () => {
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 1, y1);
      pen.stroke();
    };
    pen.globalAlpha = strong ? 1 : 0.6;
    pen.strokeStyle = this.#colours.bg;
    pen.lineWidth = strong ? 4.5 : 3;
    line();
    pen.strokeStyle = pen.fillStyle = this.#colours.text;
    pen.lineWidth = strong ? 2 : 1;
    line();
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x1 - 7, y1 - 3.5);
    pen.lineTo(x1 - 7, y1 + 3.5);
    pen.fill();
    pen.globalAlpha = 1;
  }
}
