// What the timeline shows: which lanes, which stretch of time, and where on the canvas that is.

const GROUPS = [
  ["device", "Devices"],
  ["host", "Hosts"],
  ["link", "Links"],
];

class LaneView {
  constructor(model) {
    this.model = model;
    this.state = {
      hover: null,
      chosen: null,
      pinned: false,
      showPath: true,
      showIdle: false,
      closed: new Set(),
      select: null,
      lit: null,
      colours: paintColours(model),
    };
    this.view = {
      from: 0,
      to: model.total,
      left: 112,
      width: 800,
      height: 400,
      scroll: 0,
      lines: [],
      end: model.report.timeline.makespan,
      total: model.total,
    };
    this.canvas = el("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "timeline",
      "aria-label": this.label(),
      "aria-describedby": "timeline-keys",
    });
    this.context = this.canvas.getContext("2d", { alpha: false, willReadFrequently: true });
    this.sheet = el("div", { class: "sheet" }, this.canvas);
    this.frame = el("div", { class: "lanes" }, this.sheet);
    this.panel = el(
      "div",
      { class: "panel flat" },
      el("p", { class: "faint", text: "Point at a task; click to keep it here." }),
    );
    this.live = el("p", { class: "hidden", "aria-live": "polite", id: "timeline-live" });
    this.minimap = new Minimap(this);
    this.repaint = perFrame(() => this.paint());
  }

  start() {
    startGestures(this);
    this.frame.addEventListener("scroll", () => {
      this.view.scroll = this.frame.scrollTop;
      this.repaint();
    });
    listen("theme", () => {
      this.state.colours = paintColours(this.model);
      this.resize();
    });
    listen("lit", ({ layers }) => this.light(layers));
    new ResizeObserver(() => this.resize()).observe(this.frame);
    this.arrange();
  }

  /** Tasks of other layers are pale while some layers are lit. */
  light(layers) {
    this.state.lit = layers.size
      ? Uint8Array.from(this.model.report.ops, (op) => (layers.has(op.layer) ? 1 : 0))
      : null;
    this.repaint();
  }

  /** Which lines there are, one under another; measured lanes stand under the predicted lane of their device. */
  arrange() {
    const { model, state } = this,
      lines = [];
    let top = 0;
    const add = (line, height) => {
      lines.push({ ...line, top, height });
      top += height;
    };
    for (const [kind, text] of GROUPS) {
      const all = model.rows.filter((row) => row.kind === kind);
      const rows = kind !== "device" && !state.showIdle ? all.filter((row) => row.length) : all,
        closed = state.closed.has(kind);
      const hidden = all.length - rows.length;
      if (!rows.length) continue;
      add(
        { group: kind, text: `${closed ? "▸" : "▾"} ${text} (${rows.length}${hidden ? ` of ${all.length}` : ""})` },
        ROW.head,
      );
      if (closed) continue;
      for (const row of rows) {
        add({ row }, ROW[kind]);
        for (const real of model.realRows ?? [])
          if (kind === "device" && real.lane === row.lane) add({ row: real }, ROW.real);
      }
    }
    for (const node of this.groupButtons)
      node.setAttribute("aria-pressed", state.closed.has(node.dataset.group) ? "false" : "true");
    this.view.lines = lines;
    this.tall = top + ROW.ruler;
    this.resize();
  }

  resize() {
    const width = this.frame.clientWidth;
    if (!width) return;
    const ratio = Math.min(window.devicePixelRatio || 1, 2),
      height = Math.min(this.tall, Math.max(240, Math.min(560, innerHeight * 0.7)));
    Object.assign(this.view, { left: width < 560 ? 84 : 112, height });
    this.view.width = width - this.view.left;
    this.frame.style.height = `${height}px`;
    this.sheet.style.height = `${this.tall}px`;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.ratio = ratio;
    this.state.pixels = makePixels(this.context, ratio);
    this.minimap.prepare(width, 40, ratio);
    this.repaint();
  }

  paint() {
    const begin = performance.now(),
      { view, context } = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    paintTimeline(context, view, this.model, this.state);
    this.minimap.paint(this.ratio);
    byId("range").textContent = `${timeText(view.from)} to ${timeText(view.to)}`;
    Object.assign(this.canvas.dataset, { from: view.from, to: view.to, took: (performance.now() - begin).toFixed(2) });
  }

  timeAt(x) {
    return this.view.from + ((x - this.view.left) / this.view.width) * (this.view.to - this.view.from);
  }

  /** Where an event is on the canvas. */
  spot(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  /** Show a stretch, kept inside the step and no shorter than some nanoseconds. */
  look(from, to) {
    const { total } = this.model,
      span = clamp(to - from, Math.min(50, total), total);
    this.view.from = clamp(from, 0, total - span);
    this.view.to = this.view.from + span;
    this.repaint();
  }

  zoom(factor, about = this.zoomCentre()) {
    const { view } = this;
    this.look(about - (about - view.from) * factor, about + (view.to - about) * factor);
  }

  /** The chosen task where it is visible, else the middle. */
  zoomCentre() {
    const { chosen } = this.state,
      { from, to } = this.view;
    const time = chosen ? (chosen.row.start[chosen.at] + chosen.row.end[chosen.at]) / 2 : -1;
    return time > from && time < to ? time : (from + to) / 2;
  }

  lineAt(y) {
    const depth = y - ROW.ruler + this.view.scroll;
    return y < ROW.ruler ? null : this.view.lines.find((line) => depth >= line.top && depth < line.top + line.height);
  }

  /** The hold under a point of the canvas. */
  holdUnder(x, y) {
    const line = this.lineAt(y);
    if (!line?.row || x < this.view.left) return null;
    const at = holdAt(line.row, this.timeAt(x), (3 / this.view.width) * (this.view.to - this.view.from));
    return at < 0 ? null : { row: line.row, at };
  }
}
