// Shared parts: blocks, elements, number formats, the state in the address, the colour scheme.

const byId = (id) => document.getElementById(id);

// Unpacks a block (blocks.py).
async function unpack(id) {
  const text = atob(byId(id).textContent), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const unpackJson = async (id) => JSON.parse(new TextDecoder().decode(await unpack(id)));

const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, float32: Float32Array };

// Joins `count` values from the byte planes that begin at `start`.
function fromPlanes(bytes, start, count, Type) {
  const width = Type.BYTES_PER_ELEMENT, joined = new Uint8Array(count * width);
  for (let plane = 0; plane < width; plane++)
    for (let i = 0, at = start + plane * count; i < count; i++) joined[i * width + plane] = bytes[at + i];
  return new Type(joined.buffer);
}

// Builds an element. Function attributes become listeners; null and false children are left out.
function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function facts(pairs) {
  return pairs.filter(([, value]) => value !== null && value !== "").map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)));
}

// Text is aligned left, numbers right. A heading is aligned like its column.
function table(headings, rows, attributes) {
  const left = (value) => (value instanceof HTMLTableCellElement ? value.matches(".wrap") : typeof value !== "string" || !/^[\d+−–]/.test(value));
  const cell = (value) => (value instanceof HTMLTableCellElement ? value : h("td", { class: left(value) ? "text-left" : null }, value));
  const head = headings.map((heading, i) => h("th", { scope: "col", class: rows[0] && left(rows[0][i]) ? "text-left" : null }, heading));
  return h("table", attributes, h("thead", null, h("tr", null, head)), h("tbody", null, rows.map((row) => h("tr", null, row.map(cell)))));
}

// Number formats.
const whole = (value) => Math.round(value).toLocaleString("en");
const score = (value) => value.toFixed(3);
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);
const share = (value) => (100 * value).toFixed(1) + " %";
const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

// With enough digits to distinguish values that differ by `range`.
function number(value, range = Math.abs(value)) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0 || !Number.isFinite(value)) return String(value).replace("-", "−");
  const size = Math.abs(value);
  const digits = Math.min(10, Math.max(3, Math.ceil(Math.log10(size / (range || size))) + 3));
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(Math.min(digits - 1, 2)) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−").replace("e−", "e-");
}

function duration(seconds) {
  if (seconds < 59.95) return seconds.toFixed(1) + " s";
  const all = Math.round(seconds), minutes = Math.floor(all / 60);
  return minutes < 60 ? `${minutes} min ${all % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const moment = (seconds) => (seconds === null ? "–" : new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC");

// The address keeps the state after #: filters, sort order and the open rollout. So a view can be shared as a link.
const address = {
  read: () => Object.fromEntries(new URLSearchParams(location.hash.slice(1))),
  write(changes) {
    const parameters = new URLSearchParams(location.hash.slice(1));
    for (const [name, value] of Object.entries(changes)) {
      if (value === "" || value === null || value === undefined) parameters.delete(name);
      else parameters.set(name, value);
    }
    history.replaceState(null, "", "#" + parameters);
  },
};
const listeners = new Map(); // by section
addEventListener("hashchange", () => { listeners.forEach((listener) => listener()); toSection(); });

function toSection() {
  const section = byId(address.read().at);
  if (section) section.scrollIntoView();
}

// A select element whose choice is kept in the address.
function select(label, name, options, changed) {
  const chosen = address.read()[name];
  const items = options.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
  return h("label", null, label, h("select", { name, onchange: (event) => { address.write({ [name]: event.target.value }); changed(); } }, items));
}

// Colour scheme: the system's until the button is pressed.
const system = matchMedia("(prefers-color-scheme: dark)");
const schemes = ["auto", "light", "dark"], repaints = new Map();
let scheme = "auto";
function paint() {
  document.documentElement.dataset.theme = scheme !== "auto" ? scheme : system.matches ? "dark" : "light";
  byId("theme").textContent = scheme;
  byId("theme").setAttribute("aria-label", `Colour scheme: ${scheme === "auto" ? "system" : scheme}`);
  repaints.forEach((repaint) => repaint());
}
byId("theme").addEventListener("click", () => { scheme = schemes[(schemes.indexOf(scheme) + 1) % 3]; paint(); });
system.addEventListener("change", paint);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function navigation() {
  byId("nav").replaceChildren();
  for (const section of document.querySelectorAll("main > section:not([hidden])")) {
    const text = section.querySelector("h1, h2").textContent;
    const go = (event) => { event.preventDefault(); address.write({ at: section.id }); section.scrollIntoView(); };
    byId("nav").append(h("a", { href: `#at=${section.id}`, onclick: go }, text));
  }
}
