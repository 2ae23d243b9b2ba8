"use strict";
/* Elements and words. What others have chosen (names of nodes, jobs, values) becomes text, and never markup. */

const Words = {
  /** Return an element with a class and text or elements in it. */
  el(tag, kind, ...inside) {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    for (const one of inside) made.append(one instanceof Node ? one : document.createTextNode(String(one)));
    return made;
  },

  /** Put elements in the place of what is in another one. */
  fill(id, ...inside) {
    document.getElementById(id).replaceChildren(...inside);
  },

  /** A number with three digits, without zeros at their end. */
  brief(number) {
    return String(Number(number.toPrecision(3)));
  },

  // The next three say what zmqps/words.py says.

  nbytes(number) {
    if (!Number.isFinite(number)) return "";
    if (number < 999.5) return `${Math.round(number)} B`;
    const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let at = 0;
    while (number >= 999.5 && at < units.length - 1) { number /= 1000; at += 1; }
    return `${Words.brief(number)} ${units[at]}`;
  },

  seconds(number) {
    if (!Number.isFinite(number)) return "";
    if (number < 0) return `-${Words.seconds(-number)}`;
    if (number === 0) return "0 s";
    if (number * 1e6 < 999.5) return `${Words.brief(number * 1e6)} µs`;
    if (number * 1e3 < 999.5) return `${Words.brief(number * 1e3)} ms`;
    if (number < 59.95) return `${Words.brief(number)} s`;
    for (const [most, count, unit, each, part] of [[60, 60, "min", 1, "s"], [24, 60, "h", 60, "min"], [1000, 24, "d", 3600, "h"]]) {
      const parts = Math.round(number / each), whole = Math.floor(parts / count), rest = parts % count;
      if (whole < most) return rest ? `${whole} ${unit} ${rest} ${part}` : `${whole} ${unit}`;
    }
    return "over 999 d";
  },

  /** How long ago something was: a tenth of a second is as much as anybody reads. */
  ago(number) {
    if (!Number.isFinite(number)) return "";
    return Math.abs(number) < 9.95 ? `${number.toFixed(1)} s ago` : `${Words.seconds(Math.round(number))} ago`;
  },

  /** A number at an axis: its words without the zeros at their end. */
  tick(text) {
    return text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
  },

  number(value) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "";
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en");
    return size !== 0 && (size < 0.001 || size >= 1e7) ? value.toExponential(2) : value.toPrecision(4);
  },

  percent(share) {
    if (share > 0 && share < 0.0005) return "< 0.1 %";
    return Number.isFinite(share) ? `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %` : "";
  },

  clock(seconds, withDay) {
    const when = new Date(seconds * 1000);
    const time = when.toLocaleTimeString("en-GB");
    return withDay ? `${when.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}` : time;
  },

  /** Return a table's rows: heads, then cells that are texts, or elements. A head that begins with ">" has numbers. */
  table(heads, rows) {
    const right = heads.map((head) => head.startsWith(">"));
    const head = Words.el("tr", "", ...heads.map((text, at) => Words.el("th", right[at] ? "number" : "", text.replace(/^>/, ""))));
    const body = rows.map(({ kind, cells }) => Words.el("tr", kind, ...cells.map((cell, at) => {
      const [text, style] = Array.isArray(cell) ? cell : [cell, ""];
      return Words.el("td", `${right[at] ? "number" : ""} ${style}`.trim(), text);
    })));
    return [Words.el("thead", "", head), Words.el("tbody", "", ...body)];
  },
};
