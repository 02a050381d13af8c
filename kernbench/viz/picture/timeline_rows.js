// The lines of the timeline: tracks in groups that open and close, and where each is, from the top of all of them [px].

const LANE = 18, GROUP = 24, CURVE = 26, TALLEST = 90;
const PLURALS = { sip: "SIPs", rank: "ranks", cube: "cubes", cubeOf: "cubes", pe: "PEs", peOf: "PEs" };
const LINKS = "Busiest links";
const GROUPINGS = {
  SIP: ["sip", "cube", "pe"], cube: ["cubeOf", "pe"], PE: ["peOf"], engine: ["stage", "sip"], rank: ["rank", "cube", "pe"],
};

/** Returns the id of a link in words; what both ends are in, once. */
function linkText(id) {
  const [from, to] = id.split("->").map((end) => end.split("."));
  let same = 0;
  while (same < Math.min(from.length, to.length) - 1 && from[same] === to[same]) same++;
  const ends = [from, to].map((end) => placeText(end.slice(same).join(".")));
  return `${same ? `${placeText(from.slice(0, same).join("."))}: ` : ""}${ends.join(" → ")}`;
}

/** What is drawn in one line: a row of the log in each run, the load of a link, or a counter in each run, whose quantity is its stage. */
class Track {
  constructor(component, stage, place, rows, counters = null) {
    const [sip, cube, pe] = place;
    Object.assign(this, { component, stage, sip, cube, pe, rows, counters });
  }

  /** Whether a stage of a PE, a memory or the host works here. */
  get works() {
    return this.stage !== "messages" && !this.counters;
  }

  /** Returns the id of its component in the machine: fetch and store are ports of one. */
  get id() {
    return this.component.replace(/\.(fetch|store)$/, "");
  }

  /** Returns the key of the group that it belongs to, and its name; null if it belongs to none of this level. */
  group(level) {
    const { sip, cube, pe } = this;
    if (level === "stage") return this.stage === "load" ? ["links", LINKS] : [this.stage, null];
    if (this.stage === "load" || this.component === "host") {
      const inner = level === "pe" || level === "cube" || this.inStage;
      return inner ? null : this.stage === "load" ? ["links", LINKS] : ["host", "Host"];
    }
    if (level === "sip") return [`sip${sip}`, `SIP ${sip}`];
    if (level === "rank") return [`sip${sip}`, `Rank ${sip} (SIP ${sip})`];
    if (level === "cube") return cube < 0 ? null : [`sip${sip}.cube${cube}`, `Cube ${cube}`];
    if (level === "cubeOf") return cube < 0 ? [`sip${sip}`, `SIP ${sip}, IO`] : [`sip${sip}.cube${cube}`, `SIP ${sip}, cube ${cube}`];
    const name = `sip${sip}.cube${cube}.pe${pe}`;
    if (level === "peOf") return pe < 0 ? [`sip${sip}.cpus`, `SIP ${sip}, CPUs`] : [name, `SIP ${sip}, cube ${cube}, PE ${pe}`];
    return pe < 0 ? null : [name, `PE ${pe}`];
  }
}

/** The loads of links over the last run. */
class LinkLoads {
  constructor({ bins, end_ns, links }, load) {
    Object.assign(this, { bins, end: end_ns * 1000, load, row: new Map(links.map((id, row) => [id, row])) });
    const total = links.map((id, row) => [load.subarray(row * bins, (row + 1) * bins).reduce((sum, x) => sum + x, 0), id]);
    this.busiest = total.sort((a, b) => b[0] - a[0]).slice(0, 4).map(([, id]) => id);
  }

  /** Returns the load of a link at a time; 0 outside the run. */
  at(id, t) {
    const bin = Math.floor((t / this.end) * this.bins);
    return bin >= 0 && bin < this.bins ? this.load[this.row.get(id) * this.bins + bin] / 255 : 0;
  }
}

class TimelineRows {
  #tracks = [];
  tree = [];
  visible = []; // from top to bottom
  height = 0;
  #anchors = null;

  constructor(runs, stages, run, buffers, counters = {}) {
    Object.assign(this, { runs, stages, counters });
    const found = new Map();
    runs.forEach((each, number) => {
      each.rows.forEach(([component, stage, ...place], row) => {
        const key = `${component}|${stage}|${place[0]}`;
        if (!found.has(key)) found.set(key, new Track(component, stage, place, runs.map(() => -1)));
        found.get(key).rows[number] = row;
      });
      each.counters.forEach(([component, quantity, ...place], counter) => {
        const key = `${component}|${quantity}`;
        if (!found.has(key)) found.set(key, new Track(component, quantity, place, [], runs.map(() => -1)));
        found.get(key).counters[number] = counter;
      });
    });
    const order = [...Object.keys(stages), ...Object.keys(counters)];
    const rank = (track) => [track.component === "host" ? 0 : 1, track.sip, track.cube, track.pe, order.indexOf(track.stage)];
    this.#tracks = [...found.values()].sort((a, b) => {
      const [x, y] = [rank(a), rank(b)];
      const at = x.findIndex((value, i) => value !== y[i]);
      return at < 0 ? 0 : x[at] - y[at];
    });
    const load = bytes(buffers.link_load);
    this.loads = run && load.length ? new LinkLoads(run, load) : null;
  }

  /** Groups all tracks by SIP, cube, PE, engine or rank. */
  group(by) {
    const levels = GROUPINGS[by], byStage = levels[0] === "stage";
    const tracks = [...this.#tracks, ...this.#links()];
    for (const track of tracks) track.inStage = byStage;
    if (byStage) {
      const order = [...Object.keys(this.stages), ...Object.keys(this.counters), "load"];
      tracks.sort((a, b) => order.indexOf(a.stage) - order.indexOf(b.stage));
    }
    this.tree = this.#nest(tracks, levels, 0, 0, "");
    this.#openSome();
    this.measure();
  }

  #links() {
    return (this.loads?.busiest ?? []).map((id) => new Track(id, "load", [-1, -1, -1], []));
  }

  /** Groups tracks by the levels from `at` on. */
  #nest(tracks, levels, at, depth, prefix) {
    if (at === levels.length) return this.#leaves(tracks, depth, prefix);
    const groups = new Map(), nodes = [];
    for (const track of tracks) {
      const group = track.group(levels[at]);
      if (!group) {
        nodes.push(...this.#nest([track], levels, at + 1, depth, prefix));
        continue;
      }
      const [id, label] = group;
      if (!groups.has(id)) {
        groups.set(id, { key: `${prefix}/${id}`, id, label: label ?? this.stages[id] ?? this.counters[id][0], level: levels[at], depth, tracks: [] });
        nodes.push(groups.get(id));
      }
      groups.get(id).tracks.push(track);
    }
    for (const group of groups.values()) {
      group.children = this.#nest(group.tracks, levels, at + 1, depth + 1, group.key);
      group.works = group.tracks.some((track) => track.works);
    }
    return this.#setIdleAside(nodes, depth, prefix);
  }

  /** Puts groups in which nothing but messages passed into one at the end, so that the others are together. */
  #setIdleAside(nodes, depth, prefix) {
    const groups = nodes.filter((each) => each.children), idle = groups.filter((each) => !each.works);
    if (idle.length < 2 || idle.length === groups.length) return nodes;
    const deeper = (list) => list.map((each) => ({ ...each, depth: each.depth + 1, children: each.children && deeper(each.children) }));
    const aside = {
      key: `${prefix}/idle`, id: "idle", label: `${idle.length} ${PLURALS[idle[0].level]} without work`, depth, tracks: idle.flatMap((each) => each.tracks),
      children: deeper(idle), works: false,
    };
    return [...nodes.filter((each) => !idle.includes(each)), aside];
  }

  /** Returns a line for each track, counters of one place in a group below its rows. */
  #leaves(tracks, depth, prefix) {
    const counters = tracks.filter((track) => track.counters && !track.inStage), rows = tracks.filter((track) => !counters.includes(track));
    const lines = rows.map((track) => this.#leaf(track, depth, prefix));
    if (!counters.length) return lines;
    const key = `${prefix}/occupancy`, children = counters.map((track) => this.#leaf(track, depth + 1, key));
    return [...lines, { key, id: prefix.split("/").at(-1), label: "Occupancy", depth, tracks: counters, children, works: false, counters: true }];
  }

  #leaf(track, depth, prefix) {
    const stage = track.component === "host" && track.stage === "host" ? "copies and maps" : this.stages[track.stage];
    const where = track.component === "host" ? (track.sip < 0 ? "host" : `SIP ${track.sip}`) : placeText(track.component.replace(/\.pe_\w+(\.\w+)?$/, ""));
    const label = track.stage === "load" ? linkText(track.component) : track.inStage ? where : track.counters ? this.#counterName(track) : track.component === "host" && track.sip >= 0 ? `${stage}, SIP ${track.sip}` : track.stage === "memory" ? this.#memoryName(track.component) : stage;
    return { key: `${prefix}/${track.component}|${track.stage}|${track.sip}`, id: track.id, label, depth, track };
  }

  #counterName({ component, stage }) {
    const [label] = this.counters[stage], memory = this.#memoryName(component);
    return memory === component || component === "host" ? label : `${memory}: ${label}`;
  }

  /** Returns the largest value of a counter in all runs. */
  peak(track) {
    return Math.max(1, ...track.counters.map((counter, run) => this.runs[run].counters[counter]?.[5] ?? 0));
  }

  #memoryName(component) {
    return component.endsWith(".pe_tcm") ? "TCM" : component.includes(".hbm_ctrl.") ? "HBM slice" : component.endsWith(".sram") ? "SRAM" : component;
  }

  /** Opens as much as is useful at first: whole levels from the top, as long as about a screenful of rows results. */
  #openSome() {
    let level = this.tree;
    let shown = level.length;
    while (level.length) {
      const open = level.filter((each) => each.children && each.works && (each.id !== "host" || each.children.length < 5));
      const more = open.flatMap((each) => each.children);
      shown += more.length;
      if (!open.length || (shown > 60 && level !== this.tree)) break;
      for (const each of open) each.open = true;
      level = more;
    }
  }

  openAll(open) {
    const visit = (nodes) => {
      for (const each of nodes.filter((x) => x.children)) {
        each.open = open;
        visit(each.children);
      }
    };
    visit(this.tree);
    this.measure();
  }

  /** Lists what is visible, with its place. */
  measure() {
    this.visible = [];
    this.#anchors = null;
    let y = 0;
    const visit = (nodes) => {
      for (const each of nodes) {
        each.y = y;
        each.height = this.#height(each);
        y += each.height;
        this.visible.push(each);
        if (each.open) visit(each.children);
      }
    };
    visit(this.tree);
    this.height = y;
  }

  #height(each) {
    if (each.children) return this.runs.length > 1 && !each.open ? 2 * GROUP - 6 : GROUP;
    if (each.track.stage === "load") return CURVE;
    each.parts = each.track.counters?.map(() => CURVE - 2) ?? each.track.rows.map((row, run) => {
      const lanes = row < 0 ? 1 : this.runs[run].lanes(row).length;
      return lanes === 1 ? LANE : Math.min(TALLEST, Math.max(LANE, (each.track.stage === "messages" ? 2 : 7) * lanes));
    });
    return each.parts.reduce((sum, part) => sum + part, 0) + (each.parts.length > 1 ? 5 : 2);
  }

  /** Returns the visible node at a height. */
  at(y) {
    if (y < 0) return null;
    let low = 0, high = this.visible.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.visible[middle].y + this.visible[middle].height > y) high = middle;
      else low = middle + 1;
    }
    return this.visible[low] ?? null;
  }

  trackOf({ run, row }) {
    return this.#tracks.find((track) => track.rows[run] === row);
  }

  /** Opens the groups that contain the first node that is wanted, and returns it; null if there is none. */
  open(wanted) {
    const chain = this.#chain(wanted, this.tree);
    if (!chain) return null;
    for (const each of chain.slice(0, -1)) each.open = true;
    this.measure();
    return chain.at(-1);
  }

  #chain(wanted, nodes) {
    for (const each of nodes) {
      if (wanted(each)) return [each];
      const below = each.children && this.#chain(wanted, each.children);
      if (below) return [each, ...below];
    }
    return null;
  }

  /** Gives a link a row, if it has none; returns whether it got one. */
  addLink(id) {
    if (!this.loads?.row.has(id) || this.loads.busiest.includes(id)) return false;
    this.loads.busiest = [id, ...this.loads.busiest.slice(0, 4)];
    const links = this.tree.find((each) => each.id === "links");
    if (!links) return false;
    links.tracks = this.#links();
    links.children = links.tracks.map((track) => this.#leaf(track, 1, links.key));
    links.open = true;
    this.measure();
    return true;
  }

  /** Returns how many rows of a stage a group has in a run, and how much of the time they are busy; null if none. */
  loadOf(each, number, stage) {
    each.loads ??= new Map();
    const key = `${number} ${stage}`;
    if (!each.loads.has(key)) {
      const rows = each.tracks.filter((track) => track.stage === stage && track.rows[number] >= 0).map((track) => track.rows[number]);
      each.loads.set(key, rows.length ? { rows: rows.length, cover: new Cover(rows.map((row) => this.runs[number].pieces(row))) } : null);
    }
    return each.loads.get(key);
  }

  /** Returns where the row of a run is: {y, height, closed}, `closed` if it is in a closed group. */
  anchor(run, row) {
    if (!this.#anchors) {
      this.#anchors = new Map();
      for (const each of this.visible) {
        if (each.track) {
          let y = each.y + 1;
          each.track.rows.forEach((of, number) => {
            this.#anchors.set(`${number} ${of}`, { y, height: each.parts[number] - 2, closed: false });
            y += each.parts[number] + 3;
          });
        } else if (!each.open) {
          for (const track of each.tracks) track.rows.forEach((of, number) => this.#anchors.set(`${number} ${of}`, { y: each.y + 2, height: each.height - 5, closed: true }));
        }
      }
    }
    return this.#anchors.get(`${run} ${row}`) ?? null;
  }
}
