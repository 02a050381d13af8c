// What ipywidgets leaves out for readers who use the keyboard or a screen reader: labels that belong to their controls.
let count = 0;

function name(root) {
  for (const row of root.querySelectorAll(".kb-field, .kb-row")) {
    const label = row.querySelector("label[data-kb]");
    if (!label) continue;
    const unit = row.querySelector(".kb-unit")?.textContent ?? "";
    const control = row.querySelector("input:not([type=hidden]), select");
    if (control && !label.htmlFor) {
      control.id ||= `kb-control-${++count}`;
      label.htmlFor = control.id;
      if (unit) control.setAttribute("aria-description", unit);
    }
    for (const handle of row.querySelectorAll("[role=slider]:not([aria-label])"))
      handle.setAttribute("aria-label", `${label.textContent} ${unit}`.trim());
  }
}

/** Groups the options of a menu by the kinds in a class of its box: `kb-groups-2:Studies,3:Benches`. */
function group(root) {
  for (const box of root.querySelectorAll("[class*='kb-groups-']")) {
    const select = box.querySelector("select:not(:has(optgroup))");
    const kinds = [...box.classList].find((name) => name.startsWith("kb-groups-"));
    if (!select?.options.length) continue;
    const { selectedIndex } = select;
    const options = [...select.options];
    for (const part of kinds.slice("kb-groups-".length).split(",")) {
      const [n, label] = part.split(":");
      const made = document.createElement("optgroup");
      made.label = label.replaceAll("_", " ");
      made.append(...options.splice(0, Number(n)));
      select.append(made);
    }
    select.selectedIndex = selectedIndex;
  }
}

/** Makes what scrolls reachable by keyboard: a table that is wider than the page. */
function reach(root) {
  for (const panel of root.querySelectorAll(".kb-tabs > .widget-tab-contents:not([tabindex])")) {
    panel.tabIndex = 0;
    panel.setAttribute("role", "group");
    panel.setAttribute("aria-label", "Content of the tab");
  }
}

/** Returns what lets charts follow the width of their place: Vega measures it, perhaps before it is on the page, and whenever the window is resized. */
function chartWidths() {
  const widths = new WeakMap();
  return new ResizeObserver((entries) => {
    const changed = entries.filter(({ target, contentRect }) => contentRect.width !== widths.get(target));
    for (const { target, contentRect } of changed) widths.set(target, contentRect.width);
    if (changed.some(({ contentRect }) => contentRect.width)) window.dispatchEvent(new Event("resize"));
  });
}

export default {
  render({ el }) {
    el.classList.add("kb-frame-widget");
    const charts = chartWidths();
    let root, watch, endTheme;
    const begin = () => {
      root = el.closest(".kb-explorer");
      if (!root) return void requestAnimationFrame(begin);
      const mend = () => {
        name(root);
        group(root);
        reach(root);
        for (const chart of root.querySelectorAll(".kb-chart")) charts.observe(chart);
      };
      watch = new MutationObserver(mend);
      watch.observe(root, { childList: true, subtree: true });
      mend();
      root.classList.add("kbp-tokens");
      endTheme = followTheme(root, () => {});
    };
    begin();
    return () => {
      watch?.disconnect();
      charts.disconnect();
      endTheme?.();
    };
  },
};
