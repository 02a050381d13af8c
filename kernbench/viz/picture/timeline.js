// The timeline: what every engine, CPU and memory did when. Times are in ps here, in ns in `shared`.

const HINT = "Wheel or W and S zoom, drag or A and D move, 0 shows all. Shift and a drag sum up an area, M all rows. A click selects; arrow keys walk; / searches; F zooms to the selection.";

/** Returns a time, in ns to the ps unless it is long. */
function timeText(ps) {
  const size = Math.abs(ps);
  const [unit, by] = size >= 1e10 ? ["ms", 1e9] : size >= 1e8 ? ["us", 1e6] : ["ns", 1e3];
  return `${(ps / by).toLocaleString("en", { maximumFractionDigits: 3 })} ${unit}`;
}

function countText(value) {
  return value.toLocaleString("en");
}

class TimelineView {
  #picked = null; // {run, row, interval}
  #focused = null; // key of the node that the keyboard is at
  #pointer = null; // where the mouse is
  #found = [];

  constructor(root, shared, send) {
    Object.assign(this, { shared, trace: new Trace(send), place: new TimelinePlace() });
    this.#build(root);
    this.drawing = new TimelineDrawing(this.area, this.place, shared, () => ({
      pointer: this.#pointer, picked: this.#picked, focused: this.#focused, match: this.#found[this.at], dragged: this.drag?.what, area: this.areaView.area,
    }));
    this.onChange = (event) => this.#changed(event.detail);
    shared.addEventListener("change", this.onChange);
    this.observer = new ResizeObserver(() => this.drawing.redraw("rows"));
    this.observer.observe(this.area);
  }

  setScene(header, buffers) {
    const given = header.timeline, { place } = this;
    if (given && place.runs.length && buffers === this.buffers) {
      this.#setPath(header.path); // which may take longer to find than the rest
      return;
    }
    this.buffers = buffers;
    this.root.classList.toggle("kbp-empty", !given?.runs.length);
    this.#picked = this.#pointer = null;
    this.#choose(null);
    this.trace.packed = buffers.trace ?? null;
    this.perfettoButton.hidden = this.download.hidden = !given || !this.trace.available;
    place.runs = (given?.runs ?? []).map((run, number) => new TimelineRun(run, buffers, number, given.stages));
    if (!given) return;
    this.comparison = new TimelineComparison(place.runs);
    this.#align();
    place.rows = new TimelineRows(place.runs, given.stages, header.run, buffers, given.counters);
    this.drawing.setRuns(this.comparison);
    this.#group();
    this.#setPath(header.path);
    this.#setWindow([0, place.end]);
    this.search.value = this.matches.textContent = "";
    this.#found = [];
    this.#say(place.last.rows.length || !place.last.end ? "" : "This run was not logged: record operations or tiles to see what happened when.");
  }

  #setPath(path) {
    this.place.path = path ?? null;
    this.pathButton.hidden = !path;
    this.pathButton.setAttribute("aria-pressed", String(this.shared.path));
    this.#measure();
  }

  /** Takes the answer of the kernel to `{do: "open_trace"}`. */
  receive(message, buffers) {
    if (message.do === "trace") this.trace.receive(buffers[0]);
  }

  destroy() {
    this.shared.removeEventListener("change", this.onChange);
    this.observer.disconnect();
    this.drawing.destroy();
    this.root.remove();
  }

  // The page.

  #build(root) {
    const press = (text, label, act, more = "") => node(`button.kbp-button${more}`, { type: "button", title: label, "aria-label": /[a-z]/.test(text) ? text : label, onclick: act }, text);
    this.grouping = node("select.kbp-button.kbp-group", { "aria-label": "Group rows by" });
    for (const name of Object.keys(GROUPINGS)) this.grouping.append(node("option", { value: name }, `By ${name}`));
    this.grouping.addEventListener("change", () => this.#group());
    this.align = node("select.kbp-button.kbp-align", { "aria-label": "Align the runs at", hidden: true });
    this.align.addEventListener("change", () => {
      this.#align(this.align.value);
      this.drawing.redraw("rows");
    });
    this.search = node("input.kbp-search", { type: "search", placeholder: "Search kernel, command, PE", "aria-label": "Search kernel, command or PE" });
    this.search.addEventListener("input", () => this.#find());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.marks.focus();
      if (event.key !== "Enter") return;
      this.#walkFound(event.shiftKey ? -1 : 1);
      event.preventDefault();
    });
    this.key = node("span.kbp-key", { hidden: true }, node("span.kbp-more"), "B is busier", node("span.kbp-less"), "A is busier");
    this.matches = node("output.kbp-matches", { "aria-live": "polite" });
    this.pathButton = press("Critical path", "Show the critical path, here and in the machine", () => (this.shared.path = !this.shared.path), ".kbp-thread");
    this.perfettoButton = press("Open in Perfetto", "Open the trace of this run at ui.perfetto.dev", () => this.#openTrace(), ".kbp-perfetto");
    this.download = press("Trace file", "Download the trace: a file for ui.perfetto.dev or chrome://tracing", () => this.#saveTrace(), ".kbp-trace");
    this.tools = node(
      "div.kbp-tools", { role: "toolbar", "aria-label": "Timeline" }, this.grouping,
      press("⊞", "Open all groups", () => this.#openAll(true)), press("⊟", "Close all groups", () => this.#openAll(false)), this.align,
      this.key, this.search, press("‹", "Previous match", () => this.#walkFound(-1)), press("›", "Next match", () => this.#walkFound(1)), this.matches,
      node(
        "span.kbp-tools.kbp-end", {},
        press("−", "Zoom out (−)", () => this.#zoom(1.6)), press("+", "Zoom in (+)", () => this.#zoom(1 / 1.6)), press("Fit", "Show the whole run (0)", () => this.#setWindow([0, this.place.end])),
        this.pathButton, this.perfettoButton, this.download,
      ),
    );
    this.rowsCanvas = node("canvas", { "aria-hidden": "true" });
    this.marks = node("canvas.kbp-marks", {
      tabIndex: 0, role: "application", "aria-roledescription": "timeline",
      "aria-label": "Timeline. Left and right arrows walk intervals, up and down walk rows, Enter opens a group. W and S zoom, A and D pan, 0 shows all.",
    });
    this.tip = node("div.kbp-tip", { hidden: true });
    this.area = node("div.kbp-timeline-area", {}, this.rowsCanvas, this.marks, this.tip);
    this.areaView = new AreaView(this.place, () => this.#choose(null));
    this.said = node("div.kbp-said", { "aria-live": "polite", role: "status" });
    this.root = node(
      "section.kbp-timeline.kbp-empty", { "aria-label": "Timeline" },
      node("p.kbp-nothing", {}, "The timeline appears here when a run has ended."), this.tools, this.area, this.areaView.root, this.said,
    );
    root.append(this.root);
    this.#listen();
  }

  #listen() {
    const { marks } = this;
    const at = (event) => {
      const box = marks.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    marks.addEventListener("wheel", (event) => {
      event.preventDefault();
      const [x] = at(event);
      if (x < GUTTER || event.altKey) this.#scrollTo(this.place.scroll + event.deltaY);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.#pan((event.deltaX || event.deltaY) * this.place.perPx);
      else this.#zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * (event.ctrlKey ? 0.012 : 0.004)), this.place.timeAt(x)); // a pinch has ctrlKey
    }, { passive: false });
    marks.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const [x, y] = at(event);
      marks.setPointerCapture(event.pointerId);
      this.drag = { x, y, window: [...this.place.window], scroll: this.place.scroll, moved: false, what: event.shiftKey && y >= this.place.top && x >= GUTTER ? "area" : this.#grip(x, y) };
      if (this.drag.what === "clock") this.#clockAt(x);
      if (this.drag.what === "overview") this.#centre(x);
    });
    marks.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      const { drag } = this;
      if (!drag) {
        this.#hover(x, y);
        return;
      }
      drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > 3;
      if (drag.what === "clock") this.#clockAt(x);
      else if (drag.what === "area") this.#choose(drag.moved ? this.#areaTo(drag, x, y) : null);
      else if (drag.what === "overview") this.#centre(x);
      else if (drag.what === "bar") this.#scrollTo(drag.scroll + (y - drag.y) * (this.place.bar()?.by ?? 0));
      else if (drag.moved) {
        this.#setWindow(drag.window.map((t) => t - (x - drag.x) * this.place.perPx));
        this.#scrollTo(drag.scroll - (y - drag.y));
        marks.style.cursor = "grabbing";
      }
    });
    const stop = (event) => {
      const { drag } = this;
      this.drag = null;
      if (drag && !drag.moved && drag.what === "rows" && event.type === "pointerup") this.#click(...at(event));
      marks.style.cursor = "";
    };
    marks.addEventListener("pointerup", stop);
    marks.addEventListener("pointercancel", stop);
    marks.addEventListener("pointerleave", () => this.#hover(-1, -1));
    marks.addEventListener("dblclick", () => this.#zoomToPicked());
    marks.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !this.place.runs.length) return;
      const act = this.#key(event.key, event.shiftKey);
      if (!act) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
    marks.addEventListener("focus", () => this.drawing.redraw("marks"));
    marks.addEventListener("blur", () => this.drawing.redraw("marks"));
  }

  #key(key, shift) {
    const width = this.place.window[1] - this.place.window[0];
    return {
      w: () => this.#zoom(1 / 1.4, this.#cursorTime()), s: () => this.#zoom(1.4, this.#cursorTime()),
      "+": () => this.#zoom(1 / 1.4), "=": () => this.#zoom(1 / 1.4), "-": () => this.#zoom(1.4),
      a: () => this.#pan(-width / 8), d: () => this.#pan(width / 8),
      0: () => this.#setWindow([0, this.place.end]), f: () => this.#zoomToPicked(),
      ArrowLeft: () => this.#walk(-1), ArrowRight: () => this.#walk(1),
      ArrowUp: () => this.#step(shift ? -10 : -1), ArrowDown: () => this.#step(shift ? 10 : 1),
      Home: () => this.#walk(-Infinity), End: () => this.#walk(Infinity),
      Enter: () => this.#toggleFocused(), " ": () => this.#toggleFocused(),
      "/": () => this.search.focus(), n: () => this.#walkFound(1), N: () => this.#walkFound(-1),
      m: () => this.#choose({ window: [...this.place.window], top: 0, bottom: this.place.rows.height }),
      Escape: () => (this.areaView.area ? this.#choose(null) : this.#pick(null)),
    }[key.length === 1 && key !== "N" ? key.toLowerCase() : key];
  }

  #changed(names) {
    if (!this.place.runs.length) return;
    if (names.has("path")) {
      this.pathButton.setAttribute("aria-pressed", String(this.shared.path));
      this.#measure();
    }
    if (names.has("window")) {
      const [from, to] = this.shared.window;
      if (Math.abs(from * 1000 - this.place.window[0]) + Math.abs(to * 1000 - this.place.window[1]) > 1) this.#setWindow([from * 1000, to * 1000]);
    }
    if (names.has("selected")) this.#reveal(this.shared.selected);
    if (["t", "hovered", "selected"].some((name) => names.has(name))) this.drawing.redraw("marks");
  }

  /** Aligns two runs at a launch that both have, or at their start. */
  #align(at = "0") {
    const { pairs } = this.comparison;
    this.align.hidden = this.key.hidden = this.place.runs.length < 2;
    this.align.replaceChildren(...pairs.map(({ name }, i) => node("option", { value: String(i) }, `Align at ${name}`)), node("option", { value: "" }, "Align at the start"));
    this.align.value = pairs[at] ? at : "";
    this.comparison.align(pairs[this.align.value]);
  }

  #group() {
    this.place.rows.group(this.grouping.value);
    this.place.scroll = 0;
    this.#focused = null;
    this.#measure();
  }

  #openAll(open) {
    this.place.rows.openAll(open);
    this.#measure();
  }

  /** Fits the timeline to its rows. */
  #measure() {
    const { place, area } = this;
    this.#choose(null); // its rows have moved
    area.style.height = `${Math.max(200, Math.min(560, place.top + place.rows.height + 8))}px`;
    place.measure(area);
    place.scrollTo(place.scroll);
    this.drawing.redraw("rows");
  }

  // What can be seen, and moving.

  #setWindow(window) {
    this.place.setWindow(window);
    this.shared.window = this.place.window.map((t) => t / 1000);
    this.drawing.redraw("rows");
  }

  #zoom(factor, around = (this.place.window[0] + this.place.window[1]) / 2) {
    const least = CLOSEST / (this.place.window[1] - this.place.window[0]);
    const by = Math.max(factor, Math.min(1, least));
    this.#setWindow(this.place.window.map((t) => around + (t - around) * by));
  }

  #pan(by) {
    this.#setWindow(this.place.window.map((t) => t + by));
  }

  #scrollTo(y) {
    if (this.place.scrollTo(y)) this.drawing.redraw("rows");
  }

  #cursorTime() {
    return this.#pointer && this.#pointer.x > GUTTER ? this.place.timeAt(this.#pointer.x) : undefined;
  }

  #clockAt(x) {
    this.shared.playing = false;
    this.shared.t = Math.max(0, Math.min(this.place.last.end, this.place.timeAt(Math.max(GUTTER, x)))) / 1000;
  }

  #centre(x) {
    const width = this.place.window[1] - this.place.window[0];
    const t = ((x - GUTTER) / (this.place.width - GUTTER)) * this.place.end;
    this.#setWindow([t - width / 2, t + width / 2]);
  }

  /** Returns the area from where a drag began to a place. */
  #areaTo(drag, x, y) {
    const times = [drag.x, x].map((each) => this.place.timeAt(Math.max(GUTTER, Math.min(this.place.width, each)))).sort((a, b) => a - b);
    const heights = [drag.y, Math.max(this.place.top, y)].map((each) => each - this.place.top + this.place.scroll).sort((a, b) => a - b);
    return { window: times, top: heights[0], bottom: heights[1] };
  }

  #choose(area) {
    if (!area && !this.areaView.area) return;
    this.areaView.show(area);
    this.drawing.redraw("marks");
  }

  /** Returns what a drag from here moves. */
  #grip(x, y) {
    if (x < GUTTER) return "rows";
    if (y >= this.place.top && x > this.place.width - BAR && this.place.bar()) return "bar";
    if (y < OVERVIEW) return "overview";
    const line = this.place.xOf(this.shared.t * 1000);
    return y < OVERVIEW + AXIS || Math.abs(x - line) < 4 ? "clock" : "rows";
  }

  // What is under the mouse, chosen, or found.

  #hover(x, y) {
    const inside = x >= 0;
    const each = inside ? this.place.nodeAt(y) : null;
    this.#pointer = inside ? { x, y, node: each, hit: this.place.intervalAt(each, x, y) } : null;
    this.marks.style.cursor = inside && x >= GUTTER ? { clock: "ew-resize", overview: "pointer", bar: "default", rows: "" }[this.#grip(x, y)] : each?.children ? "pointer" : "";
    this.shared.hovered = each?.id ?? null;
    this.#showTip();
    this.drawing.redraw("marks");
  }

  #showTip() {
    const pointer = this.#pointer;
    const lines = pointer ? (pointer.hit ? this.#lines(pointer.hit) : this.#shares(pointer)) : null;
    this.tip.hidden = !lines;
    if (!lines) return;
    this.tip.replaceChildren(...lines.map(([text, kind]) => node(`div${kind ? `.kbp-${kind}` : ""}`, {}, text)));
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    this.tip.style.left = `${Math.max(0, Math.min(this.place.width - width - 4, pointer.x + 14))}px`;
    this.tip.style.top = `${pointer.y + 18 + height > this.place.height ? pointer.y - height - 8 : pointer.y + 18}px`;
  }

  /** Returns what there is to say about an interval. */
  #lines({ run, row, interval }) {
    const of = this.place.runs[run], { start, end, tile, label, count } = of.columns;
    const [text, nbytes, flops] = of.labels[label[interval]];
    const [component, stage] = of.rows[row];
    const many = count && count[interval] > 1 ? count[interval] : 0;
    const took = end[interval] - start[interval];
    const lines = [[many ? `${countText(many)} short intervals` : of.title(interval), "strong"], [`${this.place.rows.stages[stage]} · ${component}`, "muted"]];
    lines.push([`${timeText(took)} from ${timeText(start[interval])} to ${timeText(end[interval])}`]);
    if (many) {
      lines.push([`busy ${percentText(of.busy(interval) / Math.max(1, took))} of it; too short to be sent one by one`]);
      return lines;
    }
    if (nbytes) lines.push([`${countText(nbytes)} B${took ? `, ${(nbytes * 1000 / took).toLocaleString("en", { maximumFractionDigits: 1 })} GB/s` : ""}`]);
    if (flops) lines.push([`${countText(flops)} flop${took ? `, ${(flops / took).toLocaleString("en", { maximumFractionDigits: 2 })} Tflop/s` : ""}`]);
    if (text && stage === "launch") lines.push(["from the host's message to the last completion", "muted"]);
    if (this.place.runs.length > 1) lines.push([`run ${run ? "B" : "A"}: ${of.name}`, "muted"]);
    const other = this.comparison.counterpart(run, row, interval, this.place.rows.trackOf({ run, row }).rows[1 - run]);
    if (other) lines.push([`${run ? "B − A" : "A − B"}: ${differenceText(took - (other.end - other.start), other.end - other.start)}`]);
    return lines;
  }

  /** Returns how busy a group or a link is at a place. */
  #shares({ x, y, node: each }) {
    if (x < GUTTER) return each && (each.track || each.children) ? [[each.label, "strong"], [each.track?.component ?? `${countText(each.tracks.length)} rows`, "muted"]] : null;
    if (this.place.path && y >= OVERVIEW + AXIS && y < this.place.top) return this.#pathLines(this.place.timeAt(x));
    if (!each || each.open) return null;
    if (each.track?.stage === "load") {
      const share = this.place.rows.loads.at(each.track.component, this.place.timeAt(x));
      return [[each.label, "strong"], [each.id, "muted"], [`busy ${percentText(share)} of ${timeText(this.place.rows.loads.end / this.place.rows.loads.bins)} at ${timeText(this.place.timeAt(x))}`]];
    }
    if (each.track?.counters) return this.#counterLines(each, x);
    if (!each.children) return null;
    const from = this.place.timeAt(Math.floor(x)), one = new Float64Array(1);
    const lines = [];
    this.place.runs.forEach((run, number) => {
      for (const stage of Object.keys(this.place.rows.stages)) {
        const load = this.place.rows.loadOf(each, number, stage);
        if (!load) continue;
        load.cover.columns(one, from - run.shift, this.place.perPx);
        const share = one[0] / load.rows;
        if (share > 0) lines.push([`${this.place.rows.stages[stage]}${this.place.runs.length > 1 ? ` (${"AB"[number]})` : ""}: ${percentText(Math.min(1, share))}${load.rows > 1 ? ` of ${countText(load.rows)}` : ""}`]);
      }
    });
    return [[each.label, "strong"], [`${timeText(this.place.perPx)} at ${timeText(from)}`, "muted"], ...(lines.length ? lines : [["idle"]])];
  }

  /** Returns the value of a counter at a place. */
  #counterLines({ label, track }, x) {
    const [, unit] = this.place.rows.counters[track.stage], one = new Float64Array(1), t = this.place.timeAt(x);
    const text = (value) => `${countText(value)}${unit && ` ${unit}`}`;
    const lines = [[label, "strong"], [track.component, "muted"]];
    track.counters.forEach((counter, number) => {
      if (counter < 0) return;
      const run = this.place.runs[number], [, , , , , peak, merged] = run.counters[counter];
      run.counterColumns(one, counter, t - run.shift, 0);
      lines.push([`${this.place.runs.length > 1 ? `${"AB"[number]}: ` : ""}${merged ? "at most " : ""}${text(one[0])} at ${timeText(t)}; largest ${text(peak)}`]);
    });
    return lines;
  }

  #pathLines(t) {
    const step = this.#stepAt(t);
    if (!step) return null;
    const [start, end, , , what, because, parts] = step;
    const longest = [...parts].sort((a, b) => b[2] - a[2]).slice(0, 3);
    return [
      [what, "strong"], [`critical path · ${timeText(end - start)} from ${timeText(start)}`, "muted"],
      ...longest.map(([resource, kind, ps]) => [`${timeText(ps)} ${kind} · ${this.place.path.resources[resource]}`]),
      ...(because ? [[`began then because of ${because}`, "muted"]] : []),
    ];
  }

  #stepAt(t) {
    const { steps } = this.place.path;
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle][1] > t) high = middle;
      else low = middle + 1;
    }
    return steps[low] && steps[low][0] <= t ? steps[low] : null;
  }

  #click(x, y) {
    const each = this.place.nodeAt(y);
    if (!each) return;
    this.#focused = each.key;
    if (each.children) {
      this.#toggle(each);
      return;
    }
    const hit = this.place.intervalAt(each, x, y);
    this.#pick(hit);
    this.shared.selected = each.id;
  }

  #toggle(each) {
    each.open = !each.open;
    this.place.rows.measure();
    this.#measure();
    this.#say(`${each.label} ${each.open ? "opened" : "closed"}`);
  }

  #pick(hit) {
    this.#picked = hit;
    if (hit) {
      this.shared.selected = this.place.rows.trackOf(hit).id;
      this.#say(this.#lines(hit).map(([text]) => text).join("; "));
    } else this.#say("");
    this.drawing.redraw("marks");
  }

  #say(text) {
    this.said.textContent = text || HINT;
  }

  /** Scrolls to the rows of a component, opened if need be; a link gets a row. */
  #reveal(id) {
    const { place } = this;
    if (!id) return;
    if (place.rows.addLink(id)) this.#measure();
    if (place.rows.visible.some((each) => each.id === id && place.visible(each))) return;
    this.#open((each) => each.id === id);
  }

  /** Opens the groups that contain a node, and scrolls to it; returns it, null if there is none. */
  #open(wanted) {
    const found = this.place.rows.open(wanted);
    if (!found) return null;
    this.#measure();
    this.#show(found);
    return found;
  }

  #show(each) {
    if (!this.place.visible(each)) this.#scrollTo(each.y - (this.place.height - this.place.top) / 3);
  }

  #zoomToPicked() {
    if (!this.#picked) return;
    const { run, interval } = this.#picked;
    const { start, end } = this.place.runs[run].columns, shift = this.place.runs[run].shift;
    const width = Math.max(CLOSEST, end[interval] - start[interval]);
    this.#setWindow([start[interval] + shift - width, end[interval] + shift + width]);
  }

  /** Makes an interval visible, whatever is closed or beside the window. */
  #goTo(hit) {
    const of = this.place.runs[hit.run];
    const row = this.#open((each) => each.track?.rows[hit.run] === hit.row);
    if (row) this.#focused = row.key;
    const { start, end } = of.columns;
    const from = start[hit.interval] + of.shift, to = end[hit.interval] + of.shift, width = this.place.window[1] - this.place.window[0];
    if (to - from > width || to - from < width / 400) {
      const wide = Math.max(CLOSEST, 8 * (to - from));
      this.#setWindow([(from + to - wide) / 2, (from + to + wide) / 2]);
    } else if (from < this.place.window[0] || to > this.place.window[1]) this.#setWindow([(from + to - width) / 2, (from + to + width) / 2]);
    this.#pick(hit);
  }

  /** Chooses the interval before or after the chosen one, in its row. */
  #walk(by) {
    let { run, row, interval } = this.#picked ?? {};
    const each = this.place.rows.visible.find((x) => x.key === this.#focused);
    if (each?.track && each.track.rows[run] !== row) {
      run = each.track.rows.findLastIndex((x) => x >= 0);
      row = each.track.rows[run];
      interval = undefined;
    }
    if (row === undefined || row < 0) {
      this.#step(0);
      return;
    }
    const of = this.place.runs[run], [first, last] = of.range(row);
    if (interval === undefined) {
      interval = first;
      while (interval < last - 1 && of.columns.end[interval] + of.shift < this.place.window[0]) interval++;
    } else interval = Math.max(first, Math.min(last - 1, interval + by));
    this.#goTo({ run, row, interval });
  }

  /** Moves the focus to another visible row. */
  #step(by) {
    if (!this.place.rows.visible.length) return;
    const now = this.place.rows.visible.findIndex((each) => each.key === this.#focused);
    const next = this.place.rows.visible[now < 0 ? 0 : Math.max(0, Math.min(this.place.rows.visible.length - 1, now + by))];
    this.#focused = next.key;
    this.#show(next);
    const state = next.children ? `, group of ${countText(next.tracks.length)} rows, ${next.open ? "open" : "closed"}` : `, ${next.track.component}`;
    this.#say(`${next.label}${state}`);
    this.shared.selected = next.id;
    this.drawing.redraw("marks");
  }

  #toggleFocused() {
    const each = this.place.rows.visible.find((x) => x.key === this.#focused);
    if (each?.children) this.#toggle(each);
    else if (each) this.#walk(0);
  }

  /** Finds the intervals whose name or component contains the text. */
  #find() {
    const text = this.search.value.trim().toLowerCase();
    this.#found = [];
    this.at = -1;
    if (text) {
      const run = this.place.runs.length - 1, of = this.place.last;
      const hit = of.labels.map(([name]) => name.toLowerCase().includes(text));
      const { first, label } = of.columns;
      const whole = text.replace(/\s+/g, "");
      of.rows.forEach(([component, stage], row) => {
        const named = component.includes(whole) || (this.place.rows.stages[stage] ?? "").includes(text);
        for (let i = first[row]; i < first[row + 1]; i++) if (named || hit[label[i]]) this.#found.push({ run, row, interval: i });
      });
      const { start } = of.columns;
      this.#found.sort((a, b) => start[a.interval] - start[b.interval] || a.row - b.row);
    }
    this.matches.textContent = text ? (this.#found.length ? countText(this.#found.length) : "no match") : "";
    this.drawing.redraw("marks");
  }

  #walkFound(by) {
    const n = this.#found.length;
    if (!n) return;
    this.at = this.at < 0 ? (by > 0 ? 0 : n - 1) : (this.at + by + n) % n;
    this.matches.textContent = `${countText(this.at + 1)} of ${countText(n)}`;
    this.#goTo(this.#found[this.at]);
  }

  // The trace.

  async #openTrace() {
    this.#say("Opening Perfetto …");
    const taken = await this.trace.open(this.place.last.name);
    this.#say(taken ? "The trace is open in Perfetto." : "Perfetto did not open: allow pop-ups for this page, or download the trace file and open it at ui.perfetto.dev.");
  }

  async #saveTrace() {
    const [name, nbytes] = await this.trace.save(this.place.last.name);
    this.#say(`${name}, ${countText(nbytes)} B`);
  }
}
