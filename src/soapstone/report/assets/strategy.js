// The strategy as a drawing: boxes of parts, the edges between them, zoom, keys and what is lit.

const HEADER = 28, INSET = 10;

/** The section of the drawing. */
function showStrategy(report) {
  const drawing = new Drawing(report);
  const hint = "Each box is a layer, cut into its parts: rows are samples, columns are everything else. The number in a part is its device.";
  const keys = el("p", { class: "hint keys", id: "drawing-keys", text: "Arrow keys move from box to box, Page up and down go through all of them, Enter opens a group or keeps a layer lit, + and − zoom." });
  section("strategy", "The strategy", "Strategy", el("p", { class: "hint", text: hint }), deviceLegend(report, drawing),
    drawing.toolbar(), el("div", { class: "drawing-row" }, drawing.frame, drawing.panel), keys);
  drawing.draw();
  listen("lit", ({ layers, from }) => drawing.light(layers, from));
  let width = drawing.frame.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(drawing.frame.clientWidth - width) < 24) return;
    width = drawing.frame.clientWidth;
    drawing.draw();
  }).observe(drawing.frame);
}

/** Devices and their colours; pointing at one dims the others. */
function deviceLegend(report, drawing) {
  const nodes = new Map();
  for (const [i, device] of report.devices.entries()) nodes.set(device.node, [...(nodes.get(device.node) ?? []), i]);
  const chip = (i) => {
    const colour = deviceColour(i), device = report.devices[i];
    return el("button", { type: "button", class: "chip", style: `background:${colour};color:${inkOn(colour)}`, text: i,
      "aria-label": `device ${i}: ${device.name}, ${device.kind}, node ${device.node}`, title: `${device.name} · ${device.kind} · node ${device.node}`,
      onmouseenter: () => drawing.dim(i), onfocus: () => drawing.dim(i), onmouseleave: () => drawing.dim(null), onblur: () => drawing.dim(null) });
  };
  return el("div", { class: "devices", role: "group", "aria-label": "Devices" }, ...[...nodes].map(([node, mine]) =>
    el("span", { class: "chips" }, el("span", { class: "faint", text: nodes.size > 1 ? `node ${node}` : "devices" }), ...mine.map(chip))));
}

class Drawing {
  constructor(report) {
    this.report = report;
    this.graph = layerGraph(report);
    this.open = new Set();
    this.scale = null;
    this.lit = new Set();
    this.inner = new Map();
    this.frame = el("div", { class: "drawing", "aria-label": "Drawing of the strategy", role: "group", "aria-describedby": "drawing-keys" });
    this.panel = el("aside", { class: "panel", "aria-label": "Details of a layer" },
      el("p", { class: "faint", text: "Point at a layer, or move there with the keyboard." }));
    this.listenToFrame();
  }

  toolbar() {
    const button = (text, label, onclick) => el("button", { type: "button", text, "aria-label": label, onclick });
    this.foldAll = button("Unfold all", null, () => this.toggleAll());
    this.foldAll.id = "unfold";
    return el("div", { class: "toolbar", role: "group", "aria-label": "Drawing" }, this.report.folds.length ? this.foldAll : null,
      button("−", "Zoom the drawing out", () => this.zoom(1 / 1.25)), button("+", "Zoom the drawing in", () => this.zoom(1.25)),
      button("Fit", "Fit the drawing to the width", () => this.fit()));
  }

  listenToFrame() {
    this.frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 300), event);
    }, { passive: false });
    this.frame.addEventListener("keydown", (event) => this.onKey(event));
    this.frame.addEventListener("mousedown", (event) => this.drag(event));
  }

  drag(event) {
    if (event.button !== 0) return;
    const from = [event.clientX + this.frame.scrollLeft, event.clientY + this.frame.scrollTop];
    const move = (next) => this.frame.scrollTo(from[0] - next.clientX, from[1] - next.clientY);
    addEventListener("mousemove", move);
    addEventListener("mouseup", () => removeEventListener("mousemove", move), { once: true });
  }

  toggleAll() {
    if (this.open.size) this.open.clear();
    else for (const fold of this.report.folds.keys()) this.open.add(fold);
    this.draw();
  }

  toggle(fold, key) {
    if (!this.open.delete(fold)) this.open.add(fold);
    this.draw();
    const box = this.nodes.find((node) => node.key === `${key.split(".")[0]}.0`);
    if (box) this.focus(box);
  }

  draw() {
    const { boxes, edges } = visibleBoxes(this.report, this.graph, this.open);
    for (const box of boxes) this.measure(box);
    const room = Math.max(280, this.frame.clientWidth - 32);
    const plan = inColumns(boxes, layered(boxes, edges), room);
    this.nodes = [];
    const lines = svg("g", { class: "edges" }), shapes = svg("g", {});
    for (const { points, far, edge } of plan.edges) lines.append(this.edge(points, far, edge));
    for (const box of boxes) shapes.append(this.shape(box, plan.at.get(box.key)));
    this.size = [plan.width + 16, plan.height + 16];
    this.picture = svg("svg", { viewBox: `-8 -8 ${this.size[0]} ${this.size[1]}` }, arrowHead(), lines, shapes);
    this.frame.replaceChildren(this.picture);
    this.nodes[0]?.shape.setAttribute("tabindex", "0");
    this.foldAll.textContent = this.open.size ? "Fold all" : "Unfold all";
    this.fit();
    this.light(this.lit, "redraw");
  }

  /** Give a box its size; a group is laid out inside first. */
  measure(box) {
    if (box.layer !== undefined) {
      box.grid = layerGrid(this.report, box.layer);
      Object.assign(box, boxSize(box.grid));
      return;
    }
    const inside = box.layers.map((layer) => {
      const grid = layerGrid(this.report, layer);
      return { key: layer, grid, ...boxSize(grid) };
    });
    const place = new Map(box.layers.map((layer, i) => [layer, i]));
    const key = `${box.fold}:${box.inner.map((e) => `${place.get(e.from)}>${place.get(e.to)}`)}:${inside.map((one) => one.height)}`;
    if (!this.inner.has(key)) {
      const local = inside.map((one, i) => ({ ...one, key: `${i}` }));
      this.inner.set(key, layered(local, box.inner.map((e) => ({ from: `${place.get(e.from)}`, to: `${place.get(e.to)}` }))));
    }
    Object.assign(box, { inside, plan: this.inner.get(key) });
    box.width = box.plan.width + 2 * INSET;
    box.height = box.plan.height + HEADER + INSET;
  }

  edge(points, far, edge) {
    const path = svg("path", { class: far ? "edge far" : "edge", d: edgePath(points, far), "marker-end": "url(#arrow)" });
    if (edge.bytes) path.append(svg("title", { text: bytesText(edge.bytes) }));
    return path;
  }

  shape(box, at) {
    if (box.layer !== undefined) return this.layerShape(box.layer, box.grid, this.report.layers[box.layer].name, at, [at.x, at.y]);
    const group = svg("g", { class: "group", transform: `translate(${at.x} ${at.y})` });
    const name = groupName(this.report, box), { count, opened } = box;
    const label = `${name}, ${opened ? `repetition ${box.turn + 1} of ${count}` : `${count} blocks alike`}`;
    const head = svg("g", { class: "group-head", tabindex: "-1", role: "button", "aria-expanded": opened ? "true" : "false", "aria-label": label },
      opened ? null : svg("rect", { class: "group-box behind", x: 5, y: 5, width: box.width, height: box.height, rx: 10 }),
      svg("rect", { class: "group-box", width: box.width, height: box.height, rx: 10 }),
      svg("text", { class: "group-title", x: INSET + 4, y: 19, text: `${opened ? "▾" : "▸"} ${tailText(name, 18)}` }),
      opened ? null : svg("text", { class: "group-count", x: box.width - INSET, y: 19, text: `×${count}` }));
    this.keep(head, { key: box.key, box, details: () => groupDetails(this.report, box), at: [at.x + box.width / 2, at.y],
      act: () => this.toggle(box.fold, box.key) });
    group.append(head);
    for (const { points } of box.plan.edges) {
      const inner = svg("path", { class: "edge", d: edgePath(points), transform: `translate(${INSET} ${HEADER})`, "marker-end": "url(#arrow)" });
      group.append(inner);
    }
    const names = shortNames(box.layers.map((layer) => this.report.layers[layer].name));
    for (const [i, { key, grid }] of box.inside.entries()) {
      const spot = box.plan.at.get(`${i}`), x = spot.x + INSET, y = spot.y + HEADER;
      group.append(this.layerShape(key, grid, names[i], { x, y }, [at.x + x, at.y + y]));
    }
    return group;
  }

  layerShape(layer, grid, name, at, corner) {
    const node = svg("g", { class: "layer", transform: `translate(${at.x} ${at.y})`, tabindex: "-1", role: "button", "aria-pressed": "false",
      "aria-label": layerLabel(this.report, layer), "data-layer": layer }, ...drawLayer(grid, name, grid.ops.length));
    this.keep(node, { key: `l${layer}`, layer, details: () => layerDetails(this.report, layer), at: [corner[0] + BOX.width / 2, corner[1]],
      act: () => tell("lit", { layers: new Set(this.lit.has(layer) ? [] : [layer]), from: "drawing" }) });
    return node;
  }

  keep(shape, entry) {
    entry.shape = shape;
    this.nodes.push(entry);
    shape.addEventListener("mousemove", (event) => {
      const still = event.movementX === 0 && event.movementY === 0; // the drawing moved, not the mouse
      if (!still && this.shown !== entry) this.show(entry);
    });
    shape.addEventListener("focus", () => this.show(entry));
    shape.addEventListener("click", () => {
      this.focus(entry);
      entry.act();
    });
  }

  show(entry) {
    this.shown = entry;
    this.panel.replaceChildren(...entry.details().filter(Boolean));
  }

  focus(entry) {
    for (const node of this.nodes) node.shape.setAttribute("tabindex", node === entry ? "0" : "-1");
    entry.shape.focus({ preventScroll: true });
    entry.shape.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const entry = this.nodes.find((node) => node.shape === document.activeElement);
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (way && entry) this.focus(nearest(this.nodes, entry, way));
    else if ((event.key === "Enter" || event.key === " ") && entry) entry.act();
    else if (event.key === "PageDown" || event.key === "PageUp") this.focus(this.beside(entry, event.key === "PageDown" ? 1 : -1));
    else if (event.key === "Home") this.focus(this.nodes[0]);
    else if (event.key === "End") this.focus(this.nodes.at(-1));
    else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(1 / 1.25);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  /** The next or previous box in the order of the layers. */
  beside(entry, by) {
    return this.nodes[clamp(this.nodes.indexOf(entry) + by, 0, this.nodes.length - 1)];
  }

  /** As large as the width allows; a little smaller where that shows all of it. */
  fit() {
    const wide = (this.frame.clientWidth - 26) / this.size[0], high = (innerHeight * 0.78 - 26) / this.size[1];
    this.scale = clamp(Math.min(wide, Math.max(high, 0.8)), 0.5, 1);
    this.resize();
  }

  zoom(factor, event) {
    const box = this.frame.getBoundingClientRect(), old = this.scale;
    const [x, y] = event ? [event.clientX - box.left, event.clientY - box.top] : [box.width / 2, box.height / 2];
    this.scale = clamp(this.scale * factor, 0.1, 3);
    const grown = this.scale / old, left = (this.frame.scrollLeft + x) * grown - x, top = (this.frame.scrollTop + y) * grown - y;
    this.resize();
    this.frame.scrollTo(left, top);
  }

  resize() {
    this.picture.setAttribute("width", this.size[0] * this.scale);
    this.picture.setAttribute("height", this.size[1] * this.scale);
  }

  dim(device) {
    this.picture.classList.toggle("dimming", device !== null);
    for (const node of this.picture.querySelectorAll(".on-device")) node.classList.remove("on-device");
    if (device !== null) for (const node of this.picture.querySelectorAll(`[data-device="${device}"]`)) node.classList.add("on-device");
  }

  /** Light layers; one that is folded away is lit where its like is drawn. */
  light(layers, from) {
    this.lit = layers;
    const shown = new Set(layers);
    for (const layer of layers) {
      const place = this.graph.place[layer];
      if (!place || this.open.has(place.fold)) continue;
      const { members } = this.report.folds[place.fold];
      shown.add(members[0][members[place.turn].indexOf(layer)]);
    }
    let first = null;
    for (const node of this.nodes) {
      if (node.layer === undefined) continue;
      const on = shown.has(node.layer);
      node.shape.classList.toggle("lit", on);
      node.shape.setAttribute("aria-pressed", on ? "true" : "false");
      if (on) first ??= node;
    }
    this.picture.classList.toggle("lighting", layers.size > 0);
    if (from !== "words" || !first) return;
    this.show(first);
    this.frame.scrollIntoView({ block: "nearest" });
    first.shape.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

/** The closest other box in a direction, those straight ahead first. */
function nearest(nodes, entry, [dx, dy]) {
  let best = entry, least = Infinity;
  for (const node of nodes) {
    const x = node.at[0] - entry.at[0], y = node.at[1] - entry.at[1];
    const ahead = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (ahead < 1 || node === entry) continue;
    const cost = ahead + 3 * aside;
    if (cost < least) [best, least] = [node, cost];
  }
  return best;
}

function arrowHead() {
  return svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto-start-reverse" },
    svg("path", { class: "arrow", d: "M0 0.5L8 4L0 7.5z" })));
}
