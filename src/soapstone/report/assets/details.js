// What the drawing says about one layer or one group, in words.

/** A layer's facts as nodes. */
function layerDetails(report, index, short = false) {
  const layer = report.layers[index],
    grid = layerGrid(report, index),
    { op, ops } = grid;
  const sum = (key) => ops.reduce((total, one) => total + (one[key] ?? 0), 0);
  const devices = ops.flatMap((one) => one.devices);
  const facts = [
    ["type", op.type],
    ["cut", grid.label],
    [new Set(devices).size === 1 ? "device" : "devices", rangesText(devices)],
    ["parts", grid.parts.toLocaleString("en-US")],
    ["flops", flopsText(sum("flops"))],
    ["weights", bytesText(ops.length > 1 ? Math.max(...ops.map((one) => one.weights ?? 0)) : op.weights)],
    ["output", String(op.output ?? "–").replaceAll("x", " × ")],
    ...(op.kept ? [["kept", op.kept]] : []),
  ];
  const title = el("p", { class: "panel-title", text: layer.name });
  if (short) return [title, pairs(facts, "pairs tight")];
  return [title, pairs(facts, "pairs tight"), dimsTable(op), opsList(ops)];
}

function dimsTable(op) {
  if (!op.dims.length) return null;
  const rows = op.dims.map((dim) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", text: dim.name }),
      el("td", { text: dim.kind }),
      el("td", { class: "number", text: dim.size.toLocaleString("en-US") }),
      el("td", { class: "number", text: op.degrees[dim.name] ?? 1 }),
    ),
  );
  const head = ["dim", "kind", "size", "degree"].map((text, i) =>
    el("th", { scope: "col", class: i > 1 ? "number" : "", text }),
  );
  return el("table", { class: "small" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}

/** The ops of a layer with their devices; most layers have one. */
function opsList(ops) {
  const items = ops.map((op) =>
    el(
      "li",
      {},
      el("span", { class: "op-name", text: op.name }),
      " ",
      el("span", { class: "faint", text: `on ${rangesText(op.devices)}` }),
    ),
  );
  return el(
    "details",
    { class: "ops", open: ops.length <= 4 },
    el("summary", { text: countText(ops.length, "op") }),
    el("ul", {}, ...items),
  );
}

/** A group's facts: what is in it, and how often it is repeated. */
function groupDetails(report, box) {
  const layers = box.layers.map((layer) => el("li", { text: report.layers[layer].name }));
  const said = box.opened
    ? `Repetition ${box.turn + 1} of ${box.count}.`
    : `${box.count} blocks that are configured alike, drawn once.`;
  return [
    el("p", { class: "panel-title", text: groupName(report, box) }),
    el("p", { text: `${said} Press Enter to ${box.opened ? "fold them into one" : "unfold them"}.` }),
    el(
      "details",
      { class: "ops" },
      el("summary", { text: countText(box.layers.length, "layer") }),
      el("ul", {}, ...layers),
    ),
  ];
}

/** One sentence for a screen reader. */
function layerLabel(report, index) {
  const grid = layerGrid(report, index),
    devices = grid.ops.flatMap((op) => op.devices);
  const times = grid.ops.length > 1 ? `, ${grid.ops.length} ops` : "";
  return `${report.layers[index].name}: ${grid.op.type}, ${grid.label}, ${countText(grid.parts, "part")} on device ${rangesText(devices)}${times}`;
}
