// The clock that plays a run, with the selection and all else that views share; and its controls.

/** Milliseconds in which a run plays at speed 1. */
const PLAY_MS = 8000;

class Shared extends EventTarget {
  #values = {
    t: 0, end: 0, playing: false, speed: 1, window: [0, 0], hovered: null, selected: null, path: false,
    level: "system", focus: "",
  };
  #changed = new Set();
  #frame = 0;
  #tick = 0;

  constructor() {
    super();
    for (const name of Object.keys(this.#values)) {
      Object.defineProperty(this, name, {
        get: () => this.#values[name],
        set: (value) => this.#set(name, value),
      });
    }
  }

  /** Starts or stops the clock; at the end of the run it starts again. */
  play(on = !this.playing) {
    if (on && this.t >= this.end) this.t = 0;
    this.playing = on && this.end > 0;
  }

  destroy() {
    cancelAnimationFrame(this.#frame);
    cancelAnimationFrame(this.#tick);
  }

  #set(name, value) {
    if (Object.is(this.#values[name], value)) return;
    this.#values[name] = value;
    this.#changed.add(name);
    if (name === "playing" && value) this.#run();
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      const names = this.#changed;
      this.#changed = new Set();
      this.dispatchEvent(new CustomEvent("change", { detail: names }));
    });
  }

  #run() {
    cancelAnimationFrame(this.#tick);
    let before = performance.now();
    const step = (now) => {
      if (!this.playing) return;
      this.t = Math.min(this.end, this.t + ((now - before) / PLAY_MS) * this.speed * this.end);
      before = now;
      if (this.t >= this.end) this.playing = false;
      else this.#tick = requestAnimationFrame(step);
    };
    this.#tick = requestAnimationFrame(step);
  }
}

class Clock {
  constructor(root, shared) {
    this.shared = shared;
    this.toggle = node("button.kbp-button.kbp-play", { type: "button", title: "Play or pause", "aria-label": "Play", onclick: () => shared.play() }, "▶");
    this.scrub = node("input.kbp-scrub", { type: "range", min: "0", max: "1000", step: "any", value: "0", "aria-label": "Simulated time" });
    this.scrub.addEventListener("input", () => {
      shared.playing = false;
      shared.t = (Number(this.scrub.value) / 1000) * shared.end;
    });
    this.now = node("output.kbp-now");
    this.speed = node("select.kbp-button.kbp-speed", { "aria-label": "Speed", title: "Speed: at 1× a run plays in 8 seconds" });
    for (const speed of [0.1, 0.25, 0.5, 1, 2, 4]) this.speed.append(node("option", { value: String(speed), selected: speed === 1 }, `${speed}×`));
    this.speed.addEventListener("change", () => (shared.speed = Number(this.speed.value)));
    const jump = () => {
      shared.playing = false;
      shared.t = this.loads.hottest();
    };
    this.hottest = node("button.kbp-button.kbp-hottest", { type: "button", title: "The moment at which links and components together are busiest", onclick: jump }, "Hottest moment");
    this.controls = [this.toggle, this.scrub, this.speed, this.hottest];
    this.root = node("div.kbp-clock", { role: "group", "aria-label": "Clock", hidden: true }, this.toggle, this.scrub, this.now, this.speed, this.hottest);
    root.append(this.root);
    this.onChange = () => this.#show();
    shared.addEventListener("change", this.onChange);
  }

  setScene(loads) {
    this.loads = loads;
    this.root.hidden = !loads;
    for (const control of this.controls) control.hidden = false;
    this.#show();
  }

  /** Shows the time of a run under way, which cannot be moved. */
  setLive(now) {
    this.loads = null;
    this.root.hidden = false;
    for (const control of this.controls) control.hidden = true;
    this.now.textContent = `Running: ${nsText(now)}`;
  }

  destroy() {
    this.shared.removeEventListener("change", this.onChange);
    this.root.remove();
  }

  #show() {
    const { shared } = this;
    if (!this.loads) return;
    const text = shared.playing ? "❚❚" : "▶";
    if (this.toggle.textContent !== text) {
      this.toggle.textContent = text;
      this.toggle.setAttribute("aria-label", shared.playing ? "Pause" : "Play");
    }
    this.scrub.value = String((1000 * shared.t) / (shared.end || 1));
    this.scrub.setAttribute("aria-valuetext", nsText(shared.t));
    this.now.textContent = `${nsText(shared.t)} of ${nsText(shared.end)}`;
  }
}
