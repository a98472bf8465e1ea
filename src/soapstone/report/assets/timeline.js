// "One step, moment by moment": the lanes, what is visible, hovered and chosen, and the tools above them.

/** The section; the lanes come when their columns are unpacked. */
function showTimeline(report) {
  if (!report.timeline) return null;
  const waiting = el("p", { class: "hint", text: "Unpacking the timeline…" });
  const place = section("timeline", "One step, moment by moment", "Timeline", waiting);
  return loadTimeline(report)
    .then((model) => {
      waiting.remove();
      const timeline = new Timeline(model);
      place.append(...timeline.parts());
      timeline.start();
    })
    .catch((error) => {
      waiting.textContent = "This browser cannot unpack the timeline.";
      console.error(error);
    });
}

/** The view with its tools, and what is hovered, chosen and pinned in it. */
class Timeline extends LaneView {
  label() {
    const { report, count } = this.model;
    return `Timeline of ${countText(count, "task")} on ${countText(report.timeline.lanes.length, "lane")}, ${timeText(report.timeline.makespan)} long`;
  }

  parts() {
    const keys =
      "Drag or Shift+arrows to pan; Ctrl+wheel, pinch, + and − to zoom; drag over the ruler to zoom into a stretch; 0 shows all. " +
      "Left and right go from task to task, up and down from lane to lane, Enter pins, c follows the critical path (C backwards), f zooms to the task.";
    const kinds = el(
      "ul",
      { class: "legend" },
      ...this.model.kinds.map((kind) =>
        el(
          "li",
          {},
          el("span", { class: "swatch", style: `--c:${TASK_COLOURS[kind] ?? "#888888"}`, "aria-hidden": "true" }),
          `${GLYPHS[kind] ?? ""} ${kind}`,
        ),
      ),
      el("li", {}, el("span", { class: "swatch path", "aria-hidden": "true" }), "critical path"),
      this.model.realRows ? el("li", { text: "thin lanes: measured; upright line: where the prediction ends" }) : null,
    );
    return [
      kinds,
      this.toolbar(),
      this.minimap.canvas,
      this.frame,
      this.panel,
      this.live,
      keysHelp("timeline-keys", keys),
    ];
  }

  toolbar() {
    const button = (text, label, onclick) => el("button", { type: "button", text, "aria-label": label, onclick });
    const { state, model, view } = this,
      span = () => view.to - view.from;
    const toggle = (text, pressed, act) => {
      const node = el("button", { type: "button", class: "toggle", text, "aria-pressed": pressed ? "true" : "false" });
      node.addEventListener("click", () => {
        node.setAttribute("aria-pressed", act() ? "true" : "false");
        this.arrange();
      });
      return node;
    };
    const idle = model.rows.filter((row) => row.kind !== "device" && !row.length).length;
    this.groupButtons = GROUPS.filter(([kind]) =>
      model.rows.some((row) => row.kind === kind && (row.length || kind === "device")),
    ).map(([kind, text]) => {
      const node = toggle(text, true, () =>
        state.closed.has(kind) ? state.closed.delete(kind) : !state.closed.add(kind),
      );
      node.dataset.group = kind;
      return node;
    });
    return el(
      "div",
      { class: "toolbar", role: "group", "aria-label": "Timeline" },
      button("−", "Zoom the timeline out", () => this.zoom(1.5)),
      button("+", "Zoom the timeline in", () => this.zoom(1 / 1.5)),
      button("All", "Show the whole step", () => this.look(0, model.total)),
      button("◂", "Pan to earlier", () => this.look(view.from - span() / 3, view.to - span() / 3)),
      button("▸", "Pan to later", () => this.look(view.from + span() / 3, view.to + span() / 3)),
      toggle("Critical path", true, () => (state.showPath = !state.showPath)),
      ...this.groupButtons,
      idle ? toggle(`${countText(idle, "idle lane")}`, false, () => (state.showIdle = !state.showIdle)) : null,
      el("output", { class: "range", id: "range" }),
    );
  }

  hoverAt(x, y, event) {
    const found = event ? this.holdUnder(x, y) : null,
      before = this.state.hover;
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
    const found = this.holdUnder(x, y),
      { chosen, pinned } = this.state;
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
    const { view } = this,
      span = view.to - view.from,
      start = row.start[at],
      end = row.end[at];
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
    const { chosen } = this.state,
      rows = this.visibleRows();
    if (!rows.length) return;
    if (!chosen || !rows.includes(chosen.row)) this.choose({ row: rows[0], at: closestHold(rows[0], this.view.from) });
    else this.choose({ row: chosen.row, at: clamp(chosen.at + by, 0, chosen.row.length - 1) });
  }

  /** The hold of the next lane that is closest in time. */
  stepLane(by) {
    const { chosen } = this.state,
      rows = this.visibleRows(),
      now = chosen ? rows.indexOf(chosen.row) : -1;
    if (now < 0) return this.step(0);
    const row = rows[clamp(now + by, 0, rows.length - 1)],
      time = (chosen.row.start[chosen.at] + chosen.row.end[chosen.at]) / 2;
    return this.choose({ row, at: row === chosen.row ? chosen.at : closestHold(row, time) });
  }

  /** Go along the critical path from the chosen task. */
  followPath(by) {
    const { critical, onPath, tasks } = this.model,
      { chosen } = this.state;
    if (!critical.length) return;
    const task = chosen && !chosen.row.real ? chosen.row.id[chosen.at] : null;
    let next = 0;
    if (task !== null && onPath[task] >= 0) next = clamp(onPath[task] + by, 0, critical.length - 1);
    else if (task !== null)
      next = Math.max(
        0,
        critical.findIndex((other) => tasks.end[other] > tasks.start[task]),
      );
    this.goTo(critical[next]);
  }

  goTo(task) {
    const places = placesOf(this.model, task),
      rows = new Set(this.visibleRows());
    const place = places.find(([row]) => rows.has(row)) ?? places[0];
    if (place) this.choose({ row: place[0], at: place[1] });
  }

  /** Zoom so that the chosen task is easy to see. */
  showChosen() {
    const { chosen } = this.state;
    if (!chosen) return;
    const start = chosen.row.start[chosen.at],
      end = chosen.row.end[chosen.at],
      room = Math.max(end - start, 50) * 4;
    this.look((start + end) / 2 - room, (start + end) / 2 + room);
  }
}
