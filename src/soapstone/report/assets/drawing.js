// The drawing of a strategy: what is open, focused and lit, how large it is, and the keys that move in it.

class Drawing {
  constructor(report) {
    this.report = report;
    this.graph = layerGraph(report);
    this.open = new Set();
    this.scale = null;
    this.lit = new Set();
    this.inner = new Map();
    this.frame = el("div", {
      class: "drawing",
      "aria-label": "Drawing of the strategy",
      role: "group",
      "aria-describedby": "drawing-keys",
    });
    this.panel = el(
      "aside",
      { class: "panel", "aria-label": "Details of a layer" },
      el("p", { class: "faint", text: "Point at a layer, or move there with the keyboard." }),
    );
    this.listenToFrame();
  }

  toolbar() {
    const button = (text, label, onclick) => el("button", { type: "button", text, "aria-label": label, onclick });
    this.foldAll = button("Unfold all", null, () => this.toggleAll());
    this.foldAll.id = "unfold";
    this.clear = button("Clear what is lit", null, () => tell("lit", { layers: new Set(), from: "drawing" }));
    this.clear.hidden = true;
    return el(
      "div",
      { class: "toolbar", role: "group", "aria-label": "Drawing" },
      this.report.folds.length ? this.foldAll : null,
      button("−", "Zoom the drawing out", () => this.zoom(1 / 1.25)),
      button("+", "Zoom the drawing in", () => this.zoom(1.25)),
      button("Fit", "Fit the drawing to the width", () => this.fit()),
      this.clear,
    );
  }

  listenToFrame() {
    this.frame.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY / 300), event);
      },
      { passive: false },
    );
    this.frame.addEventListener("keydown", (event) => this.onKey(event));
    this.frame.addEventListener("mousedown", (event) => this.drag(event));
  }

  drag(event) {
    if (event.button !== 0) return;
    const from = [event.clientX + this.frame.scrollLeft, event.clientY + this.frame.scrollTop];
    this.dragged = false;
    const move = (next) => {
      this.dragged ||= Math.hypot(next.clientX - event.clientX, next.clientY - event.clientY) > 5;
      this.frame.scrollTo(from[0] - next.clientX, from[1] - next.clientY);
    };
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
    for (const box of boxes) measureBox(this.report, box, this.inner);
    this.room = this.frame.clientWidth - 26;
    const plan = inColumns(boxes, layered(boxes, edges), Math.max(280, this.room));
    this.nodes = [];
    const lines = svg("g", { class: "edges" }),
      shapes = svg("g", {});
    for (const { points, far, edge } of plan.edges) lines.append(edgeShape(points, far, edge));
    for (const box of boxes) shapes.append(boxShape(this, box, plan.at.get(box.key)));
    this.size = [plan.width + 16, plan.height + 16];
    this.picture = svg("svg", { viewBox: `-8 -8 ${this.size[0]} ${this.size[1]}` }, arrowHead(), lines, shapes);
    this.frame.replaceChildren(this.picture);
    this.nodes[0]?.shape.setAttribute("tabindex", "0");
    this.foldAll.textContent = this.open.size ? "Fold all" : "Unfold all";
    this.fit();
    this.light(this.lit, "redraw");
  }

  keep(shape, entry) {
    entry.shape = shape;
    this.nodes.push(entry);
    shape.addEventListener("mousemove", (event) => {
      const spot = `${event.clientX} ${event.clientY}`; // where it is the old one, the drawing moved, not the mouse
      if (spot !== this.spot && this.shown !== entry) this.show(entry);
      this.spot = spot;
    });
    shape.addEventListener("focus", () => this.show(entry));
    shape.addEventListener("click", () => {
      if (this.dragged) return;
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
    else if (event.key === "PageDown" || event.key === "PageUp")
      this.focus(this.beside(entry, event.key === "PageDown" ? 1 : -1));
    else if (event.key === "Home") this.focus(this.nodes[0]);
    else if (event.key === "End") this.focus(this.nodes.at(-1));
    else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(1 / 1.25);
    else if (event.key === "0") this.fit();
    else if (event.key === "Escape") tell("lit", { layers: new Set(), from: "drawing" });
    else return;
    event.preventDefault();
  }

  /** The next or previous box in the order of the layers. */
  beside(entry, by) {
    return this.nodes[clamp(this.nodes.indexOf(entry) + by, 0, this.nodes.length - 1)];
  }

  /** As large as the width allows; a little smaller where that shows all of it. */
  fit() {
    const wide = this.room / this.size[0],
      high = (innerHeight * 0.78 - 26) / this.size[1];
    this.scale = clamp(Math.min(wide, Math.max(high, 0.8)), 0.5, 1);
    this.resize();
  }

  zoom(factor, event) {
    const box = this.frame.getBoundingClientRect(),
      old = this.scale;
    const [x, y] = event ? [event.clientX - box.left, event.clientY - box.top] : [box.width / 2, box.height / 2];
    this.scale = clamp(this.scale * factor, 0.1, 3);
    const grown = this.scale / old,
      left = (this.frame.scrollLeft + x) * grown - x,
      top = (this.frame.scrollTop + y) * grown - y;
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
    if (device !== null)
      for (const node of this.picture.querySelectorAll(`[data-device="${device}"]`)) node.classList.add("on-device");
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
    this.clear.hidden = !layers.size;
    if (from !== "words" || !first) return;
    this.show(first);
    this.frame.scrollIntoView({ block: "nearest" });
    first.shape.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

/** The closest other box in a direction, those straight ahead first. */
function nearest(nodes, entry, [dx, dy]) {
  let best = entry,
    least = Infinity;
  for (const node of nodes) {
    const x = node.at[0] - entry.at[0],
      y = node.at[1] - entry.at[1];
    const ahead = x * dx + y * dy,
      aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (ahead < 1 || node === entry) continue;
    const cost = ahead + 3 * aside;
    if (cost < least) [best, least] = [node, cost];
  }
  return best;
}
