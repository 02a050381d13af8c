// One run as the timeline has it: its intervals in rows and lanes, and how busy they are. Times are in ps.

const TYPED = { u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array, f8: Float64Array };

/** Returns the first index of a sorted array at which `value` is below the entry, from `low` on. */
function above(sorted, value, low = 0, high = sorted.length) {
  for (let step = 1; low + step < high; step *= 2) {
    if (sorted[low + step] > value) {
      high = low + step;
      break;
    }
  }
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The time that intervals have covered until a time, in all: any number of sorted starts and ends, without a loop over them. */
class Cover {
  constructor(pieces) {
    const n = pieces.reduce((sum, [start]) => sum + start.length, 0);
    this.start = new Float64Array(n);
    this.end = new Float64Array(n);
    let at = 0;
    for (const [start, end] of pieces) {
      this.start.set(start, at);
      this.end.set(end, at);
      at += start.length;
    }
    if (pieces.length > 1) {
      this.start.sort();
      this.end.sort();
    }
    this.starts = Cover.#sums(this.start);
    this.ends = Cover.#sums(this.end);
  }

  /** Writes the mean number of intervals under way in each column of `width` ps. */
  columns(out, from, width) {
    let i = 0, j = 0, before = null;
    for (let column = 0; column <= out.length; column++) {
      const t = from + column * width;
      i = above(this.start, t, i);
      j = above(this.end, t, j);
      const covered = i * t - this.starts[i] - (j * t - this.ends[j]);
      if (column) out[column - 1] = Math.max(0, (covered - before) / width);
      before = covered;
    }
  }

  static #sums(sorted) {
    const sums = new Float64Array(sorted.length + 1);
    for (let i = 0; i < sorted.length; i++) sums[i + 1] = sums[i] + sorted[i];
    return sums;
  }
}

/** One run as it is in the scene. */
class TimelineRun {
  constructor(header, buffers, number, stages) {
    Object.assign(this, { stages, name: header.name, end: header.end_ps, rows: header.rows, labels: header.labels, launches: header.launches, counters: header.counters });
    this.columns = {};
    for (const [name, type] of Object.entries(header.types)) {
      const raw = bytes(buffers[`timeline${number}_${name}`]);
      // Buffers of a message from the kernel begin anywhere.
      const whole = raw.byteOffset % 8 ? raw.slice() : raw;
      this.columns[name] = new TYPED[type](whole.buffer, whole.byteOffset, whole.byteLength / TYPED[type].BYTES_PER_ELEMENT);
    }
    this.shift = 0;
    const sent = this.columns.arrow_ps;
    this.sent = Uint32Array.from(sent.keys()).sort((a, b) => sent[a] - sent[b]);
  }

  #lanes = new Map();
  #pieces = new Map();
  #covers = new Map();
  #arrowsOf = null;

  /** Returns the lanes of a row: as many as it needs so that no interval overlaps another on its lane. */
  lanes(row) {
    if (!this.#lanes.has(row)) this.#lanes.set(row, this.#layOut(row));
    return this.#lanes.get(row);
  }

  /** Returns when anything of a row was under way: starts and ends. */
  pieces(row) {
    if (!this.#pieces.has(row)) this.#pieces.set(row, this.#union(row));
    return this.#pieces.get(row);
  }

  cover(row) {
    if (!this.#covers.has(row)) this.#covers.set(row, new Cover([this.pieces(row)]));
    return this.#covers.get(row);
  }

  range(row) {
    return [this.columns.first[row], this.columns.first[row + 1]];
  }

  /** Writes the largest value of a counter in each column of `width` ps; 0 outside the run. */
  counterColumns(out, counter, from, width) {
    const { counter_first: first, counter_time: time, counter_value: value } = this.columns;
    const last = first[counter + 1];
    let i = above(time, from, first[counter], last);
    for (let column = 0; column < out.length; column++) {
      const t = from + column * width;
      let most = i > first[counter] ? value[i - 1] : 0;
      for (; i < last && time[i] < t + width; i++) most = Math.max(most, value[i]);
      out[column] = t < this.end ? most : 0;
    }
  }

  rowOf(interval) {
    return above(this.columns.first, interval) - 1;
  }

  /** Returns how much of an interval is work: less than all of it where several were merged. */
  busy(interval) {
    const { busy, start, end } = this.columns;
    return busy ? busy[interval] : end[interval] - start[interval];
  }

  /** Returns what an interval is called: its command, and its tile or part. */
  title(interval) {
    const [text] = this.labels[this.columns.label[interval]];
    const tile = this.columns.tile[interval];
    return `${text || this.stages[this.rows[this.rowOf(interval)][1]]}${tile >= 0 ? `, ${/^(send|recv)/.test(text) ? "part" : "tile"} ${tile}` : ""}`;
  }

  /** Returns the arrows that begin or end at an interval. */
  arrowsOf(interval) {
    if (!this.#arrowsOf) {
      this.#arrowsOf = new Map();
      const { arrow_from, arrow_to } = this.columns;
      for (let i = 0; i < arrow_from.length; i++) {
        for (const end of [arrow_from[i], arrow_to[i]]) {
          if (!this.#arrowsOf.has(end)) this.#arrowsOf.set(end, []);
          this.#arrowsOf.get(end).push(i);
        }
      }
    }
    return this.#arrowsOf.get(interval) ?? [];
  }

  #layOut(row) {
    const [first, last] = this.range(row);
    const { start, end } = this.columns;
    const free = [], members = [];
    for (let i = first; i < last; i++) {
      let lane = free.findIndex((t) => t <= start[i]);
      if (lane < 0) lane = free.push(0) - 1;
      free[lane] = end[i];
      (members[lane] ??= []).push(i);
    }
    return members.map((list) => {
      const lane = { start: new Float64Array(list.length), end: new Float64Array(list.length), work: new Float64Array(list.length + 1), interval: Uint32Array.from(list) };
      list.forEach((i, at) => {
        lane.start[at] = start[i];
        lane.end[at] = end[i];
        lane.work[at + 1] = lane.work[at] + this.busy(i);
      });
      return lane;
    });
  }

  #union(row) {
    const [first, last] = this.range(row);
    const { start } = this.columns;
    const starts = [], ends = [];
    for (let i = first; i < last; i++) {
      const end = start[i] + this.busy(i);
      if (starts.length && start[i] <= ends[ends.length - 1]) ends[ends.length - 1] = Math.max(ends[ends.length - 1], end);
      else {
        starts.push(start[i]);
        ends.push(end);
      }
    }
    return [Float64Array.from(starts), Float64Array.from(ends)];
  }
}

