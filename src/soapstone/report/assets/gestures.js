// How pointers, wheels and keys move the timeline.

/** Listen on a timeline's canvas. */
function startGestures(timeline) {
  const { canvas } = timeline,
    pointers = new Map();
  let drag = null;
  canvas.addEventListener("wheel", (event) => onWheel(timeline, event), { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (onTimelineKey(timeline, event)) event.preventDefault();
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = timeline.spot(event);
    pointers.set(event.pointerId, x);
    canvas.setPointerCapture(event.pointerId);
    const { view } = timeline;
    if (pointers.size === 2) drag = { pinch: pinchOf(pointers), from: view.from, to: view.to };
    else
      drag = {
        x,
        y,
        from: view.from,
        to: view.to,
        moved: false,
        select: y < ROW.ruler && x > view.left ? timeline.timeAt(x) : null,
      };
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = timeline.spot(event);
    if (!drag || !pointers.has(event.pointerId)) return timeline.hoverAt(x, y, event);
    pointers.set(event.pointerId, x);
    onDrag(timeline, drag, x, pointers);
  });
  const finish = (event) => {
    if (!pointers.delete(event.pointerId) || !drag) return;
    if (event.type === "pointerup" && !drag.pinch) onRelease(timeline, drag, event);
    timeline.state.select = null;
    drag = null;
    timeline.repaint();
  };
  canvas.addEventListener("pointerup", finish);
  canvas.addEventListener("pointercancel", finish);
  canvas.addEventListener("pointerleave", () => timeline.hoverAt(-1, -1, null));
}

function pinchOf(pointers) {
  const [a, b] = [...pointers.values()];
  return { middle: (a + b) / 2, apart: Math.max(20, Math.abs(a - b)) };
}

function onDrag(timeline, drag, x, pointers) {
  const { view } = timeline,
    span = drag.to - drag.from;
  hideTip();
  if (drag.pinch && pointers.size === 2) {
    const now = pinchOf(pointers),
      next = (span * drag.pinch.apart) / now.apart;
    const held = drag.from + ((drag.pinch.middle - view.left) / view.width) * span,
      from = held - ((now.middle - view.left) / view.width) * next;
    timeline.look(from, from + next);
  } else if (drag.select !== null && drag.select !== undefined) {
    timeline.state.select = [drag.select, timeline.timeAt(x)];
    drag.moved = Math.abs(x - drag.x) > 4;
    timeline.repaint();
  } else if (drag.x !== undefined && (drag.moved || Math.abs(x - drag.x) > 4)) {
    drag.moved = true;
    const off = ((x - drag.x) / view.width) * span;
    timeline.look(drag.from - off, drag.to - off);
  }
}

function onRelease(timeline, drag, event) {
  const [x, y] = timeline.spot(event);
  if (drag.moved && drag.select !== null) {
    const [a, b] = [drag.select, timeline.timeAt(x)].sort((p, q) => p - q);
    timeline.look(a, b);
  } else if (!drag.moved) timeline.clickAt(x, y);
}

function onWheel(timeline, event) {
  const { view } = timeline,
    span = view.to - view.from;
  const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    timeline.zoom(Math.exp(clamp(event.deltaY, -60, 60) / 120), timeline.timeAt(timeline.spot(event)[0]));
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    timeline.look(view.from + (sideways / view.width) * span, view.to + (sideways / view.width) * span);
  }
}

/** Act on a key; true where it meant something. */
function onTimelineKey(timeline, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const { view } = timeline,
    span = view.to - view.from;
  const acts = {
    ArrowLeft: () => (event.shiftKey ? timeline.look(view.from - span / 5, view.to - span / 5) : timeline.step(-1)),
    ArrowRight: () => (event.shiftKey ? timeline.look(view.from + span / 5, view.to + span / 5) : timeline.step(1)),
    ArrowUp: () => timeline.stepLane(-1),
    ArrowDown: () => timeline.stepLane(1),
    Home: () => timeline.step(-Infinity),
    End: () => timeline.step(Infinity),
    Enter: () => timeline.pin(!timeline.state.pinned),
    " ": () => timeline.pin(!timeline.state.pinned),
    Escape: () => timeline.pin(false),
    "+": () => timeline.zoom(1 / 1.5),
    "=": () => timeline.zoom(1 / 1.5),
    "-": () => timeline.zoom(1.5),
    _: () => timeline.zoom(1.5),
    0: () => timeline.look(0, timeline.model.total),
    c: () => timeline.followPath(1),
    C: () => timeline.followPath(-1),
    f: () => timeline.showChosen(),
  };
  if (!Object.hasOwn(acts, event.key)) return false;
  acts[event.key]();
  return true;
}
