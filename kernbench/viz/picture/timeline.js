// The timeline: what every engine, CPU and memory did when. Times are in ps here, in ns in `shared`.

const PERFETTO = "https://ui.perfetto.dev";
const GUTTER = 216, AXIS = 26, OVERVIEW = 36, STEP = 22, BAR = 12; // [px]: labels, axis, whole run, critical path, scroll bar
const LANE = 18, GROUP = 24, TALLEST = 90;
const ALPHAS = 32; // shades of a stage, by the share of a column that it is busy
const CLOSEST = 50; // [ps] least width of the window
const MOST_ARROWS = 150; // drawn at once
const TYPED = { u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array, f8: Float64Array };
const ENGINES = ["composite", "dma_in", "fetch", "gemm", "math", "store_tcm", "dma_out", "recv", "send"];
const HINT = "Wheel or W and S zoom, drag or A and D move, 0 shows all. A click selects; arrow keys walk; / searches; F zooms to the selection.";
const PLURALS = { sip: "SIPs", rank: "ranks", cube: "cubes", cubeOf: "cubes", pe: "PEs", peOf: "PEs" };
const LINKS = "Busiest links";
const GROUPINGS = {
  SIP: ["sip", "cube", "pe"], cube: ["cubeOf", "pe"], PE: ["peOf"], engine: ["stage", "sip"], rank: ["rank", "cube", "pe"],
};

/** Returns the first index of a sorted array at which `value` is below the entry, from `low` on. */
function above(sorted, value, low = 0, high = sorted.length) {
  for (let step = 1; low + step < high; step *= 2) {
    if (sorted[low + step] > value) {
      high = low + step;
      break;
    }
  }
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Returns a time, in ns to the ps unless it is long. */
function timeText(ps) {
  const size = Math.abs(ps);
  const [unit, by] = size >= 1e10 ? ["ms", 1e9] : size >= 1e8 ? ["us", 1e6] : ["ns", 1e3];
  return `${(ps / by).toLocaleString("en", { maximumFractionDigits: 3 })} ${unit}`;
}

/** Returns the id of a link in words; what both ends are in, once. */
function linkText(id) {
  const [from, to] = id.split("->").map((end) => end.split("."));
  let same = 0;
  while (same < Math.min(from.length, to.length) - 1 && from[same] === to[same]) same++;
  const ends = [from, to].map((end) => placeText(end.slice(same).join(".")));
  return `${same ? `${placeText(from.slice(0, same).join("."))}: ` : ""}${ends.join(" → ")}`;
}

function countText(value) {
  return value.toLocaleString("en");
}

/** The time that intervals have covered until a time, in all: any number of sorted starts and ends, without a loop over them. */
class Cover {
  constructor(pieces) {
    const n = pieces.reduce((sum, [start]) => sum + start.length, 0);
    this.start = new Float64Array(n);
    this.end = new Float64Array(n);
    let at = 0;
    for (const [start, end] of pieces) {
      this.start.set(start, at);
      this.end.set(end, at);
      at += start.length;
    }
    if (pieces.length > 1) {
      this.start.sort();
      this.end.sort();
    }
    this.starts = Cover.#sums(this.start);
    this.ends = Cover.#sums(this.end);
  }

  /** Writes the mean number of intervals under way in each column of `width` ps. */
  columns(out, from, width) {
    let i = 0, j = 0, before = null;
    for (let column = 0; column <= out.length; column++) {
      const t = from + column * width;
      i = above(this.start, t, i);
      j = above(this.end, t, j);
      const covered = i * t - this.starts[i] - (j * t - this.ends[j]);
      if (column) out[column - 1] = Math.max(0, (covered - before) / width);
      before = covered;
    }
  }

  static #sums(sorted) {
    const sums = new Float64Array(sorted.length + 1);
    for (let i = 0; i < sorted.length; i++) sums[i + 1] = sums[i] + sorted[i];
    return sums;
  }
}

/** One run as it is in the scene. */
class TimelineRun {
  constructor(header, buffers, number) {
    Object.assign(this, { name: header.name, end: header.end_ps, rows: header.rows, labels: header.labels, launches: header.launches });
    this.columns = {};
    for (const [name, type] of Object.entries(header.types)) {
      const raw = bytes(buffers[`timeline${number}_${name}`]);
      // Buffers of a message from the kernel begin anywhere.
      const whole = raw.byteOffset % 8 ? raw.slice() : raw;
      this.columns[name] = new TYPED[type](whole.buffer, whole.byteOffset, whole.byteLength / TYPED[type].BYTES_PER_ELEMENT);
    }
    this.shift = 0;
    const sent = this.columns.arrow_ps;
    this.sent = Uint32Array.from(sent.keys()).sort((a, b) => sent[a] - sent[b]);
  }

  #lanes = new Map();
  #pieces = new Map();
  #covers = new Map();
  #arrowsOf = null;

  /** Returns the lanes of a row: as many as it needs so that no interval overlaps another on its lane. */
  lanes(row) {
    if (!this.#lanes.has(row)) this.#lanes.set(row, this.#layOut(row));
    return this.#lanes.get(row);
  }

  /** Returns when anything of a row was under way: starts and ends. */
  pieces(row) {
    if (!this.#pieces.has(row)) this.#pieces.set(row, this.#union(row));
    return this.#pieces.get(row);
  }

  cover(row) {
    if (!this.#covers.has(row)) this.#covers.set(row, new Cover([this.pieces(row)]));
    return this.#covers.get(row);
  }

  range(row) {
    return [this.columns.first[row], this.columns.first[row + 1]];
  }

  rowOf(interval) {
    return above(this.columns.first, interval) - 1;
  }

  /** Returns how much of an interval is work: less than all of it where several were merged. */
  busy(interval) {
    const { busy, start, end } = this.columns;
    return busy ? busy[interval] : end[interval] - start[interval];
  }

  /** Returns the arrows that begin or end at an interval. */
  arrowsOf(interval) {
    if (!this.#arrowsOf) {
      this.#arrowsOf = new Map();
      const { arrow_from, arrow_to } = this.columns;
      for (let i = 0; i < arrow_from.length; i++) {
        for (const end of [arrow_from[i], arrow_to[i]]) {
          if (!this.#arrowsOf.has(end)) this.#arrowsOf.set(end, []);
          this.#arrowsOf.get(end).push(i);
        }
      }
    }
    return this.#arrowsOf.get(interval) ?? [];
  }

  #layOut(row) {
    const [first, last] = this.range(row);
    const { start, end } = this.columns;
    const free = [], members = [];
    for (let i = first; i < last; i++) {
      let lane = free.findIndex((t) => t <= start[i]);
      if (lane < 0) lane = free.push(0) - 1;
      free[lane] = end[i];
      (members[lane] ??= []).push(i);
    }
    return members.map((list) => {
      const lane = { start: new Float64Array(list.length), end: new Float64Array(list.length), work: new Float64Array(list.length + 1), interval: Uint32Array.from(list) };
      list.forEach((i, at) => {
        lane.start[at] = start[i];
        lane.end[at] = end[i];
        lane.work[at + 1] = lane.work[at] + this.busy(i);
      });
      return lane;
    });
  }

  #union(row) {
    const [first, last] = this.range(row);
    const { start } = this.columns;
    const starts = [], ends = [];
    for (let i = first; i < last; i++) {
      const end = start[i] + this.busy(i);
      if (starts.length && start[i] <= ends[ends.length - 1]) ends[ends.length - 1] = Math.max(ends[ends.length - 1], end);
      else {
        starts.push(start[i]);
        ends.push(end);
      }
    }
    return [Float64Array.from(starts), Float64Array.from(ends)];
  }
}

/** What is drawn in one line: a row of the log in each run, or the load of a link. */
class Track {
  constructor(component, stage, place, rows) {
    const [sip, cube, pe] = place;
    Object.assign(this, { component, stage, sip, cube, pe, rows });
  }

  /** Returns the id of its component in the machine: fetch and store are ports of one. */
  get id() {
    return this.component.replace(/\.(fetch|store)$/, "");
  }

  /** Returns the key of the group that it belongs to, and its name; null if it belongs to none of this level. */
  group(level) {
    const { sip, cube, pe } = this;
    if (level === "stage") return this.stage === "load" ? ["links", LINKS] : [this.stage, null];
    if (this.stage === "load" || this.component === "host") {
      const inner = level === "pe" || level === "cube" || this.inStage;
      return inner ? null : this.stage === "load" ? ["links", LINKS] : ["host", "Host"];
    }
    if (level === "sip") return [`sip${sip}`, `SIP ${sip}`];
    if (level === "rank") return [`sip${sip}`, `Rank ${sip} (SIP ${sip})`];
    if (level === "cube") return cube < 0 ? null : [`sip${sip}.cube${cube}`, `Cube ${cube}`];
    if (level === "cubeOf") return cube < 0 ? [`sip${sip}`, `SIP ${sip}, IO`] : [`sip${sip}.cube${cube}`, `SIP ${sip}, cube ${cube}`];
    const name = `sip${sip}.cube${cube}.pe${pe}`;
    if (level === "peOf") return pe < 0 ? [`sip${sip}.cpus`, `SIP ${sip}, CPUs`] : [name, `SIP ${sip}, cube ${cube}, PE ${pe}`];
    return pe < 0 ? null : [name, `PE ${pe}`];
  }
}

/** Opens `trace`, a promise of bytes, in Perfetto; resolves to whether it took them. */
function openPerfetto(trace, title, address = PERFETTO) {
  const tab = window.open(address); // at once: a browser allows it only in the click
  if (!tab) return Promise.resolve(false);
  const { origin } = new URL(address);
  return new Promise((resolve) => {
    const end = (taken) => {
      clearInterval(timer);
      removeEventListener("message", hear);
      resolve(taken);
    };
    const hear = (event) => {
      if (event.source !== tab || event.data !== "PONG") return;
      clearInterval(timer);
      removeEventListener("message", hear);
      trace.then(
        (buffer) => {
          tab.postMessage({ perfetto: { buffer, title } }, origin);
          end(true);
        },
        () => end(false),
      );
    };
    addEventListener("message", hear);
    const timer = setInterval(() => (tab.closed ? end(false) : tab.postMessage("PING", origin)), 50);
  });
}

class TimelineView {
  #runs = [];
  #tracks = [];
  #nodes = []; // what is visible, from top to bottom
  #window = [0, 1];
  #scroll = 0;
  #picked = null; // {run, row, interval}
  #focused = null; // key of the node that the keyboard is at
  #pointer = null; // where the mouse is
  #found = [];
  #frame = 0;
  #stale = new Set();
  #colours = null;
  #waiting = null;

  constructor(root, shared, send) {
    Object.assign(this, { shared, send, perfetto: PERFETTO });
    this.#build(root);
    this.onChange = (event) => this.#changed(event.detail);
    shared.addEventListener("change", this.onChange);
    this.observer = new ResizeObserver(() => this.#redraw("rows"));
    this.observer.observe(this.area);
    // The theme is an attribute of the picture's root.
    this.themes = new MutationObserver(() => this.#theme());
    this.themes.observe(this.root.closest(".kbp-picture") ?? document.documentElement, { attributes: true });
  }

  setScene(header, buffers) {
    const given = header.timeline;
    if (given && this.#runs.length && buffers === this.buffers) {
      this.#setPath(header.path); // which may take longer to find than the rest
      return;
    }
    this.buffers = buffers;
    this.root.classList.toggle("kbp-empty", !given?.runs.length);
    this.#picked = this.#pointer = null;
    this.trace = buffers.trace ?? null;
    this.perfettoButton.hidden = this.download.hidden = !given || (!this.send && !this.trace);
    if (!given) {
      this.#runs = [];
      return;
    }
    this.stages = given.stages;
    this.#runs = given.runs.map((run, number) => new TimelineRun(run, buffers, number));
    this.name = this.#last.name;
    this.#align();
    this.#gather(header.run, buffers);
    this.#overview();
    this.#group(this.grouping.value);
    this.#setPath(header.path);
    this.#setWindow([0, this.#end]);
    this.search.value = this.matches.textContent = "";
    this.#found = [];
    this.#say(this.#last.rows.length || !this.#last.end ? "" : "This run was not logged: record operations or tiles to see what happened when.");
  }

  #setPath(path) {
    this.path = path ?? null;
    this.pathButton.hidden = !path;
    this.pathButton.setAttribute("aria-pressed", String(this.shared.path));
    this.#measure();
  }

  /** Takes the answer of the kernel to `{do: "open_trace"}`. */
  receive(message, buffers) {
    if (message.do !== "trace") return;
    this.#waiting?.(buffers[0]);
    this.#waiting = null;
  }

  destroy() {
    this.shared.removeEventListener("change", this.onChange);
    this.observer.disconnect();
    this.themes.disconnect();
    cancelAnimationFrame(this.#frame);
    this.root.remove();
  }

  get #last() {
    return this.#runs[this.#runs.length - 1];
  }

  get #end() {
    return Math.max(1, ...this.#runs.map((run) => run.end + run.shift));
  }

  // The page.

  #build(root) {
    const press = (text, label, act, more = "") => node(`button.kbp-button${more}`, { type: "button", title: label, "aria-label": /[a-z]/.test(text) ? text : label, onclick: act }, text);
    this.grouping = node("select.kbp-button.kbp-group", { "aria-label": "Group rows by" });
    for (const name of Object.keys(GROUPINGS)) this.grouping.append(node("option", { value: name }, `By ${name}`));
    this.grouping.addEventListener("change", () => this.#group(this.grouping.value));
    this.align = node("select.kbp-button.kbp-align", { "aria-label": "Align the runs at", hidden: true });
    this.align.addEventListener("change", () => {
      this.#align(this.align.value);
      this.#overview();
      this.#redraw("rows");
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
      node("span.kbp-space"),
      press("−", "Zoom out (−)", () => this.#zoom(1.6)), press("+", "Zoom in (+)", () => this.#zoom(1 / 1.6)), press("Fit", "Show the whole run (0)", () => this.#setWindow([0, this.#end])),
      this.pathButton, this.perfettoButton, this.download,
    );
    this.rowsCanvas = node("canvas", { "aria-hidden": "true" });
    this.marks = node("canvas.kbp-marks", {
      tabIndex: 0, role: "application", "aria-roledescription": "timeline",
      "aria-label": "Timeline. Left and right arrows walk intervals, up and down walk rows, Enter opens a group. W and S zoom, A and D pan, 0 shows all.",
    });
    this.tip = node("div.kbp-tip", { hidden: true });
    this.area = node("div.kbp-timeline-area", {}, this.rowsCanvas, this.marks, this.tip);
    this.said = node("div.kbp-said", { "aria-live": "polite", role: "status" });
    this.root = node(
      // JupyterLab's shortcuts are single letters as well.
      "section.kbp-timeline.kbp-empty", { "aria-label": "Timeline", "data-lm-suppress-shortcuts": "true" },
      node("p.kbp-nothing", {}, "The timeline appears here when a run has ended."), this.tools, this.area, this.said,
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
      if (x < GUTTER || event.altKey) this.#scrollTo(this.#scroll + event.deltaY);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.#pan((event.deltaX || event.deltaY) * this.#perPx);
      else this.#zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * (event.ctrlKey ? 0.012 : 0.004)), this.#timeAt(x)); // a pinch has ctrlKey
    }, { passive: false });
    marks.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const [x, y] = at(event);
      marks.setPointerCapture(event.pointerId);
      this.drag = { x, y, window: [...this.#window], scroll: this.#scroll, moved: false, what: this.#grip(x, y) };
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
      else if (drag.what === "overview") this.#centre(x);
      else if (drag.what === "bar") this.#scrollTo(drag.scroll + (y - drag.y) * (this.#bar()?.by ?? 0));
      else if (drag.moved) {
        this.#setWindow(drag.window.map((t) => t - (x - drag.x) * this.#perPx));
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
      if (event.ctrlKey || event.metaKey || event.altKey || !this.#runs.length) return;
      const act = this.#key(event.key, event.shiftKey);
      if (!act) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
    marks.addEventListener("focus", () => this.#redraw("marks"));
    marks.addEventListener("blur", () => this.#redraw("marks"));
  }

  #key(key, shift) {
    const width = this.#window[1] - this.#window[0];
    return {
      w: () => this.#zoom(1 / 1.4, this.#cursorTime()), s: () => this.#zoom(1.4, this.#cursorTime()),
      "+": () => this.#zoom(1 / 1.4), "=": () => this.#zoom(1 / 1.4), "-": () => this.#zoom(1.4),
      a: () => this.#pan(-width / 8), d: () => this.#pan(width / 8),
      0: () => this.#setWindow([0, this.#end]), f: () => this.#zoomToPicked(),
      ArrowLeft: () => this.#walk(-1), ArrowRight: () => this.#walk(1),
      ArrowUp: () => this.#step(shift ? -10 : -1), ArrowDown: () => this.#step(shift ? 10 : 1),
      Home: () => this.#walk(-Infinity), End: () => this.#walk(Infinity),
      Enter: () => this.#toggleFocused(), " ": () => this.#toggleFocused(),
      "/": () => this.search.focus(), n: () => this.#walkFound(1), N: () => this.#walkFound(-1),
      Escape: () => this.#pick(null),
    }[key.length === 1 && key !== "N" ? key.toLowerCase() : key];
  }

  #changed(names) {
    if (!this.#runs.length) return;
    if (names.has("path")) {
      this.pathButton.setAttribute("aria-pressed", String(this.shared.path));
      this.#measure();
    }
    if (names.has("window")) {
      const [from, to] = this.shared.window;
      if (Math.abs(from * 1000 - this.#window[0]) + Math.abs(to * 1000 - this.#window[1]) > 1) this.#setWindow([from * 1000, to * 1000]);
    }
    if (names.has("selected")) this.#reveal(this.shared.selected);
    if (["t", "hovered", "selected"].some((name) => names.has(name))) this.#redraw("marks");
  }

  // Runs, rows and groups.

  /** Shifts the first of two runs so that both start the same launch at the same time. */
  #align(at = "0") {
    const [before] = this.#runs, single = this.#runs.length < 2;
    this.pairs = single ? [] : this.#pairs();
    this.align.hidden = this.key.hidden = single;
    this.align.replaceChildren(...this.pairs.map(({ name }, i) => node("option", { value: String(i) }, `Align at ${name}`)), node("option", { value: "" }, "Align at the start"));
    this.align.value = this.pairs[at] ? at : "";
    const pair = this.pairs[this.align.value];
    before.shift = pair ? pair.b[1] - pair.a[1] : 0;
  }

  /** Returns the launches of both runs that belong together: of one name, or in one place if the names differ. */
  #pairs() {
    const [before, after] = this.#runs;
    return before.launches.flatMap((a, i) => {
      const b = after.launches.find(([name]) => name === a[0]) ?? after.launches[i];
      return b && (b[0] === a[0] || !before.launches.some(([name]) => name === b[0])) ? [{ name: a[0] === b[0] ? a[0] : `${a[0]} → ${b[0]}`, a, b }] : [];
    });
  }

  #gather(run, buffers) {
    const found = new Map();
    this.#runs.forEach((each, number) => {
      each.rows.forEach(([component, stage, ...place], row) => {
        const key = `${component}|${stage}|${place[0]}`;
        if (!found.has(key)) found.set(key, new Track(component, stage, place, this.#runs.map(() => -1)));
        found.get(key).rows[number] = row;
      });
    });
    const order = Object.keys(this.stages);
    const rank = (track) => [track.component === "host" ? 0 : 1, track.sip, track.cube, track.pe, order.indexOf(track.stage)];
    this.#tracks = [...found.values()].sort((a, b) => {
      const [x, y] = [rank(a), rank(b)];
      const at = x.findIndex((value, i) => value !== y[i]);
      return at < 0 ? 0 : x[at] - y[at];
    });
    this.loads = null;
    const load = bytes(buffers.link_load);
    if (run && load.length) {
      this.loads = { bins: run.bins, end: run.end_ns * 1000, load, row: new Map(run.links.map((id, row) => [id, row])) };
      const total = run.links.map((id, row) => [load.subarray(row * run.bins, (row + 1) * run.bins).reduce((sum, x) => sum + x, 0), id]);
      this.busiest = total.sort((a, b) => b[0] - a[0]).slice(0, 4).map(([, id]) => id);
    }
  }

  #group(by) {
    const levels = GROUPINGS[by], byStage = levels[0] === "stage";
    const tracks = [...this.#tracks, ...(this.loads ? this.busiest : []).map((id) => new Track(id, "load", [-1, -1, -1], []))];
    for (const track of tracks) track.inStage = byStage;
    if (byStage) {
      const order = [...Object.keys(this.stages), "load"];
      tracks.sort((a, b) => order.indexOf(a.stage) - order.indexOf(b.stage));
    }
    this.tree = this.#nest(tracks, levels, 0, 0, "");
    this.#openSome();
    this.#scroll = 0;
    this.#focused = null;
    this.#measure();
  }

  /** Groups tracks by the levels from `at` on. */
  #nest(tracks, levels, at, depth, prefix) {
    if (at === levels.length) return tracks.map((track) => this.#leaf(track, depth, prefix));
    const groups = new Map(), nodes = [];
    for (const track of tracks) {
      const group = track.group(levels[at]);
      if (!group) {
        nodes.push(...this.#nest([track], levels, at + 1, depth, prefix));
        continue;
      }
      const [id, label] = group;
      if (!groups.has(id)) {
        groups.set(id, { key: `${prefix}/${id}`, id, label: label ?? this.stages[id], level: levels[at], depth, tracks: [] });
        nodes.push(groups.get(id));
      }
      groups.get(id).tracks.push(track);
    }
    for (const group of groups.values()) {
      group.children = this.#nest(group.tracks, levels, at + 1, depth + 1, group.key);
      group.works = group.tracks.some((track) => track.stage !== "messages");
    }
    return this.#setIdleAside(nodes, depth, prefix);
  }

  /** Puts groups in which nothing but messages passed into one at the end, so that the others are together. */
  #setIdleAside(nodes, depth, prefix) {
    const groups = nodes.filter((each) => each.children), idle = groups.filter((each) => !each.works);
    if (idle.length < 2 || idle.length === groups.length) return nodes;
    const deeper = (list) => list.map((each) => ({ ...each, depth: each.depth + 1, children: each.children && deeper(each.children) }));
    const aside = {
      key: `${prefix}/idle`, id: "idle", label: `${idle.length} ${PLURALS[idle[0].level]} without work`, depth, tracks: idle.flatMap((each) => each.tracks),
      children: deeper(idle), works: false,
    };
    return [...nodes.filter((each) => !idle.includes(each)), aside];
  }

  #leaf(track, depth, prefix) {
    const stage = track.component === "host" && track.stage === "host" ? "copies and maps" : this.stages[track.stage];
    const where = track.component === "host" ? (track.sip < 0 ? "host" : `SIP ${track.sip}`) : placeText(track.component.replace(/\.pe_\w+(\.\w+)?$/, ""));
    const label = track.stage === "load" ? linkText(track.component) : track.inStage ? where : track.component === "host" && track.sip >= 0 ? `${stage}, SIP ${track.sip}` : track.stage === "memory" ? this.#memoryName(track.component) : stage;
    return { key: `${prefix}/${track.component}|${track.stage}|${track.sip}`, id: track.id, label, depth, track };
  }

  #memoryName(component) {
    return component.includes(".hbm_ctrl.") ? "HBM slice" : component.endsWith(".sram") ? "SRAM" : component;
  }

  /** Opens as much as is useful at first: whole levels from the top, as long as about a screenful of rows results. */
  #openSome() {
    let level = this.tree;
    let shown = level.length;
    while (level.length) {
      const open = level.filter((each) => each.children && each.works && (each.id !== "host" || each.children.length < 5));
      const more = open.flatMap((each) => each.children);
      shown += more.length;
      if (!open.length || (shown > 60 && level !== this.tree)) break;
      for (const each of open) each.open = true;
      level = more;
    }
  }

  #openAll(open) {
    const visit = (nodes) => {
      for (const each of nodes.filter((x) => x.children)) {
        each.open = open;
        visit(each.children);
      }
    };
    visit(this.tree ?? []);
    this.#measure();
  }

  /** Lists what is visible, with its place. */
  #measure() {
    this.#nodes = [];
    let y = 0;
    const visit = (nodes) => {
      for (const each of nodes) {
        each.y = y;
        each.height = this.#height(each);
        y += each.height;
        this.#nodes.push(each);
        if (each.open) visit(each.children);
      }
    };
    visit(this.tree ?? []);
    this.height = y;
    this.anchors = null;
    const want = Math.max(200, Math.min(560, this.#top + y + 8));
    this.area.style.height = `${want}px`;
    this.#scrollTo(this.#scroll);
    this.#redraw("rows");
  }

  #height(each) {
    if (each.children) return this.#runs.length > 1 && !each.open ? 2 * GROUP - 6 : GROUP;
    if (each.track.stage === "load") return 26;
    each.parts = each.track.rows.map((row, run) => {
      const lanes = row < 0 ? 1 : this.#runs[run].lanes(row).length;
      return lanes === 1 ? LANE : Math.min(TALLEST, Math.max(LANE, (each.track.stage === "messages" ? 2 : 7) * lanes));
    });
    return each.parts.reduce((sum, part) => sum + part, 0) + (each.parts.length > 1 ? 5 : 2);
  }

  /** Where the rows begin [px]. */
  get #top() {
    return OVERVIEW + AXIS + (this.path ? STEP : 0);
  }

  // What can be seen, and moving.

  get #perPx() {
    return (this.#window[1] - this.#window[0]) / Math.max(1, this.width - GUTTER);
  }

  #timeAt(x) {
    return this.#window[0] + (x - GUTTER) * this.#perPx;
  }

  #xOf(ps) {
    return GUTTER + (ps - this.#window[0]) / this.#perPx;
  }

  #setWindow([from, to]) {
    const end = this.#end, margin = 0.05 * end;
    const width = Math.min(end + 2 * margin, Math.max(CLOSEST, to - from));
    let start = from + (to - from - width) / 2;
    start = Math.max(-margin, Math.min(end + margin - width, start));
    this.#window = [start, start + width];
    this.shared.window = [start / 1000, (start + width) / 1000];
    this.#redraw("rows");
  }

  #zoom(factor, around = (this.#window[0] + this.#window[1]) / 2) {
    const least = CLOSEST / (this.#window[1] - this.#window[0]);
    const by = Math.max(factor, Math.min(1, least));
    this.#setWindow(this.#window.map((t) => around + (t - around) * by));
  }

  #pan(by) {
    this.#setWindow(this.#window.map((t) => t + by));
  }

  #scrollTo(y) {
    const scroll = Math.max(0, Math.min(this.height + this.#top - this.area.clientHeight + 8, y)) || 0;
    if (scroll === this.#scroll) return;
    this.#scroll = scroll;
    this.#redraw("rows");
  }

  #cursorTime() {
    return this.#pointer && this.#pointer.x > GUTTER ? this.#timeAt(this.#pointer.x) : undefined;
  }

  #clockAt(x) {
    this.shared.playing = false;
    this.shared.t = Math.max(0, Math.min(this.#last.end, this.#timeAt(Math.max(GUTTER, x)))) / 1000;
  }

  #centre(x) {
    const width = this.#window[1] - this.#window[0];
    const t = ((x - GUTTER) / (this.width - GUTTER)) * this.#end;
    this.#setWindow([t - width / 2, t + width / 2]);
  }

  /** Returns what a drag from here moves. */
  #grip(x, y) {
    if (x < GUTTER) return "rows";
    if (y >= this.#top && x > this.width - BAR && this.#bar()) return "bar";
    if (y < OVERVIEW) return "overview";
    const line = this.#xOf(this.shared.t * 1000);
    return y < OVERVIEW + AXIS || Math.abs(x - line) < 4 ? "clock" : "rows";
  }

  // What is under the mouse, chosen, or found.

  #nodeAt(y) {
    const inside = y - this.#top + this.#scroll;
    if (y < this.#top || inside < 0) return null;
    let low = 0, high = this.#nodes.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#nodes[middle].y + this.#nodes[middle].height > inside) high = middle;
      else low = middle + 1;
    }
    return this.#nodes[low] ?? null;
  }

  /** Returns the interval at a place: {run, row, interval}; null where there is none. */
  #intervalAt(each, x, y) {
    if (!each?.track || each.track.stage === "load" || x < GUTTER) return null;
    let top = this.#top - this.#scroll + each.y + 1;
    for (const [run, row] of each.track.rows.entries()) {
      if (y < top + each.parts[run] + 2 && row >= 0) {
        const lanes = this.#runs[run].lanes(row);
        const lane = lanes[Math.max(0, Math.min(lanes.length - 1, Math.floor(((y - top) / each.parts[run]) * lanes.length)))];
        const t = this.#timeAt(x) - this.#runs[run].shift, reach = 2 * this.#perPx;
        let i = above(lane.start, t) - 1;
        if (i < 0 || lane.end[i] < t - reach) i++;
        return i < lane.start.length && lane.start[i] <= t + reach ? { run, row, interval: lane.interval[i] } : null;
      }
      top += each.parts[run] + 3;
    }
    return null;
  }

  #hover(x, y) {
    const inside = x >= 0;
    const each = inside ? this.#nodeAt(y) : null;
    this.#pointer = inside ? { x, y, node: each, hit: this.#intervalAt(each, x, y) } : null;
    this.marks.style.cursor = inside && x >= GUTTER ? { clock: "ew-resize", overview: "pointer", bar: "default", rows: "" }[this.#grip(x, y)] : each?.children ? "pointer" : "";
    this.shared.hovered = each?.id ?? null;
    this.#showTip();
    this.#redraw("marks");
  }

  #showTip() {
    const pointer = this.#pointer;
    const lines = pointer ? (pointer.hit ? this.#lines(pointer.hit) : this.#shares(pointer)) : null;
    this.tip.hidden = !lines;
    if (!lines) return;
    this.tip.replaceChildren(...lines.map(([text, kind]) => node(`div${kind ? `.kbp-${kind}` : ""}`, {}, text)));
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    this.tip.style.left = `${Math.max(0, Math.min(this.width - width - 4, pointer.x + 14))}px`;
    this.tip.style.top = `${pointer.y + 18 + height > this.area.clientHeight ? pointer.y - height - 8 : pointer.y + 18}px`;
  }

  /** Returns what there is to say about an interval. */
  #lines({ run, row, interval }) {
    const of = this.#runs[run], { start, end, tile, label, count } = of.columns;
    const [text, nbytes, flops] = of.labels[label[interval]];
    const [component, stage] = of.rows[row];
    const many = count && count[interval] > 1 ? count[interval] : 0;
    const took = end[interval] - start[interval];
    const lines = [[many ? `${countText(many)} short intervals` : this.#titleOf(of, interval), "strong"], [`${this.stages[stage]} · ${component}`, "muted"]];
    lines.push([`${timeText(took)} from ${timeText(start[interval])} to ${timeText(end[interval])}`]);
    if (many) {
      lines.push([`busy ${percentText(of.busy(interval) / Math.max(1, took))} of it; too short to be sent one by one`]);
      return lines;
    }
    if (nbytes) lines.push([`${countText(nbytes)} B${took ? `, ${(nbytes * 1000 / took).toLocaleString("en", { maximumFractionDigits: 1 })} GB/s` : ""}`]);
    if (flops) lines.push([`${countText(flops)} flop${took ? `, ${(flops / took).toLocaleString("en", { maximumFractionDigits: 2 })} Tflop/s` : ""}`]);
    if (text && stage === "launch") lines.push(["from the host's message to the last completion", "muted"]);
    if (this.#runs.length > 1) lines.push([`run ${run ? "B" : "A"}: ${of.name}`, "muted"]);
    const other = this.#counterpart(run, row, interval);
    if (other) lines.push([`${run ? "B − A" : "A − B"}: ${this.#change(took - (other.end - other.start), other.end - other.start)}`]);
    return lines;
  }

  #titleOf(of, interval) {
    const [text] = of.labels[of.columns.label[interval]];
    const tile = of.columns.tile[interval];
    return `${text || this.stages[of.rows[of.rowOf(interval)][1]]}${tile >= 0 ? `, ${/^(send|recv)/.test(text) ? "part" : "tile"} ${tile}` : ""}`;
  }

  #change(by, from) {
    return `${by < 0 ? "−" : "+"}${timeText(Math.abs(by))}${from ? ` (${by < 0 ? "−" : "+"}${Math.abs((100 * by) / from).toFixed(1)} %)` : ""}`;
  }

  /** Returns the times of the interval at the same place of its row in the other run. */
  #counterpart(run, row, interval) {
    if (this.#runs.length < 2) return null;
    const other = this.#runs[1 - run], there = this.#trackOf({ run, row }).rows[1 - run];
    if (there < 0) return null;
    const [first, last] = other.range(there);
    const at = first + interval - this.#runs[run].range(row)[0];
    return at < last ? { start: other.columns.start[at], end: other.columns.end[at] } : null;
  }

  /** Returns how busy a group or a link is at a place. */
  #shares({ x, y, node: each }) {
    if (x < GUTTER) return each && (each.track || each.children) ? [[each.label, "strong"], [each.track?.component ?? `${countText(each.tracks.length)} rows`, "muted"]] : null;
    if (this.path && y >= OVERVIEW + AXIS && y < this.#top) return this.#pathLines(this.#timeAt(x));
    if (!each || each.open) return null;
    if (each.track?.stage === "load") {
      const share = this.#loadAt(each.track.component, this.#timeAt(x));
      return [[each.label, "strong"], [each.id, "muted"], [`busy ${percentText(share)} of ${timeText(this.loads.end / this.loads.bins)} at ${timeText(this.#timeAt(x))}`]];
    }
    if (!each.children) return null;
    const from = this.#timeAt(Math.floor(x)), one = new Float64Array(1);
    const lines = [];
    this.#runs.forEach((run, number) => {
      for (const stage of Object.keys(this.stages)) {
        const load = this.#loadOf(each, number, stage);
        if (!load) continue;
        load.cover.columns(one, from - run.shift, this.#perPx);
        const share = one[0] / load.rows;
        if (share > 0) lines.push([`${this.stages[stage]}${this.#runs.length > 1 ? ` (${"AB"[number]})` : ""}: ${percentText(Math.min(1, share))}${load.rows > 1 ? ` of ${countText(load.rows)}` : ""}`]);
      }
    });
    return [[each.label, "strong"], [`${timeText(this.#perPx)} at ${timeText(from)}`, "muted"], ...(lines.length ? lines : [["idle"]])];
  }

  #pathLines(t) {
    const step = this.#stepAt(t);
    if (!step) return null;
    const [start, end, , , what, because, parts] = step;
    const longest = [...parts].sort((a, b) => b[2] - a[2]).slice(0, 3);
    return [
      [what, "strong"], [`critical path · ${timeText(end - start)} from ${timeText(start)}`, "muted"],
      ...longest.map(([resource, kind, ps]) => [`${timeText(ps)} ${kind} · ${this.path.resources[resource]}`]),
      ...(because ? [[`began then because of ${because}`, "muted"]] : []),
    ];
  }

  #stepAt(t) {
    const { steps } = this.path;
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle][1] > t) high = middle;
      else low = middle + 1;
    }
    return steps[low] && steps[low][0] <= t ? steps[low] : null;
  }

  #loadAt(id, t) {
    const { bins, end, load, row } = this.loads;
    return load[row.get(id) * bins + Math.max(0, Math.min(bins - 1, Math.floor((t / end) * bins)))] / 255;
  }

  #trackOf({ run, row }) {
    return this.#tracks.find((track) => track.rows[run] === row);
  }

  #click(x, y) {
    const each = this.#nodeAt(y);
    if (!each) return;
    this.#focused = each.key;
    if (each.children) {
      this.#toggle(each);
      return;
    }
    const hit = this.#intervalAt(each, x, y);
    this.#pick(hit);
    this.shared.selected = each.id;
  }

  #toggle(each) {
    each.open = !each.open;
    this.#measure();
    this.#say(`${each.label} ${each.open ? "opened" : "closed"}`);
  }

  #pick(hit) {
    this.#picked = hit;
    if (hit) {
      this.shared.selected = this.#trackOf(hit).id;
      this.#say(this.#lines(hit).map(([text]) => text).join("; "));
    } else this.#say("");
    this.#redraw("marks");
  }

  #say(text) {
    this.said.textContent = text || HINT;
  }

  /** Scrolls to the rows of a component, opened if need be; a link gets a row. */
  #reveal(id) {
    if (!id) return;
    if (this.loads?.row.has(id) && !this.busiest.includes(id)) {
      this.busiest = [id, ...this.busiest.slice(0, 4)];
      const links = this.tree.find((each) => each.id === "links");
      if (links) {
        links.tracks = this.busiest.map((link) => new Track(link, "load", [-1, -1, -1], []));
        links.children = links.tracks.map((track) => this.#leaf(track, 1, links.key));
        links.open = true;
        this.#measure();
      }
    }
    if (this.#nodes.some((each) => each.id === id && this.#visible(each))) return;
    const chain = this.#chain(this.tree, (each) => each.id === id);
    if (!chain) return;
    for (const each of chain.slice(0, -1)) each.open = true;
    this.#measure();
    this.#show(chain.at(-1));
  }

  #chain(nodes, wanted) {
    for (const each of nodes) {
      if (wanted(each)) return [each];
      const below = each.children && this.#chain(each.children, wanted);
      if (below) return [each, ...below];
    }
    return null;
  }

  #visible(each) {
    const y = this.#top + each.y - this.#scroll;
    return y >= this.#top && y + each.height <= this.area.clientHeight;
  }

  #show(each) {
    if (!this.#visible(each)) this.#scrollTo(each.y - (this.area.clientHeight - this.#top) / 3);
  }

  #zoomToPicked() {
    if (!this.#picked) return;
    const { run, interval } = this.#picked;
    const { start, end } = this.#runs[run].columns, shift = this.#runs[run].shift;
    const width = Math.max(CLOSEST, end[interval] - start[interval]);
    this.#setWindow([start[interval] + shift - width, end[interval] + shift + width]);
  }

  /** Makes an interval visible, whatever is closed or beside the window. */
  #goTo(hit) {
    const of = this.#runs[hit.run];
    const chain = this.#chain(this.tree, (each) => each.track?.rows[hit.run] === hit.row);
    if (chain) {
      for (const each of chain.slice(0, -1)) each.open = true;
      this.#focused = chain.at(-1).key;
      this.#measure();
      this.#show(chain.at(-1));
    }
    const { start, end } = of.columns;
    const from = start[hit.interval] + of.shift, to = end[hit.interval] + of.shift, width = this.#window[1] - this.#window[0];
    if (to - from > width || to - from < width / 400) {
      const wide = Math.max(CLOSEST, 8 * (to - from));
      this.#setWindow([(from + to - wide) / 2, (from + to + wide) / 2]);
    } else if (from < this.#window[0] || to > this.#window[1]) this.#setWindow([(from + to - width) / 2, (from + to + width) / 2]);
    this.#pick(hit);
  }

  /** Chooses the interval before or after the chosen one, in its row. */
  #walk(by) {
    let { run, row, interval } = this.#picked ?? {};
    const each = this.#nodes.find((x) => x.key === this.#focused);
    if (each?.track && each.track.rows[run] !== row) {
      run = each.track.rows.findLastIndex((x) => x >= 0);
      row = each.track.rows[run];
      interval = undefined;
    }
    if (row === undefined || row < 0) {
      this.#step(0);
      return;
    }
    const of = this.#runs[run], [first, last] = of.range(row);
    if (interval === undefined) {
      interval = first;
      while (interval < last - 1 && of.columns.end[interval] + of.shift < this.#window[0]) interval++;
    } else interval = Math.max(first, Math.min(last - 1, interval + by));
    this.#goTo({ run, row, interval });
  }

  /** Moves the focus to another visible row. */
  #step(by) {
    if (!this.#nodes.length) return;
    const now = this.#nodes.findIndex((each) => each.key === this.#focused);
    const next = this.#nodes[now < 0 ? 0 : Math.max(0, Math.min(this.#nodes.length - 1, now + by))];
    this.#focused = next.key;
    this.#show(next);
    const state = next.children ? `, group of ${countText(next.tracks.length)} rows, ${next.open ? "open" : "closed"}` : `, ${next.track.component}`;
    this.#say(`${next.label}${state}`);
    this.shared.selected = next.id;
    this.#redraw("marks");
  }

  #toggleFocused() {
    const each = this.#nodes.find((x) => x.key === this.#focused);
    if (each?.children) this.#toggle(each);
    else if (each) this.#walk(0);
  }

  /** Finds the intervals whose name or component contains the text. */
  #find() {
    const text = this.search.value.trim().toLowerCase();
    this.#found = [];
    this.at = -1;
    if (text) {
      const run = this.#runs.length - 1, of = this.#last;
      const hit = of.labels.map(([name]) => name.toLowerCase().includes(text));
      const { first, label } = of.columns;
      const whole = text.replace(/\s+/g, "");
      of.rows.forEach(([component, stage], row) => {
        const named = component.includes(whole) || (this.stages[stage] ?? "").includes(text);
        for (let i = first[row]; i < first[row + 1]; i++) if (named || hit[label[i]]) this.#found.push({ run, row, interval: i });
      });
      const { start } = of.columns;
      this.#found.sort((a, b) => start[a.interval] - start[b.interval] || a.row - b.row);
    }
    this.matches.textContent = text ? (this.#found.length ? countText(this.#found.length) : "no match") : "";
    this.#redraw("marks");
  }

  #walkFound(by) {
    const n = this.#found.length;
    if (!n) return;
    this.at = this.at < 0 ? (by > 0 ? 0 : n - 1) : (this.at + by + n) % n;
    this.matches.textContent = `${countText(this.at + 1)} of ${countText(n)}`;
    this.#goTo(this.#found[this.at]);
  }

  // The trace.

  /** Returns a promise of the trace: from the scene, or from the kernel. */
  async #bytes() {
    const packed = this.trace ?? (await new Promise((resolve) => {
      this.#waiting = resolve;
      this.send({ do: "open_trace" });
    }));
    const stream = new Blob([bytes(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  }

  async #openTrace() {
    this.#say("Opening Perfetto …");
    const taken = await openPerfetto(this.#bytes(), this.name, this.perfetto);
    this.#say(taken ? "The trace is open in Perfetto." : "Perfetto did not open: allow pop-ups for this page, or download the trace file and open it at ui.perfetto.dev.");
  }

  async #saveTrace() {
    const content = await this.#bytes();
    const link = node("a", { download: `${this.name.replace(/\W+/g, "-").replace(/^-/, "")}-trace.json`, href: URL.createObjectURL(new Blob([content], { type: "application/json" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    this.#say(`${link.download}, ${countText(content.byteLength)} B`);
  }

  // Drawing: boxes are written into pixels, column by column; text, lines and what moves with the mouse or the clock above.

  #redraw(what) {
    this.#stale.add(what);
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #theme() {
    if (this.#colours && this.#colours.theme === this.root.closest(".kbp-picture")?.dataset.kbpTheme) return;
    this.#colours = null;
    this.#redraw("rows");
  }

  #readColours() {
    const style = getComputedStyle(this.root);
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
    for (const stage of [...Object.keys(this.stages), "load"]) {
      const colour = read(`stage-${stage.replaceAll("_", "-")}`);
      stages[stage] = { css: css(colour), shades: shades(colour), text: light(colour) > 0.179 ? "#000" : "#fff" };
    }
    const named = Object.fromEntries(["bg", "text", "muted", "border", "accent", "path", "surface", "outline"].map((name) => [name, css(read(name))]));
    this.#colours = {
      theme: this.root.closest(".kbp-picture")?.dataset.kbpTheme, ...named, stages, background: word(background), grid: word(mix(read("text"), 0.08)),
      band: word(mix(read("text"), 0.05)), more: shades(read("path")), less: shades(read("accent")), font: style.getPropertyValue("font-family") || "sans-serif",
    };
  }

  #draw() {
    if (!this.#runs.length || !this.area.clientWidth) return;
    const { clientWidth: width, clientHeight: height } = this.area;
    const ratio = devicePixelRatio || 1;
    if (width !== this.width || height !== this.shown || ratio !== this.ratio) {
      Object.assign(this, { width, shown: height, ratio });
      for (const canvas of [this.rowsCanvas, this.marks]) Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
      this.#stale.add("rows");
    }
    if (!this.#colours) this.#readColours();
    if (this.#stale.has("rows")) this.#drawRows();
    this.#drawMarks();
    this.#stale.clear();
    countRedraw("timeline");
  }

  #drawRows() {
    const { width, shown, ratio } = this;
    const top = this.#top, pen = this.rowsCanvas.getContext("2d", { alpha: false });
    const colours = this.#colours;
    const columns = Math.max(1, Math.round((width - GUTTER) * ratio)), lines = Math.max(1, Math.round((shown - top) * ratio));
    if (this.pixels?.width !== columns || this.pixels.height !== lines) {
      this.pixels = new ImageData(columns, lines);
      this.words = new Uint32Array(this.pixels.data.buffer);
      this.share = new Float64Array(columns);
      this.share2 = new Float64Array(columns);
    }
    this.words.fill(colours.background);
    this.perColumn = (this.#window[1] - this.#window[0]) / columns;
    const ticks = this.#ticks();
    for (const { x } of ticks) {
      const column = Math.round((x - GUTTER) * ratio);
      if (column >= 0 && column < columns) for (let line = 0; line < lines; line++) this.words[line * columns + column] = colours.grid;
    }
    this.texts = [];
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = colours.bg;
    pen.fillRect(0, 0, this.rowsCanvas.width, this.rowsCanvas.height);
    const visible = this.#nodes.filter((each) => each.y + each.height > this.#scroll && each.y < this.#scroll + shown - top);
    for (const each of visible) this.#paint(each, each.y - this.#scroll);
    pen.putImageData(this.pixels, Math.round(GUTTER * ratio), Math.round(top * ratio));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#drawTexts(pen);
    this.#drawDifferences(pen);
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
      if (!each.open) this.#paintGroup(each, y);
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
        const run = this.#runs[number], lanes = run.lanes(row), shades = this.#colours.stages[each.track.stage].shades;
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
    const { perColumn } = this, columns = this.pixels.width, from = this.#window[0] - run.shift;
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

  /** Paints a closed group: a strip for each stage, as dark as the share of its rows that are busy. */
  #paintGroup(each, y) {
    const { ratio } = this;
    const half = this.#runs.length > 1 ? (each.height - 6) / 2 : each.height - 4;
    this.#runs.forEach((run, number) => {
      const loads = Object.keys(this.stages).map((stage) => [stage, this.#loadOf(each, number, stage)]).filter(([stage, load]) => load && this.#inStrip(each, stage));
      const y0 = y + 1 + number * (half + 3), height = half / Math.max(1, loads.length);
      loads.forEach(([stage, load], i) => {
        load.cover.columns(this.share, this.#window[0] - run.shift, this.perColumn);
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
      else this.#runs[number].cover(rows[number]).columns(out, this.#window[0] - this.#runs[number].shift, this.perColumn);
    };
    columns(0, this.share);
    columns(1, this.share2);
    this.#paintShares(y0, y1, (column) => this.share2[column] - this.share[column], this.#colours.more);
    this.#paintShares(y0, y1, (column) => this.share[column] - this.share2[column], this.#colours.less);
  }

  #paintLoad(id, y0, y1) {
    const { bins, end, load, row } = this.loads;
    const base = row.get(id) * bins, shift = this.#last.shift, shades = this.#colours.stages.load.shades;
    for (let column = 0; column < this.pixels.width; column++) {
      const bin = Math.floor(((this.#window[0] - shift + (column + 0.5) * this.perColumn) / end) * bins);
      const share = bin >= 0 && bin < bins ? load[base + bin] / 255 : 0;
      if (share) this.#fill(y1 - Math.max(1, Math.round(share * (y1 - y0))), y1, column, column + 1, shades[ALPHAS - 1]);
    }
  }

  /** Returns how many rows of a stage a group has in a run, and how much of the time they are busy; null if none. */
  #loadOf(each, number, stage) {
    each.loads ??= new Map();
    const key = `${number} ${stage}`;
    if (!each.loads.has(key)) {
      const rows = each.tracks.filter((track) => track.stage === stage && track.rows[number] >= 0).map((track) => track.rows[number]);
      each.loads.set(key, rows.length ? { rows: rows.length, cover: new Cover(rows.map((row) => this.#runs[number].pieces(row))) } : null);
    }
    return each.loads.get(key);
  }

  #overview() {
    this.whole = this.#runs.map((run) => {
      const rows = run.rows.flatMap(([, stage], row) => (ENGINES.includes(stage) && stage !== "composite" ? [row] : []));
      return new Cover(rows.map((row) => run.pieces(row)));
    });
  }

  /** Returns the marks of the axis: place, time and text, with the unit that fits their distance. */
  #ticks() {
    const [from, to] = this.#window;
    const least = 96 * this.#perPx;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = power * [1, 2, 5, 10].find((x) => x * power >= least);
    const [unit, by] = step < 1e5 ? ["ns", 1e3] : step < 1e8 ? ["us", 1e6] : ["ms", 1e9];
    const digits = Math.max(0, -Math.floor(Math.log10(step / by) + 1e-9));
    const ticks = [];
    for (let n = Math.ceil(from / step); n * step <= to; n++) {
      const text = ((n * step || 0) / by).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
      ticks.push({ x: this.#xOf(n * step), text: `${text} ${unit}` });
    }
    return ticks;
  }

  #drawTexts(pen) {
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, this.#top, this.width - GUTTER, this.shown - this.#top);
    pen.clip();
    pen.font = `11px ${this.#colours.font}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (const [run, interval, stage, x0, x1, y] of this.texts) {
      pen.fillStyle = this.#colours.stages[stage].text;
      const text = this.#fit(pen, this.#short(run, interval, x1 - x0), x1 - x0 - 8);
      if (text) pen.fillText(text, GUTTER + x0 + 5, this.#top + y + 0.5);
    }
    pen.restore();
  }

  #short(run, interval, width) {
    const tile = run.columns.tile[interval], count = run.columns.count?.[interval];
    if (count > 1) return width < 70 ? `× ${countText(count)}` : `${countText(count)} intervals`;
    const title = this.#titleOf(run, interval);
    return tile >= 0 && width < 7 * title.length ? title.split(", ").at(-1).replace(width < 60 ? /^\D+/ : "", "") : title;
  }

  /** Returns the text, cut to a width; empty if nothing readable is left. */
  #fit(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    let n = Math.floor(text.length * (width / pen.measureText(text).width)) - 1;
    while (n > 1 && pen.measureText(`${text.slice(0, n)}…`).width > width) n--;
    return n > 1 ? `${text.slice(0, n)}…` : "";
  }

  /** Shades, for each launch of both runs, the time by which one ended later. */
  #drawDifferences(pen) {
    this.deltas = [];
    for (const { name, a: [, start, end], b: other } of this.pairs) {
      const a = this.#xOf(end + this.#runs[0].shift), b = this.#xOf(other[2] + this.#last.shift);
      const x0 = Math.max(GUTTER, Math.min(a, b)), x1 = Math.min(this.width, Math.max(a, b));
      if (x1 <= x0) continue;
      const colour = b > a ? this.#colours.path : this.#colours.accent;
      pen.globalAlpha = 0.14;
      pen.fillStyle = colour;
      pen.fillRect(x0, this.#top, x1 - x0, this.shown - this.#top);
      pen.globalAlpha = 1;
      pen.fillRect(b > a ? x1 - 1 : x0, this.#top, 1, this.shown - this.#top);
      this.deltas.push({ middle: (x0 + x1) / 2, colour, text: `${name}: ${this.#change(other[2] - other[1] - (end - start), end - start)}` });
    }
  }

  /** Says how much longer or shorter each launch took; a label that would cover the one before is above it. */
  #drawDeltas(pen) {
    pen.font = `600 12px ${this.#colours.font}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    let before = Infinity, y = this.shown - 30;
    for (const { middle, colour, text } of [...this.deltas].reverse()) {
      const width = pen.measureText(text).width + 12;
      const left = Math.max(GUTTER + 4, Math.min(this.width - BAR - width - 4, middle - width / 2));
      y = left + width > before ? y - 26 : this.shown - 30;
      before = left;
      if (y < this.#top) return;
      pen.fillStyle = this.#colours.bg;
      pen.fillRect(left, y, width, 22);
      pen.lineWidth = 1;
      pen.strokeStyle = colour;
      pen.strokeRect(left + 0.5, y + 0.5, width - 1, 21);
      pen.fillStyle = this.#colours.text;
      pen.fillText(text, left + 6, y + 11.5);
    }
  }

  #drawLabels(pen, visible) {
    const colours = this.#colours, top = this.#top;
    pen.save();
    pen.fillStyle = colours.bg;
    pen.fillRect(0, top, GUTTER, this.shown - top);
    pen.beginPath();
    pen.rect(0, top, GUTTER, this.shown - top);
    pen.clip();
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (const each of visible) {
      const y = top + each.y - this.#scroll, middle = y + (each.open ? GROUP : each.height) / 2;
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
      const letters = this.#runs.length > 1 && !each.open && each.track?.stage !== "load" ? 16 : 0;
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
    pen.fillRect(GUTTER - 1, OVERVIEW, 1, this.shown - OVERVIEW);
  }

  #drawTop(pen, ticks) {
    const colours = this.#colours, { width } = this;
    pen.font = `11px ${colours.font}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.fillStyle = colours.text;
    pen.fillText(this.#fit(pen, this.#runs.length > 1 ? `A: ${this.#runs[0].name}` : `Whole run: ${timeText(this.#last.end)}`, GUTTER - 12), 6, this.#runs.length > 1 ? 10 : 17);
    if (this.#runs.length > 1) pen.fillText(this.#fit(pen, `B: ${this.#last.name}`, GUTTER - 12), 6, 26);
    this.#drawOverview(pen);
    pen.fillStyle = colours.surface;
    pen.fillRect(0, OVERVIEW, width, AXIS);
    pen.fillStyle = colours.muted;
    pen.fillText(`${timeText(this.#window[1] - this.#window[0])} shown`, 6, OVERVIEW + AXIS / 2);
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
    if (this.path) this.#drawPathRow(pen);
  }

  #drawOverview(pen) {
    const colours = this.#colours, width = this.width - GUTTER, height = OVERVIEW - 4;
    const curves = this.whole.map((cover, number) => {
      const out = new Float64Array(Math.max(1, Math.floor(width)));
      cover.columns(out, -this.#runs[number].shift, this.#end / out.length);
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
    const x0 = GUTTER + Math.max(0, this.#window[0] / this.#end) * width, x1 = GUTTER + Math.min(1, this.#window[1] / this.#end) * width;
    pen.fillStyle = colours.bg;
    pen.globalAlpha = 0.7;
    pen.fillRect(GUTTER, 0, x0 - GUTTER, OVERVIEW - 1);
    pen.fillRect(x1, 0, this.width - x1, OVERVIEW - 1);
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
    pen.rect(GUTTER, y, this.width - GUTTER, STEP);
    pen.clip();
    pen.font = `11px ${colours.font}`;
    let free = GUTTER;
    for (const [start, end, , , what] of this.path.steps) {
      const x0 = Math.max(free, this.#xOf(start)), x1 = Math.min(this.width, this.#xOf(end));
      if (x1 <= free) continue;
      if (x0 >= this.width) break;
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
    pen.fillRect(0, y + STEP - 1, this.width, 1);
  }

  // What moves with the mouse or the clock.

  #drawMarks() {
    const { width, shown, ratio, shared } = this, colours = this.#colours, top = this.#top;
    const pen = this.marks.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, shown);
    pen.save();
    pen.beginPath();
    pen.rect(0, top, width, shown - top);
    pen.clip();
    for (const each of this.#nodes) {
      const y = top + each.y - this.#scroll;
      if (y + each.height < top || y > shown) continue;
      const selected = shared.selected && each.id === shared.selected;
      if (selected || each === this.#pointer?.node) {
        pen.globalAlpha = selected ? 0.16 : 0.08;
        pen.fillStyle = colours.accent;
        pen.fillRect(0, y, selected ? width : GUTTER, each.height);
        pen.globalAlpha = 1;
        if (selected) pen.fillRect(0, y, 3, each.height);
      }
      if (each.key === this.#focused && document.activeElement === this.marks) {
        pen.strokeStyle = colours.accent;
        pen.lineWidth = 2;
        pen.strokeRect(1, y + 1, GUTTER - 3, each.height - 2);
      }
    }
    pen.beginPath();
    pen.rect(GUTTER, top, width - GUTTER, shown - top);
    pen.clip();
    if (this.path && shared.path) this.#drawThread(pen);
    this.#drawArrows(pen);
    if (this.at >= 0 && this.#found.length) this.#outline(pen, this.#found[this.at], colours.text, 2);
    if (this.#pointer?.hit) this.#outline(pen, this.#pointer.hit, colours.text, 1);
    if (this.#picked) this.#outline(pen, this.#picked, colours.accent, 2.5);
    pen.restore();
    this.#drawDeltas(pen);
    this.#drawClock(pen);
    const bar = this.#bar();
    if (!bar) return;
    pen.globalAlpha = this.drag?.what === "bar" ? 0.8 : 0.45;
    pen.fillStyle = colours.text;
    pen.beginPath();
    pen.roundRect(width - BAR + 2, bar.y, BAR - 4, bar.height, 3);
    pen.fill();
    pen.globalAlpha = 1;
  }

  /** Returns place and length of the scroll bar, and how far a pixel of it scrolls; null if all rows are visible. */
  #bar() {
    const room = this.shown - this.#top, all = this.height + 8;
    if (!(all > room)) return null;
    const height = Math.max(24, (room * room) / all);
    const by = (all - room) / (room - height);
    return { y: this.#top + this.#scroll / by, height, by };
  }

  #drawClock(pen) {
    const colours = this.#colours, t = this.shared.t * 1000, x = this.#xOf(t);
    const whole = GUTTER + (t / this.#end) * (this.width - GUTTER);
    pen.fillStyle = colours.text;
    pen.fillRect(whole - 0.5, 2, 1, OVERVIEW - 5);
    if (x < GUTTER - 1 || x > this.width) return;
    pen.fillRect(x - 0.75, OVERVIEW + AXIS - 8, 1.5, this.shown);
    pen.font = `600 11px ${colours.font}`;
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    const text = timeText(Math.round(t)), half = pen.measureText(text).width / 2 + 6;
    const middle = Math.max(GUTTER + half, Math.min(this.width - half, x));
    pen.beginPath();
    pen.roundRect(middle - half, OVERVIEW + 3, 2 * half, 17, 4);
    pen.fill();
    pen.fillStyle = colours.bg;
    pen.fillText(text, middle, OVERVIEW + 12);
  }

  /** Returns where an interval is on the canvas: in its lane, or in the closed group that contains it. */
  #box({ run, row, interval }) {
    const of = this.#runs[run], { start, end } = of.columns;
    const place = this.#anchor(run, row);
    if (!place) return null;
    let [y, height] = place;
    if (!place.closed && interval >= 0) {
      const lanes = of.lanes(row), n = lanes.length;
      const lane = n > 1 ? Math.max(0, lanes.findIndex((each) => each.interval[above(each.interval, interval) - 1] === interval)) : 0;
      y += (height * lane) / n;
      height = height / n - (n > 1 ? 1 : 0);
    }
    const x0 = interval < 0 ? GUTTER : this.#xOf(start[interval] + of.shift);
    const x1 = interval < 0 ? GUTTER : this.#xOf(end[interval] + of.shift);
    return { x0, x1, y, height, closed: place.closed };
  }

  /** Returns top and height of a row on the canvas; `closed` if it is in a closed group. */
  #anchor(run, row) {
    if (!this.anchors) {
      this.anchors = new Map();
      for (const each of this.#nodes) {
        if (each.track) {
          let y = each.y + 1;
          each.track.rows.forEach((of, number) => {
            this.anchors.set(`${number} ${of}`, { y, height: each.parts[number] - 2, closed: false });
            y += each.parts[number] + 3;
          });
        } else if (!each.open) {
          for (const track of each.tracks) track.rows.forEach((of, number) => this.anchors.set(`${number} ${of}`, { y: each.y + 2, height: each.height - 5, closed: true }));
        }
      }
    }
    const found = this.anchors.get(`${run} ${row}`);
    if (!found) return null;
    return Object.assign([this.#top + found.y - this.#scroll, found.height], { closed: found.closed });
  }

  #outline(pen, hit, colour, width) {
    const box = this.#box(hit);
    if (!box || box.closed) return;
    pen.strokeStyle = this.#colours.bg;
    pen.lineWidth = width + 2;
    const x = Math.max(GUTTER - 4, box.x0), w = Math.max(2, Math.min(this.width + 4, box.x1) - x);
    pen.strokeRect(x, box.y, w, box.height);
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.strokeRect(x, box.y, w, box.height);
  }

  /** Draws the critical path as a thread: along each step in its row, and to the row of the next. */
  #drawThread(pen) {
    const run = this.#runs.length - 1, { shift } = this.#last;
    const points = [];
    let before = null;
    for (const [start, end, row, interval] of this.path.steps) {
      const x0 = this.#xOf(start + shift), x1 = this.#xOf(end + shift);
      if (x1 < GUTTER - 50 || x0 > this.width + 50 || row < 0) {
        before = null;
        continue;
      }
      const box = this.#box({ run, row, interval });
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
  #drawArrows(pen) {
    this.#runs.forEach((run, number) => {
      const { arrow_ps: sent, arrow_to: to } = run.columns;
      const chosen = new Set();
      for (const hit of [this.#pointer?.hit, this.#picked]) if (hit?.run === number) for (const i of run.arrowsOf(hit.interval)) chosen.add(i);
      const all = [];
      if (sent.length) {
        const [from, until] = this.#window.map((t) => t - run.shift);
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
    const run = this.#runs[number], { arrow_from: from, arrow_to: to, arrow_ps: sent, start } = run.columns;
    const a = this.#box({ run: number, row: run.rowOf(from[i]), interval: from[i] }), b = this.#box({ run: number, row: run.rowOf(to[i]), interval: to[i] });
    if (!a || !b || (!strong && (a.closed || b.closed)) || (a.closed && b.closed && a.y === b.y)) return;
    const x0 = this.#xOf(sent[i] + run.shift), x1 = this.#xOf(start[to[i]] + run.shift);
    const y0 = a.y + a.height / 2, y1 = b.y + b.height / 2;
    if (Math.max(y0, y1) < this.#top || Math.min(y0, y1) > this.shown) return;
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
