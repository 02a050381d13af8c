// The table of runs: a click on a heading sorts; A and B choose what is compared.
const cell = (tag, text, name) => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
};

export default {
  render({ model, el }) {
    let by = "run", down = true;
    const draw = () => {
      const columns = model.get("columns"), focus = el.contains(document.activeElement) && document.activeElement.dataset.key;
      const rows = [...model.get("rows")].sort((x, y) => {
        const [p, q] = [x.sort[by], y.sort[by]];
        if (p == null || q == null) return (p == null) - (q == null);
        return (p < q ? -1 : p > q ? 1 : y.run - x.run) * (down ? -1 : 1);
      });
      const table = document.createElement("table");
      table.className = "kb-table kb-runs-table";
      table.append(cell("caption", "All runs; A and B are compared", "kbp-unseen"));
      const head = table.createTHead().insertRow();
      for (const which of ["A", "B"]) head.append(Object.assign(cell("th", which), { scope: "col" }));
      for (const { key, title, number } of columns) {
        const th = Object.assign(cell("th", "", number ? "kb-number" : ""), { scope: "col" });
        th.setAttribute("aria-sort", key !== by ? "none" : down ? "descending" : "ascending");
        const sort = cell("button", title + (key === by ? (down ? " ↓" : " ↑") : ""), "kb-sort");
        sort.dataset.key = key;
        sort.onclick = () => { down = key === by ? !down : number; by = key; draw(); };
        th.append(sort);
        head.append(th);
      }
      head.append(Object.assign(cell("th", ""), { scope: "col" }));
      head.lastElementChild.append(cell("span", "Delete", "kbp-unseen"));
      const body = table.createTBody();
      for (const row of rows) {
        const tr = body.insertRow();
        for (const which of ["a", "b"]) {
          const radio = Object.assign(document.createElement("input"), { type: "radio", name: `${model.model_id ?? "kb"}-${which}`, checked: model.get(which) === row.run, disabled: !row.kept });
          radio.dataset.key = `${which}${row.run}`;
          radio.setAttribute("aria-label", `Run ${row.run} is ${which.toUpperCase()}`);
          radio.title = row.kept ? "" : "the log of this run is no longer kept";
          radio.onchange = () => { model.set(which, row.run); model.save_changes(); };
          tr.insertCell().append(radio);
        }
        for (const { key, number } of columns) tr.append(cell("td", row.text[key] ?? "", number ? "kb-number" : ""));
        const remove = cell("button", "×", "kb-sort");
        remove.title = `Delete run ${row.run}`;
        remove.setAttribute("aria-label", remove.title);
        remove.onclick = () => model.send({ do: "delete", run: row.run });
        tr.insertCell().append(remove);
        tr.classList.toggle("kb-a", model.get("a") === row.run);
        tr.classList.toggle("kb-b", model.get("b") === row.run);
      }
      el.replaceChildren(...(rows.length ? [table] : []));
      if (focus) el.querySelector(`[data-key="${focus}"]`)?.focus();
    };
    model.on("change", draw);
    draw();
    return () => model.off("change", draw);
  },
};
