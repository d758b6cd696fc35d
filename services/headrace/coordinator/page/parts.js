// Makes the page's parts of what the API says. All text goes in as text, never as HTML: names come from users and data sets.

export const CAUSES = {
  lane_wait: "no worker held the lane",
  slot_wait: "all slots in use",
  worker_busy: "workers busy with other batches",
  read: "reading the shards",
  decode: "decoding",
  augment: "augmenting",
  transfer: "on the way to the trainer",
  copy: "the trainer picking it up",
};
const TREND = { rising: "rising ↑", falling: "falling ↓", flat: "steady" };
const ORDER = ["input-bound", "balanced", "compute-bound", "unknown"];
const RANKS_SHOWN = 24;

// An element with classes and children; texts become text nodes.
export function make(tag, classes, ...children) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  made.append(...children.flat().filter((child) => child !== null && child !== ""));
  return made;
}

export function percent(share) {
  const value = 100 * share;
  return value !== 0 && value < 10 ? `${value.toFixed(1)}%` : `${value.toFixed(0)}%`;
}

export function span(seconds) {
  if (seconds < 100) return `${seconds.toFixed(0)} s`;
  if (seconds < 6000) return `${(seconds / 60).toFixed(0)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(0)} h` : `${(seconds / 86400).toFixed(0)} days`;
}

// Long ids by their beginning; the whole one is told by the pointer, and by the API.
function short(id) {
  const cut = /^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(id) ? id.slice(0, 8) : id.split(";")[0];
  const made = make("span", "", cut);
  made.title = id;
  return made;
}

export function legend() {
  return Object.entries(CAUSES).map(([cause, text]) => make("li", "", make("span", `swatch ${cause}`), `${cause}: ${text}`));
}

// Those who need a person first; jobs that nobody trains last.
export function worstFirst(jobs) {
  const place = (job) => (job.ranks_live ? ORDER.indexOf(job.verdict) : ORDER.length);
  return [...jobs].sort((a, b) => place(a) - place(b) || b.starvation_ratio - a.starvation_ratio || (a.job < b.job ? -1 : 1));
}

export function jobCard(job, detail, isOpen, onToggle) {
  const card = make("details", "card job");
  card.dataset.key = job.job;
  card.dataset.drawn = isOpen ? "open" : "closed";
  card.open = isOpen;
  // The page itself opens and closes cards, too, and hears of that here: only what differs from it was a person.
  card.addEventListener("toggle", () => {
    if (card.open !== (card.dataset.drawn === "open")) onToggle(job.job, card.open);
  });
  card.append(make("summary", "", ...jobHead(job)));
  if (!isOpen) return card;
  card.append(make("p", "why", sentence(job.why)));
  if (job.verdict !== "unknown") card.append(make("p", "", "What to do: ", make("span", "action", sentence(job.action))));
  if (!detail) return card;
  card.append(make("h3", "", "Ranks, worst first"), ranks(detail.ranks), make("h3", "", "Lanes"), lanes(detail));
  card.append(...bad(detail), facts(detail));
  return card;
}

function sentence(text) {
  return text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "";
}

function jobHead(job) {
  const known = job.verdict !== "unknown";
  const idle = job.ranks_live === 0;
  return [
    make("span", "name", job.job),
    make("span", `badge ${idle ? "" : job.verdict}`, idle ? "no rank is live" : job.verdict),
    known ? make("span", "", `rank ${job.worst_rank} waits ${percent(job.starvation_ratio)}`) : "",
    known && job.cause ? make("span", "", `most: ${job.cause}`) : "",
    known ? make("span", "quiet", TREND[job.trend] ?? job.trend) : "",
    make("span", "quiet", `${job.ranks_live} of ${job.world} ranks live`),
    job.lanes_unowned ? make("span", "warning", `${job.lanes_unowned} of ${job.lanes} lanes without a live worker`) : "",
  ];
}

function ranks(all) {
  const sorted = [...all].sort((a, b) => b.live - a.live || b.recent_starvation_ratio - a.recent_starvation_ratio || a.rank - b.rank);
  const box = make("div", "ranks", sorted.slice(0, RANKS_SHOWN).map(rank));
  if (sorted.length > RANKS_SHOWN) {
    box.append(make("p", "quiet", `and ${sorted.length - RANKS_SHOWN} more ranks, which wait less; the API has them all`));
  }
  return box;
}

function rank(one) {
  const shares = Object.entries(one.recent_share_by_cause).sort((a, b) => b[1] - a[1]);
  const told = shares.filter(([, share]) => share >= 0.001).slice(0, 3).map(([cause, share]) => `${cause} ${percent(share)}`);
  const said = `waits ${percent(one.recent_starvation_ratio)}${told.length ? `: ${told.join(", ")}` : ""}`;
  const bar = make("div", "bar", Object.keys(CAUSES).filter((cause) => one.recent_share_by_cause[cause]).map((cause) => {
    const part = make("span", cause);
    part.style.width = `${100 * one.recent_share_by_cause[cause]}%`;
    part.title = `${cause} ${percent(one.recent_share_by_cause[cause])}`;
    return part;
  }));
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", said);
  const state = one.live ? "" : one.left ? " (has left)" : " (silent)";
  const row = make("div", "rank", make("span", one.live || one.left ? "" : "warning", `rank ${one.rank}${state}`), bar, make("span", "said", said));
  const more = [`${one.consumed} batches taken, ${one.committed} committed`, `waited ${one.wait_s.toFixed(1)} of ${one.elapsed_s.toFixed(1)} s in all`];
  if (one.transport) more.push(`by ${one.transport}`);
  if (one.waiting_s > 1) more.push(`waiting for ${span(one.waiting_s)} now`);
  row.append(make("span", "quiet more", more.join(" · "), one.node ? " · on node " : "", one.node ? short(one.node) : ""));
  row.dataset.rank = one.rank;
  return row;
}

// 0, 1, 2, 5 -> "0-2, 5"
export function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  const texts = found.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`));
  return texts.length > 12 ? `${texts.slice(0, 12).join(", ")}, …` : texts.join(", ");
}

function lanes(job) {
  const held = new Map();
  for (const { lane, worker } of job.lane_owners) held.set(worker, [...(held.get(worker) ?? []), lane]);
  const told = new Set(job.lane_owners.map(({ lane }) => lane));
  const never = Array.from({ length: job.lanes }, (_, lane) => lane).filter((lane) => !told.has(lane));
  if (never.length) held.set("", [...(held.get("") ?? []), ...never].sort((a, b) => a - b));
  if (!held.size) return make("p", "quiet", "none yet");
  const rows = [...held].sort((a, b) => (a[0] < b[0] ? -1 : 1)).map(([worker, numbers]) => [
    worker ? make("span", "", worker) : make("span", "warning", "nobody"), numbers.length, ranges(numbers),
  ]);
  return table([["worker"], ["lanes", "number"], ["which"]], rows);
}

function bad(job) {
  if (job.stop_index >= 0) return [make("p", "warning", `All ranks stop: ${job.stop_why}`)];
  if (!job.bad_samples_total) return [];
  const rows = job.bad_samples.slice(0, 10).map((one) => [one.key, one.reason, one.count, one.last_epoch]);
  return [
    make("h3", "", `Bad samples: met ${job.bad_samples_total} times, replaced by good ones`),
    table([["key"], ["reason"], ["epochs", "number"], ["last epoch", "number"]], rows),
    make("p", "quiet", "all of them: ", make("code", "", `headrace quarantine ${job.job}`)),
  ];
}

function facts(job) {
  return make("p", "quiet", [
    `${job.samples} samples of ${job.dataset}`, `batches of ${job.batch_size}`, `attempt ${job.attempt}`, `window ${job.window}`,
    `${job.lanes_moved} lanes moved`, `${job.batches_remade} batches remade`, "engine ",
  ].join(" · "), short(job.fingerprint || "not chosen yet"));
}

export function pools(classes) {
  const rows = classes.map((one) => [
    one.pool || "(none)", short(one.fingerprint), one.workers_live,
    make("span", one.workers_desired > one.workers_live ? "warning" : "", `${one.workers_desired}`),
    one.samples_per_s ? one.samples_per_s.toFixed(0) : "?", one.samples_wanted_per_s.toFixed(0),
  ]);
  const heads = [["pool"], ["engine"], ["live", "number"], ["wanted", "number"], ["samples/s of one", "number"], ["samples/s asked", "number"]];
  return rows.length ? [table(heads, rows)] : [];
}

// A coordinator that has not read the store since it began has nothing that was read before.
export function troubles(replica) {
  const error = replica.store_error;
  if (replica.loaded || !error) return replica.troubles;
  const why = `nothing is known yet of jobs and workers: this coordinator has not read the store since it began: ${error.replace(/\.+$/, "")}`;
  return [why, ...replica.troubles.filter((text) => !text.includes(error))];
}

// One that drained and is heard no more has left, as it was told to.
function workerState(one) {
  if (one.live) return one.draining ? "drains" : "serves";
  return one.draining ? "has left" : "silent";
}

export function workers(all, loaded) {
  if (!all.length && !loaded) return [make("p", "quiet", "Which workers there are is not known yet.")];
  if (!all.length) return [make("p", "warning", "No worker is known: start some, and see that they name this coordinator.")];
  const rows = all.map((one) => [
    one.worker, make("span", one.live || one.draining ? "" : "warning", workerState(one)), short(one.node),
    one.samples_per_s ? one.samples_per_s.toFixed(0) : "?", Object.values(one.lanes_by_job).reduce((sum, lanes) => sum + lanes, 0),
    one.unable_jobs.length ? make("span", "warning", `cannot open ${one.unable_jobs.join(", ")}`) : "",
  ]);
  return [table([["worker"], ["state"], ["node"], ["samples/s", "number"], ["lanes", "number"], [""]], rows)];
}

export function events(all, nowS) {
  if (!all.length) return [make("li", "quiet", "none yet")];
  return all.map((one) => make("li", "", make("span", "quiet", `${span(Math.max(0, nowS - one.at_s))} ago`),
    make("span", one.level === "warning" ? "warning" : "", one.kind.replaceAll("_", " ")),
    make("span", "text", `${one.job ? `${one.job}: ` : ""}${one.text}${one.count > 1 ? ` (${one.count} such)` : ""}`)));
}

function table(heads, rows) {
  const cell = (tag, content, [name, kind]) => {
    const made = make(tag, kind ?? "", typeof content === "number" ? `${content}` : content);
    if (tag === "td") made.dataset.name = name;
    return made;
  };
  const head = make("thead", "", make("tr", "", heads.map((one) => cell("th", one[0], one))));
  return make("table", "", head, make("tbody", "", rows.map((row) => make("tr", "", row.map((content, i) => cell("td", content, heads[i]))))));
}
