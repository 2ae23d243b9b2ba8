"use strict";
/* What is in words, tables and bars: the barrier, jobs, placement, staleness, nodes, events. */

/* Kinds of events that are no good news, and those that are. */
const BAD = new Set(["lost", "failed", "checkpoint failed"]);
const GOOD = new Set(["checkpoint", "began", "started", "joined"]);

/* The time line has a row for each of these; the last one has what is in no other. */
const LANES = [
  ["nodes", ["joined", "left", "lost"]],
  ["jobs", ["began", "ended", "failed"]],
  ["checkpoints", ["checkpoint", "checkpoint failed"]],
  ["copies", ["promoted", "moved"]],
  ["cluster", []],
];

const Panels = {
  /** Say what a step waits for, and which worker is slow. */
  headline(live) {
    const lines = [];
    const several = Object.keys(live.jobs).length > 1;
    const of = (job) => (several ? `job ${job}: ` : "");
    for (const [name, slow] of Object.entries(live.slowest)) {
      lines.push(Words.el("p", "wait", `${of(name)}slowest: ${slow.text}`));
    }
    for (const wait of live.waits) lines.push(Words.el("p", "", of(wait.job) + wait.text));
    for (const [name, job] of Object.entries(live.jobs)) {
      if (job.lost) lines.push(Words.el("p", "bad", `${of(name)}${job.lost}`));
      if (live.waits.some((wait) => wait.job === name)) continue;
      const at = job.steps && job.steps.step !== undefined ? `, step ${Words.number(job.steps.step)}` : "";
      if (live.slowest[name]) lines.push(Words.el("p", "", `${of(name)}${job.state}${at}`)); // the slow worker is named above
      else lines.push(Words.el("p", job.state === "training" ? "good" : "", `${of(name)}${job.state}${at}: no node is awaited`));
    }
    if (!Object.keys(live.jobs).length) lines.push(Words.el("p", "", "no job is being trained"));
    const told = new Set(live.waits.map((wait) => `job '${wait.job}': step waits for `));
    for (const text of live.waiting.filter((one) => ![...told].some((start) => one.startsWith(start)))) lines.push(Words.el("p", "dim", text));
    for (const text of live.left_out) lines.push(Words.el("p", "dim", `not shown: ${text}`));
    Words.fill("headline", ...lines);
    document.getElementById("cluster").textContent = `${live.endpoint} on ${live.host}: ${live.state}, up ${Words.seconds(live.uptime_s)}`;
    document.title = `zmqps: ${Object.keys(live.jobs).join(", ") || live.state}`;
  },

  jobs(live, latest) {
    const pushes = (name) => live.members.filter((one) => one.job === name).reduce((sum, one) => sum + (one.counters.pushes || 0), 0);
    const rows = Object.entries(live.jobs).map(([name, job]) => ({ kind: "", cells: [
      name, [job.state, job.state === "training" ? "good" : ""], job.mode, job.optimizer, Words.number(job.workers),
      job.steps.step === undefined ? `${Words.number(pushes(name))} pushes` : Words.number(job.steps.step), Words.number(latest.of(name, "", "steps_per_second")),
      Words.number(job.parameters), Words.nbytes(job.nbytes),
      job.checkpoint_failed ? [`failed: ${job.checkpoint_failed}`, "bad long"] : job.checkpoint.version === undefined ? "none" : Words.ago(job.checkpoint.ago_s),
    ] }));
    for (const entry of live.ended) {
      if (entry.job in live.jobs) continue;
      rows.push({ kind: "", cells: [entry.job, [`ended ${Words.ago(entry.ago_s)}: ${entry.how}`, "dim long"], ...Array(8).fill("")] });
    }
    Words.fill("jobs", ...Words.table(["job", "state", "mode", "optimizer", ">workers", ">step", ">steps/s", ">parameters", ">size", "checkpoint"], rows));
  },

  /** Draw where parameters are: a row a server, a piece for each shard that it owns, a pale one for each copy. */
  placement(live) {
    const cards = [];
    for (const [name, job] of Object.entries(live.jobs)) {
      if (!job.placement.length) continue;
      const shards = new Map(job.placement.map((row) => [row.shard, row]));
      const held = new Map();
      for (const copy of [...job.copies].sort((a, b) => a.backup - b.backup || a.shard - b.shard)) {
        if (!shards.has(copy.shard)) continue;
        if (!held.has(copy.server)) held.set(copy.server, []);
        held.get(copy.server).push(copy);
      }
      const size = (copies) => copies.reduce((sum, copy) => sum + shards.get(copy.shard).nbytes, 0);
      const most = Math.max(1, ...[...held.values()].map(size));
      const owners = new Map(job.copies.filter((copy) => !copy.backup).map((copy) => [copy.shard, copy.server]));
      const owner = (shard) => Inks.of(name, owners.get(shard) || `shard ${shard}`);
      const bars = Words.el("div", "holders");
      for (const [server, copies] of [...held].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }))) {
        const bar = Words.el("div", "shards");
        for (const copy of copies) {
          const row = shards.get(copy.shard);
          const piece = Words.el("div", `${Inks.colour(owner(copy.shard))}${copy.backup ? " copy" : ""}`, `${copy.backup ? "copy of " : ""}shard ${copy.shard}`);
          piece.style.width = `${(100 * row.nbytes) / most}%`;
          piece.title = `${copy.backup ? "copy of " : ""}shard ${row.shard}, ${Words.nbytes(row.nbytes)}: ${Panels.range(row)}`;
          bar.append(piece);
        }
        bars.append(Words.el("span", "", Inks.swatch(name, server), server), bar, Words.el("span", "number", Words.nbytes(size(copies))));
      }
      const who = (shard, backup) => job.copies.filter((copy) => copy.shard === shard && copy.backup === backup).map((copy) => copy.server).join(", ");
      const rows = job.placement.map((row) => ({ kind: "", cells: [
        `shard ${row.shard}`, who(row.shard, false), who(row.shard, true) || "none", Words.nbytes(row.nbytes), Words.percent(row.share), [Panels.range(row), "long"],
      ] }));
      const table = Words.el("table", "", ...Words.table(["shard", "owner", "copies", ">size", ">share", "parameters"], rows));
      const more = job.num_shards > job.placement.length ? `; the first ${job.placement.length} of ${job.num_shards} shards` : "";
      const head = Words.el("h2", "", "Placement ", Words.el("span", "dim", `of job ${name}: which server holds which shard${more}`));
      cards.push(Words.el("section", "", head, bars, Words.el("div", "wide", table)));
    }
    Words.fill("placement", ...cards);
  },

  range(row) {
    return row.first === row.last ? row.first : `${row.first} … ${row.last}`;
  },

  /** Draw for how long others waited for each worker of a job, and how stale gradients were. */
  bars(live) {
    const cards = [];
    const card = (title, words, rows) => {
      const most = Math.max(...rows.map((row) => row.size));
      const cells = rows.flatMap((row) => {
        const bar = Words.el("div", "bar");
        bar.style.width = `${(100 * row.size) / most}%`;
        if (row.ink) bar.classList.add(row.ink);
        return [Words.el("span", row.slow ? "wait" : "", ...(row.spot ? [row.spot] : []), row.label), bar, Words.el("span", "number", row.text)];
      });
      cards.push(Words.el("div", "card", Words.el("h2", "", `${title} `, Words.el("span", "dim", words)), Words.el("div", "bars", ...cells)));
    };
    for (const [name, awaited] of Object.entries(live.awaited_s)) {
      const slow = live.slowest[name] ? live.slowest[name].node : "";
      card("Barrier waits", `of job ${name}: how long others waited for a worker alone`,
        Object.entries(awaited).map(([node, seconds]) => ({ label: node, size: seconds, text: Words.seconds(seconds), slow: node === slow, spot: Inks.swatch(name, node), ink: Inks.colour(Inks.of(name, node)) })));
    }
    for (const name of Object.keys(live.jobs)) {
      const rows = Panels.histogram(live, name);
      if (rows.length) card("Staleness", `of pushes to job ${name}: updates by others since the read`, rows);
    }
    Words.fill("bars", ...cards);
  },

  /** The staleness of all pushes of a job, a row for each size up to the largest. */
  histogram(live, job) {
    const bounds = live.bounds.staleness;
    const counts = Array(bounds.length + 1).fill(0);
    for (const member of live.members) {
      const told = member.counters.staleness;
      if (member.job !== job || !Array.isArray(told) || told.length !== counts.length + 1) continue;
      told.slice(1).forEach((number, at) => { counts[at] += number; });
    }
    const all = counts.reduce((sum, number) => sum + number, 0);
    const last = counts.reduce((found, number, at) => (number ? at : found), -1);
    return counts.slice(0, last + 1).map((number, at) => {
      const low = at ? bounds[at - 1] + 1 : 0;
      const label = at === bounds.length ? `> ${bounds[at - 1]}` : low >= bounds[at] ? `${bounds[at]}` : `${low}–${bounds[at]}`;
      return { label, size: number, text: `${Words.number(number)} (${Words.percent(number / all)})` };
    });
  },

  nodes(live, latest) {
    const slow = new Set(Object.entries(live.slowest).map(([job, one]) => `${job} ${one.node}`));
    const rows = live.members.map((member) => {
      const node = `${member.role} ${member.rank}`;
      const figure = (name) => latest.of(member.job, node, name);
      return { kind: slow.has(`${member.job} ${node}`) ? "slow" : "", cells: [
        Words.el("span", "", Inks.swatch(member.job, node), slow.has(`${member.job} ${node}`) ? `${node} (slowest)` : node), member.job, member.name, member.host, Words.percent(figure("cpu")), Words.nbytes(figure("rss_nbytes")),
        Words.seconds(figure("step_seconds")), Words.nbytes(figure("bytes_sent_per_second")), Words.nbytes(figure("bytes_received_per_second")),
        [Words.ago(member.silent_s), member.silent_s > 3 ? "bad" : ""], [member.counters.doing || "", "long"],
      ] };
    });
    for (const member of live.gone) {
      rows.push({ kind: "", cells: [`${member.role} ${member.rank}`, member.job, member.name, member.host, ...Array(5).fill(""), Words.ago(member.ago_s), [member.how, member.how === "lost" ? "bad" : "dim"]] });
    }
    Words.fill("nodes", ...Words.table(["node", "job", "name", "host", ">processor", ">memory", ">step time", ">sent/s", ">received/s", ">last sign of life", "doing"], rows));
  },

  events(live, offset, from, to) {
    const kind = (event) => (BAD.has(event.kind) || event.level === "error" ? "bad" : event.level === "warning" ? "wait" : GOOD.has(event.kind) ? "good" : "");
    const known = new Set(LANES.flatMap(([, kinds]) => kinds));
    const cells = [];
    for (const [label, kinds] of LANES) {
      const events = live.events.filter((event) => (kinds.length ? kinds.includes(event.kind) : !known.has(event.kind)));
      if (!events.length) continue;
      const lane = Words.el("div", "lane");
      for (const event of events.filter((one) => one.t + offset >= from)) {
        const dot = Words.el("i", kind(event));
        dot.style.left = `${Math.min(100, (100 * (event.t + offset - from)) / (to - from))}%`;
        dot.title = `${Words.clock(event.t + offset)} ${event.kind}: ${event.text}`;
        lane.append(dot);
      }
      cells.push(Words.el("span", "dim", label), lane);
    }
    const far = to - from > 40000;
    const times = [0, 1, 2, 3, 4].map((at) => Words.el("b", "", Words.clock(from + (at * (to - from)) / 4, far)));
    Words.fill("timeline", ...cells, Words.el("span", ""), Words.el("div", "times", ...times));
    const rows = [...live.events].reverse().map((event) => ({ kind: "", cells: [
      [Words.clock(event.t + offset, live.now - event.t > 40000), "clock"], [event.kind, kind(event)], event.job, [event.text, "long"],
    ] }));
    Words.fill("events", ...Words.table(["time", "what", "job", ""], rows));
  },
};
