// Boxes, groups and edges as SVG. A drawing keeps the shapes that can be focused.

const HEADER = 28,
  INSET = 10;

/** Give a box its size; a group is laid out inside first, once for all that look alike (`plans`). */
function measureBox(report, box, plans) {
  if (box.layer !== undefined) {
    box.grid = layerGrid(report, box.layer);
    Object.assign(box, boxSize(box.grid));
    return;
  }
  const inside = box.layers.map((layer) => {
    const grid = layerGrid(report, layer);
    return { key: layer, grid, ...boxSize(grid) };
  });
  const place = new Map(box.layers.map((layer, i) => [layer, i]));
  const key = `${box.fold}:${box.inner.map((e) => `${place.get(e.from)}>${place.get(e.to)}`)}:${inside.map((one) => one.height)}`;
  if (!plans.has(key)) {
    const local = inside.map((one, i) => ({ ...one, key: `${i}` }));
    plans.set(
      key,
      layered(
        local,
        box.inner.map((e) => ({ from: `${place.get(e.from)}`, to: `${place.get(e.to)}` })),
      ),
    );
  }
  Object.assign(box, { inside, plan: plans.get(key) });
  box.width = box.plan.width + 2 * INSET;
  box.height = box.plan.height + HEADER + INSET;
}

/** An edge, with its bytes to hover over. */
function edgeShape(points, far, edge) {
  const path = svg("path", {
    class: far ? "edge far" : "edge",
    d: edgePath(points, far),
    "marker-end": "url(#arrow)",
  });
  if (edge.bytes) path.append(svg("title", { text: bytesText(edge.bytes) }));
  return path;
}

/** A layer's box, or a group with its layers inside. */
function boxShape(drawing, box, at) {
  const { report } = drawing;
  if (box.layer !== undefined)
    return layerShape(drawing, box.layer, box.grid, report.layers[box.layer].name, at, [at.x, at.y]);
  const group = svg("g", { class: "group", transform: `translate(${at.x} ${at.y})` });
  const name = groupName(report, box),
    { count, opened } = box;
  const label = `${name}, ${opened ? `repetition ${box.turn + 1} of ${count}` : `${count} blocks alike`}`;
  const head = svg(
    "g",
    {
      class: "group-head",
      tabindex: "-1",
      role: "button",
      "aria-expanded": opened ? "true" : "false",
      "aria-label": label,
    },
    opened
      ? null
      : svg("rect", { class: "group-box behind", x: 5, y: 5, width: box.width, height: box.height, rx: 10 }),
    svg("rect", { class: "group-box", width: box.width, height: box.height, rx: 10 }),
    svg("text", { class: "group-title", x: INSET + 4, y: 19, text: `${opened ? "▾" : "▸"} ${tailText(name, 18)}` }),
    opened ? null : svg("text", { class: "group-count", x: box.width - INSET, y: 19, text: `×${count}` }),
  );
  drawing.keep(head, {
    key: box.key,
    box,
    details: () => groupDetails(report, box),
    at: [at.x + box.width / 2, at.y],
    act: () => drawing.toggle(box.fold, box.key),
  });
  group.append(head);
  for (const { points } of box.plan.edges) {
    const inner = svg("path", {
      class: "edge",
      d: edgePath(points),
      transform: `translate(${INSET} ${HEADER})`,
      "marker-end": "url(#arrow)",
    });
    group.append(inner);
  }
  const names = shortNames(box.layers.map((layer) => report.layers[layer].name));
  for (const [i, { key, grid }] of box.inside.entries()) {
    const spot = box.plan.at.get(`${i}`),
      x = spot.x + INSET,
      y = spot.y + HEADER;
    group.append(layerShape(drawing, key, grid, names[i], { x, y }, [at.x + x, at.y + y]));
  }
  return group;
}

/** One layer's box at a place of its parent; `corner` is where that is in the drawing. */
function layerShape(drawing, layer, grid, name, at, corner) {
  const node = svg(
    "g",
    {
      class: "layer",
      transform: `translate(${at.x} ${at.y})`,
      tabindex: "-1",
      role: "button",
      "aria-pressed": "false",
      "aria-label": layerLabel(drawing.report, layer),
      "data-layer": layer,
    },
    svg("g", { "aria-hidden": "true" }, ...drawLayer(grid, name, grid.ops.length)),
  );
  drawing.keep(node, {
    key: `l${layer}`,
    layer,
    details: () => layerDetails(drawing.report, layer),
    at: [corner[0] + BOX.width / 2, corner[1]],
    act: () => tell("lit", { layers: new Set(drawing.lit.has(layer) ? [] : [layer]), from: "drawing" }),
  });
  return node;
}

/** The head of every edge. */
function arrowHead() {
  return svg(
    "defs",
    {},
    svg(
      "marker",
      {
        id: "arrow",
        viewBox: "0 0 8 8",
        refX: 7,
        refY: 4,
        markerWidth: 6,
        markerHeight: 6,
        orient: "auto-start-reverse",
      },
      svg("path", { class: "arrow", d: "M0 0.5L8 4L0 7.5z" }),
    ),
  );
}
