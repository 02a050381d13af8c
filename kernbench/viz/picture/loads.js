// The loads of a run, and who is how busy when.

const ENGINE = /^((sip\d+)\.cube\d+\.pe\d+)\.(?:pe_dma|pe_fetch_store\.\w+|pe_gemm|pe_math)$/;
const SLICE = /^(sip\d+\.cube\d+)\.hbm_ctrl\.pe\d+$/;

/** Rows of links and components by id, and how the loads of groups follow from those of their parts. */
class LoadIndex {
  constructor(links, nodes, counts) {
    this.linkIds = links;
    this.nodeIds = nodes;
    this.links = new Map(links.map((id, row) => [id, row]));
    this.nodes = new Map(nodes.map((id, row) => [id, row]));
    this.own = nodes.length;
    /** [group, part]: a PE is as busy as its busiest engine. */
    this.largest = [];
    /** [group, part, n]: a cube is as busy as its PEs on average, an HBM stack as its slices. */
    this.mean = [];
    const group = (id) => {
      if (!this.nodes.has(id)) this.nodes.set(id, this.nodes.size);
      return this.nodes.get(id);
    };
    const pes = new Map();
    nodes.forEach((id, row) => {
      const engine = ENGINE.exec(id);
      if (engine) {
        pes.set(engine[1], engine[2]);
        this.largest.push([group(engine[1]), row]);
        if (id.includes(".pe_fetch_store.")) this.largest.push([group(id.slice(0, id.lastIndexOf("."))), row]);
      }
      const slice = SLICE.exec(id);
      if (slice) this.mean.push([group(`${slice[1]}.hbm`), row, counts.pes]);
    });
    for (const [pe, sip] of pes) {
      const row = this.nodes.get(pe);
      this.mean.push([group(pe.slice(0, pe.lastIndexOf("."))), row, counts.pes]);
      this.mean.push([group(sip), row, counts.pes * counts.cubes]);
    }
  }
}

/** Busy shares in bins of time: those of the log, or in one bin those of a moment of a run under way. */
class Loads {
  constructor(index, bins, end, link, node_, queues = null) {
    Object.assign(this, { index, bins, end, link, queues });
    const all = new Uint8Array(index.nodes.size * bins);
    all.set(node_.subarray(0, index.own * bins));
    for (const [to, from] of index.largest) {
      for (let bin = 0; bin < bins; bin++) all[to * bins + bin] = Math.max(all[to * bins + bin], all[from * bins + bin]);
    }
    const sums = new Float32Array((index.nodes.size - index.own) * bins);
    for (const [to, from, n] of index.mean) {
      for (let bin = 0; bin < bins; bin++) sums[(to - index.own) * bins + bin] += all[from * bins + bin] / n;
    }
    for (const to of new Set(index.mean.map(([to]) => to))) {
      for (let bin = 0; bin < bins; bin++) all[to * bins + bin] = Math.round(sums[(to - index.own) * bins + bin]);
    }
    this.node = all;
  }

  static of(run, buffers, counts) {
    const queues = run.link_peak && {
      link: bytes(buffers.link_queue), node: bytes(buffers.node_queue), linkPeak: run.link_peak, nodePeak: run.node_peak,
    };
    const index = new LoadIndex(run.links, run.nodes, counts);
    return new Loads(index, run.bins, run.end_ns, bytes(buffers.link_load), bytes(buffers.node_load), queues);
  }

  bin(t) {
    return Math.max(0, Math.min(this.bins - 1, Math.floor((t / this.end) * this.bins)));
  }

  /** Returns the busy share of a link or component at a time; null if it was never busy. */
  share(id, t) {
    const curve = this.curve(id);
    return curve && curve[this.bin(t)] / 255;
  }

  /** Returns the busy shares of all bins, 255 for always; null if it was never busy. */
  curve(id) {
    const [rows, data] = id.includes("->") ? [this.index.links, this.link] : [this.index.nodes, this.node];
    const row = rows.get(id);
    return row === undefined ? null : data.subarray(row * this.bins, (row + 1) * this.bins);
  }

  /** Returns how much work was under way in all bins, 255 for `peak`; null where the log does not say. */
  queue(id) {
    const isLink = id.includes("->");
    const row = (isLink ? this.index.links : this.index.nodes).get(id);
    if (!this.queues || row === undefined || (!isLink && row >= this.index.own)) return null;
    const peak = (isLink ? this.queues.linkPeak : this.queues.nodePeak)[row];
    const data = (isLink ? this.queues.link : this.queues.node).subarray(row * this.bins, (row + 1) * this.bins);
    return peak > 0 ? { data, peak } : null;
  }

  /** Returns the time at which links and components together are busiest. */
  hottest() {
    const { bins, index } = this;
    const total = new Float64Array(bins);
    for (const [data, rows] of [[this.link, index.links.size], [this.node, index.own]]) {
      for (let row = 0; row < rows; row++) {
        for (let bin = 0; bin < bins; bin++) total[bin] += data[row * bins + bin];
      }
    }
    return ((total.indexOf(Math.max(...total)) + 0.5) / bins) * this.end;
  }

  /** Returns the links and components that are busiest at a time, as [id, share]. */
  busiest(t, count) {
    const { bins, index } = this;
    const bin = this.bin(t);
    const found = [];
    let least = 0;
    for (const [ids, data] of [[index.nodeIds, this.node], [index.linkIds, this.link]]) {
      for (let row = 0; row < ids.length; row++) {
        const load = data[row * bins + bin];
        if (!load || (found.length >= count && load <= least)) continue;
        const place = found.findIndex((other) => other[1] < load);
        found.splice(place < 0 ? found.length : place, 0, [ids[row], load]);
        if (found.length > count) found.pop();
        least = found.at(-1)[1];
      }
    }
    return found.map(([id, load]) => [id, load / 255]);
  }
}
