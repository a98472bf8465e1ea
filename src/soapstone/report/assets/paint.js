// The timeline's picture: the lanes' pixels, then names, the chosen task, labels and the ruler on top of them.

const ROW = { device: 26, real: 18, host: 20, link: 20, head: 26, ruler: 26 };

/** Paint what is visible. `view`: {from, to, left, width, height, scroll, lines: [{row?, group?, top, height}]}. */
function paintTimeline(context, view, model, state) {
  const { colours } = state,
    scale = view.width / (view.to - view.from);
  const names = paintPixels(context, view, model, state);
  context.font = "11px system-ui, sans-serif";
  state.letter ??= context.measureText("encoder.layers.0.attention").width / 25;
  for (const name of names) paintName(context, model, view, name, state.letter);
  for (const line of view.lines) {
    const y = line.top - view.scroll + ROW.ruler;
    if (!line.row && y + line.height > ROW.ruler && y < view.height) paintHead(context, view, colours, line, y);
  }
  paintChosen(context, view, model, state, scale);
  paintLabels(context, view, colours);
  paintRuler(context, view, state, scale);
}

/** What a wide enough task is, written into it. */
function paintName(context, model, view, { row, at, x, wide, y, high }, letter) {
  const kind = row.real ? model.realKinds[row.type[at]] : model.kinds[row.type[at]];
  const op = row.real ? null : model.report.ops[model.tasks.op[row.id[at]]];
  const text = row.real ? holdName(model, row, at) : op ? op.name : kind,
    room = Math.floor((wide - 10) / letter) - 2;
  context.fillStyle = inkOn((row.real ? REAL_COLOURS : TASK_COLOURS)[kind] ?? "#888888");
  context.fillText(
    `${GLYPHS[kind] ?? ""} ${room > 2 ? tailText(text, room) : ""}`,
    view.left + x + 4,
    y + high / 2 + 4,
  );
}

function paintHead(context, view, colours, line, y) {
  context.fillStyle = colours.stripe;
  context.fillRect(0, y, view.left + view.width, line.height - 2);
}

/** The chosen task's holds outlined, and lines from what it waited for. */
function paintChosen(context, view, model, state, scale) {
  const target = state.pinned || !state.hover ? state.chosen : state.hover;
  if (!target) return;
  const xOf = (time) => view.left + (time - view.from) * scale;
  const lineOf = new Map(view.lines.filter((line) => line.row).map((line) => [line.row, line]));
  const middle = (row) =>
    lineOf.has(row) ? lineOf.get(row).top - view.scroll + ROW.ruler + lineOf.get(row).height / 2 : null;
  const places = target.row.real ? [[target.row, target.at]] : placesOf(model, target.row.id[target.at]);
  context.save();
  context.beginPath();
  context.rect(view.left, ROW.ruler, view.width, view.height);
  context.clip();
  if (!target.row.real) {
    const to = [xOf(target.row.start[target.at]), middle(target.row)];
    context.strokeStyle = state.colours.ink;
    for (const [i, task] of waitsFor(model, target.row.id[target.at]).slice(0, 40).entries()) {
      const place = placesOf(model, task).find(([row]) => lineOf.has(row));
      if (place && to[1] !== null)
        paintArrow(context, xOf(place[0].end[place[1]]), middle(place[0]), to[0], to[1], i === 0 ? 2.5 : 1.2);
    }
  }
  for (const [row, at] of places) {
    const line = lineOf.get(row);
    if (!line) continue;
    const y = line.top - view.scroll + ROW.ruler,
      x = xOf(row.start[at]),
      wide = Math.max(3, (row.end[at] - row.start[at]) * scale);
    context.lineWidth = 3;
    context.strokeStyle = state.colours.focus;
    context.strokeRect(clampX(x, view) - 1, y + 1, Math.min(wide, view.width * 2) + 1, line.height - 2);
  }
  context.restore();
}

const clampX = (x, view) => Math.max(x, view.left - view.width / 2);

function paintArrow(context, x0, y0, x1, y1, width) {
  const bend = clamp(Math.abs(x1 - x0) / 2, 12, 60);
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
  context.stroke();
  context.beginPath();
  context.arc(x0, y0, 2.5, 0, 7);
  context.fillStyle = context.strokeStyle;
  context.fill();
}

function paintLabels(context, view, colours) {
  context.fillStyle = colours.paper;
  context.fillRect(0, ROW.ruler, view.left - 1, view.height);
  context.fillStyle = colours.line;
  context.fillRect(view.left - 1, ROW.ruler, 1, view.height);
  for (const line of view.lines) {
    const y = line.top - view.scroll + ROW.ruler;
    if (y + line.height < ROW.ruler || y > view.height) continue;
    if (line.group) {
      paintHead(context, { left: view.left, width: 0 }, colours, line, y);
      context.font = "600 12px system-ui, sans-serif";
      context.fillStyle = colours.ink;
      context.fillText(line.text, 8, y + line.height / 2 + 3);
    } else {
      context.font = "11px system-ui, sans-serif";
      context.fillStyle = line.row.real ? colours.faint : colours.ink;
      context.fillText(
        tailText(line.row.name.replace(/ (to|->) /, "→"), Math.floor((view.left - 22) / 6.8)),
        line.row.real ? 24 : 16,
        y + line.height / 2 + 4,
      );
    }
  }
}

/** The moments of the ruler's ticks. */
function ruler(view) {
  const step = niceStep(view.to - view.from, view.width / 110),
    found = [];
  for (let tick = Math.ceil(view.from / step) * step; tick <= view.to; tick += step) found.push(tick);
  return found;
}

/** A moment as the ruler writes it: as many decimals as the step needs. */
function tickText(ns, step) {
  const [unit, size] = step >= 1e4 ? ["ms", 1e6] : step >= 10 ? ["µs", 1e3] : ["ns", 1];
  return `${(ns / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)))} ${unit}`;
}

function paintRuler(context, view, state, scale) {
  const { colours } = state,
    ticks = ruler(view),
    step = niceStep(view.to - view.from, view.width / 110);
  context.fillStyle = colours.stripe;
  context.fillRect(0, 0, view.left + view.width, ROW.ruler);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = colours.faint;
  for (const tick of ticks) {
    const x = view.left + (tick - view.from) * scale + 4,
      text = tickText(tick, step);
    if (x + 6.5 * text.length < view.left + view.width) context.fillText(text, x, 17);
  }
  if (!state.select) return;
  const [a, b] = state.select.map((time) => view.left + (time - view.from) * scale);
  context.globalAlpha = 0.25;
  context.fillStyle = colours.focus;
  context.fillRect(Math.min(a, b), 0, Math.abs(b - a), view.height);
  context.globalAlpha = 1;
}

/** The (row, position) pairs of a task. */
function placesOf(model, task) {
  const { begin, row, at } = model.holdsOf,
    found = [];
  for (let i = begin[task]; i < begin[task + 1]; i += 1) found.push([model.rows[row[i]], at[i]]);
  return found;
}
