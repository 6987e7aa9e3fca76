"use strict";
// The graph of dispatches: places nodes in layers, and draws what is in view on a canvas.
const NODE = { width: 190, height: 40, gapX: 26, gapY: 34, perRow: 12 };

// Layers by the longest way from the beginning; what nothing reads from comes right before what reads it.
function layersOf(count, into, from) {
  const layer = new Int32Array(count);
  for (let n = 0; n < count; n++) for (const e of into[n]) layer[n] = Math.max(layer[n], layer[e[0]] + 1);
  for (let n = count - 1; n >= 0; n--) {
    if (into[n].length || !from[n].length) continue;
    let least = Infinity;
    for (const e of from[n]) least = Math.min(least, layer[e[1]]);
    layer[n] = Math.max(0, least - 1);
  }
  return layer;
}

function rowsOf(count, into, from) {
  const layer = layersOf(count, into, from), rows = [], alone = [];
  for (let n = 0; n < count; n++) {
    if (!into[n].length && !from[n].length) alone.push(n);
    else (rows[layer[n]] ||= []).push(n);
  }
  const found = [];
  for (const row of [...rows.filter(Boolean), alone])
    for (let i = 0; i < row.length; i += NODE.perRow) found.push(row.slice(i, i + NODE.perRow));
  return found;
}

// Puts each row's nodes near to what they are joined with: down, up, and down once more.
function place(nodes, edges) {
  const count = nodes.length, into = [], from = [];
  for (let n = 0; n < count; n++) { into.push([]); from.push([]); }
  for (const e of edges) { into[e[1]].push(e); from[e[0]].push(e); }
  const rows = rowsOf(count, into, from), x = new Float64Array(count), y = new Float64Array(count);
  const step = NODE.width + NODE.gapX;
  rows.forEach((row, r) => row.forEach((n, i) => {
    x[n] = (i - (row.length - 1) / 2) * step;
    y[n] = r * (NODE.height + NODE.gapY);
  }));
  const settle = (row, joined) => {
    const wish = new Map(row.map(n => {
      const others = joined(n);
      return [n, others.length ? others.reduce((sum, o) => sum + x[o], 0) / others.length : x[n]];
    }));
    const order = [...row].sort((a, b) => wish.get(a) - wish.get(b));
    const places = [];
    order.forEach((n, i) => places.push(i ? Math.max(wish.get(n), places[i - 1] + step) : wish.get(n)));
    const shift = order.reduce((sum, n, i) => sum + wish.get(n) - places[i], 0) / order.length;
    order.forEach((n, i) => { x[n] = places[i] + shift; });
    row.splice(0, row.length, ...order);
  };
  for (let pass = 0; pass < 2; pass++) {
    for (const row of rows) settle(row, n => into[n].map(e => e[0]));
    for (let r = rows.length - 1; r >= 0; r--) settle(rows[r], n => from[n].map(e => e[1]));
  }
  for (const row of rows) settle(row, n => into[n].map(e => e[0]));
  return { x, y, into, from, rows, ...fold(rows, x, y) };
}

// A long graph goes on at the top of another column, so that all of it has the shape of a screen.
function fold(rows, x, y) {
  const step = NODE.height + NODE.gapY, row = new Int32Array(x.length), column = new Int32Array(x.length);
  let left = Infinity, right = -Infinity;
  rows.forEach((list, r) => list.forEach(n => { row[n] = r; left = Math.min(left, x[n]); right = Math.max(right, x[n]); }));
  const width = right - left + NODE.width + 3 * NODE.gapX + 40;
  const count = rows.length > 40 ? Math.max(1, Math.round(Math.sqrt(1.5 * rows.length * step / width))) : 1;
  const height = Math.ceil(rows.length / count);
  rows.forEach((list, r) => list.forEach(n => {
    column[n] = Math.floor(r / height);
    x[n] += column[n] * width - left;
    y[n] = (r % height) * step;
  }));
  return { row, column, edgeOf: c => c * width - NODE.width / 2 - 1.5 * NODE.gapX };
}

class Graph {
  constructor(canvas, map, nodes, edges, look) {
    Object.assign(this, { canvas, map, nodes, edges, look, scale: 1, left: 0, top: 0, selected: -1, colours: [] });
    Object.assign(this, place(nodes, edges));
    const xs = Array.from(this.x), ys = Array.from(this.y), reduce = (list, f, start) => list.reduce((a, b) => f(a, b), start);
    this.box = {
      left: reduce(xs, Math.min, Infinity) - NODE.width / 2 - 20, right: reduce(xs, Math.max, -Infinity) + NODE.width / 2 + 60,
      top: reduce(ys, Math.min, Infinity) - 20, bottom: reduce(ys, Math.max, -Infinity) + NODE.height + 20,
    };
    // What is in view is found by the rows that are; an edge that spans several is kept apart.
    this.byHeight = nodes.map((_, n) => n).sort((a, b) => this.y[a] - this.y[b]);
    this.heights = Float64Array.from(this.byHeight, n => this.y[n]);
    this.isLong = e => this.row[e[1]] - this.row[e[0]] > 1 || this.column[e[0]] !== this.column[e[1]];
    this.long = edges.filter(this.isLong);
    this.frame = 0;
    this.listen();
  }

  get width() { return this.canvas.clientWidth; }
  get height() { return this.canvas.clientHeight; }

  resize() {
    for (const canvas of [this.canvas, this.map]) {
      const ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(canvas.clientWidth * ratio);
      canvas.height = Math.round(canvas.clientHeight * ratio);
    }
    this.mapImage = null;
    this.draw();
  }

  fit() {
    const { left, right, top, bottom } = this.box;
    this.scale = Math.max(0.01, Math.min(1.2, this.width / (right - left), this.height / (bottom - top)));
    this.left = (left + right - this.width / this.scale) / 2;
    this.top = (top + bottom - this.height / this.scale) / 2;
    this.draw();
  }

  // As much as can be read: the width, if that is legible, from the beginning.
  begin() {
    const { left, right, top } = this.box;
    this.scale = Math.max(0.55, Math.min(1, this.width / (right - left)));
    const whole = right - left <= this.width / this.scale;
    this.left = whole ? (left + right - this.width / this.scale) / 2 : left - 20;
    this.top = top;
    this.draw();
  }

  zoom(factor, atX = this.width / 2, atY = this.height / 2) {
    const scale = Math.min(3, Math.max(0.01, this.scale * factor));
    this.left += atX / this.scale - atX / scale;
    this.top += atY / this.scale - atY / scale;
    this.scale = scale;
    this.draw();
  }

  pan(dx, dy) { this.left += dx / this.scale; this.top += dy / this.scale; this.draw(); }

  show(n) {
    this.selected = n;
    if (n >= 0) {
      if (this.scale < 0.4) this.scale = 0.8;
      const inX = (this.x[n] - this.left) * this.scale, inY = (this.y[n] - this.top) * this.scale;
      if (inX < 100 || inX > this.width - 160 || inY < 60 || inY > this.height - 90) {
        this.left = this.x[n] - this.width / this.scale / 2;
        this.top = this.y[n] - this.height / this.scale / 2;
      }
    }
    this.draw();
  }

  at(px, py) {
    const x = px / this.scale + this.left, y = py / this.scale + this.top;
    const [first, last] = this.inView(y - NODE.height, y);
    for (let i = first; i < last; i++) {
      const n = this.byHeight[i];
      if (Math.abs(x - this.x[n]) <= NODE.width / 2) return n;
    }
    return -1;
  }

  inView(top, bottom) {
    const search = value => {
      let low = 0, high = this.heights.length;
      while (low < high) { const middle = (low + high) >> 1; if (this.heights[middle] < value) low = middle + 1; else high = middle; }
      return low;
    };
    return [search(top), search(bottom)];
  }

  draw() { this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.paint(); this.paintMap(); }); }

  curve(context, e) {
    const [a, b] = e, x0 = this.x[a], y0 = this.y[a] + NODE.height, x1 = this.x[b], y1 = this.y[b];
    context.moveTo(x0, y0);
    if (this.scale < 0.12) { context.lineTo(x1, y1); return; }
    if (!this.isLong(e)) { context.bezierCurveTo(x0, y0 + 20, x1, y1 - 20, x1, y1); return; }
    if (this.column[a] !== this.column[b]) { // up between the columns
      const middle = this.edgeOf(this.column[b]);
      context.bezierCurveTo(x0, y0 + 30, middle, y0 + 30, middle, y0 - 10);
      context.lineTo(middle, y1);
      context.bezierCurveTo(middle, y1 - 26, x1, y1 - 26, x1, y1);
      return;
    }
    // around the nodes between, further out the further it goes
    const out = Math.max(x0, x1) + NODE.width * 0.58 + 10 * Math.min(14, Math.log2(y1 - y0));
    const bend = Math.min(120, (y1 - y0) / 3);
    context.bezierCurveTo(x0, y0 + 24, out, y0 + 4, out, y0 + bend);
    context.lineTo(out, y1 - bend);
    context.bezierCurveTo(out, y1 - 4, x1, y1 - 24, x1, y1);
  }

  paint() {
    const context = this.canvas.getContext("2d"), look = this.look(), ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const s = this.scale, view = { top: this.top, bottom: this.top + this.height / s };
    const [first, last] = this.inView(view.top - NODE.height - NODE.gapY, view.bottom + NODE.height);
    context.setTransform(ratio * s, 0, 0, ratio * s, -this.left * s * ratio, -this.top * s * ratio);
    context.lineWidth = Math.max(1.2, 0.7 / s);
    const seen = new Set();
    for (let i = first; i < last; i++)
      for (const e of this.into[this.byHeight[i]]) if (!this.isLong(e)) seen.add(e);
    for (let i = first; i < last; i++)
      for (const e of this.from[this.byHeight[i]]) if (!this.isLong(e)) seen.add(e);
    for (const e of this.long) {
      const [a, b] = e, low = Math.min(this.y[a], this.y[b]), high = Math.max(this.y[a], this.y[b]) + 2 * NODE.height;
      const far = this.left + this.width / s + NODE.width;
      if (low < view.bottom && high > view.top && Math.min(this.x[a], this.x[b]) < far && Math.max(this.x[a], this.x[b]) > this.left - 2 * NODE.width) seen.add(e);
    }
    if (s < 0.1 && seen.size > 5000) seen.clear(); // finer than pixels
    for (const sure of [true, false]) {
      context.strokeStyle = look.edge;
      context.setLineDash(sure || s < 0.12 ? [] : [5, 4]);
      context.beginPath();
      for (const e of seen) if (e[2] === sure) this.curve(context, e);
      context.stroke();
    }
    context.setLineDash([]);
    if (this.selected >= 0) {
      for (const [list, colour] of [[this.into, look.reads], [this.from, look.readers]]) {
        context.strokeStyle = colour;
        context.lineWidth = Math.max(2.4, 1.5 / s);
        context.beginPath();
        for (const e of list[this.selected]) this.curve(context, e);
        context.stroke();
      }
    }
    for (let i = first; i < last; i++) this.paintNode(context, this.byHeight[i], look, s);
  }

  paintNode(context, n, look, s) {
    const node = this.nodes[n], x = this.x[n] - NODE.width / 2, y = this.y[n];
    if (x + NODE.width < this.left || x > this.left + this.width / s) return;
    const [fill, ink] = this.colours[n] || look.plain;
    context.fillStyle = fill;
    if (s < 0.25) context.fillRect(x, y, NODE.width, NODE.height);
    else { context.beginPath(); context.roundRect(x, y, NODE.width, NODE.height, 6); context.fill(); }
    const mark = n === this.selected ? look.selected : node.isFirst || node.bad ? look.wrong : node.hit ? look.hit : "";
    if (mark) {
      context.strokeStyle = mark;
      context.lineWidth = Math.max(3, 2 / s);
      if (s < 0.25) context.strokeRect(x, y, NODE.width, NODE.height);
      else context.stroke();
    }
    if (s < 0.3) return;
    context.fillStyle = ink;
    context.font = `600 12px ${look.font}`;
    context.fillText(cut(context, node.title, NODE.width - 16), x + 8, y + 16);
    context.font = `11px ${look.font}`;
    context.globalAlpha = 0.85;
    context.fillText(cut(context, node.line, NODE.width - 16), x + 8, y + 32);
    context.globalAlpha = 1;
  }

  paintMap() {
    const map = this.map, width = map.clientWidth, height = map.clientHeight, ratio = window.devicePixelRatio || 1;
    if (!width) return;
    const { left, right, top, bottom } = this.box, look = this.look(), context = map.getContext("2d");
    const sx = width / (right - left), sy = height / (bottom - top);
    if (!this.mapImage) {
      this.mapImage = document.createElement("canvas");
      this.mapImage.width = map.width; this.mapImage.height = map.height;
      const under = this.mapImage.getContext("2d");
      under.scale(ratio, ratio);
      for (let n = 0; n < this.nodes.length; n++) {
        under.fillStyle = (this.colours[n] || look.plain)[0];
        const x = (this.x[n] - NODE.width / 2 - left) * sx, y = (this.y[n] - top) * sy;
        under.fillRect(x, y, Math.max(1, NODE.width * sx), Math.max(1, NODE.height * sy));
      }
      under.fillStyle = look.wrong;
      for (let n = 0; n < this.nodes.length; n++)
        if (this.nodes[n].isFirst) under.fillRect((this.x[n] - left) * sx - 9, (this.y[n] - top) * sy - 2, 18, 5);
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, map.width, map.height);
    context.drawImage(this.mapImage, 0, 0);
    context.scale(ratio, ratio);
    context.strokeStyle = look.selected;
    context.lineWidth = 1.5;
    const y = (this.top - top) * sy;
    const x = Math.max(1, (this.left - left) * sx), wide = Math.min(width - x - 1, this.width / this.scale * sx);
    context.strokeRect(x, Math.max(1, y), Math.max(4, wide), Math.max(4, Math.min(height - 2, this.height / this.scale * sy)));
  }

  recolour(colours) { this.colours = colours; this.mapImage = null; this.draw(); }

  listen() {
    let from = null, moved = false;
    const { canvas, map } = this;
    canvas.addEventListener("pointerdown", event => {
      from = [event.clientX, event.clientY]; moved = false;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      if (!from) { canvas.style.cursor = this.at(event.offsetX, event.offsetY) >= 0 ? "pointer" : "grab"; return; }
      const dx = from[0] - event.clientX, dy = from[1] - event.clientY;
      if (!moved && Math.abs(dx) + Math.abs(dy) < 4) return;
      moved = true;
      from = [event.clientX, event.clientY];
      this.pan(dx, dy);
    });
    canvas.addEventListener("pointerup", event => {
      if (from && !moved) this.onselect(this.at(event.offsetX, event.offsetY));
      from = null;
    });
    canvas.addEventListener("wheel", event => {
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      if (event.shiftKey) this.pan(event.deltaY, 0);
      else this.zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    const jump = event => {
      if (!event.buttons) return;
      const { top, bottom, left, right } = this.box;
      this.top = top + event.offsetY / map.clientHeight * (bottom - top) - this.height / this.scale / 2;
      if (right - left > this.width / this.scale)
        this.left = left + event.offsetX / map.clientWidth * (right - left) - this.width / this.scale / 2;
      this.draw();
    };
    map.addEventListener("pointerdown", jump);
    map.addEventListener("pointermove", jump);
    new ResizeObserver(() => this.resize()).observe(canvas);
  }
}

function cut(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(text.slice(0, middle) + "…").width <= width) low = middle; else high = middle - 1;
  }
  return text.slice(0, low) + "…";
}
