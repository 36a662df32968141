// Drawing: a view (from, to in microseconds) and rows of spans in, pixels out. Holds no state of the page.
const GUTTER = 136, RIGHT = 12, GAP = 9, FONT = "12px system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

function showTime(us) {
  const size = Math.abs(us);
  if (size === 0) return "0";
  if (size < 1e3) return `${+us.toPrecision(3)} µs`;
  return size < 1e6 ? `${+(us / 1e3).toPrecision(4)} ms` : `${+(us / 1e6).toPrecision(4)} s`;
}

function showBytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return `${unit === "B" ? n : n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

// Index of the first element that is not less than `value`.
function lowerBound(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

// Give every row its place, and every track its longest span, so that a search from the left misses none.
function layOut(timeline) {
  let y = 2, last = null;
  for (const row of timeline.rows) {
    if (last !== null) y += row.node === last ? 2 : GAP;
    row.first = row.node !== last;
    row.top = y;
    row.step = row.tracks.length === 1 ? 15 : row.tracks.length === 2 ? 9 : 6;
    y += Math.max(15, row.step * row.tracks.length);
    row.bottom = y;
    last = row.node;
    for (const track of row.tracks) {
      track.longest = track.start.reduce((most, start, i) => Math.max(most, track.end[i] - start), 0);
    }
  }
  timeline.height = y + 4;
}

function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = FONT;
  return { pen, width, scale: view => (width - GUTTER - RIGHT) / (view.to - view.from) };
}

// Round steps, about one every 110 pixels.
function ticks(view, width) {
  const rough = (view.to - view.from) / Math.max(1, (width - GUTTER - RIGHT) / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
  const found = [];
  for (let n = Math.ceil(view.from / step); n * step <= view.to; n++) found.push(n * step);
  return found;
}

function drawAxis(canvas, view, colours, cursor) {
  const { pen, width, scale } = prepare(canvas, 24), k = scale(view);
  pen.textBaseline = "middle";
  pen.fillStyle = colours.faint;
  pen.textAlign = "left";
  pen.fillText("time", 0, 12);
  pen.textAlign = "center";
  for (const tick of ticks(view, width)) {
    const x = GUTTER + (tick - view.from) * k;
    pen.fillText(showTime(tick), Math.min(x, width - 24), 11);
    pen.fillRect(x, 20, 1, 4);
  }
  if (cursor !== null && cursor >= GUTTER) {
    const label = showTime(view.from + (cursor - GUTTER) / k), half = pen.measureText(label).width / 2 + 6;
    const at = Math.min(Math.max(cursor, GUTTER + half), width - half);
    pen.fillStyle = colours.text;
    pen.fillRect(at - half, 2, 2 * half, 19);
    pen.fillStyle = colours.page;
    pen.fillText(label, at, 12);
  }
}

function drawTimeline(canvas, timeline, view, colours, state) {
  const { pen, width, scale } = prepare(canvas, timeline.height), k = scale(view);
  const place = { pen, k, from: view.from, to: view.to, right: width - RIGHT };
  pen.fillStyle = colours.grid;
  for (const tick of ticks(view, width)) pen.fillRect(GUTTER + (tick - view.from) * k, 0, 1, timeline.height);
  pen.textBaseline = "middle";
  for (const row of timeline.rows) {
    pen.textAlign = "left";
    pen.fillStyle = colours.text;
    if (row.first) pen.fillText(shorten(pen, row.node, 72), 0, row.top + 7.5);
    pen.textAlign = "right";
    pen.fillStyle = colours.faint;
    pen.fillText(row.label, GUTTER - 8, row.top + 7.5);
  }
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER, 0, width - GUTTER - RIGHT, timeline.height);
  pen.clip();
  pen.textAlign = "left";
  for (const row of timeline.rows) {
    row.tracks.forEach((track, n) => drawTrack(place, track, row.top + n * row.step, row.step - 1, colours, state));
  }
  drawBoundaries(place, timeline, colours);
  pen.restore();
  if (state.cursor !== null && state.cursor >= GUTTER) {
    pen.fillStyle = colours.faint;
    pen.fillRect(state.cursor, 0, 1, timeline.height);
  }
}

// Spans thinner than a pixel are drawn once per run of touching pixels, so a hundred thousand cost a few thousand.
function drawTrack({ pen, k, from, to, right }, track, top, height, colours, state) {
  let x0 = 0, x1 = -1, fill = null;
  const flush = () => {
    if (x1 <= x0) return;
    pen.fillStyle = fill;
    pen.fillRect(x0, top, x1 - x0, height);
  };
  const labels = [], marked = [];
  for (let i = lowerBound(track.start, from - track.longest); i < track.start.length && track.start[i] <= to; i++) {
    if (track.end[i] < from) continue;
    const a = GUTTER + (track.start[i] - from) * k, wide = (track.end[i] - track.start[i]) * k;
    const b = a + Math.max(1, wide > 4 ? wide - 1 : wide), colour = colours.of(track, i, state);
    if (colour === fill && wide <= 2 && a <= x1 + 0.5) x1 = Math.max(x1, b);
    else { flush(); [x0, x1, fill] = [a, b, colour]; }
    if (wide > 30 && height > 9) labels.push([i, Math.max(a, GUTTER), Math.min(b, right)]);
    if (state.name !== null && track.name[i] === state.name) marked.push([a, b]);
  }
  flush();
  pen.fillStyle = colours.page;
  for (const [i, a, b] of labels) {
    const text = shorten(pen, state.strings[track.name[i]], b - a - 8);
    if (text) pen.fillText(text, a + 4, top + height / 2 + 0.5);
  }
  pen.strokeStyle = colours.mark;
  pen.lineWidth = 1.5;
  for (const [a, b] of marked) pen.strokeRect(a, top + 0.5, Math.max(1, b - a), height - 1);
}

function drawBoundaries({ pen, k, from, to }, timeline, colours) {
  pen.fillStyle = colours.boundary;
  for (const [node, instants] of Object.entries(timeline.bounds)) {
    const rows = timeline.rows.filter(row => row.node === node);
    if (!rows.length) continue;
    const top = rows[0].top - 3, height = rows.at(-1).bottom - top + 2;
    for (const t of instants) if (t >= from && t <= to) pen.fillRect(GUTTER + (t - from) * k - 0.5, top, 1, height);
  }
}

function shorten(pen, text, room) {
  if (room < 14) return "";
  if (pen.measureText(text).width <= room) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle; else high = middle - 1;
  }
  return low > 1 ? `${text.slice(0, low)}…` : "";
}

// The span under a point, nearest within two pixels where spans are thin.
function spanAt(timeline, view, width, x, y) {
  const row = timeline.rows.find(r => y >= r.top && y < r.bottom);
  if (!row || x < GUTTER) return null;
  const track = row.tracks[Math.min(row.tracks.length - 1, Math.floor((y - row.top) / row.step))];
  const k = (width - GUTTER - RIGHT) / (view.to - view.from), t = view.from + (x - GUTTER) / k, slack = 2 / k;
  let best = null, distance = Infinity;
  for (let i = lowerBound(track.start, t - track.longest - slack); track.start[i] <= t + slack; i++) {
    const off = Math.max(track.start[i] - t, t - track.end[i], 0);
    if (off <= slack && off < distance) { best = i; distance = off; }
  }
  return best === null ? null : { row, track, i: best };
}
