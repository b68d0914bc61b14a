"use strict";
// The page around the curves: what is shown, the table, the bars. Text of runs is only ever set as text.

const data = JSON.parse(document.getElementById("data").textContent);
const KIND_COLOURS = { weights: "#2f7ed8", gradients: "#17a2b8", optimizer: "#8a5cd6", batch_norm: "#a5a01c", ema: "#2aa15a", activations: "#e8710a" };
const kindColour = (kind) => KIND_COLOURS[kind] || "#7c8796";

const view = {
  x: "step",
  splits: new Set(data.runs.flatMap((run) => Object.keys(run.curves))),
  hidden: new Set(),
  log: true,
  focus: null,
};
if (data.runs.length > COLOURS.length && view.splits.size > 1) view.splits.delete("train"); // at first
const charts = new Charts(data, view, markRow);
const sorted = { column: null, rising: true };

function find(id) {
  return document.getElementById(id);
}

function make(tag, name, ...content) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...content);
  return element;
}

/** A name that is broken, if at all, before a word, not between a key and its number. */
function breakable(name) {
  return name.split(/(?<=-)(?=[A-Za-z_])/).map((part) => make("span", "whole", part));
}

function swatch(colour) {
  const element = make("span", "swatch");
  element.style.background = colour;
  return element;
}

function redraw() {
  charts.draw(find("charts"));
  drawLegend();
  document.querySelectorAll("#table input").forEach((box) => (box.checked = !view.hidden.has(+box.dataset.place)));
}

function header() {
  find("title").textContent = document.title = data.title;
  for (const group of data.groups.filter((group) => group.size > 1)) {
    const best = data.runs[group.best], [text, value] = best.cells[data.columns.findIndex((column) => column.title === group.ranked_by)];
    const of = data.groups.length > 1 ? ` (${group.title})` : "";
    if (value !== null) find("best").append(make("p", "", make("span", "badge", "best"), " ", best.name, `: ${group.ranked_by} ${text}${of}`));
  }
  if (data.beginning) find("beginning").textContent = `Names are shown without their common beginning, ${data.beginning}`;
  const { shown, of } = data.points, count = (value) => value.toLocaleString("en");
  find("points").textContent = `${count(shown)} of ${count(of)} points` +
    (shown < of ? ": of each stretch of a curve the smallest and the largest." : ".") +
    " Drag across a chart to zoom in, double click to zoom out.";
}

function choice(title, pressed, act) {
  const button = make("button", "", title);
  button.setAttribute("aria-pressed", pressed());
  button.addEventListener("click", () => {
    act();
    drawControls();
    redraw();
  });
  return button;
}

function drawControls() {
  const toggle = (split) => () => (view.splits.has(split) ? view.splits.delete(split) : view.splits.add(split));
  const group = (title, ...buttons) => make("span", "group", title, ...buttons);
  const many = data.runs.length > COLOURS.length;
  const ten = () => data.runs.forEach((_, place) => place >= COLOURS.length && view.hidden.add(place));
  find("controls").replaceChildren(
    group("by", ...data.axes.map((axis) => choice(AXIS_LABELS[axis], () => view.x === axis, () => (view.x = axis)))),
    group("", ...charts.splits().map((split) => choice(
      split === "train" ? "train (thin)" : split, () => view.splits.has(split), toggle(split)))),
    choice("log loss", () => view.log, () => (view.log = !view.log)),
    ...(data.runs.length > 1 ? [group("",
      choice("all runs", () => !view.hidden.size, () => view.hidden.clear()),
      ...(many ? [choice(`${data.groups.length > 1 ? "first" : "best"} ${COLOURS.length}`, () => view.hidden.size === data.runs.length - COLOURS.length,
        () => { view.hidden.clear(); ten(); })] : []))] : []),
  );
}

function drawLegend() {
  const coloured = data.runs.slice(0, COLOURS.length).map((run, place) => {
    const entry = make("button", "run", swatch(charts.colour(place)), make("span", "", ...breakable(run.label)));
    entry.style.opacity = view.hidden.has(place) ? 0.4 : 1;
    entry.setAttribute("aria-pressed", !view.hidden.has(place));
    entry.addEventListener("click", () => show(place, view.hidden.has(place)));
    hovers(entry, place);
    return entry;
  });
  const others = data.runs.length - coloured.length;
  find("legend").replaceChildren(...coloured, ...(others > 0 ? [make("span", "", swatch(style("--other")), `${others} others`)] : []));
}

function show(place, shown) {
  if (shown) view.hidden.delete(place); else view.hidden.add(place);
  drawControls();
  redraw();
}

function hovers(element, place) {
  element.addEventListener("mouseenter", () => charts.focus(place));
  element.addEventListener("mouseleave", () => charts.focus(null));
}

function markRow(place) {
  document.querySelectorAll("#table tbody tr").forEach((row) => {
    row.style.outline = +row.dataset.place === place ? "2px solid var(--accent)" : "";
  });
}

// ---- table ------------------------------------------------------------------------------------------------------

function drawTable() {
  const numeric = data.columns.map((_, place) => data.runs.every((run) => run.cells[place][0] === "-" || asNumber(run.cells[place][1]) !== null));
  const order = data.runs.map((_, place) => place);
  if (sorted.column !== null) order.sort((a, b) => compare(a, b) * (sorted.rising ? 1 : -1));
  const head = make("tr", "", headCell("run", "name", -1), ...data.columns.map((column, place) =>
    headCell(column.title + (column.along.length ? ` +${column.along.length}` : ""), cellClass(place, numeric), place)));
  const rows = order.map((place) => bodyRow(place, numeric));
  find("table").replaceChildren(make("thead", "", head), make("tbody", "", ...rows));
  markRow(view.focus);
}

function asNumber(value) {
  return value === null || value === "" || Number.isNaN(Number(value)) ? null : Number(value);
}

function sortValue(place) {
  return sorted.column < 0 ? data.runs[place].name : data.runs[place].cells[sorted.column][1];
}

/** Numbers by size, before texts by their letters; what is not there comes last both ways. */
function compare(a, b) {
  const [x, y] = [sortValue(a), sortValue(b)], [m, n] = [asNumber(x), asNumber(y)];
  const missing = (value) => value === null || value === "-";
  if (missing(x) || missing(y)) return (missing(x) - missing(y)) * (sorted.rising ? 1 : -1);
  if (m !== null && n !== null) return m - n;
  return (m === null) - (n === null) || String(x).localeCompare(String(y), "en", { numeric: true });
}

function cellClass(column, numeric) {
  return `${data.columns[column].configured ? "configured" : ""} ${numeric[column] ? "number" : ""}`;
}

/** The parts of a key may stand in lines of their own. */
function headCell(title, name, place) {
  const mark = sorted.column === place ? (sorted.rising ? " ▲" : " ▼") : "";
  const parts = (title + mark).split(/(?<=\.)/).flatMap((part) => [make("wbr"), part]);
  const button = make("button", "", ...parts), cell = make("th", name, button);
  if (mark) cell.setAttribute("aria-sort", sorted.rising ? "ascending" : "descending");
  button.addEventListener("click", () => {
    sorted.rising = sorted.column === place ? !sorted.rising : true;
    sorted.column = place;
    drawTable();
  });
  return cell;
}

function bodyRow(place, numeric) {
  const run = data.runs[place], box = make("input");
  Object.assign(box, { type: "checkbox", checked: !view.hidden.has(place), ariaLabel: `show ${run.name}` });
  box.dataset.place = place;
  box.addEventListener("change", () => show(place, box.checked));
  const isBest = data.groups.some((group) => group.best === place && group.size > 1);
  const badge = isBest ? [make("span", "badge", "best"), " "] : [];
  const first = make("span", "", box, swatch(charts.colour(place)), make("span", "", ...badge, ...breakable(run.label)));
  const row = make("tr", isBest ? "best" : "", make("td", "name", first), ...run.cells.map(
    ([text], column) => make("td", `${cellClass(column, numeric)} ${!numeric[column] && text.length > 24 ? "text" : ""}`, text)));
  row.dataset.place = place;
  hovers(row, place);
  return row;
}

function drawKeys() {
  const configured = data.columns.filter((column) => column.configured), leads = configured.filter((column) => column.along.length);
  find("keys").textContent = configured.length ? "In blue: the keys in which the configurations differ."
    : data.runs.length > 1 ? "The configurations are the same." : "";
  if (!leads.length) return;
  const count = leads.reduce((sum, column) => sum + column.along.length, 0);
  find("along").hidden = false;
  find("along").querySelector("summary").textContent = `${count} more ${count === 1 ? "key differs" : "keys differ"} only where one of these does`;
  find("along").querySelector("ul").replaceChildren(...leads.map((column) => make("li", "", `${column.title}: ${column.along.join(", ")}`)));
}

// ---- bars -------------------------------------------------------------------------------------------------------

function drawBars() {
  find("kinds").replaceChildren(...data.kinds.map((kind) => make("span", "", swatch(kindColour(kind)), kind.replaceAll("_", " "))));
  const sums = data.runs.map((run) => Object.values(run.memory).reduce((sum, [size]) => sum + size, 0));
  bars(find("memory"), sums, (place) => data.kinds.map((kind) => ({
    size: (data.runs[place].memory[kind] || [0])[0], colour: kindColour(kind),
    title: `${kind.replaceAll("_", " ")}: ${(data.runs[place].memory[kind] || [0, "-"])[1]}`,
  })), (sum) => (sum >= 2 ** 30 ? `${(sum / 2 ** 30).toFixed(2)} GB` : `${(sum / 2 ** 20).toFixed(1)} MB`));
  const speeds = data.runs.map((run) => run.speed || 0);
  bars(find("speed"), speeds, (place) => [{ size: speeds[place], colour: charts.colour(place), title: "" }],
    (speed) => speed.toLocaleString("en", { maximumFractionDigits: speed < 10 ? 2 : 0 }));
}

function bars(parent, totals, parts, text) {
  const largest = Math.max(...totals) || 1;
  parent.replaceChildren(...data.runs.map((run, place) => {
    const track = make("span", "track", ...parts(place).filter((part) => part.size > 0).map((part) => {
      const piece = make("i");
      Object.assign(piece.style, { width: `${(100 * part.size) / largest}%`, background: part.colour });
      piece.title = part.title;
      return piece;
    }));
    return make("div", "bar", make("span", "name", ...breakable(run.label)), track,
      make("span", "value", totals[place] ? text(totals[place]) : "-"));
  }));
}

// ---- all --------------------------------------------------------------------------------------------------------

header();
drawControls();
drawTable();
drawKeys();
drawBars();
redraw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { redraw(); drawBars(); });
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
requestAnimationFrame(() => requestAnimationFrame(() => (document.documentElement.dataset.drawn = performance.now().toFixed(0))));
