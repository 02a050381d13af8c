// What differs between two runs in one timeline.

/** Returns a change of a time, with the share of what it was. */
function differenceText(by, from) {
  return `${by < 0 ? "−" : "+"}${timeText(Math.abs(by))}${from ? ` (${by < 0 ? "−" : "+"}${Math.abs((100 * by) / from).toFixed(1)} %)` : ""}`;
}

class TimelineComparison {
  #deltas = [];

  constructor(runs) {
    this.runs = runs;
    this.pairs = runs.length < 2 ? [] : this.#pairs();
  }

  /** Shifts the first run so that both start a launch at the same time: that of a pair, or the start if there is none. */
  align(pair) {
    this.runs[0].shift = pair ? pair.b[1] - pair.a[1] : 0;
  }

  /** Returns the times of the interval at the same place of its row, `there`, in the other run; null if there is none. */
  counterpart(run, row, interval, there) {
    const other = this.runs[1 - run];
    if (!other || there < 0) return null;
    const [first, last] = other.range(there);
    const at = first + interval - this.runs[run].range(row)[0];
    return at < last ? { start: other.columns.start[at], end: other.columns.end[at] } : null;
  }

  /** Shades, for each launch of both runs, the time by which one ended later. */
  shade(pen, place, colours) {
    this.#deltas = [];
    for (const { name, a: [, start, end], b: other } of this.pairs) {
      const a = place.xOf(end + this.runs[0].shift), b = place.xOf(other[2] + place.last.shift);
      const x0 = Math.max(GUTTER, Math.min(a, b)), x1 = Math.min(place.width, Math.max(a, b));
      if (x1 <= x0) continue;
      const colour = b > a ? colours.path : colours.accent;
      pen.globalAlpha = 0.14;
      pen.fillStyle = colour;
      pen.fillRect(x0, place.top, x1 - x0, place.height - place.top);
      pen.globalAlpha = 1;
      pen.fillRect(b > a ? x1 - 1 : x0, place.top, 1, place.height - place.top);
      this.#deltas.push({ middle: (x0 + x1) / 2, colour, text: `${name}: ${differenceText(other[2] - other[1] - (end - start), end - start)}` });
    }
  }

  /** Says how much longer or shorter each launch took; a label that would cover the one before is above it. */
  label(pen, place, colours) {
    pen.font = `600 12px ${colours.font}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    let before = Infinity, y = place.height - 30;
    for (const { middle, colour, text } of [...this.#deltas].reverse()) {
      const width = pen.measureText(text).width + 12;
      const left = Math.max(GUTTER + 4, Math.min(place.width - BAR - width - 4, middle - width / 2));
      y = left + width > before ? y - 26 : place.height - 30;
      before = left;
      if (y < place.top) return;
      pen.fillStyle = colours.bg;
      pen.fillRect(left, y, width, 22);
      pen.lineWidth = 1;
      pen.strokeStyle = colour;
      pen.strokeRect(left + 0.5, y + 0.5, width - 1, 21);
      pen.fillStyle = colours.text;
      pen.fillText(text, left + 6, y + 11.5);
    }
  }

  /** Returns the launches of both runs that belong together: of one name, or in one place if the names differ. */
  #pairs() {
    const [before, after] = this.runs;
    return before.launches.flatMap((a, i) => {
      const b = after.launches.find(([name]) => name === a[0]) ?? after.launches[i];
      return b && (b[0] === a[0] || !before.launches.some(([name]) => name === b[0])) ? [{ name: a[0] === b[0] ? a[0] : `${a[0]} → ${b[0]}`, a, b }] : [];
    });
  }
}
