"use strict";
// Learning curves: a chart for each metric, a colour for each of the best runs, training thin and the rest bold.
// Only updates measure the noise scale: its chart is left out while their curves are.

const COLOURS = ["#2f7ed8", "#e8710a", "#2aa15a", "#d63a3a", "#8a5cd6", "#a0673f", "#d4589f", "#17a2b8", "#a5a01c", "#7c8796"];
const NOISE_SCALE = "noise_scale"; // its axis is always logarithmic
const AXIS_LABELS = { step: "update", epoch: "epoch", seconds: "seconds" };

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function brief(value) {
  if (value == null) return "-";
  if (value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e6)) return value.toExponential(3);
  return String(+value.toPrecision(5));
}

/** Index of the value nearest to x in an ascending list. */
function nearest(list, x) {
  let low = 0, high = list.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < x) low = middle; else high = middle;
  }
  return x - list[low] <= list[high] - x ? low : high;
}

/** The places of numbers at a logarithmic axis: powers of ten, and in a short range numbers between them. */
function powers(_, axis, low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const between = last - first > 3 ? [1] : last - first > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
  const every = Math.ceil((last - first) / 8), places = [];
  for (let power = first; power <= last; power += every) between.forEach((part) => places.push(part * 10 ** power));
  return places.filter((place) => place >= low && place <= high);
}

class Charts {
  /** view: { x, splits: Set, hidden: Set, log, focus }, shared with the rest of the page; focus is a run's place. */
  constructor(data, view, onFocus) {
    Object.assign(this, { data, view, onFocus, plots: [] });
    this.colours = data.runs.map((_, place) => COLOURS[place]);
  }

  colour(place) {
    return this.colours[place] || style("--other");
  }

  splits() {
    return [...new Set(this.data.runs.flatMap((run) => Object.keys(run.curves)))];
  }

  /** The curves of a metric, the best run last so that it lies on top. */
  curves(metric) {
    const found = [];
    for (let place = this.data.runs.length - 1; place >= 0; place--) {
      if (this.view.hidden.has(place)) continue;
      for (const [split, columns] of Object.entries(this.data.runs[place].curves)) {
        if (!this.view.splits.has(split)) continue;
        const kept = columns[metric].map((_, i) => i).filter((i) => columns[metric][i] !== null && columns[this.view.x][i] !== null);
        if (!kept.length) continue;
        found.push({ place, split, at: kept, x: kept.map((i) => columns[this.view.x][i]), y: kept.map((i) => columns[metric][i]) });
      }
    }
    return found.sort((a, b) => (b.split === "train") - (a.split === "train")); // training below the rest
  }

  draw(parent) {
    this.plots.forEach((plot) => plot.destroy());
    parent.replaceChildren();
    const metrics = this.data.metrics.filter((metric) => metric !== NOISE_SCALE || this.curves(metric).length);
    const boxes = metrics.map((metric) => {
      const box = parent.appendChild(document.createElement("div"));
      box.className = "chart";
      box.appendChild(document.createElement("h3")).textContent = metric;
      return box;
    });
    this.plots = metrics.map((metric, i) => this.chart(metric, boxes[i]));  // all boxes have their width now
  }

  chart(metric, box) {
    const curves = this.curves(metric);
    const asked = metric === NOISE_SCALE || (metric === "loss" && this.view.log);
    const log = asked && curves.every((curve) => curve.y.every((value) => value > 0));
    const joined = curves.length ? uPlot.join(curves.map((curve) => [curve.x, curve.y])) : [[]];
    const plot = new uPlot(this.options(metric, curves, log, box), joined, box);
    plot.over.addEventListener("mouseleave", () => this.leave(tip, dot));
    const tip = this.overlay(box, "tip"), dot = this.overlay(plot.over, "swatch");
    Object.assign(plot, { curves, tip, dot, box });
    return plot;
  }

  overlay(parent, name) {
    const element = parent.appendChild(document.createElement("div"));
    element.className = name;
    element.hidden = true;
    element.style.position = "absolute";
    element.style.pointerEvents = "none";
    return element;
  }

  options(metric, curves, log, box) {
    const grid = { stroke: style("--line"), width: 1 };
    const ink = { stroke: style("--dim"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    return {
      width: box.clientWidth - 18,
      height: Math.max(240, Math.min(340, box.clientWidth * 0.6)),
      legend: { show: false },
      scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
      axes: [
        { ...ink, label: AXIS_LABELS[this.view.x], labelSize: 20, labelFont: ink.font, size: 34 },
        { ...ink, size: 58, values: (_, splits) => splits.map(brief), ...(log ? { splits: powers, filter: (_, splits) => splits } : {}) },
      ],
      cursor: { points: { show: false }, drag: { x: true, y: false }, focus: { prox: -1 } },
      series: [{}, ...curves.map((curve) => ({
        width: (curve.split === "train" ? 1 : 2) * (curve.place === 0 ? 1.4 : 1),
        stroke: () => this.stroke(curve),
        spanGaps: true,
        points: { show: curve.x.length === 1, size: 7, fill: this.colour(curve.place) },
      }))],
      hooks: { setCursor: [(plot) => this.hover(plot)] },
    };
  }

  stroke({ place, split }) {
    const { focus } = this.view;
    if (focus === place) return this.colours[place] || style("--accent");
    const strength = focus === null ? (split === "train" ? 0.35 : 1) : 0.13;
    return this.colour(place) + Math.round(strength * 255).toString(16).padStart(2, "0");
  }

  focus(place) {
    if (this.view.focus === place) return;
    this.view.focus = place;
    this.plots.forEach((plot) => plot.redraw(false));
    this.onFocus(place);
  }

  leave(tip, dot) {
    tip.hidden = dot.hidden = true;
    this.focus(null);
  }

  /** Shows the point nearest to the cursor, and what else its run has measured there. */
  hover(plot) {
    const { left, top } = plot.cursor;
    if (!plot.curves || left < 0 || !plot.curves.length) return;
    const x = plot.posToVal(left, "x");
    let best = null;
    for (const curve of plot.curves) {
      const i = nearest(curve.x, x);
      const at = { x: plot.valToPos(curve.x[i], "x"), y: plot.valToPos(curve.y[i], "y") };
      const distance = Math.hypot(at.x - left, at.y - top);
      if (!best || distance < best.distance) best = { ...at, distance, curve, i: curve.at[i] };
    }
    this.focus(best.curve.place);
    plot.dot.hidden = false;
    Object.assign(plot.dot.style, { left: `${best.x - 5}px`, top: `${best.y - 5}px`, background: this.stroke(best.curve) });
    this.tell(plot, best);
  }

  tell(plot, { curve, i, x }) {
    const run = this.data.runs[curve.place], at = run.curves[curve.split][this.view.x][i];
    const shown = Object.entries(run.curves).map(([split, columns]) => {
      const index = split === curve.split ? i : nearest(columns[this.view.x], at);
      return { title: `${split} at ${columns.step[index]}`, value: (name) => brief(columns[name][index]) };
    });
    const { tip, box } = plot, table = document.createElement("table");
    const add = (tag, texts) => {
      const row = table.insertRow();
      texts.forEach((text) => (row.appendChild(document.createElement(tag)).textContent = text));
    };
    add("th", ["", ...shown.map((each) => each.title)]);
    this.data.metrics.forEach((metric) => add("td", [metric, ...shown.map((each) => each.value(metric))]));
    const name = document.createElement("b");
    name.textContent = run.label;
    const { epoch, seconds } = run.curves[curve.split];
    const when = document.createElement("div");
    when.textContent = `epoch ${brief(epoch[i])}, ${brief(seconds[i])} s`;
    tip.replaceChildren(name, when, table);
    tip.hidden = false;
    const offset = plot.over.offsetLeft + x - tip.offsetWidth / 2;
    tip.style.left = `${Math.max(0, Math.min(offset, box.clientWidth - tip.offsetWidth))}px`;
  }
}
