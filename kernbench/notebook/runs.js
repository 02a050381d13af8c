// The table of runs: a click on a heading sorts, a filter selects; A and B choose what is compared.
const cell = (tag, text, name) => {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
};

const COMPARISON = /^(.*?)\s*(<=|>=|!=|<|>|=)\s*(.*)$/;

// Whether a row meets a filter: terms with commas between them, each a text in any cell or a comparison of a column.
const meets = (row, columns, filter) => filter.toLowerCase().split(",").map((x) => x.trim()).filter(Boolean).every((term) => {
  const [, name, sign, wanted] = term.match(COMPARISON) ?? [];
  const column = name && columns.find(({ key, title }) => key.toLowerCase() === name || title.toLowerCase().startsWith(name));
  if (!column) return columns.some(({ key }) => row.text[key].toLowerCase().includes(term));
  const value = row.sort[column.key];
  const [p, q] = column.number ? [value ?? NaN, Number(wanted)] : [String(value ?? "").toLowerCase(), wanted];
  return { "<": p < q, ">": p > q, "<=": p <= q, ">=": p >= q, "=": p === q, "!=": p !== q }[sign];
});

export default {
  render({ model, el }) {
    let by = "run", down = true;
    const search = Object.assign(cell("input", "", "kb-filter"), { type: "search", placeholder: "Filter: text, or time < 2000, hbm = 16" });
    search.setAttribute("aria-label", "Filter runs by text or by comparisons such as time < 2000, with commas between them");
    const none = cell("p", "No run meets the filter.");
    const scroll = cell("div", "", "kb-runs");
    el.append(search, none, scroll);
    const draw = () => {
      const columns = model.get("columns"), active = el.contains(document.activeElement) ? document.activeElement : null;
      const focus = active?.dataset.key, typed = active?.matches(".kb-edit") ? active.value : null;
      const all = model.get("rows"), rows = all.filter((row) => meets(row, columns, search.value)).sort((x, y) => {
        const [p, q] = [x.sort[by], y.sort[by]];
        if (p == null || q == null) return (p == null) - (q == null);
        return (p < q ? -1 : p > q ? 1 : y.run - x.run) * (down ? -1 : 1);
      });
      search.hidden = all.length < 2 && !search.value;
      none.hidden = rows.length > 0 || !all.length;
      const table = document.createElement("table");
      table.className = "kb-table kb-runs-table";
      table.append(cell("caption", "Runs of a workload; A and B are compared", "kbp-unseen"));
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
        for (const { key, title, number, edit } of columns) {
          const td = cell("td", edit ? "" : row.text[key], number ? "kb-number" : "");
          td.dataset.of = key;
          tr.append(td);
          if (!edit) continue;
          const text = Object.assign(cell("input", "", "kb-edit"), { value: row.text[key], maxLength: 200 });
          text.dataset.key = `${key}${row.run}`;
          text.setAttribute("aria-label", `${title} of run ${row.run}`);
          text.onchange = () => model.send({ do: "annotate", run: row.run, key, value: text.value });
          td.append(text);
        }
        const remove = cell("button", "×", "kb-sort");
        remove.title = `Delete run ${row.run}`;
        remove.setAttribute("aria-label", remove.title);
        remove.onclick = () => model.send({ do: "delete", run: row.run });
        tr.insertCell().append(remove);
        tr.classList.toggle("kb-a", model.get("a") === row.run);
        tr.classList.toggle("kb-b", model.get("b") === row.run);
      }
      scroll.replaceChildren(...(rows.length ? [table] : []));
      const again = focus && scroll.querySelector(`[data-key="${focus}"]`);
      if (again && typed != null) again.value = typed;
      again?.focus();
    };
    search.oninput = draw;
    model.on("change", draw);
    draw();
    return () => model.off("change", draw);
  },
};
