// The timeline's columns, unpacked and indexed once: the holds of each lane by their start, and of each task.

/** Unpack and index a timeline and, where there is one, what really ran. */
async function loadTimeline(report) {
  const { timeline, real } = report;
  const [tasks, after, holds, critical, spans] = await Promise.all([
    unpackAll(timeline.tasks),
    unpackAll(timeline.after),
    unpackAll(timeline.holds),
    unpack(timeline.critical),
    real ? unpackAll(real.spans) : null,
  ]);
  const count = tasks.start.length;
  const model = {
    report,
    kinds: timeline.kinds,
    tasks,
    after,
    count,
    critical,
    total: Math.max(timeline.makespan, real?.makespan ?? 0, 1),
  };
  model.onPath = new Int32Array(count).fill(-1);
  for (let i = 0; i < critical.length; i += 1) model.onPath[critical[i]] = i;
  const byLane = sortedByLane(holds.lane, holds.start, timeline.lanes.length);
  const rows = timeline.lanes.map((lane, i) => {
    const order = byLane(i);
    return makeRow(
      { name: lane.name, kind: lane.kind, lane: i, real: false },
      order,
      holds,
      (hold) => holds.task[hold],
      (id) => tasks.kind[id],
    );
  });
  for (const row of rows) row.marks = pathMarks(row, model.onPath);
  model.rows = rows;
  model.holdsOf = holdsByTask(rows, count);
  if (real) addReal(model, real, spans);
  return model;
}

/** Group items by lane with a counting sort; each group is sorted by start when it is asked for. */
function sortedByLane(lanes, starts, count) {
  const begin = new Uint32Array(count + 1);
  for (let i = 0; i < lanes.length; i += 1) begin[lanes[i] + 1] += 1;
  for (let i = 0; i < count; i += 1) begin[i + 1] += begin[i];
  const next = begin.slice(),
    order = new Uint32Array(lanes.length);
  for (let i = 0; i < lanes.length; i += 1) {
    order[next[lanes[i]]] = i;
    next[lanes[i]] += 1;
  }
  return (lane) => {
    const mine = order.subarray(begin[lane], begin[lane + 1]);
    let sorted = true;
    for (let i = 1; i < mine.length && sorted; i += 1) sorted = starts[mine[i - 1]] <= starts[mine[i]];
    return sorted ? mine : mine.sort((a, b) => starts[a] - starts[b]);
  };
}

/**
 * A lane's holds as arrays by position: start, end, id, kind; `reach`, the latest end so far, and `busy`, the sum of
 * the durations before a position.
 */
function makeRow(row, order, table, idOf, kindOf) {
  const n = order.length;
  Object.assign(row, {
    start: new Float64Array(n),
    end: new Float64Array(n),
    reach: new Float64Array(n),
    busy: new Float64Array(n + 1),
    id: new Uint32Array(n),
    type: new Uint8Array(n),
    length: n,
  });
  let reach = -Infinity;
  for (let i = 0; i < n; i += 1) {
    const start = table.start[order[i]],
      duration = table.duration[order[i]];
    row.start[i] = start;
    row.end[i] = start + duration;
    row.reach[i] = reach = Math.max(reach, start + duration);
    row.busy[i + 1] = row.busy[i] + duration;
    row.id[i] = idOf(order[i]);
    row.type[i] = kindOf(row.id[i]);
  }
  return row;
}

/** The positions of a row whose tasks are on the critical path. */
function pathMarks(row, onPath) {
  const found = [];
  for (let i = 0; i < row.length; i += 1) if (onPath[row.id[i]] >= 0) found.push(i);
  return Uint32Array.from(found);
}

/** For each task its holds as (row, position), in one array behind another. */
function holdsByTask(rows, count) {
  const begin = new Uint32Array(count + 1);
  for (const row of rows) for (let i = 0; i < row.length; i += 1) begin[row.id[i] + 1] += 1;
  for (let i = 0; i < count; i += 1) begin[i + 1] += begin[i];
  const next = begin.slice(),
    rowAt = new Uint16Array(begin[count]),
    at = new Uint32Array(begin[count]);
  for (const [r, row] of rows.entries()) {
    for (let i = 0; i < row.length; i += 1) {
      const slot = next[row.id[i]]++;
      rowAt[slot] = r;
      at[slot] = i;
    }
  }
  return { begin, row: rowAt, at };
}

function addReal(model, real, spans) {
  model.spans = spans;
  model.realKinds = real.kinds;
  model.realNames = real.names;
  const byLane = sortedByLane(spans.lane, spans.start, real.lanes.length);
  model.realRows = real.lanes.map((lane, i) =>
    makeRow(
      { name: lane.name, kind: "real", lane: lane.lane, real: true, marks: new Uint32Array(0) },
      byLane(i),
      spans,
      (span) => span,
      (id) => spans.kind[id],
    ),
  );
}

/** The first position whose value is more than a bound, in a sorted array. */
function firstAbove(values, bound, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] > bound) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** How long a row is busy between two moments. */
function busyWithin(row, from, to) {
  const i = firstAbove(row.reach, from),
    j = firstAbove(row.start, to, i);
  if (i >= j) return 0;
  return Math.max(0, row.busy[j] - row.busy[i] - Math.max(0, from - row.start[i]) - Math.max(0, row.end[j - 1] - to));
}

/** The position whose hold is at a moment, or within some slack of it; -1 where none is. */
function holdAt(row, time, slack = 0) {
  const i = firstAbove(row.reach, time - slack);
  if (i >= row.length || row.start[i] > time + slack) return -1;
  let best = i,
    least = Infinity;
  for (let k = i; k < row.length && row.start[k] <= time + slack && k < i + 64; k += 1) {
    const off = Math.max(row.start[k] - time, time - row.end[k], 0);
    if (off < least) [best, least] = [k, off];
  }
  return best;
}

/** The position closest to a moment; -1 in an empty row. */
function closestHold(row, time) {
  if (!row.length) return -1;
  const i = clamp(firstAbove(row.start, time), 1, row.length);
  if (i === row.length || row.end[i - 1] >= time) return i - 1;
  return time - row.end[i - 1] <= row.start[i] - time ? i - 1 : i;
}
