// Line charts and stacked bar charts, as SVG of a fixed size that scales to its column.

const WIDTH = 300, HEIGHT = 130, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 18;
const WINDOW = 5; // steps of the trailing mean, as in `cascade curve`

const linear = (low, high, first, last) => (value) => first + ((value - low) / (high - low || 1)) * (last - first);

// Round numbers between low and high.
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.7);
  const levels = [];
  for (let level = Math.ceil(low / unit - 1e-9); level * unit <= high + unit * 1e-9; level++) levels.push(level * unit);
  return levels;
}

function bounds(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  if (low === high) { const pad = Math.abs(low) * 0.01 || 1; return [low - pad, high + pad]; }
  return [low, high];
}

function trailing(values) {
  return values.map((_, i) => {
    const last = values.slice(Math.max(0, i - WINDOW + 1), i + 1);
    return last.reduce((sum, value) => sum + value, 0) / last.length;
  });
}

// One point per value. If several values share a pixel, its lowest and highest.
function path(xs, ys, x, y) {
  const points = [];
  let column = null;
  for (let i = 0; i < xs.length; i++) {
    const px = Math.round(x(xs[i]) * 2) / 2;
    if (column && column.px === px) { column.low = Math.min(column.low, ys[i]); column.high = Math.max(column.high, ys[i]); column.last = ys[i]; continue; }
    points.push(column = { px, low: ys[i], high: ys[i], last: ys[i] });
  }
  const at = (px, value) => `${px} ${y(value).toFixed(1)}`;
  return "M" + points.map(({ px, low, high, last }) => (low === high ? at(px, low) : `${at(px, low)}L${at(px, high)}L${at(px, last)}`)).join("L");
}

// A tick label in as few characters as possible.
function tick(value) {
  const size = Math.abs(value), text = value === 0 ? "0" : size < 1e-3 || size >= 1e5 ? String(Number(value.toPrecision(4)).toExponential()).replace("e+", "e") : String(Number(value.toPrecision(5)));
  return text.replace(/^-/, "−");
}

// The offset from which nearly equal values are labelled, for example 1 for 1.0000003. 0 means no offset.
function nearby(low, high) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  return high - low < size * 1e-3 ? Number(low.toPrecision(2)) : 0;
}

function axes(x, y, [firstStep, lastStep], [low, high], levels) {
  const parts = [], near = levels ? 0 : nearby(low, high);
  for (const level of levels ?? ticks(low - near, high - near, 3)) {
    const at = y(level + near);
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }));
    parts.push(svg("text", { x: LEFT - 5, y: at + 3.5, "text-anchor": "end" }, tick(level)));
  }
  if (near) parts.push(svg("text", { x: LEFT + 4, y: TOP + 6 }, `${number(near)} +`));
  parts.push(svg("text", { x: x(firstStep), y: HEIGHT - 4 }, whole(firstStep)));
  if (lastStep > firstStep) parts.push(svg("text", { x: x(lastStep), y: HEIGHT - 4, "text-anchor": "end" }, whole(lastStep)));
  return parts;
}

// Thin line: the values. Thick line: their trailing mean over WINDOW steps.
function lineChart(title, allSteps, allValues, range) {
  const kept = allValues.map((value, i) => [allSteps[i], value]).filter(([, value]) => value !== null && value !== undefined);
  const steps = kept.map(([step]) => step), values = kept.map(([, value]) => value);
  const [low, high] = range ?? bounds(values), span = [steps[0], steps[steps.length - 1]];
  const x = linear(span[0], span[1], LEFT, WIDTH - RIGHT), y = linear(low, high, HEIGHT - BOTTOM, TOP);
  const last = values[values.length - 1], digits = high - low;
  const rest = `${number(last, digits)}`;
  const read = h("output", { title: "last value; hover over the chart for others" }, rest);
  const cross = svg("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const dot = svg("circle", { class: "point", r: 3, visibility: "hidden" });
  const label = `${title}: ${plural(values.length, "step")}, first ${number(values[0], digits)}, last ${rest}, lowest ${number(Math.min(...values), digits)}, highest ${number(Math.max(...values), digits)}`;
  const marks = values.length > 1
    ? [svg("path", { class: "raw", d: path(steps, values, x, y) }), svg("path", { class: "mean", d: path(steps, trailing(values), x, y) })]
    : [svg("circle", { class: "point", r: 3, cx: x(steps[0]), cy: y(values[0]) })];
  const show = (i) => {
    const shown = i === null ? "hidden" : "visible";
    cross.setAttribute("visibility", shown); dot.setAttribute("visibility", shown);
    read.textContent = i === null ? rest : `step ${steps[i]} · ${number(values[i], digits)}`;
    if (i === null) return;
    cross.setAttribute("x1", x(steps[i])); cross.setAttribute("x2", x(steps[i]));
    dot.setAttribute("cx", x(steps[i])); dot.setAttribute("cy", y(values[i]));
  };
  const nearest = (event) => {
    const box = event.currentTarget.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * WIDTH;
    return steps.reduce((best, step, i) => (Math.abs(x(step) - at) < Math.abs(x(steps[best]) - at) ? i : best), 0);
  };
  const drawing = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label,
    onpointermove: (event) => show(nearest(event)), onpointerleave: () => show(null) }, axes(x, y, span, [low, high], new Set(values).size === 1 ? [values[0]] : null), marks, cross, dot);
  return h("figure", null, h("figcaption", null, h("b", { title }, title), read), drawing);
}

// One bar per step, or per mean of several steps. `parts` are [colour, values] from the bottom up.
function barChart(label, steps, parts, unit) {
  const width = 720, height = 96, bins = Math.min(steps.length, 180), size = steps.length / bins;
  const means = parts.map(([, values]) => Array.from({ length: bins }, (_, bin) => {
    const slice = values.slice(Math.floor(bin * size), Math.max(Math.floor(bin * size) + 1, Math.floor((bin + 1) * size)));
    return slice.reduce((sum, value) => sum + value, 0) / slice.length;
  }));
  const totals = means[0].map((_, bin) => means.reduce((sum, values) => sum + values[bin], 0));
  const top = Math.max(...totals) || 1, y = linear(0, top, height - BOTTOM, TOP), slot = (width - LEFT - RIGHT) / Math.max(bins, 12);
  const floors = new Array(bins).fill(0);
  const paths = parts.map(([fill], part) => svg("path", { fill, d: means[part].map((value, bin) => {
    const low = floors[bin], high = (floors[bin] += value), left = LEFT + bin * slot;
    return value ? `M${left.toFixed(2)} ${y(low).toFixed(2)}V${y(high).toFixed(2)}h${(slot * 0.86).toFixed(2)}V${y(low).toFixed(2)}z` : "";
  }).join("") }));
  const levels = ticks(0, top, 2).map((level) => [
    svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(level), y2: y(level) }),
    svg("text", { x: LEFT - 5, y: y(level) + 3.5, "text-anchor": "end" }, tick(level) + unit)]);
  const ends = [svg("text", { x: LEFT, y: height - 4 }, whole(steps[0])), svg("text", { x: LEFT + bins * slot, y: height - 4, "text-anchor": "end" }, bins > 1 ? whole(steps[steps.length - 1]) : "")];
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, levels, paths, ends);
}
