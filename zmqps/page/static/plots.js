"use strict";
/* Plots of series over time, by uPlot: one card a plot, a line for each series, a band where it has a least and a most. */

const COLOURS = 8;
/* Nodes beyond so many have the colours of others, and dashes. */
const DASHES = [[], [7, 4], [2, 3]];
/* More lines in one plot cannot be told apart. */
const MOST_LINES = 12;

/* A logged value whose largest is so many times its least is drawn on a logarithmic axis. */
const DECADES = 100;

/** Which colour each node has, everywhere on the page and as long as that is open; a job's own lines have one, too. */
const Inks = {
  found: new Map(),

  /** Give all that is known a colour: workers, servers, the rest, then jobs, each in the order of their numbers. */
  meet(live, series) {
    const known = live.members.map((one) => [one.job, `${one.role} ${one.rank}`]).concat(series.map((one) => [one.job, one.node]));
    const rank = (node) => (node ? { worker: 0, server: 1 }[node.split(" ")[0]] ?? 2 : 3);
    known.sort(([jobA, a], [jobB, b]) => rank(a) - rank(b) || jobA.localeCompare(jobB) || a.localeCompare(b, "en", { numeric: true }));
    for (const [job, node] of known) Inks.of(job, node);
  },

  /** The number of a node's colour, from 0; of a server, or another node of no job, whichever job asks. */
  of(job, node) {
    const key = JSON.stringify([node && !node.startsWith("worker ") ? "" : job, node]);
    if (!Inks.found.has(key)) Inks.found.set(key, Inks.found.size);
    return Inks.found.get(key);
  },

  colour: (ink) => `c${ink % COLOURS}`,
  dash: (ink) => Math.floor(ink / COLOURS) % DASHES.length,

  /** A spot of a node's colour. */
  swatch: (job, node) => Inks.spot(Inks.of(job, node)),
  spot: (ink) => Words.el("span", `swatch ${Inks.colour(ink)} dash${Inks.dash(ink)}`),
};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** One series as uPlot wants it: times, means, and if there is a band, least and most; null where there is a gap. */
function columns(points, every, offset) {
  const times = [], means = [], least = [], most = [];
  for (const [at, mean, low, high] of points) {
    const t = at + offset;
    const before = times[times.length - 1];
    if (before !== undefined && t - before > Math.max(5, 4 * every)) {
      times.push((t + before) / 2); means.push(null); least.push(null); most.push(null);
    }
    times.push(t); means.push(mean); least.push(low); most.push(high);
  }
  return { times, means, least, most };
}

/* A band shows the least and the most of so many seconds around a time. */
const BAND_S = 10;

/** Widen each point's least and most to those of its neighbours: a point of a second mostly has one value. */
function widened(points) {
  let first = 0, last = 0;
  return points.map(([at, mean, , , step]) => {
    while (points[first][0] < at - BAND_S / 2) first += 1;
    while (last < points.length && points[last][0] <= at + BAND_S / 2) last += 1;
    const near = points.slice(first, last);
    return [at, mean, Math.min(...near.map((one) => one[2])), Math.max(...near.map((one) => one[3])), step];
  });
}

/* Steps end when they end, so how many did in one second says little: rates are means of so many seconds. */
const RATE_S = 5;

/** Take for each point the mean of it and those shortly before it. */
function smoothed(points) {
  let first = 0;
  return points.map(([at, , low, high, step], last) => {
    while (points[first][0] <= at - RATE_S) first += 1;
    const near = points.slice(first, last + 1);
    return [at, near.reduce((sum, one) => sum + one[1], 0) / near.length, low, high, step];
  });
}

class Plot {
  constructor(host, { title, unit, say, banded, zero, rate, kind }) {
    this.say = say;
    this.banded = Boolean(banded);
    this.zero = Boolean(zero);
    this.rate = Boolean(rate);
    this.unit = unit;
    this.logged = kind === "value";
    this.note = Words.el("span", "dim");
    this.axis = Words.el("button", "axis");
    this.axis.type = "button";
    this.axis.hidden = true;
    this.axis.addEventListener("click", () => this.turn());
    this.log = null; // as one has chosen; else as the values are
    this.shown = [];
    this.ticks = [];
    this.place = Words.el("div", "plot");
    this.legend = Words.el("div", "legend");
    this.card = Words.el("div", "card", this.axis, Words.el("h2", "", `${title} `, this.note), this.place, this.legend);
    this.card.dataset.plot = title;
    host.append(this.card);
    this.chart = null;
    this.drawn = "";
    this.lines = [];
    new ResizeObserver(() => this.fit()).observe(this.place);
  }

  fit() {
    if (this.chart && this.place.clientWidth) this.chart.setSize({ width: this.place.clientWidth, height: 180 });
  }

  /** Turn the axis of values: logarithmic, or from one to another in equal steps. */
  turn() {
    this.log = !this.isLog;
    this.show(...this.shown);
  }

  /** Choose the axis of some lines: where all is positive one may, and over decades it is logarithmic. */
  choose(lines) {
    const all = lines.flatMap((line) => line.points.map((point) => point[1]));
    const least = Math.min(...all), most = Math.max(...all);
    const may = this.logged && all.length > 0 && least > 0 && Number.isFinite(most);
    this.isLog = may && (this.log === null ? most >= DECADES * least : this.log);
    this.isEmpty = all.length === 0;
    this.axis.hidden = !may;
    this.axis.textContent = `axis: ${this.isLog ? "log" : "linear"}`;
    this.axis.title = "turn the axis: logarithmic or linear";
  }

  /** Show lines, each {label, ink, points, every}; times are shifted by offset, and reach from a time to another. */
  show(lines, offset, from, to) {
    this.shown = [lines, offset, from, to];
    const latest = (line) => (line.points.length ? line.points[line.points.length - 1][1] : -Infinity);
    const steps = lines.map((line) => line.points[line.points.length - 1][4]).filter((step) => step !== null);
    const notes = [this.unit];
    if (steps.length && !this.rate) notes.push(`step ${Words.number(Math.max(...steps))}`);
    if (lines.length > MOST_LINES) notes.push(`the highest ${MOST_LINES} of ${lines.length}`);
    this.note.textContent = notes.join("; ");
    if (this.rate) lines = lines.map((line) => ({ ...line, points: smoothed(line.points) }));
    if (lines.length > MOST_LINES) lines = [...lines].sort((a, b) => latest(b) - latest(a)).slice(0, MOST_LINES);
    this.lines = lines;
    this.choose(lines);
    const tables = lines.map((line) => {
      const { times, means, least, most } = columns(this.banded ? widened(line.points) : line.points, line.every, offset);
      return this.banded ? [times, means, most, least] : [times, means];
    });
    const each = this.banded ? 3 : 1;
    const data = tables.length
      ? uPlot.join(tables, tables.map((table) => table.map(() => 2)))
      : [[]];
    const key = JSON.stringify([this.isLog, lines.map((line) => [line.label, line.ink]), document.documentElement.dataset.theme]);
    this.range = [from, to];
    if (key !== this.drawn) {
      if (this.chart) this.chart.destroy();
      this.chart = new uPlot(this.options(lines, each), data, this.place);
      this.drawn = key;
      this.fit();
    } else {
      this.chart.setData(data);
    }
    this.tell(null);
  }

  options(lines, each) {
    const series = [{}], bands = [];
    for (const line of lines) {
      const ink = colour(`--${Inks.colour(line.ink)}`);
      series.push({ stroke: ink, width: 1.6, dash: DASHES[Inks.dash(line.ink)], spanGaps: false, points: { size: 3 } });
      if (each === 3) {
        const edge = { stroke: "transparent", width: 0, points: { show: false } };
        bands.push({ series: [series.length, series.length + 1], fill: `${ink}33` });
        series.push(edge, { ...edge });
      }
    }
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, 'DejaVu Sans', sans-serif" };
    return {
      width: Math.max(200, this.place.clientWidth), height: 180, padding: [8, 26, 0, 0], series, bands,
      legend: { show: false }, cursor: { drag: { x: false, y: false }, y: false },
      scales: { x: { time: true, range: () => this.range }, y: this.isLog ? { distr: 3, log: 10, range: Plot.decades } : { range: (chart, low, high) => Plot.range(low, high, this.zero) } },
      axes: [
        { ...axis, size: 26, space: 70, values: (chart, splits) => splits.map((at) => Plot.when(at, this.range[1] - this.range[0])) },
        { ...axis, size: 58, space: 34, values: (chart, splits) => this.mark(splits), ...(this.isLog ? Plot.byDecades : {}) },
      ],
      hooks: { setCursor: [(chart) => this.tell(chart.cursor.idx)] },
    };
  }

  /** Return the words at the axis of values: none where nothing is drawn, and none twice. */
  mark(splits) {
    const words = splits.map((value) => (value === null || this.isEmpty ? "" : Words.tick(this.say(value))));
    const flat = this.lines.every((line) => line.points.every((point) => point[1] === 0));
    const marks = words.map((text, at) => (words.indexOf(text) === at && !(flat && splits[at] !== 0) ? text : ""));
    this.ticks = marks.filter(Boolean);
    return marks;
  }

  /** From a little below the least to a little above the most, on a logarithmic axis. */
  static decades(chart, low, high) {
    return low > 0 && high > 0 ? [low / 1.3, high * 1.3] : [0.1, 1];
  }

  /* A line for each power of ten; where these are few, two and five times as much, too. */
  static byDecades = {
    filter: (chart, splits) => splits,
    splits: (chart, axis, low, high) => {
      const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
      const every = Math.ceil((to - from) / 6), steps = to - from > 2 ? [1] : [1, 2, 5];
      const all = [];
      for (let power = from; power <= to; power += every) all.push(...steps.map((step) => Number(`${step}e${power}`)));
      return all.filter((value) => value >= low && value <= high);
    },
  };

  static when(at, span) {
    return span > 90000 ? Words.clock(at, true).replace(/:\d\d$/, "") : span > 600 ? Words.clock(at).slice(0, 5) : Words.clock(at);
  }

  /** From the least to the most; from zero what is a rate or a size, so that a third more looks like a third more. */
  static range(low, high, zero) {
    if (low === null || high === null) return [0, 1];
    if (low >= 0 && (zero || low < 0.5 * high)) low = 0;
    const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
    return [low === 0 ? 0 : low - room, high + room];
  }

  /** Say in the legend what the lines are at the cursor; at the end, where there is none. */
  tell(index) {
    const at = index === null || index === undefined ? null : this.chart.data[0][index];
    const each = this.banded ? 3 : 1;
    this.legend.replaceChildren(...this.lines.map((line, number) => {
      let value = null;
      if (at === null) {
        value = line.points[line.points.length - 1][1];
      } else {
        value = this.chart.data[1 + number * each][index];
      }
      const text = ` ${line.label}${value === null || value === undefined ? "" : `: ${this.say(value)}`}`;
      return Words.el("span", "", Inks.spot(line.ink), text);
    }));
  }

  remove() {
    if (this.chart) this.chart.destroy();
    this.card.remove();
  }
}

/* What is drawn of the figures, in this order; then a plot for each name that training scripts log. */
const FIGURES = [
  { name: "steps_per_second", title: "Steps", unit: "per second", say: Words.number, zero: true, rate: true },
  { name: "step_seconds", title: "Step time", unit: "by worker; the band is least to most", say: Words.seconds, banded: true, zero: true },
  { name: "bytes_sent_per_second", title: "Sent", unit: "bytes per second", say: Words.nbytes, zero: true, rate: true },
  { name: "bytes_received_per_second", title: "Received", unit: "bytes per second", say: Words.nbytes, zero: true, rate: true },
  { name: "rss_nbytes", title: "Memory", unit: "resident bytes", say: Words.nbytes, zero: true },
  { name: "cpu", title: "Processor", unit: "share of one core", say: Words.percent, zero: true },
  { name: "staleness", title: "Staleness", unit: "updates by others since the read", say: Words.number, banded: true, zero: true },
];
const MOST_VALUES = 16;

const Plots = {
  made: new Map(),

  /** Draw all series of a view, from a time to another. */
  show(series, offset, from, to) {
    const wanted = new Map();
    const values = [...new Set(series.filter((one) => one.kind === "value").map((one) => one.name))].sort();
    for (const name of values.slice(0, MOST_VALUES)) {
      wanted.set(`value ${name}`, { name, title: name, unit: "as logged", say: Words.number, kind: "value" });
    }
    const stale = series.some((one) => one.name === "staleness" && one.points.some((point) => point[3] > 0));
    for (const figure of FIGURES) {
      if (figure.name !== "staleness" || stale) wanted.set(`figure ${figure.name}`, { ...figure, kind: "figure" });
    }
    const jobs = new Set(series.map((one) => one.job).filter(Boolean));
    const host = document.getElementById("plots");
    for (const [key, plot] of Plots.made) {
      if (!wanted.has(key)) { plot.remove(); Plots.made.delete(key); }
    }
    for (const [key, what] of wanted) {
      const lines = series.filter((one) => one.kind === what.kind && one.name === what.name && one.points.length).map((one) => ({
        label: [jobs.size > 1 || !one.node ? one.job : "", one.node].filter(Boolean).join(", "), points: one.points, every: one.every, ink: Inks.of(one.job, one.node),
      }));
      if (!Plots.made.has(key)) {
        Plots.made.set(key, new Plot(host, what));
        Plots.order(host);
      }
      Plots.made.get(key).show(lines, offset, from, to);
    }
  },

  /** Steps first, then what scripts log, then the rest. */
  order(host) {
    const rank = (key) => (key === "figure steps_per_second" ? 0 : key.startsWith("value ") ? 1 : 2);
    const keys = [...Plots.made.keys()];
    keys.sort((a, b) => rank(a) - rank(b) || (rank(a) === 1 ? a.localeCompare(b) : FIGURES.findIndex((f) => `figure ${f.name}` === a) - FIGURES.findIndex((f) => `figure ${f.name}` === b)));
    host.append(...keys.map((key) => Plots.made.get(key).card));
  },
};
