// What page.js draws the page with goes before this, in one script.

// --- passes ---------------------------------------------------------------------------------

function difference(one) {
  const text = made("code", { class: "diff" });
  const kinds = { "+": "added", "-": "removed", " ": "" };
  for (const hunk of one.hunks) {
    text.append(made("span", { class: "at" }, `@@ ${hunk.at} @@`));
    hunk.lines.forEach((number, i) => {
      const sign = hunk.signs[i];
      text.append(made("span", { class: kinds[sign] }, `${sign} ${data.diffs.lines[number]}`));
    });
    if (hunk.cut) text.append(made("span", { class: "at" }, `${hunk.cut} more lines`));
  }
  if (one.left) text.append(made("span", { class: "at" }, `${one.left} more lines changed: config.passes.dump writes all`));
  return text;
}

function passes() {
  if (!data.passes) return;
  const into = section("passes", "Passes");
  if (data.diffs.note) into.append(made("p", { class: "note" }, data.diffs.note));
  data.passes.forEach((one, i) => {
    const diff = data.diffs.by_pass[i];
    const changed = diff && (diff.hunks.length || diff.left);
    const sides = one.before === one.after ? `${one.after} nodes` : `${one.before} → ${one.after} nodes`;
    const about = `${one.edits} edits, ${sides}, ${one.ms.toPrecision(2)} ms${one.exact ? "" : ", not bitwise"}`;
    const inside = made("div");
    const element = made("details", { "data-pass": one.name }, made("summary", {}, made("b", {}, one.name), made("span", { class: "dim" }, about)), inside);
    element.addEventListener("toggle", () => {
      if (inside.hasChildNodes()) return;
      inside.append(changed ? difference(diff) : made("p", { class: "note" }, diff ? "It changed nothing." : "Not shown."));
    });
    into.append(element);
  });
}

// --- plots ----------------------------------------------------------------------------------

const drawn = [];

function styled(spec, width) {
  const style = getComputedStyle(document.documentElement);
  const [text, dim, line] = ["--text", "--dim", "--line"].map((name) => style.getPropertyValue(name).trim());
  const small = width < 500;
  const font = "system-ui, sans-serif";
  const axis = { labelColor: dim, titleColor: dim, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 11, titleFontWeight: "normal", tickCount: small ? 5 : 10 };
  const changed = {
    ...spec, width, autosize: { type: "fit-x", contains: "padding" }, background: null,
    config: { ...spec.config, font, axis, title: { color: text, fontSize: 14 }, legend: { labelColor: text, titleColor: dim, labelFontSize: 12, columns: small ? 2 : 0 }, rect: { color: text } },
  };
  const y = changed.encoding && changed.encoding.y;
  if (small && y && y.axis) { // the ends of paths tell more than their beginnings
    const labelExpr = y.field === "module" ? "length(datum.label) > 18 ? '…' + slice(datum.label, -17) : datum.label" : "datum.label";
    changed.encoding = { ...changed.encoding, y: { ...y, axis: { ...y.axis, labelExpr, labelLimit: 130 } } };
  }
  return changed;
}

function plot(name, into) {
  if (!data.plots[name].data.values.length) return;
  const element = made("div", { class: "plot", id: `plot-${name}` });
  into.append(element);
  const draw = async () => {
    if (!element.clientWidth) return;
    const spec = styled(data.plots[name], element.clientWidth);
    const { view } = await window.vegaEmbed(element, spec, { actions: false, renderer: "svg", ast: true, tooltip: { theme: "custom" } });
    view.addEventListener("click", (event, item) => {
      if (item && item.datum && item.datum.node) showOp(item.datum.node);
    });
    element.dataset.drawn = "true";
  };
  drawn.push(draw);
}

function plots() {
  if (!data.plots) { tables("memory", "Memory"); return; }
  const memory = section("memory", "Memory");
  for (const note of data.notes.memory) memory.append(made("p", { class: "note" }, note));
  plot("memory", memory);
  tables("memory", "", memory);
  const time = section("time", "Time");
  for (const note of data.notes.time) time.append(made("p", { class: "note" }, note));
  for (const name of ["phases", "modules", "stages"]) plot(name, time);
}

async function drawAll() {
  for (const draw of drawn) await draw();
  document.documentElement.dataset.ready = "true";
}

overview();
modules();
ops();
passes();
plots();
tables("guards", "Guards");
tables("programs", "Programs");
tables("refusals", "Refusals");

let waits = 0;
const again = () => { clearTimeout(waits); waits = setTimeout(drawAll, 150); };
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; again(); } });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
requestAnimationFrame(() => setTimeout(drawAll));
