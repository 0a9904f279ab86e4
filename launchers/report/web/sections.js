// The sections above the rollouts.

const PHASES = ["generation", "reward", "log-prob", "teacher", "update", "refit"];
const FIRST = ["reward", "loss", "length", "entropy", "tme", "kl", "grad_norm", "lr"];
const OUTCOME_COLOURS = { completed: "var(--c0)", truncated: "var(--c1)", wrong_format: "var(--c3)", infrastructure_failure: "var(--c5)" };
const OUTCOME_MARKS = { completed: "●", truncated: "◐", wrong_format: "▲", infrastructure_failure: "✕" };
const words = (name) => name.replaceAll("_", " ");

function header(run) {
  const { header: at, rollouts } = run;
  byId("name").textContent = at.name;
  byId("facts").replaceChildren(...facts([
    ["base", at.base], ["base hash", h("span", { class: "mono", title: at.base_hash }, at.base_hash.slice(0, 12))], ["seed", String(at.seed)],
    ["ranks", String(at.nproc)], ["first to last event", `${moment(at.first)} – ${moment(at.last)}`],
    ["time of all stages", duration(run.stages.reduce((sum, stage) => sum + stage.seconds, 0))], ["time left", at.left],
    ["rollouts", rollouts.kept === rollouts.total ? whole(rollouts.total) : `${whole(rollouts.kept)} of ${whole(rollouts.total)} in this file`],
    ["folder", h("span", { class: "mono" }, at.folder)],
    ["report", `${moment(at.written)}, cascade-rl ${at.version}${at.at_work ? "; written during a launch" : ""}`],
  ]));
}

// The graph: one row per stage, with its edges in the gutter. The first child continues in its parent's lane.
function lanes(stages) {
  const lane = { base: 0 }, taken = new Set();
  let next = 1;
  for (const stage of stages) {
    lane[stage.name] = taken.has(stage.parent) ? next++ : lane[stage.parent];
    taken.add(stage.parent);
  }
  return lane;
}

// The models that teach or judge a stage, with their roles.
function teachers(stage) {
  const roles = new Map();
  for (const [role, model] of stage.models) roles.set(model, [...(roles.get(model) ?? []), role]);
  return roles;
}

let graphSize = null;
function graph(run) {
  const lane = lanes(run.stages), columns = Math.max(...Object.values(lane)) + 1;
  const taught = run.stages.flatMap((stage) => [...teachers(stage)].map(([model, roles]) => ({ from: model, to: stage.name, roles })))
    .filter((edge) => edge.from in lane);
  const arcs = Math.min(taught.length, 6), gutter = 22 + columns * 18 + (arcs ? 14 + arcs * 8 : 0);
  const box = byId("graph");
  box.style.setProperty("--gutter", `${gutter}px`);
  const rows = new Map([["base", stageRow({ name: "base", base: run.header.base })], ...run.stages.map((stage) => [stage.name, stageRow(stage, run.stages)])]);
  box.replaceChildren(...rows.values());
  const draw = () => {
    box.querySelector("svg")?.remove();
    const y = (name) => rows.get(name).offsetTop + 17, x = (name) => 18 + lane[name] * 18;
    const edges = run.stages.map((stage) => {
      const [x1, y1, x2, y2] = [x(stage.parent), y(stage.parent), x(stage.name), y(stage.name)];
      const bend = x1 === x2 ? "" : `C${x1} ${y1 + 16} ${x2} ${y1 + 4} ${x2} ${Math.min(y1 + 22, y2)}`;
      return svg("path", { class: "edge", d: `M${x1} ${y1}${bend}L${x2} ${y2}` }, svg("title", null, `${stage.parent} → ${stage.name}`));
    });
    const dashed = taught.map(({ from, to, roles }, i) => {
      const far = gutter - 10 - (i % 6) * 8;
      return svg("path", { class: "edge taught", d: `M${x(from) + 5} ${y(from)}H${far - 4}q4 0 4 4V${y(to) - 4}q0 4 -4 4H${x(to) + 6}` }, svg("title", null, `${from} → ${to}: ${roles.join(", ")}`));
    });
    const heads = taught.map(({ to }) => svg("path", { class: "arrow", d: `M${x(to) + 6} ${y(to)}l7 -4v8z` }));
    const dots = ["base", ...run.stages.map((stage) => stage.name)].map((name) => svg("circle", { class: `dot ${stateClass(run.stages.find((stage) => stage.name === name))}`, r: 5, cx: x(name), cy: y(name) }));
    const text = "Stage graph: " + run.stages.map((stage) => `${stage.name} from ${stage.parent}`).join(", ");
    box.append(svg("svg", { width: gutter, height: box.clientHeight, role: "img", "aria-label": text }, dashed, heads, edges, dots));
  };
  draw();
  graphSize?.disconnect();
  graphSize = new ResizeObserver(draw);
  graphSize.observe(box);
}

const stateClass = (stage) => (!stage || stage.state === "done" ? "done" : stage.state === "gate closed" ? "closed" : stage.state === "running" ? "started" : stage.state === "failed" ? "closed" : "");

function stageRow(stage, stages) {
  if (stage.base) return h("div", { class: "stage" }, h("span", { class: "title" }, "base"), h("span", { class: "soft base" }, stage.base));
  const gates = stage.gate.map(([domain, lost, allowed, passed]) =>
    h("span", { class: passed ? "good" : "bad" }, `${passed ? "✓" : "✗"} gate: ${words(domain)} lost ${score(lost)}, allowed ${score(allowed)}`));
  const waiting = stage.gate.length ? [] : Object.entries(stage.allowed).map(([domain, allowed]) => h("span", null, `gate: ${words(domain)} may lose ${score(allowed)}`));
  const reads = [...teachers(stage)].map(([model, roles]) => h("span", null, roles[0] === "judge" ? `judged by ${model}` : `${roles.map(words).join(", ")} taught by ${model === "best" ? "the best stage when it starts" : model}`));
  const pupils = stages.filter((other) => teachers(other).has(stage.name)).map((other) => h("span", null, `→ ${other.name}: ${teachers(other).get(stage.name).map(words).join(", ")}`));
  const mark = { done: "●", "gate closed": "✗", failed: "✗", running: "◐", interrupted: "◌" }[stage.state] ?? "○";
  const waits = stage.state.startsWith("waits");
  return h("div", { class: "stage", title: `${stage.terms}\n${stage.hash}` },
    h("span", { class: "title" }, stage.label, " ", h("span", { class: "kind" }, stage.kind)),
    h("span", { class: stateClass(stage) === "closed" ? "bad" : stateClass(stage) === "done" ? "good" : "soft" }, `${mark} ${waits ? "waits" : stage.state}`),
    h("span", { class: "num" }, `${whole(stage.step)} / ${whole(stage.steps)}`),
    h("span", { class: "num soft" }, stage.seconds ? duration(stage.seconds) : ""),
    h("span", { class: "more" }, h("span", null, words(stage.own.join(", "))), stage.left && h("span", null, stage.left), stage.ended && h("span", null, `ended by ${stage.ended}`), stage.alerts.map((each) => alert(stage, each)), gates, waiting, reads, pupils, waits && h("span", null, stage.state)));
}

// What a rule found, with the page that explains it.
function alert(stage, [text, page, content]) {
  const name = `docs/symptoms/${page}.md`;
  return h("details", { class: "alert", "data-of": `${stage.name} ${page} ${text.split(" ")[0]}` }, h("summary", null, `▲ ${text} `, h("span", { class: "soft" }, name)), content && h("pre", null, content));
}

// Scores of each stage in every domain.
function scores(run) {
  const shown = run.stages.filter((stage) => Object.keys(stage.before).length);
  if (!shown.length) { byId("scores-note").textContent = "No stage has held-out scores yet."; return; }
  const gain = (stage, domain) => (domain in stage.after && domain in stage.before ? stage.after[domain] - stage.before[domain] : null);
  const top = Math.max(...shown.flatMap((stage) => run.domains.map((domain) => Math.abs(gain(stage, domain) ?? 0)))) || 1;
  byId("scores-note").replaceChildren(`Mean score on ${run.header.heldout} held-out prompts per domain after each stage, and below it the change by the stage. `,
    h("span", { class: "heat" }, h("i", { class: "key", style: "background:var(--up)" }), " gained ", h("i", { class: "key", style: "background:var(--down)" }), ` lost, full colour at ${score(top)}; framed: the stage’s own domain.`));
  const first = shown[0];
  const rows = run.domains.map((domain) => [h("th", { scope: "row" }, words(domain)), h("td", null, domain in first.before ? score(first.before[domain]) : "–"), ...shown.map((stage) => heatCell(stage, domain, gain(stage, domain), top))]);
  byId("scores-table").replaceChildren(table(["domain", `before ${first.name}`, ...shown.map((stage) => stage.label)], rows, { class: "heat" }));
}

function heatCell(stage, domain, gain, top) {
  const own = stage.own.includes(domain) ? " own" : "";
  if (!(domain in stage.after)) return h("td", { class: "soft" + own }, "–");
  const gate = stage.gate.find(([gated]) => gated === domain);
  const verdict = gate && h("span", { class: gate[3] ? "" : "bad", title: `allowed ${score(gate[2])}` }, gate[3] ? " ✓" : " ✗ gate");
  const side = gain > 0 ? "up" : gain < 0 ? "down" : "";
  return h("td", { class: side + own, style: `--by:${Math.abs(gain ?? 0) / top}`, "data-stage": stage.name, "data-domain": domain },
    score(stage.after[domain]), h("small", null, gain === null ? "" : signed(gain), verdict));
}

// The answers of an evaluation have no stages: what tells of them is not shown.
function evaluation(run) {
  byId("name").textContent = run.header.name;
  byId("h-stages").textContent = "Evaluation";
  byId("facts").replaceChildren(...facts(run.evaluation));
  for (const id of ["graph", "scores", "curves", "time", "failures"]) byId(id).hidden = true;
  benchmarks(run);
}

// Benchmarks: one row per benchmark and mode of thinking, one column per model.
function benchmarks(run) {
  const { results, differences } = run.benchmarks, models = [...new Set(results.map((row) => row.model))];
  byId("benchmarks").hidden = !results.length;
  const estimate = ({ mean, half }, show = score) => show(mean) + (half === null ? "" : ` ± ${score(half)}`);
  const titleOf = (row) => Object.entries(row).filter(([, value]) => value?.mean !== undefined).map(([name, value]) => `${name} ${estimate(value, number)}`);
  const cell = (row) => row ? h("td", { title: [plural(row.prompts, "prompt"), ...titleOf(row)].join("\n") }, estimate(Object.entries(row).find(([name]) => name.startsWith("avg@"))[1])) : h("td", { class: "soft" }, "–");
  const rows = [...new Map(results.map((row) => [`${row.benchmark} ${row.mode}`, row])).values()].map(({ benchmark, mode }) =>
    [words(benchmark), mode === "template" ? "–" : `thinking ${mode}`, ...models.map((model) => cell(results.find((row) => row.benchmark === benchmark && row.mode === mode && row.model === model)))]);
  byId("benchmarks-table").replaceChildren(table(["benchmark", "mode", ...models], rows));
  byId("benchmarks-gaps").replaceChildren(...(differences.length ? [table(["benchmark", "compared", "difference"], differences.map((row) => [words(row.benchmark), row.compared, estimate(row, signed)]))] : []));
}

// Curves: all metrics of a stage, or one metric in all stages.
function seriesOf(stage) {
  const names = Object.keys(stage.metrics).filter((name) => name !== "step" && stage.metrics[name].some((value) => value !== null));
  const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  return names.map((name, i) => [name, i]).sort(([a, i], [b, j]) => place(a) - place(b) || i - j).map(([name]) => name);
}

function curves(run) {
  const trained = run.stages.filter((stage) => seriesOf(stage).length);
  if (!trained.length) { byId("curves-charts").textContent = "No step has finished yet."; return; }
  const names = [...new Set(trained.flatMap(seriesOf))];
  const draw = () => {
    const { curve = `stage ${(trained.find((stage) => stage.state === "running") ?? trained.find((stage) => stage.kind !== "sft") ?? trained[0]).name}` } = address.read(), [by, name] = curve.split(" ");
    const stage = trained.find((candidate) => candidate.name === name);
    const charts = by === "series"
      ? trained.filter((each) => name in each.metrics).map((each) => lineChart(each.label, each.metrics.step, each.metrics[name]))
      : seriesOf(stage ?? trained[0]).map((series) => lineChart(series, (stage ?? trained[0]).metrics.step, (stage ?? trained[0]).metrics[series]));
    choose.querySelector("select").value = curve;
    byId("curves-charts").replaceChildren(...charts);
  };
  const choose = select("show", "curve", [...trained.map((stage) => [`stage ${stage.name}`, `all of ${stage.label}`]), ...names.map((name) => [`series ${name}`, `${name}, every stage`])], () => draw());
  byId("curves-tools").replaceChildren(choose, h("span", { class: "note" }, `thin: each step; thick: mean of ${WINDOW} steps`));
  listeners.set("curves", draw);
  draw();
}

// Time per phase.
function timings(run) {
  const names = [...new Set([...PHASES, ...run.stages.flatMap((stage) => stage.phases.names)])].filter((name) => run.stages.some((stage) => stage.phases.names.includes(name)));
  const shade = (name) => `var(--c${names.indexOf(name) % 8})`;
  byId("time-charts").replaceChildren();
  byId("time-legend").replaceChildren(...names.map((name) => h("span", null, h("i", { style: `background:${shade(name)}` }), name)));
  for (const stage of run.stages.filter((candidate) => candidate.phases.steps.length)) {
    const phases = names.filter((name) => stage.phases.names.includes(name)), values = phases.map((name) => stage.phases.seconds[stage.phases.names.indexOf(name)]);
    const sums = values.map((each) => each.reduce((sum, value) => sum + value, 0)), all = sums.reduce((sum, value) => sum + value, 0), steps = stage.phases.steps.length;
    const tokens = stage.phases.tokens.reduce((sum, value) => sum + value, 0);
    const rows = phases.map((name, i) => [h("span", null, h("i", { class: "swatch", style: `background:${shade(name)}` }), name), number(sums[i] / steps) + " s", share(sums[i] / all)]);
    const title = `${stage.label} · ${number(all / steps)} s a step · ${whole(tokens / all)} tokens/s`;
    byId("time-charts").append(h("div", { class: "clock" },
      h("figure", null, h("figcaption", null, h("b", null, title), h("output", null, `${whole(tokens)} tokens`)), barChart(`Seconds per phase of each step of ${stage.label}`, stage.phases.steps, phases.map((name, i) => [shade(name), values[i]]), " s")),
      table(["phase", "mean", "share"], rows)));
  }
  if (!byId("time-charts").childElementCount) byId("time-charts").textContent = "No step has finished yet.";
}

// The age of tokens: of runs whose samples are not all of the newest weights.
function ages(run) {
  const found = run.counts.ages, old = new Set(found.filter(([, , age]) => age > 0).map(([stage]) => stage)), all = [...new Set(found.map(([, , age]) => age))].sort((a, b) => a - b);
  byId("ages").hidden = !old.size;
  byId("ages-legend").replaceChildren(...all.map((age, i) => h("span", null, h("i", { style: `background:var(--c${i % 8})` }), plural(age, "update"))));
  byId("ages-charts").replaceChildren(...[...old].map((stage) => {
    const own = found.filter(([of]) => of === stage), steps = [...new Set(own.map(([, step]) => step))];
    const total = (step) => own.reduce((sum, [, of, , count]) => sum + (of === step ? count : 0), 0);
    const part = (age) => steps.map((step) => (100 * (own.find(([, of, its]) => of === step && its === age)?.[3] ?? 0)) / total(step));
    const tokens = own.reduce((sum, [, , , count]) => sum + count, 0), mean = own.reduce((sum, [, , age, count]) => sum + age * count, 0) / tokens, { label } = run.stages[stage];
    return h("figure", null, h("figcaption", null, h("b", null, label), h("output", null, `mean age ${number(mean)}`)), barChart(`Share of tokens by age in each step of ${label}`, steps, all.map((age, i) => [`var(--c${i % 8})`, part(age)]), " %"));
  }));
}

// Failures by sample, by attempt and of engines.
function failures(run) {
  const { outcomes, broken } = run.counts, names = run.rollouts.outcomes, body = byId("failures-body");
  body.replaceChildren();
  const keys = [...new Set(outcomes.map(([stage, domain]) => `${stage} ${domain}`))];
  const rows = keys.map((key) => {
    const [stage, domain] = key.split(" "), counted = names.map((name) => outcomes.find(([s, d, o]) => s === +stage && d === domain && o === name)?.[3] ?? 0);
    const all = counted.reduce((sum, value) => sum + value, 0);
    const bar = h("span", { class: "stack", "aria-hidden": "true" }, names.map((name, i) => h("i", { style: `width:${(100 * counted[i]) / all}%;background:${OUTCOME_COLOURS[name]}` })));
    return [run.stages[stage].label, words(domain), bar, whole(all), ...counted.map((value) => `${whole(value)} · ${share(value / all)}`)];
  });
  const heads = names.map((name) => h("span", null, h("i", { class: "swatch", style: `background:${OUTCOME_COLOURS[name]}` }), `${OUTCOME_MARKS[name]} ${words(name)}`));
  if (rows.length) body.append(h("h3", null, "Outcomes of all rollouts"), h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Outcomes" }, table(["stage", "domain", "", "rollouts", ...heads], rows)));
  if (broken.length) body.append(h("h3", null, "Infrastructure failures: masked, never a reward of 0"), h("div", { class: "scroll" }, table(["stage", "domain", "count", "message"], broken.map(([stage, domain, detail, count]) => [run.stages[stage].label, words(domain), whole(count), h("td", { class: "wrap mono" }, detail || "(no message)")]))));
  if (run.unfinished.length) body.append(h("p", { class: "note" }, `Rollouts of steps that were not finished: ${run.unfinished.map(([stage, step]) => `${run.stages[stage].label} step ${step}`).join(", ")}.`));
  const attempts = run.stages.flatMap((stage) => stage.attempts.map((attempt, i) => [stage.label, `${i + 1} of ${stage.attempts.length}`, moment(attempt.time), whole(attempt.from), duration(attempt.seconds), ending(attempt.code), h("td", { class: "wrap mono" }, attempt.message)]));
  if (attempts.length) body.append(h("h3", null, "Attempts"), h("div", { class: "scroll" }, table(["stage", "attempt", "started", "from step", "duration", "ended with", "last words"], attempts)));
  const warnings = run.stages.flatMap((stage) => stage.warnings.map(([step, detail]) => [stage.label, whole(step), h("td", { class: "wrap mono bad" }, detail)]));
  if (warnings.length) body.append(h("h3", null, "Warnings"), h("div", { class: "scroll" }, table(["stage", "step", "message"], warnings)));
  const deaths = run.stages.flatMap((stage) => stage.deaths.map(([time, detail]) => [stage.label, moment(time), h("td", { class: "wrap mono" }, detail)]));
  body.append(h("h3", null, `Engine deaths: ${deaths.length || "none"}`));
  if (deaths.length) body.append(h("div", { class: "scroll" }, table(["stage", "time", "message"], deaths)));
}

const ending = (code) => (code === null ? h("span", { class: "soft" }, "no end recorded") : code === 0 ? "exit code 0" : h("span", { class: "bad" }, `exit code ${code}`));

// Expert load: one row per expert, one column per step.
async function experts(run) {
  const measured = run.experts.map((shape, index) => ({ shape, index })).filter(({ shape }) => shape[0]);
  if (!measured.length) return;
  byId("experts").hidden = false;
  const options = measured.flatMap(({ shape, index }) => Array.from({ length: shape[0] }, (_, layer) => [`${index} ${layer}`, `${run.stages[index].label}, expert layer ${layer + 1} of ${shape[0]}`]));
  const canvas = h("canvas", { role: "img" }), read = h("output", { class: "num soft" });
  const draw = async () => {
    const chosen = address.read().experts ?? options[0][0], [index, layer] = chosen.split(" ").map(Number), shape = run.experts[index], [, count, columns] = shape;
    const all = fromPlanes(await unpack(`experts-${index}`), 0, shape[0] * count * columns, Uint16Array);
    const load = all.subarray(layer * count * columns, (layer + 1) * count * columns);
    paintLoad(canvas, load, count, columns);
    const most = load.reduce((top, value) => Math.max(top, value), 0) / 256;
    canvas.setAttribute("aria-label", `Load of ${count} experts over the steps; the largest is ${most.toFixed(2)} times the mean`);
    const steps = run.stages[index].phases.steps, rest = `largest ${most.toFixed(2)} × the layer’s mean`;
    read.textContent = rest;
    canvas.onpointerleave = () => { read.textContent = rest; };
    canvas.onpointermove = (event) => {
      const box = canvas.getBoundingClientRect(), cell = (at, length, cells) => Math.min(cells - 1, Math.max(0, Math.floor((at / length) * cells)));
      const column = cell(event.clientX - box.left, box.width, columns), row = cell(event.clientY - box.top, box.height, count);
      read.textContent = `expert ${row}, step ${steps[Math.floor((column * steps.length) / columns)] ?? column + 1}: ${(load[row * columns + column] / 256).toFixed(2)} × the mean`;
    };
  };
  byId("experts-tools").replaceChildren(select("layer", "experts", options, draw), read);
  byId("experts-map").replaceChildren(canvas, h("p", { class: "note" }, "Columns: steps, from left to right. Rows: experts. ", h("span", { class: "ramp" }, "0", h("i", { style: "background:linear-gradient(90deg,var(--down),var(--panel),var(--up))" }), "2 × the mean or more; no colour: the mean")));
  repaints.set("experts", draw); listeners.set("experts", draw);
  await draw();
}

function paintLoad(canvas, load, rows, columns) {
  canvas.width = columns; canvas.height = rows; canvas.style.height = `${Math.min(420, Math.max(90, rows * 11))}px`;
  const context = canvas.getContext("2d"), [up, down, even] = ["--up", "--down", "--panel"].map(colour);
  context.fillStyle = even; context.fillRect(0, 0, columns, rows);
  for (let i = 0; i < load.length; i++) {
    const from = load[i] / 256 - 1;
    context.globalAlpha = Math.min(1, Math.abs(from));
    context.fillStyle = from > 0 ? up : down;
    context.fillRect(i % columns, Math.floor(i / columns), 1, 1);
  }
}
