// One layer as a box: its name, how it is cut, and the grid of its parts in the colours of their devices.

const BOX = { width: 184, pad: 8, title: 17, subtitle: 15 };
const MOST_CELLS = 64;

/** How a layer is cut: rows along sample dims, columns along the others; its parts, and the devices of each. */
function layerGrid(report, index) {
  const layer = report.layers[index],
    ops = layer.ops.map((op) => report.ops[op]),
    op = ops[0];
  const cut = op.dims.filter((dim) => (op.degrees[dim.name] ?? 1) > 1);
  let rows = 1,
    columns = 1;
  for (const dim of cut) {
    if (dim.kind === "sample") rows *= op.degrees[dim.name];
    else columns *= op.degrees[dim.name];
  }
  const parts = op.devices.length;
  if (rows * columns !== parts) [rows, columns] = [1, parts];
  const simple = parts > MOST_CELLS;
  const height = simple ? 30 : rows === 1 ? 30 : clamp(rows * 17, 34, rows > 8 ? 112 : 136);
  const label = cut.map((dim) => `${dim.name} ÷${op.degrees[dim.name]}`).join(" · ") || "whole";
  return { ops, op, cut, rows, columns, parts, simple, gridHeight: height, label };
}

/** Where part `index`, row-major over the dims, stands in a grid of sample rows and other columns. */
function partPlaces(grid) {
  const places = [];
  for (let part = 0; part < grid.parts; part += 1) {
    let rest = part,
      row = 0,
      column = 0,
      rowSize = 1,
      columnSize = 1;
    for (const dim of [...grid.cut].reverse()) {
      const degree = grid.op.degrees[dim.name],
        at = rest % degree;
      rest = Math.floor(rest / degree);
      if (dim.kind === "sample") [row, rowSize] = [row + at * rowSize, rowSize * degree];
      else [column, columnSize] = [column + at * columnSize, columnSize * degree];
    }
    places.push(rest === 0 && row < grid.rows && column < grid.columns ? [row, column] : [0, part]);
  }
  return places;
}

/** The rectangles of a grid: {x, y, width, height, device, number?}. A cell of many ops has a stripe for each run of a device. */
function gridRectangles(grid, width) {
  if (grid.simple) return strip(grid, width);
  const cellWidth = width / grid.columns,
    cellHeight = grid.gridHeight / grid.rows,
    found = [];
  for (const [part, [row, column]] of partPlaces(grid).entries()) {
    const runs = deviceRuns(grid.ops, part),
      stripe = cellWidth / runs.length;
    for (const [i, device] of runs.entries()) {
      const room = stripe >= 13 && cellHeight >= 12;
      found.push({
        x: column * cellWidth + i * stripe,
        y: row * cellHeight,
        width: stripe,
        height: cellHeight,
        device,
        number: room,
      });
    }
  }
  return found;
}

/** The devices of one part over the ops of a layer, repetitions left out; at most 12 of them. */
function deviceRuns(ops, part) {
  const runs = [];
  for (const op of ops) if (runs.at(-1) !== op.devices[part]) runs.push(op.devices[part]);
  if (runs.length <= 12) return runs;
  return Array.from({ length: 12 }, (_, i) => runs[Math.floor((i * runs.length) / 12)]);
}

/** Too many parts for a grid: one strip in which neighbours on one device are one piece. */
function strip(grid, width) {
  const found = [],
    shown = Math.min(grid.parts, MOST_CELLS),
    each = width / shown;
  for (let i = 0; i < shown; i += 1) {
    const device = grid.op.devices[Math.floor((i * grid.parts) / shown)],
      last = found.at(-1);
    if (last && last.device === device) last.width += each;
    else found.push({ x: i * each, y: 0, width: each, height: grid.gridHeight, device });
  }
  for (const piece of found) piece.number = piece.width >= 15;
  return found;
}

/** The size of a layer's box. */
function boxSize(grid) {
  return { width: BOX.width, height: BOX.pad * 2 + BOX.title + BOX.subtitle + grid.gridHeight };
}

/** The lines between the parts, above their colours: stripes of one part touch, parts do not. */
function cellLines(grid, width) {
  let path = "";
  if (!grid.simple) {
    for (let i = 1; i < grid.columns; i += 1)
      path += `M${((i * width) / grid.columns).toFixed(1)} 0v${grid.gridHeight}`;
    for (let i = 1; i < grid.rows; i += 1) path += `M0 ${((i * grid.gridHeight) / grid.rows).toFixed(1)}h${width}`;
  }
  return svg("path", { class: "cell-lines", d: path, "stroke-width": grid.parts > 16 ? 1 : 2 });
}

/** Draw a layer's box with its corner at the origin. */
function drawLayer(grid, name, count) {
  const { width, height } = boxSize(grid),
    inside = width - 2 * BOX.pad,
    top = BOX.pad + BOX.title + BOX.subtitle;
  const cells = svg("g", { transform: `translate(${BOX.pad} ${top})` });
  const paths = new Map();
  for (const piece of gridRectangles(grid, inside)) {
    const path = `M${piece.x.toFixed(1)} ${piece.y.toFixed(1)}h${piece.width.toFixed(1)}v${piece.height.toFixed(1)}h${(-piece.width).toFixed(1)}z`;
    paths.set(piece.device, (paths.get(piece.device) ?? "") + path);
    if (piece.number)
      cells.append(
        svg("text", {
          class: "cell-number",
          "data-device": piece.device,
          x: piece.x + piece.width / 2,
          y: piece.y + piece.height / 2 + 3.6,
          style: `fill:${inkOn(deviceColour(piece.device))}`,
          text: piece.device,
        }),
      );
  }
  for (const [device, path] of paths)
    cells.prepend(svg("path", { class: "cells", d: path, fill: deviceColour(device), "data-device": device }));
  cells.append(cellLines(grid, inside));
  const times = count > 1 ? `×${count}` : "";
  return [
    count > 1 ? svg("rect", { class: "box behind", x: 4, y: 4, width, height, rx: 7 }) : null,
    svg("rect", { class: "box", width, height, rx: 7 }),
    svg("text", {
      class: "box-title",
      x: BOX.pad,
      y: BOX.pad + 11,
      text: fittedText(name, inside - 8 * times.length, "600 12px"),
    }),
    times ? svg("text", { class: "box-count", x: width - BOX.pad, y: BOX.pad + 11, text: times }) : null,
    svg("text", {
      class: "box-cut",
      x: BOX.pad,
      y: BOX.pad + BOX.title + 9,
      text: fittedText(grid.simple ? `${grid.label} = ${grid.parts}` : grid.label, inside, "10.5px"),
    }),
    cells,
  ];
}
