// The picture of a page that holds its scene, and files that are dropped on the picture of a notebook.

/** Opens the picture of a page: its scene is JSON with base64, compressed. */
async function openPage() {
  const packed = document.getElementById("kbp-scene").textContent;
  const unpacked = new Blob([decoded(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { header, buffers } = await new Response(unpacked).json();
  const root = document.getElementById("kbp-root");
  root.replaceChildren();
  const picture = new Picture(root, null);
  picture.setScene(header, Object.fromEntries(Object.entries(buffers).map(([name, text]) => [name, decoded(text)])));
  followAddress(picture);
  globalThis.__kb_picture = picture; // for tests
}

/**
 * Keeps what is looked at in the address, so that it can be linked to: the moment `t` [ns], the selected component or link
 * `sel`, the part `zoom` that the camera shows, and the window `from`, `to` of the timeline [ns].
 */
function followAddress(picture) {
  const { shared, machine } = picture;
  const now = () => {
    const [from, to] = shared.window;
    const shown = { t: shared.t, sel: shared.selected, zoom: shared.focus, ...((from > 0 || to < shared.end) && { from, to }) };
    const given = Object.entries(shown).filter(([, value]) => value !== null && value !== "");
    return `#${new URLSearchParams(given.map(([name, value]) => [name, typeof value === "number" ? String(Number(value.toFixed(3))) : value]))}`;
  };
  let written = "";
  const apply = () => {
    if (!location.hash || location.hash === written) return;
    const asked = new URLSearchParams(location.hash.slice(1));
    const faults = [];
    const time = (name) => {
      const ns = Number(asked.get(name));
      if (!Number.isFinite(ns)) faults.push(`${name}=${asked.get(name)} is no number of nanoseconds`);
      return Math.max(0, Math.min(shared.end, ns || 0));
    };
    const part = (name) => {
      if (machine.locate(asked.get(name))) return asked.get(name);
      faults.push(`${name}=${asked.get(name)} is no part of this machine`);
      return null;
    };
    shared.playing = false;
    if (asked.has("t")) shared.t = time("t");
    if (asked.has("sel")) shared.selected = part("sel");
    if (asked.has("zoom")) picture.lookAt(part("zoom"));
    if (asked.has("from") && asked.has("to") && time("from") < time("to")) shared.window = [time("from"), time("to")];
    picture.refused.textContent = faults.length ? `The address of this page: ${[...new Set(faults)].join("; ")}` : "";
  };
  apply();
  addEventListener("hashchange", apply);
  shared.addEventListener("change", ({ detail: names }) => {
    if (shared.playing || !["t", "selected", "focus", "window", "playing"].some((name) => names.has(name))) return;
    const before = written;
    written = now();
    if (before && written !== before) history.replaceState(null, "", written);
  });
}

function decoded(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** Bytes of a message; servers close connections on which more than 10 MiB arrive at once. */
const PART = 4 << 20;

async function sendFile(file, send) {
  const content = await file.arrayBuffer();
  const parts = Math.max(1, Math.ceil(content.byteLength / PART));
  for (let part = 0; part < parts; part++) {
    send({ do: "open_file", name: file.name, part, parts }, [content.slice(part * PART, (part + 1) * PART)]);
  }
}

/** Returns a button that asks for a result and sends it. */
function openButton(send) {
  const input = node("input", { type: "file", accept: ".npz", hidden: true });
  input.addEventListener("change", () => {
    if (input.files.length) sendFile(input.files[0], send);
    input.value = "";
  });
  const title = "Open a saved result, or drop its file here";
  return node("span", {}, node("button.kbp-button.kbp-open", { type: "button", title, onclick: () => input.click() }, "Open result"), input);
}

/** Sends a file that is dropped on `root`; returns what ends it. */
function acceptFiles(root, send) {
  const over = (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    event.stopPropagation();
    root.classList.toggle("kbp-drop", event.type === "dragover");
  };
  const drop = (event) => {
    over(event);
    const file = event.dataTransfer?.files[0];
    if (file) sendFile(file, send);
  };
  const listeners = { dragover: over, dragleave: over, drop };
  for (const [name, listener] of Object.entries(listeners)) root.addEventListener(name, listener);
  return () => {
    for (const [name, listener] of Object.entries(listeners)) root.removeEventListener(name, listener);
  };
}
