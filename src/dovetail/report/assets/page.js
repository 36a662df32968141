// The page: one view shared by all timelines, moved by pointer, wheel and keys; drawn once a frame.
const { timelines, strings, lanes } = JSON.parse(document.getElementById("data").textContent);
const root = document.getElementById("timelines"), axis = document.getElementById("axis");
const tip = document.getElementById("tip"), shade = document.getElementById("priority");
const state = { name: null, cursor: null, byPriority: false, strings };
const canvases = [];
let colours, queued = false;

const span = timelines.flatMap(t => t.rows.flatMap(r => r.tracks));
const least = span.reduce((low, t) => Math.min(low, t.start[0] ?? 0), 0);
const most = span.reduce((high, t) => t.end.reduce((a, b) => Math.max(a, b), high), 1);
const urgency = ranks(span);
const view = { from: least, to: most };

// Priority -> its place among all priorities, 0 (goes first) to 1.
function ranks(tracks) {
  const all = [...new Set(tracks.flatMap(t => [...new Set(t.priority)]))].filter(p => p !== null).sort((a, b) => a - b);
  return new Map(all.map((p, n) => [p, all.length > 1 ? n / (all.length - 1) : 0]));
}

function readColours() {
  const style = getComputedStyle(document.documentElement), get = name => style.getPropertyValue(`--${name}`).trim();
  const pairs = lanes.map(lane => [get(lane), get(`${lane}2`)]);
  const moves = lanes.map(lane => lane === "send" || lane === "receive");
  const shades = Array.from({ length: 21 }, (_, n) => `hsl(${10 + 11 * n} 62% 52%)`);
  const of = (track, i, { byPriority }) => {
    const lane = track.lane[i], priority = track.priority[i];
    if (byPriority && moves[lane] && priority !== null) return shades[Math.round(urgency.get(priority) * 20)];
    return pairs[lane][Math.abs(track.iteration[i]) % 2];
  };
  const named = Object.fromEntries(["page", "text", "faint", "grid", "mark", "boundary"].map(n => [n, get(n)]));
  colours = { ...named, of };
}

function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    drawAxis(axis, view, colours, state.cursor);
    canvases.forEach((canvas, n) => drawTimeline(canvas, timelines[n], view, colours, state));
  });
}

function show(from, to) {
  const room = most - least, length = Math.min(Math.max(to - from, room / 1e6, 0.5), room * 1.05);
  const middle = Math.min(Math.max((from + to) / 2, least), most);
  view.from = middle - length / 2;
  view.to = middle + length / 2;
  redraw();
}

const showAll = () => show(least, most);
function showFew() {
  const ends = timelines.flatMap(t => Object.values(t.bounds).map(b => b[Math.min(3, b.length - 1)])).filter(Number.isFinite);
  if (!ends.length) return showAll();
  const end = Math.max(...ends);
  show(-0.01 * end, 1.01 * end);
}

function zoom(factor, x = null) {
  const length = view.to - view.from, width = axis.clientWidth - GUTTER - RIGHT;
  const share = x === null ? 0.5 : Math.min(Math.max((x - GUTTER) / width, 0), 1);
  const fixed = view.from + share * length;
  show(fixed - share * length * factor, fixed + (1 - share) * length * factor);
}

function move(pixels) {
  const by = pixels * (view.to - view.from) / (axis.clientWidth - GUTTER - RIGHT);
  show(view.from + by, view.to + by);
}

function describe({ row, track, i }) {
  const lasts = track.end[i] - track.start[i], bytes = track.bytes[i], priority = track.priority[i];
  const facts = [
    ["what", `${row.node}, ${lanes[track.lane[i]]}`],
    ["iteration", track.iteration[i]],
    ["lasts", showTime(lasts)],
    ["from", `${showTime(track.start[i])} to ${showTime(track.end[i])}`],
    bytes ? ["bytes", showBytes(bytes)] : null,
    bytes && lasts > 0 ? ["rate", `${+((bytes * 8) / lasts).toPrecision(3)} Mbit/s`] : null,
    priority === null ? null : ["priority", priority],
    track.peer[i] ? ["peer", strings[track.peer[i]]] : null,
  ].filter(Boolean);
  const title = document.createElement("b"), list = document.createElement("dl");
  title.textContent = strings[track.name[i]] || lanes[track.lane[i]];
  for (const [term, fact] of facts) {
    list.append(Object.assign(document.createElement("dt"), { textContent: term }));
    list.append(Object.assign(document.createElement("dd"), { textContent: fact }));
  }
  tip.replaceChildren(title, list);
}

function point(canvas, timeline, event) {
  state.cursor = event.offsetX;
  const hit = spanAt(timeline, view, canvas.clientWidth, event.offsetX, event.offsetY);
  state.name = hit ? hit.track.name[hit.i] : null;
  tip.hidden = !hit;
  if (hit) {
    describe(hit);
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16)}px`;
    tip.style.top = `${Math.max(4, event.clientY + 16 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 16)}px`;
  }
  redraw();
}

function listen(canvas, timeline) {
  let grabbed = false;
  canvas.addEventListener("pointerdown", event => {
    grabbed = true;
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("dragging");
  });
  canvas.addEventListener("pointermove", event => {
    if (grabbed) { tip.hidden = true; move(-event.movementX); } else point(canvas, timeline, event);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, () => { grabbed = false; canvas.classList.remove("dragging"); });
  }
  canvas.addEventListener("pointerleave", () => {
    Object.assign(state, { name: null, cursor: null });
    tip.hidden = true;
    redraw();
  });
  canvas.addEventListener("dblclick", event => zoom(0.4, event.offsetX));
  canvas.addEventListener("wheel", event => {
    if (event.ctrlKey || event.metaKey) zoom(1.0015 ** event.deltaY, event.offsetX);
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX);
    else return;  // a plain wheel scrolls the page
    event.preventDefault();
  }, { passive: false });
}

function section(timeline) {
  const title = document.createElement("h2"), canvas = document.createElement("canvas");
  title.textContent = timeline.name;
  title.append(Object.assign(document.createElement("small"), { textContent: timeline.about }));
  const events = Object.assign(document.createElement("ul"), { className: "events" });
  for (const note of timeline.notes) events.append(Object.assign(document.createElement("li"), { textContent: note }));
  layOut(timeline);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `timeline of ${timeline.name}; its figures are in the table above`);
  listen(canvas, timeline);
  canvases.push(canvas);
  const whole = document.createElement("section");
  whole.append(title, ...(timeline.notes.length ? [events] : []), canvas);
  return whole;
}

function legend() {
  const words = { compute: "compute", update: "update", wait: "wait for parameters", send: "send", receive: "receive", decide: "schedule changes" };
  return [...lanes.map(lane => {
    const item = Object.assign(document.createElement("span"), { textContent: words[lane] ?? lane });
    item.style.setProperty("--one", `var(--${lane})`);
    item.style.setProperty("--two", `var(--${lane}2)`);
    return item;
  }), Object.assign(document.createElement("em"), { textContent: "two shades: even and odd iterations" })];
}

const actions = { in: () => zoom(0.6), out: () => zoom(1 / 0.6), few: showFew, all: showAll };
const keys = {
  "+": actions.in, "=": actions.in, "-": actions.out, "0": showAll, "3": showFew,
  ArrowLeft: () => move(-90), ArrowRight: () => move(90),
};
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
for (const button of document.querySelectorAll("button[data-do]")) button.onclick = actions[button.dataset.do];
shade.onchange = () => { state.byPriority = shade.checked; redraw(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
new ResizeObserver(redraw).observe(root);
document.getElementById("legend").append(...legend());
root.replaceChildren(...timelines.map(section));
readColours();
showFew();
