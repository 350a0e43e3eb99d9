"use strict";
// Shows the data of `gpuslice ui`. Names reach the page as text nodes only, never as HTML.
const INTERVAL_MS = 2000, POINTS = 900, GIB = 2 ** 30;
const HEADINGS = [["GPU, slice", 27], ["memory used of granted", 17], ["GiB", 14], ["since opened", 10],
  ["share of request", 13], ["since opened", 10], ["throttled", 9]];
const points = new Map(); // a slice's points since the page was opened: {memory, share}

const gib = (bytes) => (bytes == null ? "-" : (bytes / GIB).toFixed(1));
const percent = (ratio) => (ratio == null ? "-" : `${Math.round(100 * ratio)} %`);
const byId = (id) => document.getElementById(id);

function node(tag, content, kind = "") {
  const made = document.createElement(tag);
  made.append(...[content].flat());
  made.className = kind;
  return made;
}

function bar(used, granted, total) {
  const part = granted ? used / granted : 0;
  const kind = part >= 0.95 ? "full" : part >= 0.8 ? "much" : "used";
  const parts = [[granted, ""], [used, kind]].map(([amount, kind]) => {
    const made = node("span", "", kind);
    made.style.width = `${Math.min(100, (100 * amount) / (total || 1))}%`;
    return made;
  });
  return node("div", parts, "bar");
}

function line(values, most, title) {
  const step = 100 / Math.max(1, values.length - 1);
  const drawn = values
    .map((value, at) => [at * step, value])
    .filter(([, value]) => value !== null)
    .map(([x, value]) => `${x.toFixed(2)},${(19 - 18 * Math.min(1, value / most)).toFixed(2)}`);
  const made = byId("line").content.firstElementChild.cloneNode(true);
  made.setAttribute("aria-label", title);
  made.firstElementChild.setAttribute("points", drawn.join(" "));
  return made;
}

function remember(key, use) {
  const kept = points.get(key) || { memory: [], share: [] };
  kept.memory.push(use.used_bytes ?? null);
  kept.share.push(use.share_ratio ?? null);
  for (const name of ["memory", "share"]) // an old page keeps every second point
    if (kept[name].length > POINTS) kept[name] = kept[name].filter((_, at) => at % 2);
  points.set(key, kept);
  return kept;
}

const isFigure = (at) => [2, 4, 6].includes(at);
const row = (cells, kind) =>
  node("tr", cells.map((cell, at) => node("td", cell, isFigure(at) ? "figure" : "")), kind);

function sliceRow(slice, gpu) {
  const use = slice.use || {}, limit = use.limit_bytes || slice.memory_bytes;
  const name = [slice.namespace, slice.pod, slice.container].filter(Boolean).join("/");
  const asked = slice.core_percent === null ? "no cap" : `of ${slice.core_percent} %`;
  const kept = remember(`${name} ${gpu.uuid}`, use);
  return row([name,
    bar(use.used_bytes || 0, limit, limit), `${gib(use.used_bytes)} of ${gib(limit)}`,
    line(kept.memory, limit, "memory since the page was opened"),
    `${percent(use.share_ratio)} ${asked}`, line(kept.share, 1, "share since the page was opened"),
    percent(use.throttled_ratio)], "slice");
}

function gpuRow(gpu) {
  const name = `GPU ${gpu.minor} ${gpu.model}${gpu.healthy ? "" : " (unhealthy)"}`;
  const amounts = [gpu.used_bytes, gpu.granted_bytes, gpu.memory_bytes];
  const made = row([name, bar(...amounts.map((amount) => amount || 0)), amounts.map(gib).join(" of "), "",
    `core ${gpu.granted_core} %`, "", ""], "gpu");
  made.title = gpu.uuid;
  return made;
}

function section(found) {
  const heading = node("tr", HEADINGS.map(([text, width], at) => {
    const cell = node("th", text, isFigure(at) ? "figure" : "");
    cell.style.width = `${width}%`;
    return cell;
  }));
  const rows = found.gpus.flatMap((gpu) => [gpuRow(gpu), ...gpu.slices.map((each) => sliceRow(each, gpu))]);
  return node("section", [node("h2", found.name), node("table", [heading, ...rows])]);
}

const notices = (texts) => byId("notices").replaceChildren(...texts.map((text) => node("li", text)));

function show(data) {
  const gpus = data.nodes.flatMap((each) => each.gpus);
  const slices = gpus.reduce((sum, gpu) => sum + gpu.slices.length, 0);
  const shown = data.nodes.length < data.total ? `${data.nodes.length} of ` : "";
  byId("summary").textContent =
    `nodes: ${shown}${data.total}, GPUs: ${gpus.length}, slices: ${slices}, waiting: ${data.waiting.length}`;
  notices(data.notices);
  byId("nodes").replaceChildren(...data.nodes.map(section));
  byId("waits").hidden = !data.waiting.length;
  byId("waiting").replaceChildren(...data.waiting.map((each) =>
    node("li", [node("b", `${each.namespace}/${each.pod}`), `${each.node && ` on ${each.node}`}: ${each.reason}`])));
}

async function refresh() {
  try {
    const answer = await fetch(`data?node=${encodeURIComponent(byId("filter").value)}`);
    if (answer.ok) show(await answer.json());
    else notices([await answer.text()]);
  } catch {
    notices(["gpuslice ui does not answer: the figures are not current"]);
  }
  setTimeout(refresh, INTERVAL_MS);
}

refresh();
