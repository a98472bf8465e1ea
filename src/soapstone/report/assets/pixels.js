// The lanes' pixels. What is narrower than a pixel is merged by binary search, so a frame costs pixels, not tasks; a lane is
// made as one line of pixels and copied over its height, which software draws as fast as a graphics card.

const LEVELS = 4;

/** The colours of a scheme, with shades for pixels that are only partly busy. */
function paintColours(model) {
  const paper = themeColour("card");
  const shades = (colour) =>
    Array.from({ length: LEVELS + 1 }, (_, i) => packed(mixed(paper, colour, 0.25 + (0.75 * i) / LEVELS)));
  const table = (names, colours) => names.map((name) => shades(colours[name] ?? "#888888"));
  return {
    paper,
    ink: themeColour("ink"),
    faint: themeColour("faint"),
    line: themeColour("line"),
    stripe: themeColour("stripe"),
    path: themeColour("path"),
    focus: themeColour("focus"),
    tasks: table(model.kinds, TASK_COLOURS),
    real: table(model.realKinds ?? [], REAL_COLOURS),
  };
}

/** A share of one colour over another. */
function mixed(paper, colour, share) {
  const read = (text, i) => parseInt(text.slice(i, i + 2), 16);
  return `#${[1, 3, 5]
    .map((i) =>
      Math.round(read(paper, i) * (1 - share) + read(colour, i) * share)
        .toString(16)
        .padStart(2, "0"),
    )
    .join("")}`;
}

/** A colour as the four bytes of a pixel. */
function packed(colour) {
  const value = parseInt(colour.slice(1), 16);
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** Room for the pixels of a canvas. */
function makePixels(context, ratio) {
  const { width, height } = context.canvas,
    image = context.createImageData(width, height);
  return {
    image,
    all: new Uint32Array(image.data.buffer),
    width,
    height,
    ratio,
    line: new Uint32Array(width),
    rim: new Uint32Array(width),
  };
}

/** Put the visible lanes onto the canvas; returns the holds that are wide enough for a name. */
function paintPixels(context, view, model, state) {
  const { pixels } = state,
    { all, width, height, ratio, line, rim } = pixels,
    base = backgroundLine(view, state.colours, pixels),
    names = [];
  for (let y = 0; y < height; y += 1) all.set(base, y * width);
  for (const { row, top, height: tall } of view.lines) {
    const y = top - view.scroll + ROW.ruler + 2,
      high = tall - 4;
    if (!row || y + high < ROW.ruler || y > view.height) continue;
    line.set(base);
    const palette = row.real ? state.colours.real : state.colours.tasks,
      begin = names.length;
    const pale = state.lit && !row.real ? (at) => !state.lit[model.tasks.op[row.id[at]]] : null;
    fillLine(line, row, view, palette, ratio, names, pale);
    for (let i = begin; i < names.length; i += 1) Object.assign(names[i], { y, high });
    rim.set(line);
    if (state.showPath && row.marks.length) markPath(line, rim, row, view, packed(state.colours.path), ratio);
    const from = Math.max(0, Math.round(y * ratio)),
      to = Math.min(height, Math.round((y + high) * ratio)),
      thick = Math.round(2 * ratio);
    for (let at = from; at < to; at += 1) all.set(at < from + thick || at >= to - thick ? rim : line, at * width);
  }
  context.putImageData(pixels.image, 0, 0);
  return names;
}

/** The ruler's ticks, and where the prediction ends, on paper. */
function backgroundLine(view, colours, { width, ratio }) {
  const base = new Uint32Array(width).fill(packed(colours.paper)),
    scale = (view.width * ratio) / (view.to - view.from);
  const tick = (time, colour) => {
    const x = Math.round(view.left * ratio + (time - view.from) * scale);
    if (time >= view.from && x < width) base[x] = packed(colour);
  };
  for (const time of ruler(view)) tick(time, colours.line);
  if (view.end < view.total) tick(view.end, colours.focus);
  return base;
}

/** One line of pixels of a row; `pale` says which positions are not lit. */
function fillLine(line, row, view, palette, ratio, names, pale) {
  const { from, to } = view,
    left = view.left * ratio,
    right = line.length,
    scale = (view.width * ratio) / (to - from),
    slack = 1.5 / scale;
  let i = firstAbove(row.reach, from);
  while (i < row.length && row.start[i] < to) {
    const x = left + Math.max(0, Math.floor((row.start[i] - from) * scale));
    if (row.end[i] - row.start[i] >= slack) {
      const end = Math.min(right, left + (row.end[i] - from) * scale),
        wide = end - x;
      line.fill(
        palette[row.type[i]][pale?.(i) ? 0 : LEVELS],
        x,
        Math.max(x + 1, Math.round(wide >= 4 ? end - 1 : end)),
      );
      if (wide > 16 * ratio && !pale?.(i)) names.push({ row, at: i, x: (x - left) / ratio, wide: wide / ratio });
      i += 1;
      continue;
    }
    const edge = from + (x + 1 - left) / scale;
    let next = firstAbove(row.start, edge, i + 1, gallop(row.start, edge, i + 1));
    if (next - i > 1 && row.end[next - 1] - row.start[next - 1] >= slack) next -= 1;
    const share = (row.busy[next] - row.busy[i]) * scale;
    const shown = pale ? firstLit(pale, i, next) : (i + next - 1) >> 1;
    line[x] = palette[row.type[shown]][pale?.(shown) ? 0 : Math.min(LEVELS, Math.round(share * LEVELS))];
    i = next;
  }
}

/** The first of some positions that is lit, so that none is lost among others; the first of all where none is. */
function firstLit(pale, from, to) {
  for (let i = from; i < to; i += 1) if (!pale(i)) return i;
  return from;
}

/** A position past the last value below a bound, found in doubling steps. */
function gallop(values, bound, from) {
  let step = 1;
  while (from + step < values.length && values[from + step] <= bound) step *= 2;
  return Math.min(values.length, from + step + 1);
}

/** The critical path: an outline, or a line above and below where tasks are narrow. */
function markPath(line, rim, row, view, colour, ratio) {
  const { marks } = row,
    left = view.left * ratio,
    scale = (view.width * ratio) / (view.to - view.from);
  let low = 0,
    high = marks.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (row.end[marks[middle]] > view.from) high = middle;
    else low = middle + 1;
  }
  for (let k = low; k < marks.length && row.start[marks[k]] < view.to; k += 1) {
    const x = Math.round(left + Math.max(-9, (row.start[marks[k]] - view.from) * scale));
    const end = Math.max(
      x + 1,
      Math.round(left + Math.min(view.width * ratio + 9, (row.end[marks[k]] - view.from) * scale)),
    );
    rim.fill(colour, Math.max(x, left), end);
    if (end - x < 6 * ratio) continue;
    line.fill(colour, Math.max(x, left), Math.max(x + 2 * ratio, left));
    line.fill(colour, end - 2 * ratio, end);
  }
}
