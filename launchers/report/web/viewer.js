// The rollouts: filters over typed columns, a list that builds only the visible rows, and one rollout token by token.

const ROW = 26, SLICE_MS = 30, KEPT_CHUNKS = 48, AHEAD = 12, TOKENS_AT_ONCE = 2000, ROWS_AT_ONCE = 200;
const OF = ["training", "evaluation"]; // by the column "heldout"
const FLAG_LOSS = 1, FLAG_GENERATED = 2;
const SORTS = {
  step: { text: "order of the run", label: "step", show: (value) => String(value) },
  reward: { text: "reward", label: "reward", show: (value) => number(value) },
  advantage: { text: "advantage", label: "adv.", show: (value) => (Number.isNaN(value) ? "–" : value.toFixed(2).replace(/^-0.00$/, "0.00").replace("-", "−")) },
  length: { text: "length", label: "tokens", show: (value) => String(value) },
  turns: { text: "turns", label: "turns", show: (value) => String(value) },
  tme: { text: "trainer–sampler gap", label: "tme − 1", show: (value) => number(Number(value) - 1) },
  kl: { text: "KL to the teacher", label: "KL", show: (value) => (Number.isNaN(value) ? "–" : value.toFixed(3).replace("-", "−")) },
};
const COLOURS = { trainer: "log p, trainer", sampler: "log p, sampler", ratio: "ratio, trainer / sampler", advantage: "advantage", kl: "KL to the teacher", none: "nothing" };

async function viewer(first) {
  const note = byId("rollouts-note");
  if (!first.rollouts.kept) {
    note.textContent = first.rollouts.total ? `None of the run’s ${whole(first.rollouts.total)} rollouts is in this file (--rollouts).` : "No stage has sampled rollouts yet.";
    return;
  }
  let run, rollouts, kept, starts, columns, vocabulary, chunks, order, found;
  let shown = 0, selected = -1, opened = null, latest = 0;

  async function read(newer) {
    const next = newer.rollouts, all = Object.entries(next.columns).map(async ([name, type]) => [name, fromPlanes(await unpack(`column-${name}`), 0, next.kept, ARRAYS[type])]);
    const [ids, texts] = await unpackJson("vocabulary"), arrays = Object.fromEntries(await Promise.all(all));
    [run, rollouts, columns] = [newer, next, arrays]; ({ kept, starts } = next);
    vocabulary = new Map(ids.map((id, i) => [id, texts[i]]));
    chunks = chunkReader(starts, columns.answer, kept); order = new Uint32Array(kept); found = { query: "", hits: null };
    const { total } = rollouts;
    note.textContent = `${total === kept ? `All ${whole(total)} rollouts of the run are` : `${whole(kept)} of the run’s ${whole(total)} rollouts are`} in this file, in ${(run.bytes / 1e6).toFixed(1)} MB${total === kept ? "" : "; evenly spread, in whole groups (--rollouts)"}.`;
  }

  // Filters, searches and sorts. A later call cancels an earlier one.
  async function apply() {
    const mine = ++latest, wanted = address.read();
    if (wanted.q && !(await search(wanted.q.toLowerCase(), () => mine === latest))) return;
    const keep = predicate(wanted, run, columns);
    let count = 0;
    for (let i = 0; i < kept; i++) if (keep(i) && (!wanted.q || found.hits[i])) order[count++] = i;
    shown = count;
    sort(order.subarray(0, count), columns, wanted.sort);
    byId("summary").textContent = summary(order.subarray(0, count), columns, rollouts);
    paintHead(wanted.sort); list.resize();
    if (wanted.rollout !== undefined && +wanted.rollout < kept) { if (+wanted.rollout !== selected) show(+wanted.rollout, true); }
    else if (count && selected < 0 && !narrow()) show(order[0], true);
  }

  async function search(query, current) {
    if (found.query === query) return true;
    const hits = new Uint8Array(kept);
    let since = performance.now();
    for (let chunk = 0; chunk < starts.length; chunk++) {
      for (let ahead = chunk + 1; ahead < Math.min(starts.length, chunk + AHEAD); ahead++) chunks.text(ahead); // unpack the next chunks in the meantime
      const part = await chunks.text(chunk);
      if (!current()) return false;
      const prompts = part.prompts.map((prompt) => prompt.toLowerCase().includes(query));
      for (let i = 0; i < part.id.length; i++)
        hits[starts[chunk] + i] = prompts[part.prompt[i]] || part.text[i].toLowerCase().includes(query) || part.id[i].toLowerCase().includes(query) || part.detail[i].toLowerCase().includes(query);
      if (performance.now() - since > SLICE_MS) {
        byId("summary").textContent = `Searching ${share(chunk / starts.length)}`;
        await new Promise((resolve) => setTimeout(resolve));
        since = performance.now();
      }
    }
    Object.assign(found, { query, hits });
    return current();
  }

  const list = virtualList(byId("list"), byId("spacer"), {
    count: () => shown, row: (place) => row(order[place]), opened: (place) => { show(order[place]); if (narrow()) byId("detail").scrollIntoView(); }, settled: snippets, place: () => order.subarray(0, shown).indexOf(selected),
  });

  function row(i) {
    const key = extra(), outcome = rollouts.outcomes[columns.outcome[i]];
    return h("div", { class: "row", role: "option", id: `row-${i}`, "aria-selected": String(i === selected), "data-rollout": i, title: run.stages[columns.stage[i]].label },
      h("span", { class: "soft" }, run.stages[columns.stage[i]].label.slice(0, 2)), h("span", { class: "r" }, String(columns.step[i])), h("span", null, words(rollouts.domains[columns.domain[i]])),
      h("span", { style: `color:${OUTCOME_COLOURS[outcome]}`, title: words(outcome), role: "img", "aria-label": words(outcome) }, OUTCOME_MARKS[outcome]),
      h("span", { class: "r" }, number(columns.reward[i]).slice(0, 6)), h("span", { class: "r wide" }, SORTS.advantage.show(columns.advantage[i])), h("span", { class: "r wide" }, SORTS[key].show(columns[key][i])), h("span", { class: "snippet" }));
  }

  // The third number of a row is the one that the list is sorted by, or the length.
  const extra = () => { const key = (address.read().sort ?? "").replace("-", ""); return ["turns", "tme", "kl"].includes(key) ? key : "length"; };

  async function snippets(rows) {
    for (const element of rows) {
      const i = +element.dataset.rollout, chunk = chunks.of(i), part = await chunks.text(chunk);
      if (element.isConnected) element.lastChild.textContent = part.text[i - starts[chunk]].slice(0, 160).replaceAll("\n", " ↵ ");
    }
  }

  function paintHead(sorted) {
    const by = (key, label, wide) => h("button", { type: "button", class: `r${wide ? " wide" : ""}`, "data-key": key, "data-dir": sorted === key || sorted === `-${key}` ? sorted : null, title: `sort by ${SORTS[key].text}`,
      onclick: () => { address.write({ sort: address.read().sort === `-${key}` ? key : `-${key}` }); fill(); apply(); } }, label + (sorted === key ? " ↑" : sorted === `-${key}` ? " ↓" : ""));
    const plain = (text) => h("button", { type: "button", title: "order of the run", onclick: () => { address.write({ sort: null }); fill(); apply(); } }, text);
    byId("columns").replaceChildren(plain("stage"), by("step", "step"), h("span", { class: "soft" }, "domain"), h("span"), by("reward", "reward"), by("advantage", "adv.", true), by(extra(), SORTS[extra()].label, true), h("span", { class: "soft" }, "text"));
  }

  // Filters.
  await read(first);
  const fields = makeFilters(rollouts), form = byId("filters");
  offer(fields, run);
  const fill = () => { const wanted = address.read(); for (const [name, field] of Object.entries(fields)) field.value = wanted[name] ?? ""; };
  let typing = 0;
  form.addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => { address.write({ [event.target.name]: event.target.value.trim() }); apply(); }, event.target.type === "search" ? 220 : 0);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => { event.preventDefault(); address.write(Object.fromEntries(Object.keys(fields).map((name) => [name, null]))); fill(); apply(); });

  // One rollout.
  async function show(i, quiet) {
    [selected, opened] = [i, null];
    if (!quiet || address.read().rollout !== undefined) address.write({ rollout: i });
    list.select();
    const chunk = chunks.of(i), [part, numbers] = await Promise.all([chunks.text(chunk), chunks.numbers(chunk, i)]);
    if (i !== selected) return;
    opened = { stage: run.stages[columns.stage[i]].name, step: columns.step[i], id: part.id[i - starts[chunk]] };
    byId("detail").replaceChildren(...detail({ run, columns, vocabulary, i, part, at: i - starts[chunk], numbers, open: show }));
    byId("detail").scrollTop = 0;
  }

  const step = (by) => { const place = list.place() + by; if (place >= 0 && place < shown) show(order[place]); };
  const sibling = (by) => { const i = selected + by; if (i >= 0 && i < kept && columns.group[i] === columns.group[selected]) show(i); };
  const token = (by) => byId("detail").dispatchEvent(new CustomEvent("token", { detail: by }));
  const keys = { j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1), PageDown: () => step(list.page()), PageUp: () => step(-list.page()), l: () => sibling(1), h: () => sibling(-1), ArrowRight: () => token(1), ArrowLeft: () => token(-1), Enter: () => byId("detail").focus() };
  const onlyInList = new Set(["ArrowDown", "ArrowUp", "PageDown", "PageUp", "Enter"]), near = byId("rollouts");
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && !event.target.matches("input")) { event.preventDefault(); fields.q.focus(); fields.q.scrollIntoView({ block: "nearest" }); }
    else if (event.key === "Escape" && event.target === fields.q) byId("list").focus();
    else if (!event.target.matches("input, select, button") && keys[event.key] && (onlyInList.has(event.key) ? event.target === byId("list") : event.target === document.body || near.contains(event.target))) { event.preventDefault(); keys[event.key](); }
  });

  // A newer page of the run. The open rollout stays as it is, unless its number changed: its group has the numbers of its answers.
  refreshViewer = async (newer) => {
    await read(newer);
    offer(fields, run); fill();
    const place = opened && (await whereIs(opened));
    if (place !== selected && opened) { selected = -1; address.write({ rollout: place < 0 || address.read().rollout === undefined ? null : place }); if (place >= 0) await show(place, true); }
    await apply();
  };

  async function whereIs({ stage, step, id }) {
    for (let i = 0; i < kept; i++) {
      if (columns.step[i] !== step || run.stages[columns.stage[i]].name !== stage) continue;
      const chunk = chunks.of(i);
      if ((await chunks.text(chunk)).id[i - starts[chunk]] === id) return i;
    }
    return -1;
  }

  byId("viewer").hidden = false;
  listeners.set("rollouts", () => { fill(); apply(); });
  fill();
  await apply();
}
let refreshViewer = viewer;

// Unpacks chunks on demand and caches the last few.
function chunkReader(starts, answers, kept) {
  const opened = new Map();
  const once = (key, make) => {
    const value = opened.get(key) ?? make();
    opened.delete(key); opened.set(key, value);
    if (opened.size > KEPT_CHUNKS) opened.delete(opened.keys().next().value);
    return value;
  };
  function of(i) {
    let low = 0, high = starts.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (starts[middle] <= i) low = middle; else high = middle - 1; }
    return low;
  }
  const sum = (from, to) => { let tokens = 0; for (let i = from; i < to; i++) tokens += answers[i]; return tokens; };
  async function numbers(chunk, i) {
    const bytes = await once(`tokens-${chunk}`, () => unpack(`tokens-${chunk}`)), tokens = sum(starts[chunk], starts[chunk + 1] ?? kept);
    const first = sum(starts[chunk], i), end = first + answers[i], part = (values) => values.slice(first, end);
    const sampler = fromPlanes(bytes, 4 * tokens, tokens, Uint32Array), differences = fromPlanes(bytes, 8 * tokens, tokens, Uint32Array);
    const trainer = sampler.map((bits, place) => bits ^ differences[place]);
    return {
      ids: part(fromPlanes(bytes, 0, tokens, Uint32Array)), sampler: part(new Float32Array(sampler.buffer)), trainer: part(new Float32Array(trainer.buffer)),
      flags: bytes.slice(12 * tokens + first, 12 * tokens + end), teacher: bytes.length > 13 * tokens ? part(fromPlanes(bytes, 13 * tokens, tokens, Float32Array)) : null,
    };
  }
  return { of, numbers, text: (chunk) => once(`text-${chunk}`, () => unpackJson(`text-${chunk}`)) };
}

// Parses "3-7", "3-" or "5" into bounds. A leading minus is a sign.
function interval(text) {
  const [, low, dash, high] = /^\s*(-?[\d.]+)?\s*(?:(\.\.|–|-)\s*(-?[\d.]+)?)?\s*$/.exec(text ?? "") ?? [];
  return [low === undefined ? -Infinity : +low, high !== undefined ? +high : dash || low === undefined ? Infinity : +low];
}

function predicate(wanted, run, columns) {
  const index = (names, name) => (name ? names.indexOf(name) : -1);
  const stage = index(run.stages.map((each) => each.name), wanted.stage), domain = index(run.rollouts.domains, wanted.domain), outcome = index(run.rollouts.outcomes, wanted.outcome);
  const of = index(OF, wanted.of), [first, last] = interval(wanted.steps), [low, high] = interval(wanted.reward), rewarded = Boolean(wanted.reward);
  return (i) => (stage < 0 || columns.stage[i] === stage) && (domain < 0 || columns.domain[i] === domain) && (outcome < 0 || columns.outcome[i] === outcome) && (of < 0 || columns.heldout[i] === of)
    && columns.step[i] >= first && columns.step[i] <= last && (!rewarded || (columns.reward[i] >= low - 1e-6 && columns.reward[i] <= high + 1e-6));
}

// Rollouts without the value come last, equal ones in the order of the run.
function sort(order, columns, wanted) {
  if (!wanted) return;
  const values = columns[wanted.replace("-", "")], sign = wanted.startsWith("-") ? -1 : 1;
  if (!values) return;
  order.sort((a, b) => {
    const x = values[a], y = values[b];
    if (x === y) return a - b;
    return Number.isNaN(x) ? (Number.isNaN(y) ? a - b : 1) : Number.isNaN(y) ? -1 : sign * (x - y);
  });
}

function summary(order, columns, { kept, outcomes }) {
  if (!order.length) return `None of ${whole(kept)} rollouts matches. Clear a filter.`;
  let reward = 0, rewarded = 0, length = 0;
  const counts = new Array(outcomes.length).fill(0);
  for (const i of order) {
    if (!Number.isNaN(columns.reward[i])) { reward += columns.reward[i]; rewarded++; }
    length += columns.length[i]; counts[columns.outcome[i]]++;
  }
  const states = outcomes.map((name, i) => counts[i] && `${words(name)} ${share(counts[i] / order.length)}`).filter(Boolean).join(", ");
  return `${whole(order.length)} of ${whole(kept)} · mean reward ${rewarded ? score(reward / rewarded) : "–"} · mean length ${number(Number((length / order.length).toFixed(1)))} · ${states}`;
}

const options = (values, texts = values) => [h("option", { value: "" }, "all"), values.map((value, i) => h("option", { value }, texts[i]))].flat();

// The stages and domains that there are to choose from.
function offer(fields, run) {
  const drawn = run.stages.filter((_, index) => run.rollouts.stages.includes(index));
  fields.stage.replaceChildren(...options(drawn.map((stage) => stage.name), drawn.map((stage) => stage.label)));
  fields.domain.replaceChildren(...options(run.rollouts.domains, run.rollouts.domains.map(words)));
}

function makeFilters(rollouts) {
  const sorts = Object.entries(SORTS).flatMap(([key, { text }]) => (key === "step" ? [] : [[`-${key}`, `${text}, high first`], [key, `${text}, low first`]]));
  const fields = {
    q: h("input", { name: "q", type: "search", placeholder: "prompt, answer, id, verdict", autocomplete: "off", spellcheck: "false" }),
    stage: h("select", { name: "stage" }),
    of: h("select", { name: "of" }, options(OF)),
    steps: h("input", { name: "steps", type: "text", size: 7, placeholder: "3-7", autocomplete: "off" }),
    domain: h("select", { name: "domain" }),
    outcome: h("select", { name: "outcome" }, options(rollouts.outcomes, rollouts.outcomes.map(words))),
    reward: h("input", { name: "reward", type: "text", size: 7, placeholder: "0-0.5", autocomplete: "off" }),
    sort: h("select", { name: "sort" }, [["", SORTS.step.text], ["-step", "latest step first"], ...sorts].map(([value, text]) => h("option", { value }, text))),
  };
  const labels = { q: "text", stage: "stage", of: "of", steps: "steps", domain: "domain", outcome: "outcome", reward: "reward", sort: "sort by" };
  byId("filters").append(...Object.entries(fields).map(([name, field]) => h("label", { class: name === "q" ? "grow" : null }, labels[name], field)), h("button", { type: "reset" }, "clear"));
  return fields;
}

// A list of rows of fixed height. Only the visible rows are elements.
function virtualList(box, spacer, { count, row, opened, settled, place }) {
  let waiting = 0, rest = 0;
  const page = () => Math.max(1, Math.floor(box.clientHeight / ROW) - 1);
  function draw() {
    waiting = 0;
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 4), last = Math.min(count(), first + page() + 10), rows = [];
    for (let at = first; at < last; at++) {
      const element = row(at);
      element.style.top = `${at * ROW}px`;
      element.setAttribute("aria-posinset", at + 1); element.setAttribute("aria-setsize", count());
      rows.push(element);
    }
    spacer.replaceChildren(...rows);
    clearTimeout(rest);
    rest = setTimeout(() => settled(rows), 60);
  }
  const soon = () => { waiting ||= requestAnimationFrame(draw); };
  box.addEventListener("scroll", soon, { passive: true });
  box.addEventListener("click", (event) => { const element = event.target.closest(".row"); if (element) opened(Math.round(parseFloat(element.style.top) / ROW)); });
  new ResizeObserver(soon).observe(box);
  return {
    page, place,
    resize() { spacer.style.height = `${count() * ROW}px`; draw(); },
    select() {
      const at = place();
      if (at >= 0 && (at * ROW < box.scrollTop || (at + 1) * ROW > box.scrollTop + box.clientHeight)) box.scrollTop = Math.max(0, at * ROW - box.clientHeight / 2);
      draw();
      const element = spacer.querySelector('[aria-selected="true"]');
      if (element) box.setAttribute("aria-activedescendant", element.id); else box.removeAttribute("aria-activedescendant");
    },
  };
}

// One rollout.
function detail({ run, columns, vocabulary, i, part, at, numbers, open }) {
  const stage = run.stages[columns.stage[i]], outcome = run.rollouts.outcomes[columns.outcome[i]], reward = part.reward[at];
  const state = h("span", { style: `color:${OUTCOME_COLOURS[outcome]}` }, `${OUTCOME_MARKS[outcome]} ${words(outcome)}`);
  const spans = part.versions[at].map(([weights, first]) => (part.versions[at].length > 1 ? `${weights} from token ${first}` : String(weights))).join(", ");
  const parts = part.parts[at].map(([name, value]) => [name, typeof value === "string" ? value : number(value)]);
  const text = tokenView({ stage, numbers, vocabulary, advantage: columns.advantage[i], turns: columns.turns[i] });
  return [
    h("h3", null, part.id[at]),
    h("dl", { class: "facts" }, facts([
      ["stage", stage.label], ["step", String(columns.step[i])], ["of", columns.heldout[i] ? "evaluation" : null], ["domain", words(run.rollouts.domains[columns.domain[i]])], ["task", part.task_id[at]], ["outcome", state], ["finish", part.finish[at]],
      ["reward", h("strong", { id: "reward" }, reward === null ? "none" : typeof reward === "string" ? reward : number(reward))], ["advantage", number(columns.advantage[i])],
      ["tokens", `${whole(columns.prompt[i])} + ${whole(columns.answer[i])}${columns.length[i] === columns.answer[i] ? "" : `, ${whole(columns.length[i])} generated`}`],
      ["turns", columns.turns[i] > 1 ? String(columns.turns[i]) : null], ["mode", part.thinking[at] === null ? null : part.thinking[at] ? "thinking" : "not thinking"],
      ["weights", spans], ["tme", number(columns.tme[i], columns.tme[i] - 1)], ["KL to the teacher", Number.isNaN(columns.kl[i]) ? null : number(columns.kl[i])],
    ])),
    part.detail[at] && h("p", { class: "mono" }, part.detail[at]),
    parts.length > 0 && h("dl", { class: "facts parts", id: "parts", "aria-label": "Reward parts" }, facts(parts)),
    h("h3", null, "Group"), groupStrip(columns, i, open),
    h("h3", null, "Prompt"), h("pre", { class: "prompt", tabindex: 0, "aria-label": "Prompt" }, part.prompts[part.prompt[at]]),
    ...text,
  ].filter(Boolean);
}

// The rewards of the answers to the same prompt.
function groupStrip(columns, i, open) {
  let first = i, last = i;
  while (columns.group[first - 1] === columns.group[i]) first--;
  while (columns.group[last + 1] === columns.group[i]) last++;
  return h("div", { class: "group", role: "group", "aria-label": "Answers to the same prompt" }, Array.from({ length: last - first + 1 }, (_, place) => first + place).map((other) =>
    h("button", { type: "button", "aria-current": String(other === i), class: columns.advantage[other] > 0 ? "up" : columns.advantage[other] < 0 ? "down" : null, title: `${columns.length[other]} tokens, advantage ${SORTS.advantage.show(columns.advantage[other])}`, onclick: () => open(other) }, number(columns.reward[other]).slice(0, 6))));
}

const narrow = () => matchMedia("(max-width: 760px)").matches;
const precise = (value) => number(value, Math.abs(value) / 100);

function tokenView({ stage, numbers, vocabulary, advantage, turns }) {
  const { ids, sampler, trainer, flags, teacher } = numbers, count = ids.length;
  const ratio = (t) => Math.exp(trainer[t] - sampler[t]), kl = (t) => (teacher ? trainer[t] - teacher[t] : NaN), inLoss = (t) => Boolean(flags[t] & FLAG_LOSS), generated = (t) => Boolean(flags[t] & FLAG_GENERATED);
  const gain = (t) => (!inLoss(t) ? 0 : stage.distilled && teacher ? -kl(t) : advantage);
  const piece = (t) => vocabulary.get(ids[t]), outside = (t) => stage.band && generated(t) && (ratio(t) < stage.band[0] || ratio(t) > stage.band[1]);
  const pale = (value) => Math.min(1, value) * 55;
  const tint = { // from no colour to full colour; warm means unlikely or pushed down
    trainer: (t) => [pale(-trainer[t] / 6), "down"], sampler: (t) => [pale(-sampler[t] / 6), "down"], ratio: (t) => [pale(Math.abs(Math.log2(ratio(t)))), ratio(t) > 1 ? "up" : "down"],
    advantage: (t) => [pale(Math.abs(gain(t)) / 2), gain(t) > 0 ? "up" : "down"], kl: (t) => [pale(Math.abs(kl(t)) / 2 || 0), kl(t) > 0 ? "down" : "up"], none: () => [0, "up"],
  };
  const ramps = { trainer: ["0", "down", "−6"], sampler: ["0", "down", "−6"], ratio: ["½", "both", "2"], advantage: ["−2", "both", "2"], kl: ["−2", "back", "2"], none: null };
  const body = h("pre", { class: "tokens", tabindex: 0, "aria-label": "Answer, token by token" }), readout = h("div", { class: "readout num", "aria-live": "polite" }), spans = [], lines = h("tbody");
  let turn = 0, target = null, now = -1;

  function more() {
    const from = spans.length, to = Math.min(count, from + TOKENS_AT_ONCE);
    for (let t = from; t < to; t++) {
      if (t === 0 || generated(t) !== generated(t - 1)) {
        if (generated(t)) turn++;
        const heading = turns > 1 || !generated(t) ? h("div", { class: "turn" }, generated(t) ? `turn ${turn}` : "environment") : null;
        target = h("div", { class: generated(t) ? "said" : "shown" });
        body.append(...[heading, target].filter(Boolean));
      }
      const span = h("span", { class: `${outside(t) ? "out " : ""}${inLoss(t) ? "" : "off"}` }, piece(t).replaceAll("\n", "↵\n"));
      spans.push(span); target.append(span);
    }
    button.hidden = to === count;
    button.textContent = `show ${whole(Math.min(TOKENS_AT_ONCE, count - to))} more of ${whole(count)} tokens`;
    paintTokens(from);
  }
  function paintTokens(from = 0) {
    const mode = tint[chosen.value] ? chosen.value : "trainer";
    for (let t = from; t < spans.length; t++) {
      const [by, side] = generated(t) ? tint[mode](t) : [0, "up"];
      spans[t].style.background = by > 0.5 ? `color-mix(in srgb, var(--${side}) ${by.toFixed(0)}%, transparent)` : "";
    }
    const shades = { down: "transparent,var(--down)", both: "var(--down),transparent,var(--up)", back: "var(--up),transparent,var(--down)" };
    ramp.replaceChildren(...(ramps[mode] ? [ramps[mode][0], h("i", { style: `opacity:.55;background:linear-gradient(90deg,${shades[ramps[mode][1]]})` }), ramps[mode][2]] : []));
  }
  const values = (t) => [String(t), String(ids[t]), JSON.stringify(piece(t)).slice(1, -1), precise(sampler[t]), precise(trainer[t]), number(ratio(t), 1e-4), inLoss(t) ? "✓" : "–", precise(gain(t)), ...(teacher ? [precise(teacher[t]), precise(kl(t))] : [])];
  const headings = ["token", "id", "text", "log p sampler", "log p trainer", "ratio", "in loss", "advantage", ...(teacher ? ["log p teacher", "KL"] : [])];
  function point(t) {
    if (t < 0 || t >= spans.length) return;
    spans[now]?.classList.remove("now"); lines.children[now]?.classList.remove("now");
    now = t;
    spans[t].classList.add("now"); lines.children[t]?.classList.add("now");
    readout.replaceChildren(...values(t).map((value, place) => h("span", { class: place === 2 ? "mono" : null }, h("b", null, headings[place]), value)));
  }
  function moreLines() {
    const from = lines.childElementCount, to = Math.min(count, from + ROWS_AT_ONCE);
    for (let t = from; t < to; t++) lines.append(h("tr", null, values(t).map((value) => h("td", null, value))));
    rowsButton.hidden = to === count;
    rowsButton.textContent = `show ${whole(Math.min(ROWS_AT_ONCE, count - to))} more rows of ${whole(count)}`;
  }
  const button = h("button", { type: "button", onclick: more }), rowsButton = h("button", { type: "button", onclick: moreLines }), ramp = h("span", { class: "ramp", "aria-hidden": "true" });
  const modes = Object.entries(COLOURS).filter(([name]) => name !== "kl" || teacher);
  const choice = select("colour by", "colour", modes, () => paintTokens()), chosen = choice.querySelector("select");
  if (!count) return [h("h3", null, "Answer"), h("p", { class: "soft" }, "No token was generated.")];
  more(); moreLines();
  body.addEventListener("pointerover", (event) => point(spans.indexOf(event.target)));
  tokenKeys.point = (by) => { point(now + by < 0 ? 0 : now + by); spans[now]?.scrollIntoView({ block: "nearest" }); };
  point(0);
  return [h("h3", null, "Answer"), h("div", { class: "tools" }, choice, ramp, h("span", { class: "note" }, "grey: not in the loss", stage.band && ` · wavy: ratio outside ${stage.band[0]}–${stage.band[1]}`)), readout, body, button,
    h("h3", null, "Tokens"), h("div", { class: "scroll" }, h("table", { class: "tokentable", id: "tokentable" }, h("thead", null, h("tr", null, headings.map((text) => h("th", { scope: "col" }, text)))), lines)), rowsButton];
}
const tokenKeys = { point: () => {} };
byId("detail").addEventListener("token", (event) => tokenKeys.point(event.detail));

function overview(run) {
  if (run.evaluation) return evaluation(run);
  header(run); graph(run); scores(run); benchmarks(run); curves(run); timings(run); ages(run); failures(run);
}

// The page.
(async () => {
  paint();
  const run = await unpackJson("run");
  overview(run);
  document.documentElement.dataset.painted = "yes";
  if (document.readyState === "loading") await new Promise((resolve) => addEventListener("DOMContentLoaded", resolve, { once: true }));
  await experts(run);
  navigation();
  await viewer(run);
  document.documentElement.dataset.ready = "yes";
  toSection();
})();
