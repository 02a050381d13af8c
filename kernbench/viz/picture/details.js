// What is selected: its load over time, its share of the critical path, and its fields. Without a selection: whose turn it is on the critical path, or, of a
// run under way, who is busiest.

const SVG = "http://www.w3.org/2000/svg";
const BUSIEST = 8;
const CHART = { w: 288, h: 64 };

class DetailsView {
  constructor(root, shared, send, machine) {
    Object.assign(this, { shared, send, machine });
    this.head = node("div.kbp-details-head");
    this.body = node("div.kbp-details-body");
    this.fields = node("div.kbp-fields");
    this.live = false;
    /** Values that were sent and that the scene does not show yet, by path. */
    this.sent = new Map();
    this.root = node("section.kbp-details", { "aria-label": "Details" }, this.head, this.body, this.fields);
    root.append(this.root);
    this.onChange = (event) => this.#changed(event.detail);
    shared.addEventListener("change", this.onChange);
  }

  destroy() {
    clearTimeout(this.due);
    this.shared.removeEventListener("change", this.onChange);
    this.root.remove();
  }

  setScene(header) {
    this.sent.clear();
    this.header = header;
    this.live = false;
    this.#show();
  }

  setLive() {
    if (this.live) this.#tell();
    else this.#show();
    this.live = true;
  }

  #changed(names) {
    if (names.has("selected")) this.#show();
    else if (names.has("t") || names.has("playing")) this.#tick();
  }

  #show() {
    if (!this.header) return;
    countRedraw("details");
    const id = this.shared.selected;
    const found = id && this.machine.locate(id);
    this.shown = found ? id : null;
    if (!found) {
      this.head.replaceChildren(node("h3", {}, this.#title()));
      this.fields.replaceChildren();
      this.kind = null;
      this.#now();
      return;
    }
    const { label, place } = this.machine.name(id);
    this.head.replaceChildren(
      node("h3", {}, label),
      node("button.kbp-button.kbp-close", { type: "button", "aria-label": "Close", title: "Close", onclick: () => (this.shared.selected = null) }, "×"),
      node("div.kbp-place", {}, place), node("code", {}, id),
    );
    this.#curves(id, found);
    this.#controls(found.kind);
  }

  /** Follows the clock; text at most eight times a second. */
  #tick() {
    const { loads } = this.machine;
    if (!loads) return;
    const x = ((this.shared.t / loads.end) * CHART.w).toFixed(1);
    for (const cursor of this.cursors ?? []) {
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
    }
    this.due ??= setTimeout(() => {
      this.due = undefined;
      this.#tell();
    }, 125);
  }

  #tell() {
    if (this.shown) this.#facts();
    else this.#now();
  }

  #title() {
    const { loads, path } = this.machine;
    return !loads ? this.header.machine.name : path ? "Now on the critical path" : "Busiest now";
  }

  #now() {
    const { loads, path } = this.machine;
    this.cursors = [];
    if (!loads) {
      const { counts } = this.header.machine;
      this.body.replaceChildren(
        node("p", {}, `${counts.sips} × SIP, ${counts.cubes} cubes each, ${counts.pes} PEs per cube: ${(counts.sips * counts.cubes * counts.pes).toLocaleString("en")} PEs.`),
        node("p.kbp-muted", {}, "Click a component to see and change its fields. Scroll to zoom, drag to move."),
      );
      return;
    }
    const found = path ? path.owner(this.shared.t) : loads.busiest(this.shared.t, BUSIEST);
    if (!found.length) {
      this.body.replaceChildren(node("p.kbp-muted", {}, "Nothing is busy at this moment."));
      return;
    }
    // The rows stay, so that a click between two updates hits what it was meant for.
    const kind = path ? "kbp-owner" : "kbp-busiest";
    this.list = this.body.firstElementChild?.matches(`.${kind}`) ? this.body.firstElementChild : node(`ol.${kind}`);
    if (this.list.parentElement !== this.body) this.body.replaceChildren(this.list);
    found.forEach(([id, share], i) => {
      const { label, place } = this.machine.name(id);
      let row = this.list.children[i];
      if (!row) {
        row = node("li", {}, node("button.kbp-row", { type: "button", onclick: () => this.machine.reveal(row.dataset.id) }, node("b"), node("span.kbp-muted"), node("span.kbp-share"), ...(path ? [] : [node("i.kbp-bar")])));
        this.list.append(row);
      }
      row.dataset.id = id;
      row.firstElementChild.title = id;
      const [name, where, percent, bar] = row.firstElementChild.children;
      name.textContent = label;
      where.textContent = place;
      percent.textContent = path ? nsText(share / 1000) : percentText(share);
      bar?.style.setProperty("--share", String(share));
    });
    while (this.list.children.length > found.length) this.list.lastElementChild.remove();
  }

  #curves(id, found) {
    const { loads, path } = this.machine;
    this.cursors = [];
    this.text = null;
    const parts = [];
    const curve = loads?.curve(id);
    if (curve) {
      this.text = node("p.kbp-facts");
      parts.push(this.text);
      if (loads.bins > 1) parts.push(this.#chart("Busy share", curve, "100 %"));
      const queue = loads.queue(id);
      if (queue) parts.push(this.#chart(found.line ? "Transfers under way" : "Work under way", queue.data, queue.peak.toLocaleString("en", { maximumFractionDigits: 1 })));
    } else if (loads) {
      const never = loads.bins > 1 ? "Never busy in this run." : "Not busy yet.";
      parts.push(node("p.kbp-muted", {}, PASSIVE.has(found.kind) ? "Its links carry the load." : never));
    }
    if (path) {
      const ps = path.of(id.includes(".pe_fetch_store.") ? id.slice(0, id.lastIndexOf(".")) : id);
      const text = ps ? `Critical path: ${percentText(ps / path.total)} of it (${nsText(ps / 1000)})` : "Not on the critical path.";
      parts.push(node("p", {}, text));
    }
    this.body.replaceChildren(...parts);
    this.#tick();
    this.#facts();
  }

  #facts() {
    const { loads } = this.machine;
    const curve = this.text && loads?.curve(this.shown);
    if (!curve) return;
    if (loads.bins === 1) {
      this.text.replaceChildren(node("b", {}, `${percentText(curve[0] / 255)} busy`), " since the last update");
      return;
    }
    const mean = curve.reduce((sum, value) => sum + value, 0) / curve.length / 255;
    const queue = loads.queue(this.shown);
    const under = queue ? `, ${((queue.data[loads.bin(this.shared.t)] / 255) * queue.peak).toLocaleString("en", { maximumFractionDigits: 1 })} under way` : "";
    this.text.replaceChildren(
      node("b", {}, `${percentText(curve[loads.bin(this.shared.t)] / 255)} busy`), ` at ${nsText(this.shared.t)}${under}`,
      node("br"), node("span.kbp-muted", {}, `${percentText(mean)} on average over the run`),
    );
  }

  /** Returns a small chart over the run; a click or drag on it moves the clock. */
  #chart(title, data, peak) {
    const { w, h } = CHART;
    const make = (name, attributes) => {
      const made = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };
    let d = `M0 ${h}`;
    data.forEach((value, i) => {
      const y = (h - (value / 255) * (h - 2)).toFixed(1);
      d += `L${((i * w) / data.length).toFixed(1)} ${y}L${(((i + 1) * w) / data.length).toFixed(1)} ${y}`;
    });
    const svg = make("svg", { viewBox: `0 0 ${w} ${h}`, class: "kbp-chart", preserveAspectRatio: "none", role: "img", "aria-label": `${title} over the run, at most ${peak}` });
    const cursor = make("line", { y1: 0, y2: h, class: "kbp-cursor" });
    svg.append(make("path", { d: `${d}L${w} ${h}Z` }), cursor);
    this.cursors.push(cursor);
    const seek = (event) => {
      const box = svg.getBoundingClientRect();
      this.shared.playing = false;
      this.shared.t = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * this.shared.end;
    };
    svg.addEventListener("pointerdown", (event) => {
      svg.setPointerCapture(event.pointerId);
      seek(event);
    });
    svg.addEventListener("pointermove", (event) => event.buttons && seek(event));
    return node(
      "figure.kbp-figure", {}, node("figcaption", {}, node("span", {}, title), node("span.kbp-muted", {}, `max ${peak}`)), svg,
      node("div.kbp-axis.kbp-muted", {}, node("span", {}, "0"), node("span", {}, nsText(this.machine.loads.end))),
    );
  }

  /** Shows what is predicted for a field while its slider is dragged, with the fields that were set and have not run. */
  #drag(path, value) {
    const row = this.rows.find((each) => each.path === path);
    if (!this.why?.predicts) return;
    this.why.predict({ ...Object.fromEntries(this.sent), [path]: value }, (found) => row.say(found, this.why.why.latency_ns));
  }

  #set(path, value) {
    this.sent.set(path, value);
    if (this.why?.predicts) this.why.expect(Object.fromEntries(this.sent), null);
    this.send({ do: "set", field: path, value });
    this.rows.find((row) => row.path === path)?.set({ ...this.header.machine.fields[path], value });
  }

  #controls(kind) {
    const { machine } = this.header;
    const paths = machine.kinds[kind]?.fields ?? [];
    const field = (path) => ({ ...machine.fields[path], ...(this.sent.has(path) && { value: this.sent.get(path) }) });
    if (this.kind === kind && this.rows?.length === paths.length) {
      for (const row of this.rows) row.set(field(row.path));
      return;
    }
    this.kind = kind;
    const canSet = this.send?.answers.has("set");
    this.rows = paths.map((path) => new FieldRow(path, field(path), canSet ? (value) => this.#set(path, value) : null, (value) => this.#drag(path, value)));
    this.fields.replaceChildren(
      ...(paths.length ? [node("h4", {}, "Machine fields"), node("p.kbp-muted", {}, "The same for all components of this kind."), ...this.rows.map((row) => row.root)] : []),
    );
  }
}

/** A row of one value of the machine file: a slider over its stops, or a menu. It is sent when it is released. */
class FieldRow {
  constructor(path, field, send, drag) {
    this.path = path;
    const id = `kbp-field-${(FieldRow.count = (FieldRow.count ?? 0) + 1)}`;
    this.output = node("output", { for: id });
    this.note = node("div.kbp-muted.kbp-source");
    this.said = node("div.kbp-field-said", { "aria-live": "polite" });
    if (!send) {
      this.input = null;
    } else if (field.choices.length) {
      this.input = node("select.kbp-button", { id }, ...field.choices.map((choice) => node("option", {}, choice)));
      this.input.addEventListener("change", () => send(this.input.value));
    } else {
      this.input = node("input", { id, type: "range", min: "0", step: "1" });
      this.input.addEventListener("input", () => {
        this.#tell(this.field.stops[this.input.value]);
        drag(this.field.stops[this.input.value]);
      });
      onRelease(this.input, () => send(this.field.stops[this.input.value]));
    }
    this.reset = node("button.kbp-link", { type: "button", hidden: true, onclick: () => send(this.field.default) }, "reset");
    const label = node(this.input ? "label" : "span", { title: `${path}: ${field.description}`, ...(this.input && { for: id }) }, field.label);
    this.root = node("div.kbp-field", {}, node("div.kbp-field-head", {}, label, this.output), ...(this.input ? [this.input] : []), this.said, node("div.kbp-field-foot", {}, this.note, this.reset));
    this.set(field);
  }

  /** Shows the answer of the kernel for the value at which the slider is; that it has none for fields that change what runs. */
  say({ predicted, error }, latency) {
    this.said.title = error ?? "";
    this.said.replaceChildren(...(predicted === null ? [node("span.kbp-muted", {}, "No prediction: only a run can tell.")] : predictionText(predicted, latency)));
  }

  set(field) {
    this.field = field;
    const changed = field.value !== field.default;
    this.root.classList.toggle("kbp-changed", changed);
    this.reset.hidden = !changed || !this.input;
    this.note.textContent = `Default ${this.#text(field.default)}${field.source && ` (${field.source})`}`;
    if (this.input?.type === "range") {
      this.input.max = String(field.stops.length - 1);
      this.input.value = String(Math.max(0, field.stops.indexOf(field.value)));
    } else if (this.input) {
      this.input.value = field.value;
    }
    this.#tell(field.value);
  }

  #text(value) {
    const shown = typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 6 }) : (value ?? "none");
    return this.field.unit && typeof value === "number" ? `${shown} ${this.field.unit}` : String(shown);
  }

  #tell(value) {
    this.output.textContent = this.#text(value);
    this.input?.setAttribute("aria-valuetext", this.#text(value));
  }
}
