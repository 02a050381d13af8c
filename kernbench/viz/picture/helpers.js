// Small helpers of all views: elements, texts of numbers, the theme.

/** Returns an element: `node("button.kbp-button.kbp-run", { title: "Run" }, "Run", other)`. */
function node(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const made = document.createElement(tag || "div");
  made.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Milliseconds after the last arrow key at which a slider counts as released. */
const RELEASED_MS = 800;

/** Calls `act` when a slider is released: by the pointer, by Enter, or a while after the last arrow key. */
function onRelease(slider, act) {
  let byKey = false, timer = 0;
  const now = () => {
    clearTimeout(timer);
    if (timer) act();
    timer = 0;
  };
  slider.addEventListener("pointerdown", () => (byKey = false));
  slider.addEventListener("keydown", (event) => {
    byKey = true;
    if (event.key === "Enter") now();
  });
  slider.addEventListener("blur", now);
  slider.addEventListener("change", () => {
    clearTimeout(timer);
    timer = setTimeout(now, byKey ? RELEASED_MS : 0);
  });
}

/** Returns the bytes of a buffer as they arrive: a DataView from the kernel, or an array already. */
function bytes(buffer) {
  if (!buffer) return new Uint8Array(0);
  return buffer instanceof Uint8Array ? buffer : new Uint8Array(buffer.buffer ?? buffer, buffer.byteOffset ?? 0, buffer.byteLength);
}

function nsText(ns) {
  if (ns >= 1e6) return `${(ns / 1e6).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 })} ms`;
  return `${ns.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} ns`;
}

function percentText(share) {
  if (share > 0 && share < 0.005) return "< 1 %";
  return `${Math.round(100 * share)} %`;
}

/** Returns "light" or "dark", as the page around `root` is. */
function themeOf(root) {
  const style = getComputedStyle(root);
  const given = ["--jp-layout-color1", "--vscode-editor-background"].map((name) => style.getPropertyValue(name).trim());
  let colour = given.find(Boolean) ?? getComputedStyle(document.body).backgroundColor;
  const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
  if (!a) return matchMedia("(prefers-color-scheme: dark)").matches && document.querySelector(".kbp-page") ? "dark" : "light";
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 110 ? "dark" : "light";
}

/** Keeps `data-kbp-theme` of `root` as the page's; calls `changed` afterwards. Returns what ends it. */
function followTheme(root, changed) {
  const look = () => {
    const theme = themeOf(root);
    if (root.dataset.kbpTheme === theme) return;
    root.dataset.kbpTheme = theme;
    changed();
  };
  const media = matchMedia("(prefers-color-scheme: dark)");
  const observer = new MutationObserver(() => requestAnimationFrame(look));
  for (const element of [document.documentElement, document.body]) observer.observe(element, { attributes: true });
  media.addEventListener("change", look);
  requestAnimationFrame(look);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", look);
  };
}

/** Counts the redraws of a view, for tests. */
function countRedraw(view) {
  window.__kb_redraws ??= {};
  window.__kb_redraws[view] = (window.__kb_redraws[view] ?? 0) + 1;
}
