// "One step, moment by moment": the lanes, what is visible, hovered and chosen, and the tools above them.

const GROUPS = [["device", "Devices"], ["host", "Hosts"], ["link", "Links"]];

/** The section; the lanes come when their columns are unpacked. */
function showTimeline(report) {
  if (!report.timeline) return null;
  const waiting = el("p", { class: "hint", text: "Unpacking the timeline…" });
  const place = section("timeline", "One step, moment by moment", "Timeline", waiting);
  return loadTimeline(report).then((model) => {
    waiting.remove();
    const timeline = new Timeline(model);
    place.append(...timeline.parts());
    timeline.start();
  }).catch((error) => {
    waiting.textContent = "This browser cannot unpack the timeline.";
    console.error(error);
  });
}

class Timeline {
  constructor(model) {
    this.model = model;
    this.state = { hover: null, chosen: null, pinned: false, showPath: true, showIdle: false, closed: new Set(), select: null, colours: paintColours(model) };
    this.view = { from: 0, to: model.total, left: 112, width: 800, height: 400, scroll: 0, lines: [], end: model.report.timeline.makespan, total: model.total };
    this.canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-label": this.label(), "aria-describedby": "timeline-keys" });
    this.context = this.canvas.getContext("2d", { alpha: false, willReadFrequently: true });
    this.sheet = el("div", { class: "sheet" }, this.canvas);
    this.frame = el("div", { class: "lanes" }, this.sheet);
    this.panel = el("div", { class: "panel flat" }, el("p", { class: "faint", text: "Point at a task; click to keep it here." }));
    this.live = el("p", { class: "hidden", "aria-live": "polite", id: "timeline-live" });
    this.minimap = new Minimap(this);
    this.repaint = perFrame(() => this.paint());
  }

  label() {
    const { report, count } = this.model;
    return `Timeline of ${countText(count, "task")} on ${countText(report.timeline.lanes.length, "lane")}, ${timeText(report.timeline.makespan)} long`;
  }

  parts() {
    const keys = "Drag or Shift+arrows to pan; Ctrl+wheel, pinch, + and − to zoom; drag over the ruler to zoom into a stretch; 0 shows all. " +
      "Left and right go from task to task, up and down from lane to lane, Enter pins, c follows the critical path (C backwards), f zooms to the task.";
    const kinds = el("ul", { class: "legend" }, ...this.model.kinds.map((kind) => el("li", {},
      el("span", { class: "swatch", style: `--c:${TASK_COLOURS[kind] ?? "#888888"}`, "aria-hidden": "true" }), `${GLYPHS[kind] ?? ""} ${kind}`)),
      el("li", {}, el("span", { class: "swatch path", "aria-hidden": "true" }), "critical path"),
      this.model.realRows ? el("li", { text: "thin lanes: measured; red line: where the prediction ends" }) : null);
    return [kinds, this.toolbar(), this.minimap.canvas, this.frame, this.panel, this.live, el("p", { class: "hint keys", id: "timeline-keys", text: keys })];
  }

  toolbar() {
    const button = (text, label, onclick) => el("button", { type: "button", text, "aria-label": label, onclick });
    const { state, model, view } = this, span = () => view.to - view.from;
    const toggle = (text, pressed, act) => {
      const node = el("button", { type: "button", class: "toggle", text, "aria-pressed": pressed ? "true" : "false" });
      node.addEventListener("click", () => {
        node.setAttribute("aria-pressed", act() ? "true" : "false");
        this.arrange();
      });
      return node;
    };
    const idle = model.rows.filter((row) => row.kind !== "device" && !row.length).length;
    this.groupButtons = GROUPS.filter(([kind]) => model.rows.some((row) => row.kind === kind && (row.length || kind === "device"))).map(([kind, text]) => {
      const node = toggle(text, true, () => (state.closed.has(kind) ? state.closed.delete(kind) : !state.closed.add(kind)));
      node.dataset.group = kind;
      return node;
    });
    return el("div", { class: "toolbar", role: "group", "aria-label": "Timeline" },
      button("−", "Zoom the timeline out", () => this.zoom(1.5)), button("+", "Zoom the timeline in", () => this.zoom(1 / 1.5)),
      button("All", "Show the whole step", () => this.look(0, model.total)),
      button("◂", "Pan to earlier", () => this.look(view.from - span() / 3, view.to - span() / 3)),
      button("▸", "Pan to later", () => this.look(view.from + span() / 3, view.to + span() / 3)),
      toggle("Critical path", true, () => (state.showPath = !state.showPath)), ...this.groupButtons,
      idle ? toggle(`${countText(idle, "idle lane")}`, false, () => (state.showIdle = !state.showIdle)) : null,
      el("output", { class: "range", id: "range" }));
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
    new ResizeObserver(() => this.resize()).observe(this.frame);
    this.arrange();
  }

  /** Which lines there are, one under another; measured lanes stand under the predicted lane of their device. */
  arrange() {
    const { model, state } = this, lines = [];
    let top = 0;
    const add = (line, height) => {
      lines.push({ ...line, top, height });
      top += height;
    };
    for (const [kind, text] of GROUPS) {
      const all = model.rows.filter((row) => row.kind === kind);
      const rows = kind !== "device" && !state.showIdle ? all.filter((row) => row.length) : all, closed = state.closed.has(kind);
      const hidden = all.length - rows.length;
      if (!rows.length) continue;
      add({ group: kind, text: `${closed ? "▸" : "▾"} ${text} (${rows.length}${hidden ? ` of ${all.length}` : ""})` }, ROW.head);
      if (closed) continue;
      for (const row of rows) {
        add({ row }, ROW[kind]);
        for (const real of model.realRows ?? []) if (kind === "device" && real.lane === row.lane) add({ row: real }, ROW.real);
      }
    }
    for (const node of this.groupButtons) node.setAttribute("aria-pressed", state.closed.has(node.dataset.group) ? "false" : "true");
    this.view.lines = lines;
    this.tall = top + ROW.ruler;
    this.resize();
  }

  resize() {
    const width = this.frame.clientWidth;
    if (!width) return;
    const ratio = Math.min(window.devicePixelRatio || 1, 2), height = Math.min(this.tall, Math.max(240, Math.min(560, innerHeight * 0.7)));
    Object.assign(this.view, { left: width < 560 ? 72 : 112, height });
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
    const begin = performance.now(), { view, context } = this;
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
    const { total } = this.model, span = clamp(to - from, Math.min(50, total), total);
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
    const { chosen } = this.state, { from, to } = this.view;
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

  hoverAt(x, y, event) {
    const found = event ? this.holdUnder(x, y) : null, before = this.state.hover;
    if (found) showTip(event.clientX, event.clientY, ...holdTip(this.model, found.row, found.at));
    else hideTip();
    if (found?.row === before?.row && found?.at === before?.at) return;
    this.state.hover = found;
    this.repaint();
  }

  clickAt(x, y) {
    const line = this.lineAt(y);
    if (line?.group) {
      if (!this.state.closed.delete(line.group)) this.state.closed.add(line.group);
      return this.arrange();
    }
    const found = this.holdUnder(x, y), { chosen, pinned } = this.state;
    const again = pinned && found && chosen && found.row === chosen.row && found.at === chosen.at;
    return found ? this.choose(found, !again, false) : this.pin(false);
  }

  /** Choose a hold: show it in the panel, say it, and bring it into sight. */
  choose(found, pinned = false, move = true) {
    Object.assign(this.state, { chosen: found, pinned, hover: null });
    this.panel.replaceChildren(...holdPanel(this.model, found.row, found.at, pinned, (task) => this.goTo(task)));
    this.live.textContent = holdSentence(this.model, found.row, found.at, pinned);
    if (move) this.bringIntoSight(found);
    this.repaint();
  }

  bringIntoSight({ row, at }) {
    const { view } = this, span = view.to - view.from, start = row.start[at], end = row.end[at];
    if (start < view.from || end > view.to) {
      const middle = end - start > span ? start + span / 2 : (start + end) / 2;
      this.look(middle - span / 2, middle + span / 2);
    }
    const line = view.lines.find((one) => one.row === row);
    if (!line) return;
    const room = view.height - ROW.ruler;
    if (line.top < view.scroll) this.frame.scrollTop = line.top;
    else if (line.top + line.height > view.scroll + room) this.frame.scrollTop = line.top + line.height - room;
  }

  pin(pinned) {
    if (this.state.chosen) this.choose(this.state.chosen, pinned);
  }

  visibleRows() {
    return this.view.lines.filter((line) => line.row?.length).map((line) => line.row);
  }

  /** The next or previous hold of the lane; without one chosen, the first that is visible. */
  step(by) {
    const { chosen } = this.state, rows = this.visibleRows();
    if (!rows.length) return;
    if (!chosen || !rows.includes(chosen.row)) this.choose({ row: rows[0], at: closestHold(rows[0], this.view.from) });
    else this.choose({ row: chosen.row, at: clamp(chosen.at + by, 0, chosen.row.length - 1) });
  }

  /** The hold of the next lane that is closest in time. */
  stepLane(by) {
    const { chosen } = this.state, rows = this.visibleRows(), now = chosen ? rows.indexOf(chosen.row) : -1;
    if (now < 0) return this.step(0);
    const row = rows[clamp(now + by, 0, rows.length - 1)], time = (chosen.row.start[chosen.at] + chosen.row.end[chosen.at]) / 2;
    return this.choose({ row, at: row === chosen.row ? chosen.at : closestHold(row, time) });
  }

  /** Go along the critical path from the chosen task. */
  followPath(by) {
    const { critical, onPath, tasks } = this.model, { chosen } = this.state;
    if (!critical.length) return;
    const task = chosen && !chosen.row.real ? chosen.row.id[chosen.at] : null;
    let next = 0;
    if (task !== null && onPath[task] >= 0) next = clamp(onPath[task] + by, 0, critical.length - 1);
    else if (task !== null) next = Math.max(0, critical.findIndex((other) => tasks.end[other] > tasks.start[task]));
    this.goTo(critical[next]);
  }

  goTo(task) {
    const places = placesOf(this.model, task), rows = new Set(this.visibleRows());
    const place = places.find(([row]) => rows.has(row)) ?? places[0];
    if (place) this.choose({ row: place[0], at: place[1] });
  }

  /** Zoom so that the chosen task is easy to see. */
  showChosen() {
    const { chosen } = this.state;
    if (!chosen) return;
    const start = chosen.row.start[chosen.at], end = chosen.row.end[chosen.at], room = Math.max(end - start, 50) * 4;
    this.look((start + end) / 2 - room, (start + end) / 2 + room);
  }
}
