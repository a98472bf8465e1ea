// The section of the strategy: the drawing, its tools, and the devices' colours.

/** The section of the drawing. */
function showStrategy(report) {
  const drawing = new Drawing(report);
  const hint =
    "Each box is a layer, cut into its parts: rows are samples, columns are everything else. The number in a part is its device.";
  const wanders = report.layers.some(({ ops }) => new Set(ops.map((op) => report.ops[op].devices.join())).size > 1);
  const stripes = wanders ? " A part in stripes moves from device to device over the layer’s ops." : "";
  const keys = keysHelp(
    "drawing-keys",
    "Arrow keys move from box to box, Page up and Page down go through all of them. Enter opens a group, or keeps a layer lit; " +
      "Escape clears what is lit. Drag or scroll to move the drawing; + and −, pinch or Ctrl+wheel to zoom; 0 fits it to the width.",
  );
  section(
    "strategy",
    "The strategy",
    "Strategy",
    el("p", { class: "hint", text: hint + stripes }),
    deviceLegend(report, drawing),
    drawing.toolbar(),
    el("div", { class: "drawing-row" }, drawing.frame, drawing.panel),
    keys,
  );
  drawing.draw();
  listen("lit", ({ layers, from }) => drawing.light(layers, from));
  let width = drawing.frame.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(drawing.frame.clientWidth - width) < 24) return;
    width = drawing.frame.clientWidth;
    drawing.draw();
  }).observe(drawing.frame);
}

/** Devices and their colours; pointing at one dims the others. */
function deviceLegend(report, drawing) {
  const nodes = new Map();
  for (const [i, device] of report.devices.entries()) nodes.set(device.node, [...(nodes.get(device.node) ?? []), i]);
  const chip = (i) => {
    const colour = deviceColour(i),
      device = report.devices[i];
    return el("button", {
      type: "button",
      class: "chip",
      style: `background:${colour};color:${inkOn(colour)}`,
      text: i,
      "aria-label": `device ${i}: ${device.name}, ${device.kind}, node ${device.node}`,
      title: `${device.name} · ${device.kind} · node ${device.node}`,
      onmouseenter: () => drawing.dim(i),
      onfocus: () => drawing.dim(i),
      onmouseleave: () => drawing.dim(null),
      onblur: () => drawing.dim(null),
    });
  };
  return el(
    "div",
    { class: "devices", role: "group", "aria-label": "Devices" },
    ...[...nodes].map(([node, mine]) =>
      el(
        "span",
        { class: "chips" },
        el("span", { class: "faint", text: nodes.size > 1 ? `node ${node}` : "devices" }),
        ...mine.map(chip),
      ),
    ),
  );
}
