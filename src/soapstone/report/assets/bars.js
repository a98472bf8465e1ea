// Stacked bars, a row for each device: where the time goes and what fills the memory.

const TIME_PARTS = [
  ["compute", "#2a6b85", "", "computing"],
  ["communication", "#a3304f", "hatched", "communication that nothing hides"],
  ["waiting", "#d6bf63", "dotted", "waiting for others"],
  ["launching", "#b08bbf", "hatched", "waiting for its host"],
  ["idle", "transparent", "hollow", "nothing left to do"],
];
const MEMORY_PARTS = [
  ["parameters", "#4477AA", "", "parameters"],
  ["gradients", "#EE7733", "hatched", "gradients"],
  ["states", "#AA3377", "", "optimizer states"],
  ["saved", "#228833", "dotted", "kept for backward"],
  ["made", "#CCBB44", "", "made on the way"],
  ["buckets", "#66CCEE", "hatched", "gradient buckets"],
  ["transient", "#999999", "dotted", "for a moment"],
];

/** Rows of devices; equal ones are one row where there are more than 16. */
function foldDevices(report, keys, table) {
  const rows = report.devices.map((device, i) => ({ devices: [i], values: keys.map((key) => table[key]?.[i] ?? 0) }));
  if (rows.length <= 16) return rows;
  const alike = new Map();
  for (const row of rows) {
    const key = [report.devices[row.devices[0]].kind, ...row.values.map((value) => value.toPrecision(3))].join("|");
    if (alike.has(key)) alike.get(key).devices.push(...row.devices);
    else alike.set(key, row);
  }
  return [...alike.values()];
}

function deviceNames(report, devices) {
  if (devices.length === 1) return report.devices[devices[0]].name;
  return `devices ${rangesText(devices)} (${devices.length} alike)`;
}

/** One row: a name, pieces of a track of some whole, and what it comes to. */
function stackedRow(name, pieces, whole, text, marks = []) {
  const said = pieces
    .filter(([, value]) => value > 0)
    .map(([, value, , , label, show]) => `${label} ${show(value)}`)
    .join(", ");
  const track = el(
    "div",
    { class: "stack", role: "img", "aria-label": `${name}: ${said}` },
    ...pieces.map(([, value, colour, style, label, show]) => {
      const share = value / whole;
      if (share <= 0) return null;
      return el(
        "span",
        {
          class: `piece ${style}`,
          style: `width:${(100 * share).toFixed(3)}%;--c:${colour}`,
          title: `${label}: ${show(value)} (${shareText(share)})`,
        },
        share > 0.12 && !style && show === timeText
          ? el("span", { style: `color:${inkOn(colour)}`, text: shareText(share) })
          : null,
      );
    }),
    ...marks.map(([value, label]) =>
      el("span", { class: "mark", style: `left:${((100 * value) / whole).toFixed(3)}%`, title: label }),
    ),
  );
  return el(
    "div",
    { class: "bar-row" },
    el("span", { class: "name", text: name, title: name }),
    track,
    el("span", { class: "value", text }),
  );
}

/** A section of bars, under a key of what their pieces are. */
function barSection(id, heading, short, parts, style, bars, ...more) {
  const key = legend(parts.map(([, colour, style, label]) => [colour, label, style]));
  section(id, heading, short, key, el("div", { class: style }, ...bars), ...more);
}

/** "Where the time goes". */
function showTime(report) {
  if (!report.time) return;
  const keys = TIME_PARTS.map(([key]) => key),
    rows = foldDevices(report, keys, report.time);
  const whole = Math.max(...rows.map((row) => row.values.reduce((a, b) => a + b, 0)), 1);
  const bars = rows.map((row) =>
    stackedRow(
      deviceNames(report, row.devices),
      TIME_PARTS.map(([key, colour, style, label], i) => [key, row.values[i], colour, style, label, timeText]),
      whole,
      `${shareText(row.values[0] / whole)} busy`,
    ),
  );
  barSection("time", "Where the time goes", "Time", TIME_PARTS, "bars", bars);
}

/** "What fills the memory". */
function showMemory(report) {
  if (!report.memory) return;
  const parts = MEMORY_PARTS.filter(([key]) => report.memory[key]?.some((value) => value > 0));
  const keys = [...parts.map(([key]) => key), "peak"],
    rows = foldDevices(report, keys, report.memory);
  const memory = Math.max(...report.devices.map((device) => device.memory ?? 0)),
    most = Math.max(...(report.memory.bound ?? [0]), ...(report.memory.peak ?? [0]), 1);
  const near = most < memory / 4, // little of much: show the first stretch of the memory only
    whole = near ? niceStep(most, 1) : Math.max(memory, most);
  const bars = rows.map((row) => {
    const memory = report.devices[row.devices[0]].memory,
      peak = row.values.at(-1);
    const text = `${bytesText(peak)}${memory ? ` of ${bytesText(memory)}` : ""}`;
    const marks = [[peak, `peak ${bytesText(peak)}`]];
    const pieces = parts.map(([key, colour, style, label], i) => [key, row.values[i], colour, style, label, bytesText]);
    const bar = stackedRow(deviceNames(report, row.devices), pieces, whole, text, marks);
    if (memory && peak > memory) bar.append(el("span", { class: "warning", text: "does not fit" }));
    return bar;
  });
  barSection(
    "memory",
    "What fills the memory",
    "Memory",
    parts,
    "bars wide-values",
    bars,
    el("p", {
      class: "hint",
      text:
        `The track is ${near ? `${bytesText(whole)} of the device’s ${bytesText(memory)}` : "the device’s memory"}. The line marks the ` +
        "peak of this step; the pieces add up to the most that any order of its tasks could need.",
    }),
  );
}
