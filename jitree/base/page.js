// What one page shows: details, the list and colours of a graph, the timeline, theme and keys.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const el = (tag, given = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(given)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
};
const short = value => {
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value);
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(5)));
};
const time = us => us >= 1e3 ? `${short(Number((us / 1e3).toPrecision(4)))} ms` : `${short(Number(us.toPrecision(4)))} µs`;
const rank = value => typeof value === "number" ? value : value === "inf" ? Infinity : value === "-inf" ? -Infinity : NaN;

// -- theme ------------------------------------------------------------------------------------------
let look = {};
const themed = [];
const remember = (get, value) => {
  try { return get ? localStorage.getItem("jitree-theme") : localStorage.setItem("jitree-theme", value); } catch { return null; }
};
function setTheme(name) {
  root.dataset.theme = name;
  const style = getComputedStyle(root), of = key => style.getPropertyValue(`--${key}`).trim();
  look = {
    edge: of("edge"), plain: [of("plain"), of("plain-ink")], wrong: of("wrong"), hit: of("hit"), selected: of("accent"),
    reads: of("reads"), readers: of("readers"), ink: of("ink"), soft: of("soft"), line: of("line"), font: getComputedStyle(document.body).fontFamily,
  };
  for (const key of ["product", "reduction", "elementwise", "move", "cold", "hot", "good", "none", "panel"]) look[key] = of(key);
  for (const redraw of themed) redraw();
}
const system = matchMedia("(prefers-color-scheme: dark)");
const header = document.querySelector("header");
header.append(el("button", {
  title: "dark or light (t)", "aria-label": "dark or light",
  onclick: () => { const name = root.dataset.theme === "dark" ? "light" : "dark"; remember(false, name); setTheme(name); },
}, "◐"));
setTheme(remember(true) || (system.matches ? "dark" : "light"));
system.addEventListener("change", () => { if (!remember(true)) setTheme(system.matches ? "dark" : "light"); });
if (parent !== window) { header.style.display = "none"; root.classList.add("framed"); }

// -- graph ------------------------------------------------------------------------------------------
const KINDS = [
  ["product", "products", /matmul|matvec|vecmat|mmt4d|conv|dot|contract|attention/], ["reduction", "reductions", /reduc|softmax|norm|pool/],
  ["move", "copies and fills", /^(copy|fill|update|read|write)$|memcpy|transpose|pack|slice|pad/], ["elementwise", "elementwise", /elementwise|generic/],
];
const kindOf = node => (KINDS.find(([, , pattern]) => pattern.test(node.kind === "dispatch" ? node.name : node.kind)) || ["other"])[0];
const parts = hex => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
const mix = (from, to, part) => {
  const one = parts(from), other = parts(to);
  return `#${one.map((value, i) => Math.round(value + part * (other[i] - value)).toString(16).padStart(2, "0")).join("")}`;
};

function readNodes(given) {
  const word = given.words, all = Object.values(given.times).reduce((a, b) => a + b, 0);
  return given.nodes.map((row, n) => {
    const [name, kind, ordinal, call, groups, location, site, called, inputs, outputs] = row;
    const node = {
      name: word[name], kind: word[kind], ordinal, call, groups, location: word[location], site: word[site], called: word[called],
      inputs: inputs.map(([binding, type, source, origin]) => ({ binding, type: word[type], source: word[source], origin: word[origin] })),
      outputs: outputs.map(([binding, type, source, stats]) => ({ binding, type: word[type], source: word[source], stats })),
      time: given.times[n], difference: given.differences[n], isFirst: given.first === n,
    };
    node.share = node.time === undefined || !all ? undefined : node.time / all;
    node.shortName = node.name.replace(/^.*_dispatch_\d+_?(?=.)/, "");
    node.title = ordinal === null ? node.kind : `${ordinal} ${node.shortName}`;
    node.stats = outputs.length ? outputs[0][3] : null;
    node.odd = node.outputs.reduce((sum, output) => sum + (output.stats && isFloat(output.type) ? output.stats[5] + output.stats[6] : 0), 0);
    node.bad = node.isFirst;
    node.line = [node.outputs.map(output => output.type).join(", "), node.time === undefined ? "" : time(node.time)].filter(Boolean).join(" · ");
    return node;
  });
}
const isFloat = type => /f\d+|complex|bf16/.test(type.split("x").pop());

const COLOURS = {
  operation: ["what they do", () => true, node => look[kindOf(node)] || look.plain[0],
    () => [...KINDS.map(([key, text]) => [look[key], text]), [look.plain[0], "others"]]],
  time: ["time", nodes => nodes.some(node => node.time !== undefined),
    (node, most) => node.time === undefined ? look.none : mix(look.cold, look.hot, Math.sqrt(node.time / most.time)),
    most => [[look.cold, "no time"], [look.hot, time(most.time)], [look.none, "not measured"]]],
  values: ["NaN and infinity", nodes => nodes.some(node => node.stats),
    node => node.odd ? look.wrong : node.stats ? look.good : look.none,
    () => [[look.good, "all finite"], [look.wrong, "some are not"], [look.none, "not looked at"]]],
  difference: ["differences", nodes => nodes.some(node => node.difference),
    (node, most) => !node.difference ? look.none : !node.difference[1] ? look.good : mix(look.hit, look.wrong, Math.sqrt(Math.min(1, rank(node.difference[3]) / most.difference || 0))),
    most => [[look.good, "agree"], [look.hit, "depart"], [look.wrong, `by up to ${short(most.difference)}`], [look.none, "not compared"]]],
};

function drawGraph(section) {
  const given = data.graph, nodes = readNodes(given);
  const most = {
    time: nodes.reduce((a, node) => Math.max(a, node.time || 0), 0) || 1,
    difference: nodes.reduce((a, node) => Math.max(a, node.difference ? rank(node.difference[3]) || 0 : 0), 0) || 1,
  };
  const canvas = el("canvas", { tabindex: "0", role: "application", "aria-label": "graph of dispatches: arrows go along it, / searches, f shows the first wrong number" });
  const map = el("canvas", { class: "map", "aria-hidden": "true" });
  const details = el("aside", { class: "details", "aria-live": "polite" });
  const search = el("input", { type: "search", placeholder: "name, type or source  ( / )", "aria-label": "search" });
  const count = el("span", { class: "count" });
  const choice = el("select", { "aria-label": "colour by" });
  for (const [key, [text, applies]] of Object.entries(COLOURS)) if (applies(nodes)) choice.append(el("option", { value: key }, `colour: ${text}`));
  const legend = el("div", { class: "legend" });
  const button = (text, title, onclick) => el("button", { title, "aria-label": title, onclick }, text);
  const bar = el("div", { class: "bar" }, search, count, el("span", { class: "grow" }), choice);
  section.append(el("h2", {}, "Dispatches"), bar);
  const stage = el("div", { class: "stage" }, canvas, map, details);
  section.append(stage, legend);
  section.append(el("p", { class: "hint" }, "Click a dispatch, then: ↑ ↓ along the edges, ← → in order of execution. Click into the graph to zoom with the wheel; drag to move. + − zoom, 0 fits, / searches, f the first wrong number, t dark or light, Esc nothing."));

  const graph = new Graph(canvas, map, nodes, given.edges, () => look);
  let list = null;
  const first = given.first === null || given.first === undefined ? nodes.findIndex(node => node.odd) : given.first;
  bar.append(
    ...(first >= 0 ? [button("first wrong", "the first wrong number (f)", () => select(first))] : []),
    button("−", "smaller (-)", () => graph.zoom(1 / 1.3)), button("+", "larger (+)", () => graph.zoom(1.3)), button("fit", "all of it (0)", () => graph.fit()),
  );
  const link = n => el("button", { class: "link", onclick: () => select(n) }, nodes[n].title);

  function select(n, quiet) {
    graph.show(n);
    details.replaceChildren(...(n < 0 ? nothing() : described(n)));
    details.scrollTop = 0;
    if (list) list.select(n, !quiet);
    for (const listener of selected) listener(n);
  }
  const nothing = () => {
    const total = nodes.reduce((sum, node) => sum + (node.time || 0), 0), dispatches = nodes.filter(node => node.kind === "dispatch").length;
    const rows = [["dispatches", dispatches], ["other operations", nodes.length - dispatches], ["edges", given.edges.length]];
    if (given.calls > 1) rows.push(["calls", given.calls]);
    if (total) rows.push(["time in them", time(total)]);
    const slow = nodes.map((node, n) => n).filter(n => nodes[n].time).sort((a, b) => nodes[b].time - nodes[a].time).slice(0, 8);
    return [
      el("h3", {}, "Click a dispatch"), terms(rows),
      ...(slow.length ? [el("h4", {}, "those that take most time"), ...slow.map(n => el("div", {}, link(n), ` ${time(nodes[n].time)}`))] : []),
    ];
  };
  const terms = rows => el("dl", {}, ...rows.filter(([, value]) => value !== undefined && value !== "" && value !== null)
    .flatMap(([key, value, style]) => [el("dt", {}, key), el("dd", { class: style || "" }, value instanceof Node ? value : String(value))]));

  function described(n) {
    const node = nodes[n], found = [el("h3", {}, node.name)];
    found.push(terms([
      ["dispatch", node.ordinal], ["kind", node.kind === "dispatch" ? "" : node.kind], ["call", given.calls > 1 ? node.call : ""], ["of", node.called],
      ["workgroups", node.kind === "dispatch" ? node.groups.join(" × ") : ""],
      ["time", node.time === undefined ? "" : `${time(node.time)} (${(100 * node.share).toFixed(1)} %)`],
      ["where", node.location], ["called from", node.site],
    ]));
    if (node.difference) {
      const [operand, differing, size, abs, rel, ulp, place] = node.difference;
      found.push(el("h4", {}, "difference"), terms([
        [given.words[operand], `${differing} of ${size} elements depart`, differing ? "bad" : ""],
        ...(differing ? [["max abs", short(abs)], ["max rel", short(rel)], ["max ulp", short(ulp)], ["first", given.words[place]]] : []),
      ]));
    }
    for (const output of node.outputs) found.push(...makes(output));
    const reads = node.inputs.map(input => [`binding ${input.binding}`, `${input.type} (type: ${input.source})${input.origin ? `, from ${input.origin}` : ""}`]);
    if (reads.length) found.push(el("h4", {}, "reads"), terms(reads));
    for (const [title, edges, end] of [["made by", graph.into[n], 0], ["read by", graph.from[n], 1]])
      if (edges.length) found.push(el("h4", {}, title), ...edges.slice(0, 60).map(edge => el("div", {}, link(edge[end]), edge[2] ? "" : " (likely)")));
    return found;
  }
  function makes(output) {
    const found = [el("h4", {}, `makes in binding ${output.binding}: ${output.type}`)];
    if (!output.stats) return [...found, el("div", { class: "hint" }, `type: ${output.source}; no statistics were taken`)];
    const [min, max, mean, rms, zeros, nans, infinities, histogram] = output.stats;
    found.push(terms([
      ["type", output.source], ["min, max", `${short(min)}, ${short(max)}`], ["mean, rms", `${short(mean)}, ${short(rms)}`], ["zeros", zeros],
      ["NaN", nans, nans ? "bad" : ""], ["infinite", infinities, infinities ? "bad" : ""],
    ]));
    if (histogram.length) found.push(bars(histogram), el("div", { class: "ends" }, el("span", {}, short(min)), el("span", {}, short(max))));
    return found;
  }
  function bars(histogram) {
    const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg"), most = Math.max(...histogram, 1);
    svg.setAttribute("class", "histogram");
    svg.setAttribute("viewBox", `0 0 ${histogram.length * 10} 50`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", "histogram");
    histogram.forEach((value, i) => {
      const rect = document.createElementNS(ns, "rect"), height = value ? Math.max(1, 50 * value / most) : 0;
      for (const [key, number] of Object.entries({ x: i * 10 + 0.5, y: 50 - height, width: 9, height })) rect.setAttribute(key, number);
      svg.append(rect);
    });
    return svg;
  }

  function recolour() {
    const [, , colour, explain] = COLOURS[choice.value];
    graph.recolour(nodes.map(node => {
      const fill = colour(node, most), [red, green, blue] = parts(fill);
      return [fill, 0.3 * red + 0.59 * green + 0.11 * blue > 128 ? "#1c2230" : "#f4f6fa"];
    }));
    legend.replaceChildren(...explain(most).map(([fill, text]) => {
      const spot = el("i");
      spot.style.background = fill;
      return el("span", {}, spot, text);
    }));
  }
  choice.addEventListener("change", recolour);
  choice.value = [...choice.options].some(option => option.value === "difference") ? "difference" : given.first !== null && given.first !== undefined ? "values" : "operation";

  function filter() {
    const text = search.value.trim().toLowerCase(), found = [];
    nodes.forEach((node, n) => {
      node.hit = text !== "" && `${node.title} ${node.name} ${node.line} ${node.location}`.toLowerCase().includes(text);
      if (node.hit) found.push(n);
    });
    count.textContent = text ? `${found.length} of ${nodes.length}` : "";
    list.show(text ? found : nodes.map((_, n) => n));
    graph.draw();
    return found;
  }
  search.addEventListener("input", filter);
  search.addEventListener("keydown", event => {
    const found = event.key === "Enter" ? filter() : [];
    if (found.length) { const next = found.find(n => n > graph.selected); select(next === undefined ? found[0] : next); }
  });

  list = makeList(nodes, given, n => select(n, true));
  section.append(list.element);
  themed.push(recolour);
  recolour();
  filter();
  graph.onselect = n => { canvas.focus(); select(n); };
  const start = () => { graph.resize(); graph.begin(); select(given.first === null || given.first === undefined ? -1 : given.first); };
  requestAnimationFrame(start);

  const nearest = (edges, end) => edges.length ? edges.reduce((a, b) => Math.abs(graph.x[b[end]] - graph.x[graph.selected]) < Math.abs(graph.x[a[end]] - graph.x[graph.selected]) ? b : a)[end] : -1;
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName), n = graph.selected;
    if (typing) { if (event.key === "Escape") { search.value = ""; filter(); event.target.blur(); } return; }
    const step = { ArrowUp: () => nearest(graph.into[n], 0), ArrowDown: () => nearest(graph.from[n], 1), ArrowLeft: () => n - 1, ArrowRight: () => n + 1 < nodes.length ? n + 1 : -1 }[event.key];
    if (step) {
      if (document.activeElement !== canvas && !list.element.contains(document.activeElement)) return;
      const to = n < 0 ? 0 : step();
      event.preventDefault();
      if (to >= 0) select(to);
      return;
    }
    const act = { "/": () => search.focus(), f: () => first >= 0 && select(first), "+": () => graph.zoom(1.3), "-": () => graph.zoom(1 / 1.3), "0": () => graph.fit(), Escape: () => select(-1) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  for (const notice of document.querySelectorAll("[data-node]"))
    notice.append(" ", el("button", { class: "link", onclick: () => { select(Number(notice.dataset.node)); stage.scrollIntoView({ block: "center" }); } }, "show it"));
  window.jitree = { graph, nodes, select };
}
const selected = [];

// -- list: only the lines in view are there ---------------------------------------------------------
function makeList(nodes, given, onselect) {
  const stat = place => node => node.stats ? node.stats[place] : undefined;
  const columns = [
    ["#", 60, (node, n) => node.ordinal === null ? undefined : node.ordinal, true], ["name", 280, node => node.name], ["makes", 150, node => node.outputs.map(output => output.type).join(", ")],
    ["time µs", 84, node => node.time, true], ["share %", 76, node => node.share === undefined ? undefined : Number((100 * node.share).toFixed(2)), true],
    ["min", 96, stat(0), true], ["max", 96, stat(1), true], ["mean", 96, stat(2), true], ["rms", 96, stat(3), true], ["zeros", 76, stat(4), true],
    ["NaN", 64, stat(5), true], ["inf", 64, stat(6), true],
    ["differ", 84, node => node.difference ? node.difference[1] : undefined, true], ["max abs", 92, node => node.difference ? node.difference[3] : undefined, true],
  ].filter(([, , value]) => nodes.some((node, n) => value(node, n) !== undefined));
  const template = columns.map(([title, width]) => title === "name" ? `minmax(${width}px, 1fr)` : `${width}px`).join(" ");
  const LINE = 26, HEAD = 34;
  let shown = nodes.map((_, n) => n), by = -1, up = true, chosen = -1;
  const head = el("div", { class: "head", role: "row" });
  head.style.gridTemplateColumns = template;
  columns.forEach(([title, , , isNumber], i) => head.append(el("button", { class: isNumber ? "number" : "", title: `order by ${title}`, onclick: () => order(i) }, title)));
  const inside = el("div", { class: "inside" }, head), element = el("div", { class: "list", tabindex: "0", role: "grid", "aria-label": "all dispatches" }, inside);
  function order(i) {
    up = by === i ? !up : !columns[i][3] || i === 0;
    by = i;
    sort();
    render();
  }
  function sort() {
    if (by < 0) return;
    const value = columns[by][2], key = n => { const found = value(nodes[n], n); return found === undefined ? null : columns[by][3] ? rank(found) : found; };
    const keys = new Map(shown.map(n => [n, key(n)])), sign = up ? 1 : -1;
    const last = found => found === null || found !== found;
    shown.sort((a, b) => {
      const one = keys.get(a), other = keys.get(b);
      if (last(one) || last(other)) return last(one) - last(other) || a - b;
      return sign * (one < other ? -1 : one > other ? 1 : 0) || a - b;
    });
  }
  let drawn = [];
  function render() {
    element.style.height = `${Math.min(420, HEAD + shown.length * LINE + 18)}px`;
    inside.style.height = `${HEAD + shown.length * LINE}px`;
    const first = Math.max(0, Math.floor((element.scrollTop - HEAD) / LINE) - 5), last = Math.min(shown.length, first + Math.ceil(element.clientHeight / LINE) + 12);
    for (const line of drawn) line.remove();
    drawn = [];
    for (let i = first; i < last; i++) {
      const n = shown[i], node = nodes[n];
      const line = el("div", { class: `line${n === chosen ? " selected" : ""}${node.odd || node.isFirst ? " bad" : ""}`, role: "row", onclick: () => { element.focus({ preventScroll: true }); onselect(n); } });
      line.style.top = `${HEAD + i * LINE}px`;
      line.style.gridTemplateColumns = template;
      for (const [, , value, isNumber] of columns) { const found = value(node, n); line.append(el("span", { class: isNumber ? "number" : "", role: "gridcell" }, found === undefined ? "" : short(found))); }
      drawn.push(line);
    }
    inside.append(...drawn);
  }
  element.addEventListener("scroll", () => requestAnimationFrame(render));
  new ResizeObserver(render).observe(element);
  return {
    element,
    show(list) { shown = list; sort(); element.scrollTop = 0; render(); },
    select(n, move) {
      chosen = n;
      const i = shown.indexOf(n), top = HEAD + i * LINE;
      if (move && i >= 0 && (top < element.scrollTop + HEAD || top + LINE > element.scrollTop + element.clientHeight)) element.scrollTop = top - element.clientHeight / 2;
      render();
    },
  };
}

// -- timeline ---------------------------------------------------------------------------------------
function drawTimeline(section) {
  const { words, tracks, events, left_out: leftOut } = data.timeline;
  section.append(el("h2", {}, "Timeline"));
  if (!events.length) { section.append(el("p", { class: "hint" }, "nothing was measured")); return; }
  const HEIGHT = 22, LABEL = 16, AXIS = 22, perTrack = tracks.map(() => []);
  for (const event of events) perTrack[event[0]].push(event);
  for (const track of perTrack) track.sort((a, b) => a[2] - b[2]);
  const end = events.reduce((a, event) => Math.max(a, event[2] + event[3]), 0), begin = events.reduce((a, event) => Math.min(a, event[2]), Infinity);
  const canvas = el("canvas", { tabindex: "0", role: "application", "aria-label": "timeline: + and - zoom, arrows move" });
  canvas.style.height = `${AXIS + tracks.length * (HEIGHT + LABEL) + 8}px`;
  const tip = el("div", { class: "tip" }), box = el("div", { class: "timeline" }, canvas, tip);
  tip.hidden = true;
  const view = { start: begin, span: Math.max(1, end - begin) * 1.02 };
  const whole = { ...view };
  let frame = 0, chosen = "";
  const draw = () => { frame ||= requestAnimationFrame(() => { frame = 0; paint(); }); };
  const zoom = (factor, at = 0.5) => {
    const span = Math.min(whole.span, Math.max(0.5, view.span * factor));
    view.start += at * (view.span - span);
    view.span = span;
    move(0);
  };
  const move = part => { view.start = Math.max(whole.start, Math.min(whole.start + whole.span - view.span, view.start + part * view.span)); draw(); };
  const button = (text, title, onclick) => el("button", { title, "aria-label": title, onclick }, text);
  section.append(el("div", { class: "bar" }, button("−", "zoom out", () => zoom(1.6)), button("+", "zoom in", () => zoom(1 / 1.6)), button("all", "all of it", () => { Object.assign(view, whole); draw(); }),
    el("span", { class: "count" }, `${events.length} events in ${time(end - begin)}${leftOut ? `, ${leftOut} more are left out` : ""}`)), box);
  // The first event that may reach into the view: tracks of one thread nest, so it begins before it.
  const from = (track, at) => { let low = 0, high = track.length; while (low < high) { const middle = (low + high) >> 1; if (track[middle][2] < at) low = middle + 1; else high = middle; } return low; };
  const longest = perTrack.map(track => track.reduce((a, event) => Math.max(a, event[3]), 0));
  const hue = name => look[kindOf({ kind: /^(copy|fill|update|read|write|execute)/.test(name) ? "fill" : "dispatch", name })] || look.plain[0];
  function paint() {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const x = at => (at - view.start) / view.span * width;
    context.font = `11px ${look.font}`;
    const raw = view.span / Math.max(2, width / 120), power = 10 ** Math.floor(Math.log10(raw)), unit = [1, 2, 5, 10].map(n => n * power).find(n => n >= raw);
    context.fillStyle = look.soft; context.strokeStyle = look.line;
    for (let at = Math.ceil(view.start / unit) * unit; at < view.start + view.span; at += unit) {
      context.beginPath(); context.moveTo(x(at), AXIS); context.lineTo(x(at), height); context.stroke();
      context.fillText(time(at), x(at) + 3, 14);
    }
    perTrack.forEach((track, t) => {
      const top = AXIS + t * (HEIGHT + LABEL);
      context.fillStyle = look.soft;
      context.fillText(tracks[t], 6, top + 12);
      let painted = -1;
      for (let i = from(track, view.start - longest[t]); i < track.length; i++) {
        const [, word, start, length] = track[i];
        if (start > view.start + view.span) break;
        const left = x(start), right = Math.max(x(start + length), left + 1);
        if (right < 0 || right <= painted) continue;
        painted = right - left <= 1 ? right : painted;
        context.fillStyle = hue(words[word]);
        context.fillRect(left, top + LABEL, right - left - (right - left > 3 ? 0.5 : 0), HEIGHT - 2);
        if (words[word] === chosen) { context.strokeStyle = look.selected; context.lineWidth = 2; context.strokeRect(left, top + LABEL, right - left, HEIGHT - 2); context.lineWidth = 1; }
        if (right - left > 44) { context.fillStyle = look.ink; context.fillText(cut(context, words[word], Math.min(right, width) - Math.max(left, 0) - 8), Math.max(left, 0) + 4, top + LABEL + 14); }
      }
    });
  }
  const at = event => {
    const t = Math.floor((event.offsetY - AXIS) / (HEIGHT + LABEL)), track = perTrack[t];
    if (!track || event.offsetY < AXIS) return null;
    const moment = view.start + event.offsetX / canvas.clientWidth * view.span, slack = view.span / canvas.clientWidth;
    for (let i = from(track, moment + slack) - 1; i >= 0 && track[i][2] >= moment - longest[t] - slack; i--)
      if (track[i][2] + track[i][3] >= moment - slack) return track[i];
    return null;
  };
  let held = null, moved = false;
  canvas.addEventListener("pointerdown", event => { held = event.clientX; moved = false; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", event => {
    const found = moved ? null : at(event);
    if (found && window.jitree) { const n = window.jitree.nodes.findIndex(node => node.name === words[found[1]]); if (n >= 0) window.jitree.select(n); }
    held = null;
  });
  canvas.addEventListener("pointermove", event => {
    if (held !== null) { moved ||= Math.abs(held - event.clientX) > 3; if (moved) { move((held - event.clientX) / canvas.clientWidth); held = event.clientX; } }
    const found = held === null ? at(event) : null;
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = `${words[found[1]]}: ${time(found[3])}, from ${time(found[2])}`;
    tip.style.left = `${Math.max(0, Math.min(event.offsetX + 12, canvas.clientWidth - 240))}px`;
    tip.style.top = `${event.offsetY + 16}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("wheel", event => {
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY / 400), event.offsetX / canvas.clientWidth);
  }, { passive: false });
  canvas.addEventListener("keydown", event => {
    const act = { "+": () => zoom(1 / 1.6), "-": () => zoom(1.6), "0": () => { Object.assign(view, whole); draw(); }, ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) }[event.key];
    if (act) { event.preventDefault(); event.stopPropagation(); act(); }
  });
  selected.push(n => { chosen = n < 0 || !window.jitree ? "" : window.jitree.nodes[n].name; draw(); });
  themed.push(draw);
  new ResizeObserver(draw).observe(canvas);
}

for (const section of document.querySelectorAll(".drawing")) ({ graph: drawGraph, timeline: drawTimeline })[section.dataset.kind](section);
document.addEventListener("keydown", event => {
  if (event.key === "t" && !event.ctrlKey && !event.metaKey && !["INPUT", "SELECT"].includes(event.target.tagName)) header.querySelector("button").click();
});
})();
