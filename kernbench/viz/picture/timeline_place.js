// Which part of the timeline is on its canvas, and where things are there [px].

const GUTTER = 216, AXIS = 26, OVERVIEW = 36, STEP = 22, BAR = 12; // labels, axis, whole run, critical path, scroll bar
const CLOSEST = 50; // [ps] least width of the window

class TimelinePlace {
  runs = [];
  rows = new TimelineRows([], {}, null, {});
  path = null; // the critical path
  window = [0, 1]; // [ps]
  scroll = 0;
  width = 0;
  height = 0;

  get last() {
    return this.runs[this.runs.length - 1];
  }

  get end() {
    return Math.max(1, ...this.runs.map((run) => run.end + run.shift));
  }

  /** Where the rows begin [px]. */
  get top() {
    return OVERVIEW + AXIS + (this.path ? STEP : 0);
  }

  get perPx() {
    return (this.window[1] - this.window[0]) / Math.max(1, this.width - GUTTER);
  }

  timeAt(x) {
    return this.window[0] + (x - GUTTER) * this.perPx;
  }

  xOf(ps) {
    return GUTTER + (ps - this.window[0]) / this.perPx;
  }

  /** Takes the size of the element that it is seen in. */
  measure({ clientWidth, clientHeight }) {
    Object.assign(this, { width: clientWidth, height: clientHeight });
  }

  /** Shows the times of a window, as far as there is something to see. */
  setWindow([from, to]) {
    const { end } = this, margin = 0.05 * end;
    const width = Math.min(end + 2 * margin, Math.max(CLOSEST, to - from));
    let start = from + (to - from - width) / 2;
    start = Math.max(-margin, Math.min(end + margin - width, start));
    this.window = [start, start + width];
  }

  /** Scrolls to a height; returns whether anything moved. */
  scrollTo(y) {
    const before = this.scroll;
    this.scroll = Math.max(0, Math.min(this.rows.height + this.top - this.height + 8, y)) || 0;
    return this.scroll !== before;
  }

  visible(each) {
    const y = this.top + each.y - this.scroll;
    return y >= this.top && y + each.height <= this.height;
  }

  nodeAt(y) {
    return y < this.top ? null : this.rows.at(y - this.top + this.scroll);
  }

  /** Returns the interval at a place: {run, row, interval}; null where there is none. */
  intervalAt(each, x, y) {
    if (!each?.track || each.track.stage === "load" || x < GUTTER) return null;
    let top = this.top - this.scroll + each.y + 1;
    for (const [run, row] of each.track.rows.entries()) {
      if (y < top + each.parts[run] + 2 && row >= 0) {
        const lanes = this.runs[run].lanes(row);
        const lane = lanes[Math.max(0, Math.min(lanes.length - 1, Math.floor(((y - top) / each.parts[run]) * lanes.length)))];
        const t = this.timeAt(x) - this.runs[run].shift, reach = 2 * this.perPx;
        let i = above(lane.start, t) - 1;
        if (i < 0 || lane.end[i] < t - reach) i++;
        return i < lane.start.length && lane.start[i] <= t + reach ? { run, row, interval: lane.interval[i] } : null;
      }
      top += each.parts[run] + 3;
    }
    return null;
  }

  /** Returns place and length of the scroll bar, and how far a pixel of it scrolls; null if all rows are visible. */
  bar() {
    const room = this.height - this.top, all = this.rows.height + 8;
    if (!(all > room)) return null;
    const height = Math.max(24, (room * room) / all);
    const by = (all - room) / (room - height);
    return { y: this.top + this.scroll / by, height, by };
  }

  /** Returns where an interval is on the canvas: in its lane, or in the closed group that contains it. */
  box({ run, row, interval }) {
    const of = this.runs[run], { start, end } = of.columns;
    const place = this.rows.anchor(run, row);
    if (!place) return null;
    let { height } = place, y = this.top + place.y - this.scroll;
    if (!place.closed && interval >= 0) {
      const lanes = of.lanes(row), n = lanes.length;
      const lane = n > 1 ? Math.max(0, lanes.findIndex((each) => each.interval[above(each.interval, interval) - 1] === interval)) : 0;
      y += (height * lane) / n;
      height = height / n - (n > 1 ? 1 : 0);
    }
    const x0 = interval < 0 ? GUTTER : this.xOf(start[interval] + of.shift);
    const x1 = interval < 0 ? GUTTER : this.xOf(end[interval] + of.shift);
    return { x0, x1, y, height, closed: place.closed };
  }
}
