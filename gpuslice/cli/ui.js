"use strict";
// Shows the data of `gpuslice ui`. Names reach the page as text nodes only, never as HTML.
const INTERVAL_MS = 2000, POINTS = 900, GIB = 2 ** 30;
const points = new Map(); // a slice's points since the page was opened: {memory, share}

function node(tag, text = "", kind = "", ...children) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

const gib = (bytes) => (bytes === null || bytes === undefined ? "-" : (bytes / GIB).toFixed(1));
const percent = (ratio) =>
  ratio === null || ratio === undefined ? "-" : `${Math.round(100 * ratio)} %`;

function bar(used, granted, total) {
  const width = (amount) => `${Math.min(100, (100 * (amount || 0)) / (total || 1))}%`;
  const part = granted ? (used || 0) / granted : 0;
  const filled = node("b", "", part >= 0.95 ? "full" : part >= 0.8 ? "much" : "");
  const reserved = node("i");
  filled.style.width = width(used);
  reserved.style.width = width(granted);
  return node("div", "", "bar", reserved, filled);
}

function line(values, most, title) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  const stroke = document.createElementNS(space, "polyline");
  const step = 100 / Math.max(1, values.length - 1);
  const drawn = values
    .map((value, at) => [at * step, value])
    .filter(([, value]) => value !== null)
    .map(([x, value]) => `${x.toFixed(2)},${(19 - 18 * Math.min(1, value / most)).toFixed(2)}`);
  drawing.setAttribute("viewBox", "0 0 100 20");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", title);
  stroke.setAttribute("points", drawn.join(" "));
  drawing.append(stroke);
  return drawing;
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

function sliceRow(slice, gpu) {
  const use = slice.use || {}, limit = use.limit_bytes || slice.memory_bytes;
  const name = [slice.namespace, slice.pod, slice.container].filter(Boolean).join("/");
  const asked = slice.core_percent === null ? "no cap" : `of ${slice.core_percent} %`;
  const kept = remember(`${name} ${gpu.uuid}`, use);
  return node("tr", "", "slice",
    node("td", name),
    node("td", "", "", bar(use.used_bytes, limit, limit)),
    node("td", `${gib(use.used_bytes)} of ${gib(limit)}`, "figure"),
    node("td", "", "", line(kept.memory, limit, "memory since the page was opened")),
    node("td", `${percent(use.share_ratio)} ${asked}`, "figure"),
    node("td", "", "", line(kept.share, 1, "share since the page was opened")),
    node("td", percent(use.throttled_ratio), "figure"));
}

function gpuRow(gpu) {
  const name = `GPU ${gpu.minor} ${gpu.model}${gpu.healthy ? "" : " (unhealthy)"}`;
  const figures = [gpu.used_bytes, gpu.granted_bytes, gpu.memory_bytes].map(gib).join(" of ");
  const row = node("tr", "", "gpu",
    node("td", name),
    node("td", "", "", bar(gpu.used_bytes, gpu.granted_bytes, gpu.memory_bytes)),
    node("td", figures, "figure"), node("td"),
    node("td", `core ${gpu.granted_core} %`, "figure"), node("td"), node("td"));
  row.title = gpu.uuid;
  return row;
}

const HEADINGS = [["GPU, slice", 27], ["memory used of granted", 17], ["GiB", 14], ["since opened", 10],
  ["share of request", 13], ["since opened", 10], ["throttled", 9]];

function section(found) {
  const heading = node("tr", "", "", ...HEADINGS.map(([text, width], at) => {
    const cell = node("th", text, [2, 4, 6].includes(at) ? "figure" : "");
    cell.style.width = `${width}%`;
    return cell;
  }));
  const rows = found.gpus.flatMap((gpu) => [gpuRow(gpu), ...gpu.slices.map((s) => sliceRow(s, gpu))]);
  return node("section", "", "", node("h2", found.name), node("table", "", "", heading, ...rows));
}

function show(data) {
  const gpus = data.nodes.flatMap((each) => each.gpus);
  const slices = gpus.reduce((sum, gpu) => sum + gpu.slices.length, 0);
  const shown = data.nodes.length < data.total ? `${data.nodes.length} of ` : "";
  document.getElementById("summary").textContent =
    `nodes: ${shown}${data.total}, GPUs: ${gpus.length}, slices: ${slices}, waiting: ${data.waiting.length}`;
  notices(data.notices);
  document.getElementById("nodes").replaceChildren(...data.nodes.map(section));
  document.getElementById("waits").hidden = !data.waiting.length;
  document.getElementById("waiting").replaceChildren(...data.waiting.map((each) =>
    node("li", "", "", node("b", `${each.namespace}/${each.pod}`),
      `${each.node ? ` on ${each.node}` : ""}: ${each.reason}`)));
}

function notices(texts) {
  document.getElementById("notices").replaceChildren(...texts.map((text) => node("li", text)));
}

async function refresh() {
  const wanted = document.getElementById("filter").value;
  try {
    const answer = await fetch(`data?node=${encodeURIComponent(wanted)}`);
    if (answer.ok) show(await answer.json());
    else notices([await answer.text()]);
  } catch {
    notices(["gpuslice ui does not answer: the figures are not current"]);
  }
  setTimeout(refresh, INTERVAL_MS);
}

refresh();
