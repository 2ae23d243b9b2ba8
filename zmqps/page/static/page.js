"use strict";
/* Asks what there is to see, each second, and shows it; says so without an answer, and asks on. */

const SPANS = [[300, "5 min"], [3600, "1 h"], [86400, "1 day"], [604800, "1 week"]];
/* A plot moves by a pixel in so many milliseconds, or less: more often it is not asked for. */
const EVERY_MS = { 300: 1000, 3600: 5000, 86400: 60000, 604800: 600000 };
const ASK_MS = 1000;
const PATIENCE_MS = 8000;
/* What is drawn reaches back so far at least. */
const LEAST_S = 30;

const Page = {
  span: 300,
  viewedAt: 0,
  series: [],
  live: null,
  offset: 0,
  answeredAt: Date.now(),
  timer: null,
  busy: false,

  start() {
    document.getElementById("theme").addEventListener("click", Page.turn);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", Page.dress);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) Page.ask(); });
    Page.dress();
    Page.choose(300);
  },

  choose(span) {
    Page.span = span;
    Page.viewedAt = -Infinity;
    Words.fill("spans", ...SPANS.map(([seconds, text]) => {
      const button = Words.el("button", "", text);
      button.type = "button";
      button.setAttribute("aria-pressed", String(seconds === span));
      button.addEventListener("click", () => Page.choose(seconds));
      return button;
    }));
    Page.ask();
  },

  /** Ask once; then again in a second, whatever comes of it. */
  async ask() {
    if (Page.busy) return;
    Page.busy = true;
    clearTimeout(Page.timer);
    const span = Page.span;
    const whole = performance.now() - Page.viewedAt >= EVERY_MS[span];
    try {
      const answer = await fetch(whole ? `view.json?span=${span}` : "now.json", { signal: AbortSignal.timeout(PATIENCE_MS), credentials: "same-origin" });
      if (answer.status === 403) throw new Error("it asks for the token: open the address that zmqps has printed");
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.error);
      Page.take(told, span);
    } catch (error) {
      Page.failed(error);
    } finally {
      Page.busy = false;
      Page.timer = setTimeout(Page.ask, span === Page.span ? (document.hidden ? 10 * ASK_MS : ASK_MS) : 0);
    }
  },

  take(told, span) {
    Page.answeredAt = Date.now();
    document.getElementById("silence").hidden = true;
    Page.live = told.live;
    /* Answers are up to a second old: the least that was found is nearest to the difference of the two clocks. */
    const found = Date.now() / 1000 - told.live.now;
    Page.offset = Math.abs(found - Page.offset) > 5 ? found : Math.min(found, Page.offset);
    if (told.series && span === Page.span) {
      Page.series = told.series;
      Page.viewedAt = performance.now();
    }
    Page.draw();
  },

  failed(error) {
    const since = Page.answeredAt / 1000;
    const box = document.getElementById("silence");
    const why = error instanceof TypeError || error.name === "TimeoutError" ? "" : ` (${error.message})`;
    box.textContent = `The coordinator does not answer since ${Words.clock(since)}, ${Words.ago(Date.now() / 1000 - since)}${why}. What is below is what it said then; this page asks again each second.`;
    box.hidden = false;
  },

  draw() {
    if (!Page.live) return;
    const live = Page.live;
    const to = live.now + Page.offset, from = Page.since(live, to);
    const latest = new Latest(Page.series, live.now);
    Inks.meet(live, Page.series);
    Panels.headline(live);
    Panels.jobs(live, latest);
    Panels.bars(live);
    Panels.placement(live);
    Panels.nodes(live, latest);
    Panels.events(live, Page.offset, from, to);
    Plots.show(Page.series, Page.offset, from, to);
  },

  /** From when on something is drawn: as far back as one looks, or from the first that there is. */
  since(live, to) {
    const firsts = [...live.events.map((event) => event.t), ...Page.series.filter((one) => one.points.length).map((one) => one.points[0][0])];
    const first = firsts.reduce((least, at) => Math.min(least, at), live.now) + Page.offset;
    return Math.max(to - Page.span, Math.min(first - 1, to - LEAST_S));
  },

  /** Light, dark, or what the system prefers. */
  dress() {
    const chosen = Page.remembered();
    const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.getElementById("theme").textContent = `theme: ${chosen || "system"}`;
    Page.draw();
  },

  turn() {
    const next = { "": "light", light: "dark", dark: "" }[Page.remembered()];
    try { localStorage.setItem("zmqps-theme", next); } catch { /* a browser that keeps nothing */ }
    Page.dress();
  },

  remembered() {
    let kept = "";
    try { kept = localStorage.getItem("zmqps-theme"); } catch { /* a browser that keeps nothing */ }
    return kept === "light" || kept === "dark" ? kept : "";
  },
};

/** What each series says now, a rate as the mean of some seconds; nothing if that is a minute old, or older than two points. */
class Latest {
  constructor(series, now) {
    this.found = new Map();
    for (const one of series) {
      const last = one.points[one.points.length - 1];
      if (last && now - last[0] < Math.max(60, 2 * one.every)) this.found.set(JSON.stringify([one.job, one.node, one.name]), one.name.endsWith("_per_second") ? smoothed(one.points).pop()[1] : last[1]);
    }
  }

  of(job, node, name) {
    const value = this.found.get(JSON.stringify([job, node, name]));
    return value === undefined ? NaN : value;
  }
}

Page.start();
