// The cluster as a picture: nodes, devices and switches; a link is as thick as its bandwidth and as dark as it is busy.

const SPOT = { width: 58, height: 34, gap: 26, level: 92, node: 22 };
const BUSY = [
  [0.5, "busy3", "more than half busy"],
  [0.2, "busy2", "20 to 50% busy"],
  [0.02, "busy1", "2 to 20% busy"],
  [-1, "busy0", "idle, or nearly"],
];

const sharesOf = (link) => [link.busy ?? 0].flat();
const busyOf = (link) => Math.max(...sharesOf(link));
const busyStyle = (link) => BUSY.find(([least]) => busyOf(link) >= least)[1];

/** The section of the cluster. */
function showCluster(report) {
  if (!report.cluster) return;
  const { vertices, links } = report.cluster;
  const key = el(
    "ul",
    { class: "legend" },
    ...[...BUSY]
      .reverse()
      .map(([, style, label]) =>
        el(
          "li",
          {},
          svg(
            "svg",
            { width: 26, height: 10, "aria-hidden": "true" },
            svg("path", { class: `link ${style}`, d: "M1 5H25", "stroke-width": 4 }),
          ),
          label,
        ),
      ),
  );
  section(
    "cluster",
    "The cluster",
    "Cluster",
    el("p", {
      class: "hint",
      text: "A thicker line is a faster link. Its number is the share of the step in which it is busy.",
    }),
    key,
    clusterPicture(report),
    el("details", {}, el("summary", { text: `All ${countText(links.length, "link")}` }), linkTable(vertices, links)),
  );
}

/** How far every vertex is from a device. */
function vertexLevels({ vertices, links }) {
  const level = vertices.map((vertex) => (vertex.device === null ? Infinity : 0));
  for (let turn = 0; turn < 8; turn += 1)
    for (const { source, target } of links) {
      level[source] = Math.min(level[source], level[target] + 1);
      level[target] = Math.min(level[target], level[source] + 1);
    }
  return level.map((l) => (l === Infinity ? 1 : l));
}

/** The node of every vertex: a switch belongs to the node of all that is below it, or to none. */
function vertexNodes({ vertices, links }, level) {
  const nodes = vertices.map((vertex) => vertex.node),
    below = vertices.map(() => []);
  for (const { source, target } of links) {
    if (level[source] < level[target]) below[target].push(source);
    if (level[target] < level[source]) below[source].push(target);
  }
  const order = vertices.map((_, i) => i).sort((a, b) => level[a] - level[b]);
  for (const i of order) {
    const found = new Set(below[i].map((other) => nodes[other]));
    if (nodes[i] === null && found.size === 1) [nodes[i]] = found;
  }
  return nodes;
}

/** Nodes with their vertices by level, and how wide each is. */
function nodeBoxes(nodeOf, level, inner) {
  const nodes = new Map();
  for (const [i, node] of nodeOf.entries()) if (node !== null) nodes.set(node, [...(nodes.get(node) ?? []), i]);
  return [...nodes].map(([node, mine]) => {
    const rows = Array.from({ length: inner + 1 }, (_, l) => mine.filter((i) => level[i] === l));
    const widest = Math.max(1, ...rows.map((row) => row.length));
    return { node, rows, width: widest * (SPOT.width + SPOT.gap) - SPOT.gap + 2 * SPOT.node };
  });
}

/**
 * Where every vertex and node box stands: nodes side by side under the network; where that is too wide, half of them
 * upside down above it, so that no link crosses a node.
 */
function placeVertices(cluster, width) {
  const level = vertexLevels(cluster),
    nodeOf = vertexNodes(cluster, level);
  const outside = nodeOf.map((_, i) => i).filter((i) => nodeOf[i] === null);
  const inner = Math.max(0, ...level.filter((_, i) => nodeOf[i] !== null)),
    boxes = nodeBoxes(nodeOf, level, inner);
  const high = inner * SPOT.level + SPOT.height + 62,
    total = boxes.reduce((sum, box) => sum + box.width + 26, -26);
  const above = total > width && boxes.length > 1 ? Math.floor(boxes.length / 2) : 0,
    middle = outside.length ? SPOT.level + (above ? 32 : 0) : 26;
  const at = [],
    widths = [0, 0];
  for (const [k, box] of boxes.entries()) {
    const flipped = k < above,
      row = flipped ? 0 : 1;
    Object.assign(box, { x: widths[row], y: flipped ? 0 : (above ? high : 0) + middle, height: high, flipped });
    widths[row] += box.width + 26;
    for (const [l, mine] of box.rows.entries()) {
      const step = (box.width - 2 * SPOT.node + SPOT.gap) / Math.max(mine.length, 1),
        down = 20 + (inner - l) * SPOT.level + SPOT.height / 2;
      const y = box.y + (flipped ? high - down : down);
      for (const [j, i] of mine.entries()) at[i] = [box.x + SPOT.node - SPOT.gap / 2 + step * (j + 0.5), y];
    }
  }
  const right = Math.max(...widths, 26) - 26,
    centre = above ? high + middle / 2 : SPOT.height / 2 + 8;
  for (const [k, i] of outside.entries()) at[i] = [(right * (k + 1)) / (outside.length + 1), centre];
  return { at, boxes, width: right, height: (above ? high : 0) + middle + high, flips: flippedVertices(boxes) };
}

const flippedVertices = (boxes) => new Set(boxes.filter((box) => box.flipped).flatMap((box) => box.rows.flat()));

function clusterPicture(report) {
  const { cluster } = report,
    { vertices, links } = cluster;
  if (vertices.length > 160)
    return el("p", {
      class: "hint",
      text: `${vertices.length} devices and switches are too many for a picture; the table has every link.`,
    });
  const plan = placeVertices(cluster, 1100),
    fastest = Math.max(...links.map((link) => link.bandwidth), 1);
  const picture = svg("svg", {
    viewBox: `-4 -4 ${plan.width + 8} ${plan.height + 8}`,
    width: plan.width + 8,
    height: plan.height + 8,
    role: "img",
    "aria-label": `${countText(report.devices.length, "device")}, ${countText(links.length, "link")}; the table below has every link`,
    style: `min-width:${Math.round(plan.width * 0.7)}px`,
  });
  for (const box of plan.boxes)
    picture.append(
      svg("rect", { class: "node-box", x: box.x, y: box.y, width: box.width, height: box.height, rx: 12 }),
      svg("text", {
        class: "node-name",
        x: box.x + 12,
        y: box.flipped ? box.y + 20 : box.y + box.height - 10,
        text: `node ${box.node}`,
      }),
    );
  const labels = svg("g", {}),
    crowded = links.length > 60;
  for (const link of [...links].sort((a, b) => busyOf(a) - busyOf(b))) {
    const { path, label } = linkRoute(plan.at[link.source], plan.at[link.target], plan.flips.has(link.source) ? -1 : 1);
    const thick = clamp(7 * Math.sqrt(link.bandwidth / fastest), 1.2, 7);
    picture.append(
      svg(
        "path",
        { class: `link ${busyStyle(link)}`, d: path, "stroke-width": thick.toFixed(1) },
        svg("title", { text: linkText(vertices, link) }),
      ),
    );
    if (!crowded || busyOf(link) >= 0.2)
      labels.append(svg("text", { class: "link-label", x: label[0], y: label[1] + 4, text: shareText(busyOf(link)) }));
  }
  picture.append(labels);
  for (const [i, vertex] of vertices.entries()) picture.append(vertexShape(vertex, plan.at[i]));
  return el(
    "div",
    { class: "cluster", tabindex: "0", role: "group", "aria-label": "The cluster, scrollable" },
    picture,
  );
}

/** Straight between levels; an arc below for two of one level, deeper the further apart. */
function linkRoute([x0, y0], [x1, y1], way) {
  if (y0 !== y1) return { path: `M${x0} ${y0}L${x1} ${y1}`, label: [x0 + (x1 - x0) * 0.42, y0 + (y1 - y0) * 0.42] };
  const hops = Math.round(Math.abs(x1 - x0) / (SPOT.width + SPOT.gap)),
    deep = way * (SPOT.height / 2 + 6 + 15 * Math.max(0, hops - 1));
  if (hops <= 1) return { path: `M${x0} ${y0}L${x1} ${y1}`, label: [(x0 + x1) / 2, y0 - 12] };
  return {
    path: `M${x0} ${y0}C${x0 + (x1 - x0) * 0.15} ${y0 + deep * 1.33} ${x1 - (x1 - x0) * 0.15} ${y0 + deep * 1.33} ${x1} ${y1}`,
    label: [(x0 + x1) / 2, y0 + deep],
  };
}

function vertexShape(vertex, [x, y]) {
  const device = vertex.device !== null,
    colour = device ? deviceColour(vertex.device) : null;
  return svg(
    "g",
    { transform: `translate(${x - SPOT.width / 2} ${y - SPOT.height / 2})` },
    svg("rect", {
      class: device ? "vertex" : "vertex switch",
      width: SPOT.width,
      height: SPOT.height,
      rx: device ? 6 : SPOT.height / 2,
      fill: colour,
    }),
    svg("text", {
      class: "vertex-name",
      x: SPOT.width / 2,
      y: SPOT.height / 2 + 4,
      style: colour ? `fill:${inkOn(colour)}` : null,
      text: tailText(vertex.name, 9),
    }),
    svg("title", { text: vertex.name }),
  );
}

function linkText(vertices, link) {
  const [a, b] = [vertices[link.source].name, vertices[link.target].name];
  const [there, back] = sharesOf(link);
  const busy =
    back === undefined ? `busy ${shareText(there)}, shared` : `busy ${shareText(there)} there, ${shareText(back)} back`;
  return `${a} to ${b}: ${rateText(link.bandwidth)}, ${busy}`;
}

function linkTable(vertices, links) {
  const name = (i) => vertices[i].name;
  return sortedTable(
    "Links of the cluster",
    [
      { label: "from", value: (l) => name(l.source), text: (l) => name(l.source) },
      { label: "to", value: (l) => name(l.target), text: (l) => name(l.target) },
      { label: "bandwidth", number: true, value: (l) => l.bandwidth, text: (l) => rateText(l.bandwidth) },
      { label: "both ways at once", value: (l) => (l.duplex ? 0 : 1), text: (l) => (l.duplex ? "yes" : "no") },
      { label: "busy there", number: true, value: (l) => sharesOf(l)[0], text: (l) => shareText(sharesOf(l)[0]) },
      {
        label: "busy back",
        number: true,
        value: (l) => sharesOf(l)[1] ?? null,
        text: (l) => (sharesOf(l).length > 1 ? shareText(sharesOf(l)[1]) : "–"),
      },
    ],
    links,
  );
}
