// Asks the admin API every two seconds and shows what it says. All addresses are relative: the page works behind a path prefix.

import { fill } from "./fill.js";
import { events, jobCard, legend, make, pools, span, troubles, workers, worstFirst } from "./parts.js";

const EACH_MS = 2000;
const DEADLINE_MS = 10000;
const OPEN_AT_FIRST = 3;
const TOKEN = "headrace-admin-token";
const MOST_OPEN = 10;
const at = (id) => document.getElementById(id);

const opened = new Map(); // job -> whether somebody opened or closed its card; others go by their place
const details = new Map(); // job -> its last view
let answeredMs = 0;
let asking = false;
let again = false; // somebody opened a card while an answer was awaited that does not tell of it

class NoToken extends Error {}

async function ask(path) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(DEADLINE_MS) });
  if (answer.status === 401) throw new NoToken();
  if (!answer.ok) throw new Error(`${path}: HTTP status ${answer.status}`);
  return answer.json();
}

// Detail of a job; the last known where the store is away or the job has just gone.
async function detail(job) {
  try {
    details.set(job, await ask(`api/jobs/${encodeURIComponent(job)}`));
  } catch (error) {
    if (error instanceof NoToken) throw error;
  }
}

async function look() {
  const replica = await ask("api/replica");  // alone: without a token one request is refused, and not four
  const [jobs, fleet, classes] = await Promise.all(["api/jobs", "api/workers", "api/scaling"].map(ask));
  const sorted = worstFirst(jobs);
  const isOpen = (job, place) => opened.get(job.job) ?? place < OPEN_AT_FIRST;
  const open = sorted.filter(isOpen).slice(0, MOST_OPEN);
  await Promise.all(open.map((job) => detail(job.job)));
  show(replica, sorted, new Set(open.map((job) => job.job)), fleet, classes);
}

function show(replica, jobs, open, fleet, classes) {
  at("all").hidden = false;
  at("token").hidden = true;
  at("forget").hidden = !sessionStorage.getItem(TOKEN);
  const starving = jobs.filter((job) => job.ranks_live && job.verdict === "input-bound").length;
  document.title = starving ? `(${starving} starving) Headrace` : "Headrace";
  const leftS = Math.max(0, replica.certificate_not_after_s - replica.now_s);
  const certificate = replica.certificate_not_after_s ? ` · certificate good for ${span(leftS)}` : "";
  fill(at("replica"), `coordinator ${replica.host} · ${replica.version} · up ${span(replica.up_s)} · ` +
    `store ${replica.store_error ? "does not answer" : replica.loaded ? "answers" : "not read yet"}${certificate}`);
  fill(at("troubles"), ...troubles(replica).map((text) => make("p", "trouble", text)));
  const none = make("p", "quiet", replica.loaded
    ? "No job is open. A trainer opens one with client.job(…)." : "Which jobs are open is not known yet.");
  // Somebody may have opened or closed a card meanwhile.
  const cards = jobs.map((job) => jobCard(job, details.get(job.job), opened.get(job.job) ?? open.has(job.job), toggled));
  fill(at("jobs"), ...(jobs.length ? cards : [none]));
  fill(at("pools"), ...pools(classes));
  fill(at("workers"), ...workers(fleet, replica.loaded));
  fill(at("events-note"), `The last ${replica.events.length} that this replica saw; other replicas and its log have more.`);
  fill(at("events"), ...events(replica.events, replica.now_s));
  document.documentElement.dataset.shown = replica.now_s;
}

function toggled(job, isOpen) {
  opened.set(job, isOpen);
  if (!isOpen) return;
  if (asking) again = true;
  else refresh();
}

async function refresh() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    await look();
    answeredMs = Date.now();
  } catch (error) {
    if (error instanceof NoToken) askForToken();
    else silent(error);
  } finally {
    asking = false;
  }
  if (again) {
    again = false;
    refresh();
  }
}

function silent(error) {
  const since = answeredMs ? `for ${span((Date.now() - answeredMs) / 1000)}; what is shown is of then` : "yet";
  at("troubles").replaceChildren(make("p", "trouble", `This coordinator has not answered ${since} (${error.message}).`));
}

function askForToken() {
  const wrong = sessionStorage.getItem(TOKEN) !== null;
  sessionStorage.removeItem(TOKEN);
  at("troubles").replaceChildren(...(wrong ? [make("p", "trouble", "The coordinator does not know this token.")] : []));
  at("all").hidden = true;
  at("forget").hidden = true;
  at("token").hidden = false;
}

at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = at("token-text").value.trim();
  at("token-text").value = "";
  if (!/^[\x21-\x7e]+$/.test(given)) {
    at("troubles").replaceChildren(make("p", "trouble", "This is no token: it has characters that none has."));
    return;
  }
  sessionStorage.setItem(TOKEN, given);
  at("troubles").replaceChildren();
  refresh();
});
at("forget").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  refresh();
});
at("legend").replaceChildren(...legend());
document.addEventListener("visibilitychange", refresh);
setInterval(refresh, EACH_MS);
refresh();
