// The trace of a run, for Perfetto: opened there by a click, or as a file.

const PERFETTO = "https://ui.perfetto.dev";

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

class Trace {
  #waiting = null;
  perfetto = PERFETTO;
  packed = null; // from the scene; else the kernel is asked for it

  constructor(send) {
    this.send = send;
  }

  get available() {
    return Boolean(this.send || this.packed);
  }

  /** Takes the answer of the kernel to `{do: "open_trace"}`. */
  receive(packed) {
    this.#waiting?.(packed);
    this.#waiting = null;
  }

  /** Opens the trace in Perfetto; resolves to whether it took it. */
  open(title) {
    return openPerfetto(this.#bytes(), title, this.perfetto);
  }

  /** Saves the trace as a file; resolves to its name and size. */
  async save(title) {
    const content = await this.#bytes();
    const link = node("a", { download: `${title.replace(/\W+/g, "-").replace(/^-/, "")}-trace.json`, href: URL.createObjectURL(new Blob([content], { type: "application/json" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    return [link.download, content.byteLength];
  }

  async #bytes() {
    const packed = this.packed ?? (await new Promise((resolve) => {
      this.#waiting = resolve;
      this.send({ do: "open_trace" });
    }));
    const stream = new Blob([bytes(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  }
}
