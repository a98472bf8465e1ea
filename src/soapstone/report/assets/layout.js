// Where boxes stand: dagre from top to bottom, then the long strip is broken into columns like a page of text.

const GAP = { node: 20, rank: 30, column: 44 };

/** Lay out boxes of known size; returns {width, height, at: key -> {x, y}, edges: [{points, edge}]}, corners top left. */
function layered(boxes, edges) {
  const graph = new dagre.graphlib.Graph();
  const many = boxes.length > 150;
  graph.setGraph({
    rankdir: "TB",
    nodesep: GAP.node,
    ranksep: GAP.rank,
    ranker: many ? "longest-path" : "network-simplex",
  });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const box of boxes) graph.setNode(box.key, { width: box.width, height: box.height });
  for (const edge of edges) graph.setEdge(edge.from, edge.to, {});
  dagre.layout(graph);
  const at = new Map();
  for (const box of boxes) {
    const node = graph.node(box.key);
    at.set(box.key, { x: node.x - box.width / 2, y: node.y - box.height / 2, width: box.width, height: box.height });
  }
  const drawn = edges.map((edge) => ({
    edge,
    points: docked(graph.edge(edge.from, edge.to).points, at.get(edge.from), at.get(edge.to)),
  }));
  return cropped(at, drawn);
}

/** An edge that leaves a box below and comes in above, or the other way round where it goes up. */
function docked(points, from, to) {
  const down = from.y + from.height <= to.y,
    up = to.y + to.height <= from.y;
  if (!down && !up) return points;
  const inside = (x, box) => clamp(x, box.x + 18, box.x + box.width - 18);
  const middle = (box) => ({ x: box.x + box.width / 2 });
  const bends = points.length > 3 ? points.slice(1, -1) : [],
    first = bends[0] ?? middle(to),
    last = bends.at(-1) ?? middle(from);
  return [
    { x: inside(first.x, from), y: down ? from.y + from.height : from.y },
    ...bends,
    { x: inside(last.x, to), y: down ? to.y : to.y + to.height },
  ];
}

/** A layout moved to the origin, as large as its boxes and edges. */
function cropped(at, edges) {
  let [left, top, right, bottom] = [Infinity, Infinity, 0, 0];
  const cover = (x, y) => {
    [left, top, right, bottom] = [Math.min(left, x), Math.min(top, y), Math.max(right, x), Math.max(bottom, y)];
  };
  for (const { x, y, width, height } of at.values()) {
    cover(x, y);
    cover(x + width, y + height);
  }
  for (const { points } of edges) for (const { x, y } of points) cover(x, y);
  if (left === Infinity) return { width: 0, height: 0, at, edges };
  const move = (spot) => ({ ...spot, x: spot.x - left, y: spot.y - top });
  return {
    width: right - left,
    height: bottom - top,
    at: new Map([...at].map(([key, spot]) => [key, move(spot)])),
    edges: edges.map(({ edge, points }) => ({ edge, points: points.map(move) })),
  };
}

/** Break a layout into columns so that it fills a width; edges from one column to another go round by the gutters. */
function inColumns(boxes, plan, width) {
  const fit = Math.max(1, Math.floor((width + GAP.column) / (plan.width + GAP.column)));
  let limit = Math.max(plan.height / fit, 520);
  if (fit === 1 || plan.height <= 640) return plan;
  let { starts, column } = breakRows(boxes, plan, limit);
  while (starts.length > fit) ({ starts, column } = breakRows(boxes, plan, (limit *= 1.03)));
  if (starts.length === 1) return plan;
  const spans = starts.map(() => ({ low: Infinity, high: -Infinity, top: Infinity, bottom: 0 }));
  const widen = (c, low, high) => {
    spans[c].low = Math.min(spans[c].low, low);
    spans[c].high = Math.max(spans[c].high, high);
  };
  for (const box of boxes) {
    const { x, y } = plan.at.get(box.key),
      span = spans[column.get(box.key)];
    widen(column.get(box.key), x, x + box.width);
    span.top = Math.min(span.top, y);
    span.bottom = Math.max(span.bottom, y + box.height);
  }
  for (const { edge, points } of plan.edges) {
    const c = column.get(edge.from);
    if (c === column.get(edge.to)) for (const point of points) widen(c, point.x - 2, point.x + 2);
  }
  return shifted(boxes, plan, column, spans);
}

/** Rows of boxes that overlap in height stay together; a column ends where the next row would be too low. */
function breakRows(boxes, plan, limit) {
  const sorted = boxes.map((box) => ({ box, top: plan.at.get(box.key).y })).sort((a, b) => a.top - b.top);
  const rows = [];
  for (const { box, top } of sorted) {
    const row = rows.at(-1);
    if (row && top < row.bottom) {
      row.boxes.push(box);
      row.bottom = Math.max(row.bottom, top + box.height);
    } else rows.push({ top, bottom: top + box.height, boxes: [box] });
  }
  const starts = [],
    column = new Map();
  for (const row of rows) {
    if (!starts.length || row.bottom - starts.at(-1) > limit) starts.push(row.top);
    for (const box of row.boxes) column.set(box.key, starts.length - 1);
  }
  return { starts, column };
}

function shifted(boxes, plan, column, spans) {
  const head = 22,
    lefts = [];
  let left = 0;
  for (const span of spans) {
    lefts.push(left - span.low);
    left += span.high - span.low + GAP.column;
  }
  const move = (point, c) => ({ x: point.x + lefts[c], y: point.y - spans[c].top + head });
  const at = new Map(boxes.map((box) => [box.key, move(plan.at.get(box.key), column.get(box.key))]));
  const size = new Map(boxes.map((box) => [box.key, box]));
  const lane = new Map();
  const edges = plan.edges.map(({ edge, points }) => {
    const a = column.get(edge.from),
      b = column.get(edge.to);
    if (a === b) return { edge, points: points.map((point) => move(point, a)) };
    const from = at.get(edge.from),
      to = at.get(edge.to);
    const turn = lane.get(a) ?? 0;
    lane.set(a, turn + 1);
    const side = lefts[a] + spans[a].high + GAP.column / 2 + ((turn % 4) - 1.5) * 5;
    const x0 = from.x + size.get(edge.from).width / 2,
      y0 = from.y + size.get(edge.from).height;
    const x1 = to.x + size.get(edge.to).width / 2,
      up = head - 12 - (turn % 3) * 3;
    const points5 = [
      [x0, y0],
      [x0, y0 + 9],
      [side, y0 + 9],
      [side, up],
      [x1, up],
      [x1, to.y],
    ];
    return { edge, far: true, points: points5.map(([x, y]) => ({ x, y })) };
  });
  const height = head + Math.max(...spans.map((span) => span.bottom - span.top)) + 14;
  let right = left - GAP.column;
  for (const { points } of edges) for (const { x } of points) right = Math.max(right, x + 4);
  return { width: right, height, at, edges };
}

/** An SVG path: upright at every point, or with round corners on the way to another column. */
function edgePath(points, far) {
  const p = (point) => `${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
  let path = `M${p(points[0])}`;
  for (let i = 1; i < points.length; i += 1) {
    const [before, here, after] = [points[i - 1], points[i], points[i + 1]];
    if (!far) {
      const y = (before.y + here.y) / 2;
      path += `C${p({ x: before.x, y })} ${p({ x: here.x, y })} ${p(here)}`;
    } else if (after) path += `L${p(towards(here, before, 6))}Q${p(here)} ${p(towards(here, after, 6))}`;
    else path += `L${p(here)}`;
  }
  return path;
}

function towards(from, to, most) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1,
    share = Math.min(most, length / 2) / length;
  return { x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share };
}
