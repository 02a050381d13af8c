// What the run's time went to: the critical path on the device by resource, and what other values are predicted to change.

const ENGLISH = { maximumSignificantDigits: 4 };

class WhyView {
  constructor(root, shared, send) {
    Object.assign(this, { shared, send });
    this.asked = null; // what was set by a slider: its values and the latency predicted for them
    this.questions = 0;
    this.waiting = new Map(); // what is to happen with the answers of the kernel, by number
    this.next = null; // what was dragged to since the last question
    this.root = node("section.kbp-why", { "aria-label": "Where the time goes", hidden: true });
    root.append(this.root);
    this.onChange = (event) => event.detail.has("selected") && this.#mark();
    shared.addEventListener("change", this.onChange);
  }

  destroy() {
    this.shared.removeEventListener("change", this.onChange);
    this.root.remove();
  }

  setScene(header) {
    const { why } = header;
    this.root.hidden = !why;
    if (!why || why === this.why) return;
    const held = this.rows?.find((row) => row.input && row.input === document.activeElement)?.row.fields[0].path;
    this.why = why;
    this.waiting.clear();
    this.next = null;
    this.fields = header.machine.fields;
    countRedraw("why");
    this.rows = why.rows.map((row) => new WhyRow(row, this));
    this.tornado = new Tornado(why, this, this.tornado?.root.open);
    this.root.replaceChildren(
      node("h3", {}, "Where the time goes"),
      node(
        "p", {}, "On the device: ", node("b", {}, nsText(why.device_ns)), node("span.kbp-muted", {}, ` of ${nsText(why.latency_ns)}`),
      ),
      ...this.#outcome(),
      this.#bar(),
      node("div.kbp-why-rows", {}, ...this.rows.map((row) => row.root)),
      ...(why.rest_ns ? [node("p.kbp-muted", {}, `Other resources of the device: ${nsText(why.rest_ns)}.`)] : []),
      this.#hostPart(),
      this.tornado.root,
    );
    this.rows.find((row) => held && row.row.fields?.[0].path === held)?.input.focus({ preventScroll: true });
    this.#mark();
  }

  /** Takes an answer of the kernel. */
  receive(message) {
    if (message.do === "tornado") this.tornado?.show(message);
    if (message.do !== "what_if" || !this.waiting.has(message.id)) return;
    const then = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    then(message);
    const { next } = this;
    this.next = null;
    if (next) this.#ask(...next);
  }

  /** Whether the kernel can predict what other values change in the run that is shown. */
  get predicts() {
    return Boolean(this.send && !this.root.hidden);
  }

  /** Calls `then` with what the kernel predicts for some values; of the questions that come meanwhile the last one is asked. */
  predict(values, then) {
    if (this.waiting.size) this.next = [values, then];
    else this.#ask(values, then);
  }

  #ask(values, then) {
    const id = ++this.questions;
    this.waiting.set(id, then);
    this.send({ do: "what_if", id, values, latency_ns: this.why.latency_ns });
  }

  /** Remembers what a slider was released at: the next run, if it is of these values, is compared with the prediction. */
  expect(values, predicted) {
    const asked = { values, predicted, latency: this.why.latency_ns, fields: this.fields };
    this.asked = asked;
    if (predicted === null) this.#ask(values, (found) => (asked.predicted = found.predicted));
  }

  /** Compares the run with what was predicted for it. */
  #outcome() {
    const { asked } = this;
    const as = (path) => asked.values[path] ?? asked.fields[path]?.value;
    if (!asked?.predicted || !Object.entries(this.fields).every(([path, { value }]) => same(as(path), value))) return [];
    this.asked = null;
    const [predicted] = asked.predicted;
    const error = predicted / this.why.latency_ns - 1;
    return [
      node(
        "p.kbp-outcome", { role: "status" }, `Simulated: ${nsText(this.why.latency_ns)} instead of ${nsText(asked.latency)}. Predicted: `,
        `${nsText(predicted)}, an error of ${signed(error, 1)}.`,
      ),
    ];
  }

  #bar() {
    const { device_ns, rows, rest_ns } = this.why;
    const piece = (label, ns, i) =>
      node("i", { title: `${label}: ${percentText(ns / device_ns)}, ${nsText(ns)}`, style: `flex-grow:${ns};--kbp-rank:${i}` }, ...(ns / device_ns > 0.12 ? [node("span", {}, label)] : []));
    const rest = rest_ns ? [piece("Other resources", rest_ns, rows.length)] : [];
    return node("div.kbp-why-bar", { role: "img", "aria-label": "Shares of the time on the device" }, ...rows.map((row, i) => piece(row.label, row.ns, i)), ...rest);
  }

  #hostPart() {
    const { host, host_ns, latency_ns } = this.why;
    if (!host.length) return "";
    const parts = host.map((x) => node("li", {}, `${x.label}: ${nsText(x.ns)}`));
    return node("details", {}, node("summary", {}, `Host copies and launches: ${nsText(host_ns)}, ${percentText(host_ns / latency_ns)} of the run`), node("ul", {}, ...parts));
  }

  #mark() {
    for (const row of this.rows ?? []) row.mark(this.shared.selected);
  }
}

/** A resource of the critical path; its slider moves the fields that limit it together. */
class WhyRow {
  constructor(row, view) {
    Object.assign(this, { row, view });
    const where = row.others ? `${row.resource} and ${row.others} more` : row.resource;
    this.name = node("button.kbp-link.kbp-why-name", { type: "button", title: where, onclick: () => (view.shared.selected = row.resource) }, row.label);
    this.root = node("div.kbp-why-row", {}, this.name, node("span.kbp-ns", {}, nsText(row.ns)), node("span.kbp-share", {}, percentText(row.share)));
    if (row.fields) this.root.append(this.#control());
  }

  mark(selected) {
    this.root.classList.toggle("kbp-selected", selected === this.row.resource);
  }

  #control() {
    const { row, view } = this;
    const [field] = row.fields;
    const now = (row.stops.length - 1) / 2;
    const { predicted = [] } = row;
    this.known = new Map(predicted.map((found, i) => [row.first + i, found]));
    const [min, max] = view.send ? [0, row.stops.length - 1] : [row.first, row.first + predicted.length - 1];
    const place = (i) => `left:${(100 * (i - min)) / (max - min)}%`;
    const id = `kbp-why-${(WhyRow.count = (WhyRow.count ?? 0) + 1)}`;
    this.output = node("output", { for: id });
    this.said = node("div.kbp-why-said", { "aria-live": "polite" });
    const input = node("input", { id, type: "range", min: String(min), max: String(max), step: "1", value: String(now) });
    const tell = () => this.#tell(Number(input.value), input);
    input.addEventListener("input", tell);
    this.input = input;
    onRelease(input, () => {
      const i = Number(input.value);
      if (!view.send?.answers.has("change") || i === now || this.known.get(i) === null) return;
      const values = row.stops[i];
      view.expect(values, this.known.get(i) ?? null);
      view.send({ do: "change", values });
    });
    const marks = [node("i.kbp-tick-now", { title: `now ${this.#text(field, field.value)}`, style: place(now) })];
    const standard = view.fields[field.path]?.default;
    const at = row.stops.findIndex((stop) => near(stop[field.path], standard));
    if (at >= 0 && at !== now) marks.push(node("i.kbp-tick-default", { title: `default ${this.#text(field, standard)}`, style: place(at) }));
    const box = node(
      "div.kbp-why-control", {}, node("label", { for: id, title: this.#about() }, field.label), node("div.kbp-why-slider", {}, input, ...marks), this.output,
      this.said,
    );
    this.#tell(now, input);
    return box;
  }

  #about() {
    const { fields: [field, ...more], impl } = this.row;
    const parts = [field.path, more.length && `moves ${more.map((x) => x.label).join(", ")} with it`, impl && `modelled by ${impl}`];
    return parts.filter(Boolean).join("; ");
  }

  #tell(i, input) {
    const { row, view } = this;
    const [field, ...more] = row.fields;
    const stop = row.stops[i];
    const text = this.#text(field, stop[field.path]);
    this.output.textContent = text;
    const predicted = this.known.get(i);
    this.said.classList.remove("kbp-waiting");
    if (near(stop[field.path], field.value)) {
      this.said.textContent = "";
    } else if (predicted === undefined) {
      if (this.said.textContent.startsWith("Prediction")) this.said.classList.add("kbp-waiting");
      else this.said.textContent = "Predicting …";
      view.predict(stop, (found) => {
        this.known.set(i, found.predicted);
        if (Number(input.value) === i) this.#tell(i, input);
      });
    } else if (predicted === null) {
      this.said.textContent = "No machine can have these values.";
    } else {
      const also = more.map((x) => `${x.label} ${this.#text(x, stop[x.path])}`).join(", ");
      this.said.replaceChildren(...predictionText(predicted, view.why.latency_ns), ...(also ? [node("span.kbp-muted", {}, ` with ${also}`)] : []));
    }
    input.setAttribute("aria-valuetext", [text, this.said.textContent].filter(Boolean).join(". "));
  }

  #text(field, value) {
    return `${value.toLocaleString("en", ENGLISH)} ${field.unit}`;
  }
}

/** What each field changes if it is halved and doubled: predicted, and where a kernel runs them, simulated. */
class Tornado {
  constructor(why, view, open = false) {
    this.send = view.send;
    this.body = node("div.kbp-tornado");
    this.progress = node("p.kbp-tornado-progress", { role: "status" });
    this.control = node("button.kbp-button", { type: "button", onclick: () => this.#runExactly(!this.running) });
    this.root = node("details", {}, node("summary", {}, "Every bandwidth, latency and rate, halved and doubled"), this.body);
    if (why.tornado) this.show({ rows: why.tornado });
    else if (this.send) this.root.addEventListener("toggle", () => this.#ask(), { once: true });
    else this.root.hidden = true;
    this.root.open = open;
  }

  #ask() {
    this.body.textContent = "Predicting …";
    if (this.send.answers.has("exact")) this.#runExactly(true);
    else this.send({ do: "tornado" });
  }

  #runExactly(on) {
    this.send({ do: "exact", on });
  }

  show({ rows, done = 0, total = 0, running = false, error = "", largest = null }) {
    if (!rows) {
      this.body.textContent = error;
      return;
    }
    this.running = running;
    const most = Math.max(0.001, ...rows.flatMap((row) => [...row.predicted, ...row.exact].map((ratio) => Math.abs((ratio ?? 1) - 1))));
    const focused = this.control === document.activeElement;
    this.body.replaceChildren(
      node(
        "p.kbp-legend-row", {}, node("i.kbp-halved"), " halved ", node("i.kbp-doubled"), " doubled ", node("i.kbp-predicted.kbp-doubled"), " predicted",
        node("span.kbp-muted", {}, "; change of the run's time, shorter to the left"),
      ),
      ...(total ? [node("div.kbp-tornado-head", {}, this.progress, this.control)] : []),
      ...rows.map((row) =>
        node(
          "div.kbp-tornado-row", {}, node("span", { title: row.path }, row.label), node("span.kbp-axis0", {}, ...[0, 1].map((i) => this.#bar(row, i, most))),
          node("span.kbp-ns", {}, `${changeText(row, 0)} / ${changeText(row, 1)}`),
        ),
      ),
    );
    const errors = largest === null ? "" : `; largest error of a prediction: ${(100 * largest).toFixed(1)} %`;
    this.progress.textContent = `${done} of ${total} bars simulated, the others predicted (≈)${errors}.${error && ` ${error}`}`;
    if (done === total) this.progress.textContent = `All ${total} bars are simulated${errors}.`;
    this.control.textContent = running ? "Stop" : "Simulate the others";
    this.control.hidden = done === total;
    if (focused) this.control.focus();
  }

  #bar(row, i, most) {
    const [predicted, exact] = [row.predicted[i], row.exact[i]];
    if (predicted === null) return "";
    const change = (exact ?? predicted) - 1;
    const width = (50 * Math.abs(change)) / most;
    const value = row.value * (i ? 2 : 0.5);
    const how = exact === null ? `predicted, ${rangeText(row.range[i])}` : `simulated; predicted ${signed(predicted - 1)}, an error of ${signed(predicted / exact - 1, 1)}`;
    const title = `${row.label} ${value.toLocaleString("en", ENGLISH)} ${row.unit}: ${signed(change)}, ${how}`;
    return node(`i.kbp-${i ? "doubled" : "halved"}${exact === null ? ".kbp-predicted" : ""}`, { title, style: `width:${width}%;left:${change < 0 ? 50 - width : 50}%` });
  }
}

/** Returns the change that a bar shows; "≈" says that it is predicted. */
function changeText({ predicted, exact }, i) {
  if (predicted[i] === null) return "–";
  return exact[i] === null ? `≈ ${signed(predicted[i] - 1)}` : signed(exact[i] - 1);
}

/** Returns how a prediction is shown: labelled as one, with its change of the run's time and the range of that. */
function predictionText([predicted, low, high], latency) {
  const range = high > low ? `, ${rangeText([low / latency, high / latency])}` : "";
  return [node("b", {}, `Prediction: ${nsText(predicted)}`), ` (${signed(predicted / latency - 1)}${range})`];
}

/** Returns the range of a prediction, given as shares of the run's time. */
function rangeText([low, high]) {
  return `${signed(low - 1)} to ${signed(high - 1)}`;
}

/** Returns whether two values of a machine file are the same. */
function same(a, b) {
  return a === b || near(a, b);
}

function near(a, b) {
  return typeof a === "number" && typeof b === "number" && Math.abs(a - b) <= 1e-5 * Math.max(Math.abs(a), Math.abs(b));
}

/** Returns a share as a change: "+3 %", "-18 %", and "0.0 %" for what is less than is shown. */
function signed(share, digits = Math.abs(share) < 0.1 ? 1 : 0) {
  const text = Math.abs(100 * share).toFixed(digits);
  return `${Number(text) === 0 ? "" : share < 0 ? "−" : "+"}${text} %`;
}
