// The timeline's picture. What is narrower than a pixel is merged by binary search, so a frame costs pixels, not tasks.

const ROW = { device: 26, real: 18, host: 20, link: 20, head: 26, ruler: 26 };
const LEVELS = 4;

/** The colours of a scheme, with shades for pixels that are only partly busy. */
function paintColours(model) {
  const paper = themeColour("card");
  const shades = (colour) => Array.from({ length: LEVELS + 1 }, (_, i) => mixed(paper, colour, 0.25 + (0.75 * i) / LEVELS));
  const table = (names, colours) => names.map((name) => shades(colours[name] ?? "#888888"));
  return { paper, ink: themeColour("ink"), faint: themeColour("faint"), line: themeColour("line"), stripe: themeColour("stripe"),
    path: themeColour("path"), focus: themeColour("focus"), tasks: table(model.kinds, TASK_COLOURS), real: table(model.realKinds ?? [], REAL_COLOURS) };
}

function mixed(paper, colour, share) {
  const read = (text, i) => parseInt(text.slice(i, i + 2), 16);
  return `#${[1, 3, 5].map((i) => Math.round(read(paper, i) * (1 - share) + read(colour, i) * share).toString(16).padStart(2, "0")).join("")}`;
}

/** Paint what is visible. `view`: {from, to, left, width, height, scroll, lines: [{row?, group?, top, height}]}. */
function paintTimeline(context, view, model, state) {
  const { colours } = state;
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, view.left + view.width, view.height);
  const scale = view.width / (view.to - view.from);
  paintGrid(context, view, colours, scale);
  for (const line of view.lines) {
    const y = line.top - view.scroll + ROW.ruler;
    if (y + line.height < ROW.ruler || y > view.height) continue;
    if (line.row) paintRow(context, view, model, state, line, y, scale);
    else paintHead(context, view, colours, line, y);
  }
  paintChosen(context, view, model, state, scale);
  paintLabels(context, view, colours);
  paintRuler(context, view, state, scale);
}

function paintGrid(context, view, colours, scale) {
  context.fillStyle = colours.line;
  for (const tick of ruler(view)) context.fillRect(Math.round(view.left + (tick - view.from) * scale), ROW.ruler, 1, view.height);
}

function paintRow(context, view, model, state, line, y, scale) {
  const { row } = line, { from, to, left } = view, high = line.height - 4, top = y + 2;
  const palette = row.real ? state.colours.real : state.colours.tasks, slack = 1.5 / scale;
  let i = firstAbove(row.reach, from), pendingX = 0, pendingEnd = 0, pending = null;
  const flush = () => {
    if (pending === null) return;
    context.fillStyle = pending;
    context.fillRect(pendingX, top, pendingEnd - pendingX, high);
    pending = null;
  };
  while (i < row.length && row.start[i] < to) {
    const start = row.start[i];
    let x = left + Math.max(0, (start - from) * scale), end, colour;
    if (row.end[i] - start >= slack) {
      end = left + Math.min(view.width, (row.end[i] - from) * scale);
      colour = palette[row.type[i]][LEVELS];
      const wide = end - x;
      if (wide >= 4) {
        flush();
        context.fillStyle = colour;
        context.fillRect(x, top, wide - 1, high);
        if (wide > 34 && high > 12) paintName(context, model, row, i, x, top, wide, high, colour);
        i += 1;
        continue;
      }
      i += 1;
    } else {
      x = Math.floor(x);
      const edge = from + (x + 1 - left) / scale;
      let next = firstAbove(row.start, edge, i + 1, gallop(row.start, edge, i + 1));
      if (next - i > 1 && row.end[next - 1] - row.start[next - 1] >= slack) next -= 1;
      const share = ((row.busy[next] - row.busy[i]) * scale);
      colour = palette[row.type[(i + next - 1) >> 1]][Math.min(LEVELS, Math.round(share * LEVELS))];
      end = x + 1;
      i = next;
    }
    if (pending === colour && x <= pendingEnd + 0.5) pendingEnd = Math.max(end, pendingEnd);
    else {
      flush();
      [pending, pendingX, pendingEnd] = [colour, x, end];
    }
  }
  flush();
  if (state.showPath && row.marks.length) paintPath(context, view, row, state.colours.path, top, high, scale);
}

/** A position past the last value below a bound, found in doubling steps. */
function gallop(values, bound, from) {
  let step = 1;
  while (from + step < values.length && values[from + step] <= bound) step *= 2;
  return Math.min(values.length, from + step + 1);
}

function paintName(context, model, row, i, x, top, wide, high, colour) {
  const kind = row.real ? model.realKinds[row.type[i]] : model.kinds[row.type[i]];
  const op = row.real ? null : model.report.ops[model.tasks.op[row.id[i]]];
  const text = `${GLYPHS[kind] ?? ""} ${row.real ? holdName(model, row, i) : op ? op.name : kind}`;
  context.fillStyle = inkOn(colour);
  context.font = "11px system-ui, sans-serif";
  context.fillText(tailText(text, Math.floor((wide - 8) / 6.1)), x + 4, top + high / 2 + 4);
}

/** The critical path: an outline, or a line above and below where tasks are narrow. */
function paintPath(context, view, row, colour, top, high, scale) {
  const { marks } = row;
  context.fillStyle = context.strokeStyle = colour;
  context.lineWidth = 2;
  let low = 0, top1 = marks.length;
  while (low < top1) {
    const middle = (low + top1) >>> 1;
    if (row.end[marks[middle]] > view.from) top1 = middle;
    else low = middle + 1;
  }
  let last = -1;
  for (let k = low; k < marks.length && row.start[marks[k]] < view.to; k += 1) {
    const x = Math.max(-4, (row.start[marks[k]] - view.from) * scale) + view.left;
    const end = Math.min(view.width + 4, (row.end[marks[k]] - view.from) * scale) + view.left;
    if (end - x >= 5) context.strokeRect(x, top, end - x - 1, high);
    else if (end > last + 1) {
      context.fillRect(x, top - 1, Math.max(1, end - x), 2);
      context.fillRect(x, top + high - 1, Math.max(1, end - x), 2);
      last = end;
    }
  }
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
  const middle = (row) => lineOf.has(row) ? lineOf.get(row).top - view.scroll + ROW.ruler + lineOf.get(row).height / 2 : null;
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
      if (place && to[1] !== null) paintArrow(context, xOf(place[0].end[place[1]]), middle(place[0]), to[0], to[1], i === 0 ? 2.5 : 1.2);
    }
  }
  for (const [row, at] of places) {
    const line = lineOf.get(row);
    if (!line) continue;
    const y = line.top - view.scroll + ROW.ruler, x = xOf(row.start[at]), wide = Math.max(3, (row.end[at] - row.start[at]) * scale);
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
      context.fillText(tailText(line.row.name, Math.floor((view.left - 24) / 6)), line.row.real ? 24 : 16, y + line.height / 2 + 4);
    }
  }
}

/** The moments of the ruler's ticks. */
function ruler(view) {
  const step = niceStep(view.to - view.from, view.width / 110), found = [];
  for (let tick = Math.ceil(view.from / step) * step; tick <= view.to; tick += step) found.push(tick);
  return found;
}

/** A moment as the ruler writes it: as many decimals as the step needs. */
function tickText(ns, step) {
  const [unit, size] = step >= 1e4 ? ["ms", 1e6] : step >= 10 ? ["µs", 1e3] : ["ns", 1];
  return `${(ns / size).toFixed(Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9)))} ${unit}`;
}

function paintRuler(context, view, state, scale) {
  const { colours } = state, ticks = ruler(view), step = niceStep(view.to - view.from, view.width / 110);
  context.fillStyle = colours.stripe;
  context.fillRect(0, 0, view.left + view.width, ROW.ruler);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = colours.faint;
  for (const tick of ticks) context.fillText(tickText(tick, step), view.left + (tick - view.from) * scale + 4, 17);
  if (!state.select) return;
  const [a, b] = state.select.map((time) => view.left + (time - view.from) * scale);
  context.globalAlpha = 0.25;
  context.fillStyle = colours.focus;
  context.fillRect(Math.min(a, b), 0, Math.abs(b - a), view.height);
  context.globalAlpha = 1;
}

/** The (row, position) pairs of a task. */
function placesOf(model, task) {
  const { begin, row, at } = model.holdsOf, found = [];
  for (let i = begin[task]; i < begin[task + 1]; i += 1) found.push([model.rows[row[i]], at[i]]);
  return found;
}
