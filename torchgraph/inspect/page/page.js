"use strict";
// Draws the page from the data beside it. Text becomes text nodes, never markup.
const data = JSON.parse(document.getElementById("data").textContent);
const PHASES = ["forward", "backward", "update"];
const main = document.getElementById("main");
const nav = document.getElementById("nav");

function made(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function section(id, title) {
  const made_ = made("section", { id }, made("h2", {}, title));
  nav.append(made("a", { href: `#${id}` }, title));
  main.append(made_);
  return made_;
}

const grouped = new Intl.NumberFormat("en");
const count = (value) => (value ? grouped.format(value) : "");

function scaled(value, units, step) {
  if (!value) return "";
  let unit = 0;
  while (value >= step && unit < units.length - 1) { value /= step; unit += 1; }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toPrecision(3)} ${units[unit]}`;
}
const bytes = (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
const flops = (value) => scaled(value, ["", "K", "M", "G", "T"], 1000).trim();
const ms = (seconds) => (seconds ? String(Number((1e3 * seconds).toPrecision(3))) : "");
const sum = (values) => values.reduce((all, one) => all + one, 0);

// --- tables ---------------------------------------------------------------------------------

function cell(value, label) {
  if (!Array.isArray(value)) return made("td", { "data-label": label }, value);
  const [at, text, file] = value;
  return made("td", { title: file, "data-label": label }, made("span", { class: "dim" }, `${at} `), made("code", {}, text));
}

/** Rows a batch at a time: `draw(i)` gives the row of the i-th of `length`. */
function batched(body, length, draw, batch = 40) {
  let shown = 0;
  const more = made("button", { class: "more", type: "button", onclick: () => add(10 * batch) });
  const add = (wanted) => {
    const end = Math.min(length, shown + wanted);
    const rows = document.createDocumentFragment();
    for (; shown < end; shown += 1) rows.append(draw(shown));
    body.append(rows);
    more.hidden = shown >= length;
    more.textContent = `show more: ${grouped.format(length - shown)} are left`;
  };
  add(batch);
  return more;
}

function table(columns, classes = []) {
  const head = columns.map((name, i) => made("th", { class: classes[i] || "" }, name));
  const body = made("tbody");
  return [made("table", {}, made("thead", {}, made("tr", {}, ...head)), body), body];
}

function plainTable(one, into) {
  if (!one.rows.length && !one.notes.length) return;
  into.append(made("h3", {}, one.title));
  if (one.rows.length) {
    const [element, body] = table(one.columns);
    const wide = one.columns.length > 3 && one.rows.some((row) => row.some((value) => value.length > 28));
    if (one.columns.length > 4 || wide || one.rows[0].some(Array.isArray)) element.className = "stacks";
    const more = made("div");
    const draw = (rows) => {
      const row = (i) => made("tr", {}, ...rows[i].map((value, n) => cell(value, one.columns[n])));
      body.replaceChildren();
      more.replaceChildren(batched(body, rows.length, row, 12));
    };
    if (one.rows.length > 20) {
      const texts = one.rows.map((row) => row.flat().join("\n").toLowerCase());
      const chosen = () => draw(one.rows.filter((_, i) => texts[i].includes(input.value.toLowerCase())));
      const input = made("input", { type: "search", placeholder: `filter ${grouped.format(one.rows.length)} rows`, oninput: chosen });
      into.append(made("div", { class: "bar" }, input));
    }
    into.append(made("div", { class: "scroll" }, element), more);
    draw(one.rows);
  }
  for (const note of one.notes) into.append(made("p", { class: "note" }, note));
}

function tables(id, title, into = null) {
  const found = (data.tables[id] || []).filter((one) => one.rows.length || one.notes.length);
  if (!found.length) return;
  const target = into || section(id, title);
  for (const one of found) plainTable(one, target);
}

// --- overview -------------------------------------------------------------------------------

function overview() {
  const top = document.getElementById("top");
  top.append(made("h1", {}, data.name));
  for (const line of data.said) top.append(made("p", { class: "dim" }, line));
  const figures = data.figures.map(([what, much]) =>
    made("div", { class: "figure" }, made("b", {}, much), made("span", {}, what)));
  top.append(made("div", { class: "figures" }, ...figures));
  tables("overview", "Overview");
}

// --- modules --------------------------------------------------------------------------------

function modules() {
  const rows = data.modules;
  const length = rows.path.length;
  if (!length) return;
  const into = section("modules", "Modules");
  const children = Array.from({ length }, () => []);
  const roots = [];
  rows.parent.forEach((parent, i) => (parent < 0 ? roots : children[parent]).push(i));
  const total = {};
  for (const name of ["parameters", "flops", "bytes", "kept"]) total[name] = rows[name].slice();
  total.ops = rows.ops.map((one) => one.slice());
  total.seconds = rows.seconds.map(sum);
  for (let i = length - 1; i >= 0; i -= 1) { // children stand behind their parents
    const parent = rows.parent[i];
    if (parent < 0) continue;
    for (const name of ["parameters", "flops", "bytes", "kept", "seconds"]) total[name][parent] += total[name][i];
    PHASES.forEach((_, phase) => { total.ops[parent][phase] += total.ops[i][phase]; });
  }
  const whole = sum(roots.map((i) => total.seconds[i]));
  const depth = [];
  rows.parent.forEach((parent, i) => { depth[i] = parent < 0 ? 0 : depth[parent] + 1; });
  const deepest = Math.max(...depth);
  const open = depth.map((one) => one < (length > 60 ? 1 : deepest));

  const known = Boolean(data.ops);
  const columns = ["module", "parameters", ...(known
    ? ["forward", "backward", "update", "FLOPs", "bytes moved", "kept", `ms, ${data.kind}`, "share"] : [])];
  const hidden = ["", "number narrow", ...Array(3).fill("number narrow middle"), ...Array(3).fill("number narrow"),
    "number", "number"];
  const [element, body] = table(columns, hidden);
  element.className = "tree";
  const more = made("div");

  const row = (i) => {
    const folds = children[i].length
      ? made("button", {
        class: "fold", type: "button", "aria-expanded": String(open[i]),
        "aria-label": `fold ${rows.path[i]}`,
        onclick: () => { open[i] = !open[i]; draw(); },
      }, open[i] ? "▾" : "▸")
      : made("span", { class: "fold", style: "display:inline-block" });
    const name = rows.path[i] ? rows.path[i].split(".").pop() : "(no module)";
    const label = known && rows.path[i]
      ? made("button", { class: "plain", type: "button", title: "show its ops", onclick: () => opsOf(rows.path[i]) }, name)
      : made("span", {}, name);
    const about = rows.shared[i] ? ` is ${rows.shared[i]}` : ` ${rows.text[i]}`;
    const first = made("td", {}, folds, label, made("span", { class: "class" }, about));
    first.style.paddingLeft = `${Math.min(depth[i], 12) * 16}px`;
    const cells = [count(total.parameters[i])];
    if (known) {
      cells.push(...total.ops[i].map(count), flops(total.flops[i]), bytes(total.bytes[i]),
        bytes(total.kept[i]), ms(total.seconds[i]), whole ? `${(100 * total.seconds[i] / whole).toFixed(1)} %` : "");
    }
    return made("tr", { "data-path": rows.path[i] }, first,
      ...cells.map((text, n) => made("td", { class: hidden[n + 1] }, text)));
  };
  const draw = () => {
    const visible = [];
    const walk = (i) => { visible.push(i); if (open[i]) children[i].forEach(walk); };
    roots.forEach(walk);
    body.replaceChildren();
    more.replaceChildren(batched(body, visible.length, (n) => row(visible[n]), 300));
  };
  const to = (level) => () => { depth.forEach((one, i) => { open[i] = one < level; }); draw(); };
  const levels = [["fold all", 0], ...[1, 2, 3].filter((n) => n < deepest).map((n) => [`depth ${n}`, n]),
    ["unfold all", deepest]];
  if (deepest > 0) {
    into.append(made("div", { class: "bar" }, ...levels.map(([name, level]) =>
      made("button", { type: "button", onclick: to(level) }, name))));
  }
  if (known) {
    into.append(made("p", { class: "note" }, "Sub-modules included; kept is what the forward part leaves for the backward part. A name shows the module's ops."));
  }
  into.append(made("div", { class: "scroll" }, element), more);
  draw();
}

// --- ops ------------------------------------------------------------------------------------

let opsOf = () => {};
let showOp = () => {};

function choice(label, values, changed) {
  const options = values.map(([value, text]) => made("option", { value }, text));
  const select = made("select", { onchange: changed }, made("option", { value: "" }, "all"), ...options);
  return [made("label", {}, label, select), select];
}

function counted(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([value, n]) => [String(value), `${value} (${n})`]);
}

function ops() {
  const all = data.ops;
  if (!all) return;
  const into = section("ops", "Ops");
  const length = all.name.length;
  const module = (i) => (all.module[i] < 0 ? "" : data.modules.path[all.module[i]]);
  const frames = (i) => (all.stack[i] < 0 ? [] : data.stacks[all.stack[i]].map((n) => data.lines[n]));
  const words = [];
  const searched = (i) => {
    words[i] ||= [all.name[i], all.op[i], module(i), all.text[i], all.pass[i],
      ...frames(i).map(([file, number, , text]) => `${file}:${number} ${text}`)].join("\n").toLowerCase();
    return words[i];
  };
  const [head, body] = table(
    ["op", "kind", "phase", "module", "gives", "by", "FLOPs", "bytes", `ms, ${data.kind}`],
    ["name", "narrow middle", "short", "narrow", "narrow middle gives", "narrow middle short", "number narrow", "number narrow", "number"]);
  const note = made("span", { class: "note", role: "status", id: "found" });
  const more = made("div");
  let opened = null;

  const detail = (i) => {
    const lines = frames(i);
    const cells = made("td", { colSpan: 9 });
    if (lines.length) {
      const [file, number, inside, text] = lines[0];
      cells.append(made("div", { class: "line code" }, text || "(the file cannot be read)"),
        made("div", { class: "dim" }, `${file}:${number} in ${inside}`));
      for (const [at, n, name, source] of lines.slice(1)) {
        cells.append(made("div", { class: "dim" }, `called by ${at}:${n} in ${name}: `, made("code", {}, source)));
      }
    } else cells.append(made("div", { class: "line" }, "No line of yours: the optimizer's or torchgraph's own."));
    const facts = [PHASES[all.phase[i]], module(i) || "no module", `gives ${all.type[i]}`, `made by ${all.pass[i]}`,
      bytes(all.bytes[i]) && `${bytes(all.bytes[i])} moved`, flops(all.flops[i]) && `${flops(all.flops[i])} FLOPs`,
      ms(all.seconds[i]) && `${ms(all.seconds[i])} ms, ${data.kind}`];
    cells.append(made("p", {}, facts.filter(Boolean).join(" · ")), made("pre", {}, all.text[i]));
    return made("tr", { class: "detail" }, cells);
  };
  const close = () => {
    if (!opened) return;
    opened.classList.remove("open");
    opened.querySelector("button").setAttribute("aria-expanded", "false");
    opened.nextSibling.remove();
    opened = null;
  };
  const toggle = (row, i) => {
    const was = opened;
    close();
    if (was === row) return;
    row.classList.add("open");
    row.querySelector("button").setAttribute("aria-expanded", "true");
    row.after(detail(i));
    opened = row;
  };
  const row = (i) => {
    const button = made("button", { class: "plain code", type: "button", "aria-expanded": "false" }, all.name[i]);
    const made_ = made("tr", { "data-op": all.name[i] },
      made("td", { class: "name" }, button), made("td", { class: "narrow middle" }, all.op[i]),
      made("td", { class: "short" }, PHASES[all.phase[i]]), made("td", { class: "narrow" }, module(i)),
      made("td", { class: "narrow middle gives code" }, all.type[i]), made("td", { class: "narrow middle short" }, all.pass[i]),
      made("td", { class: "number narrow" }, flops(all.flops[i])),
      made("td", { class: "number narrow" }, bytes(all.bytes[i])),
      made("td", { class: "number" }, ms(all.seconds[i])));
    button.addEventListener("click", () => toggle(made_, i));
    return made_;
  };

  const draw = () => {
    const tokens = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const path = inModule.value.trim();
    const found = [];
    for (let i = 0; i < length; i += 1) {
      if (phase.value && PHASES[all.phase[i]] !== phase.value) continue;
      if (kind.value && all.op[i] !== kind.value) continue;
      if (by.value && all.pass[i] !== by.value) continue;
      const at = module(i);
      if (path && at !== path && !at.startsWith(`${path}.`)) continue;
      if (tokens.every((token) => searched(i).includes(token))) found.push(i);
    }
    const column = { time: all.seconds, bytes: all.bytes, FLOPs: all.flops }[order.value];
    if (column) found.sort((a, b) => column[b] - column[a] || a - b);
    opened = null;
    body.replaceChildren();
    more.replaceChildren(batched(body, found.length, (n) => row(found[n])));
    const took = sum(found.map((i) => all.seconds[i] || 0));
    note.textContent = `${grouped.format(found.length)} of ${grouped.format(length)} ops` +
      (took ? `, ${ms(took)} ms ${data.kind}` : "");
    return found;
  };
  const search = made("input", { type: "search", placeholder: "name, op, module, line, program text", id: "search", oninput: draw });
  const [phaseLabel, phase] = choice("phase", PHASES.map((one) => [one, one]), draw);
  const [kindLabel, kind] = choice("op", counted(all.op), draw);
  const [byLabel, by] = choice("made by", counted(all.pass), draw);
  const paths = made("datalist", { id: "paths" }, ...data.modules.path.filter(Boolean).slice(0, 2000)
    .map((value) => made("option", { value })));
  const inModule = made("input", { placeholder: "path", id: "module", oninput: draw });
  inModule.setAttribute("list", "paths");
  const [orderLabel, order] = choice("order", ["time", "bytes", "FLOPs"].map((one) => [one, one]), draw);
  order.options[0].textContent = "as they run";
  phase.id = "phase"; kind.id = "kind"; by.id = "by"; order.id = "order";
  const clear = () => {
    for (const one of [search, inModule, phase, kind, by, order]) one.value = "";
  };
  const reset = made("button", { type: "button", onclick: () => { clear(); draw(); } }, "reset");
  into.append(
    made("div", { class: "bar" }, made("label", { class: "wide" }, "search", search), note),
    made("div", { class: "bar" }, phaseLabel, made("label", {}, "module", inModule), paths, kindLabel, byLabel, orderLabel, reset),
    made("div", { class: "scroll" }, head), more);
  draw();

  opsOf = (path) => { clear(); inModule.value = path; draw(); into.scrollIntoView(); };
  showOp = (name) => {
    if (!all.name.includes(name)) return;
    clear(); search.value = name;
    const at = draw().findIndex((i) => all.name[i] === name);
    const target = body.children[at];
    if (!target) return;
    toggle(target, all.name.indexOf(name));
    target.scrollIntoView({ block: "center" });
  };
}
