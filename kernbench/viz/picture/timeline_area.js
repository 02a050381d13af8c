// An area of the timeline: some of its rows in a stretch of its time, and what happened there. Times are in ps.

/** Returns the sums of an area by stage, longest first, and the shares of the critical path in its time. */
function areaSums(place, [from, to], tracks) {
  const stages = new Map();
  for (const track of tracks) {
    for (const [number, row] of track.stage === "load" ? [] : track.rows.entries()) {
      if (row < 0) continue;
      const run = place.runs[number], sum = stages.get(track.stage) ?? { busy: 0, rows: 0, count: 0, nbytes: 0 };
      stages.set(track.stage, sum);
      sum.rows += 1;
      addRow(sum, run, row, from - run.shift, to - run.shift);
    }
  }
  const found = [...stages].map(([stage, sum]) => ({ label: place.rows.stages[stage], share: sum.busy / sum.rows / (to - from), ...sum }));
  return { stages: found.filter((each) => each.count).sort((a, b) => b.busy - a.busy), path: pathSums(place.path, from, to) };
}

/** Adds the work of a row between two times; bytes and work of an interval that is cut are divided by its length. */
function addRow(sum, run, row, from, to) {
  const { start, end, label, count } = run.columns, [first, last] = run.range(row);
  for (let i = first; i < last && start[i] < to; i++) {
    const inside = Math.min(to, end[i]) - Math.max(from, start[i]), length = end[i] - start[i];
    if (inside < 0 || (length && !inside)) continue;
    const share = length ? inside / length : 1;
    sum.busy += run.busy(i) * share;
    sum.count += count?.[i] ?? 1;
    sum.nbytes += run.labels[label[i]][1] * share;
  }
}

/** Returns what the critical path waited for between two times, as [resource, ps], longest first; the parts of a step that is cut are divided by its length. */
function pathSums(path, from, to) {
  const sums = new Map();
  for (const [start, end, , , , , parts] of path?.steps ?? []) {
    const share = (Math.min(to, end) - Math.max(from, start)) / (end - start);
    if (!(share > 0)) continue;
    for (const [resource, kind, ps] of parts) {
      const name = `${path.resources[resource]} (${kind})`;
      sums.set(name, (sums.get(name) ?? 0) + ps * share);
    }
  }
  return [...sums].sort((a, b) => b[1] - a[1]);
}

/** Returns the longest of some [name, ps], and the sum of the others. */
function shortened(sums, most = 8) {
  const others = sums.slice(most).reduce((sum, [, ps]) => sum + ps, 0);
  return others ? [...sums.slice(0, most), ["Others", others]] : sums.slice(0, most);
}

/** The area that was chosen, as a table. */
class AreaView {
  constructor(place, close) {
    Object.assign(this, { place, close });
    this.root = node("div.kbp-area", { hidden: true, role: "region", "aria-label": "Work in the selected area" });
  }

  /** Shows an area {window, top, bottom}, heights from the top of all rows; null for none. */
  show(area) {
    this.area = area;
    this.root.hidden = !area;
    if (!area) return;
    const { window: [from, to] } = area;
    const nodes = this.place.rows.visible.filter((each) => each.y < area.bottom && each.y + each.height > area.top && !each.open);
    const tracks = new Set(nodes.flatMap((each) => each.tracks ?? [each.track]));
    const { stages, path } = areaSums(this.place, area.window, tracks);
    const cell = (text) => node("td", {}, text);
    const title = `${timeText(to - from)} from ${timeText(from)} to ${timeText(to)}, ${countText(tracks.size)} rows`;
    this.root.replaceChildren(
      node("div.kbp-area-title", {}, node("b", {}, title), node("button.kbp-button.kbp-close", { type: "button", "aria-label": "Close", title: "Close (Esc)", onclick: this.close }, "×")),
      node(
        "div.kbp-area-tables", {},
        this.#table("Work in this area", ["Stage", "Busy", "Share", "Events", "Bytes"], stages.map((each) => node(
          "tr", {}, node("th", { scope: "row" }, each.label), cell(timeText(Math.round(each.busy))), cell(percentText(each.share)), cell(countText(each.count)),
          cell(each.nbytes ? countText(Math.round(each.nbytes)) : ""),
        ))),
        this.place.path && this.#table("Critical path in this time", ["Resource", "Time", "Share"], shortened(path).map(([name, ps]) => node(
          "tr", {}, node("th", { scope: "row" }, name), cell(timeText(Math.round(ps))), cell(percentText(ps / (to - from))),
        ))),
      ),
    );
  }

  #table(caption, columns, rows) {
    const heads = columns.map((name) => node("th", { scope: "col" }, name));
    const none = node("tr", {}, node("td", { colSpan: columns.length }, "nothing"));
    return node("table", {}, node("caption", {}, caption), node("thead", {}, node("tr", {}, ...heads)), node("tbody", {}, ...(rows.length ? rows : [none])));
  }
}
