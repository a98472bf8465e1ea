// What the drawing shows: layers, and repeated blocks folded into one group or opened into all of them.

/** The layers' graph, made once: the edges between layers and where each layer is folded. */
function layerGraph(report) {
  const edges = new Map();
  for (const [from, to, bytes] of report.edges) {
    const a = report.ops[from].layer,
      b = report.ops[to].layer;
    if (a === b) continue;
    const key = a * report.layers.length + b;
    const edge = edges.get(key) ?? { from: a, to: b, bytes: 0 };
    edge.bytes += bytes;
    edges.set(key, edge);
  }
  const place = report.layers.map(() => null);
  for (const [fold, { members }] of report.folds.entries()) {
    for (const [turn, layers] of members.entries()) for (const layer of layers) place[layer] = { fold, turn };
  }
  return { edges: [...edges.values()], place };
}

/**
 * The boxes to draw while some folds are open: {key, layer} or {key, fold, turn, layers, count}, with the edges between
 * them and inside each group.
 */
function visibleBoxes(report, graph, open) {
  const boxes = new Map(),
    home = [];
  for (const layer of report.layers.keys()) {
    const place = graph.place[layer];
    if (place === null) {
      home.push(`l${layer}`);
      boxes.set(`l${layer}`, { key: `l${layer}`, layer });
      continue;
    }
    const opened = open.has(place.fold);
    const key = `f${place.fold}.${opened ? place.turn : 0}`;
    home.push(key);
    if (boxes.has(key)) continue;
    const fold = report.folds[place.fold];
    const turn = opened ? place.turn : 0;
    boxes.set(key, { key, fold: place.fold, turn, opened, layers: fold.members[turn], count: fold.count, inner: [] });
  }
  const between = new Map();
  for (const edge of graph.edges) {
    const a = home[edge.from],
      b = home[edge.to];
    if (a === b) {
      const box = boxes.get(a);
      if (box.inner && box.layers.includes(edge.from) && box.layers.includes(edge.to)) box.inner.push(edge);
      continue;
    }
    const id = `${a}>${b}`;
    const sum = between.get(id) ?? { from: a, to: b, bytes: 0 };
    sum.bytes += edge.bytes;
    between.set(id, sum);
  }
  return { boxes: [...boxes.values()], edges: [...between.values()] };
}

/** What a group is called: its fold, or what the names of its layers begin with where it is opened. */
function groupName(report, box) {
  const fold = report.folds[box.fold];
  if (!box.opened) return fold.name;
  const shared = sharedStart(box.layers.map((layer) => report.layers[layer].name));
  return shared ? shared.slice(0, -1) : `${fold.name}, ${box.turn + 1}`;
}

/** What some names begin with, up to and with a dot. */
function sharedStart(names) {
  let shared = names[0];
  for (const name of names) while (!name.startsWith(shared)) shared = shared.slice(0, -1);
  return shared.slice(0, shared.lastIndexOf(".") + 1);
}

/** The layers' names inside their group, without what all of them begin with. */
function shortNames(names) {
  if (names.length < 2) return names;
  const cut = sharedStart(names).length;
  return names.map((name) => name.slice(cut));
}
