// Numbers as people read them.

/** Three significant digits, without an exponent, thousands apart. */
function digits(value) {
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** Nanoseconds: "67.6 ms". */
function timeText(ns) {
  const size = Math.abs(ns);
  if (size === 0) return "0 ms";
  if (size < 1e3) return `${Math.round(ns)} ns`;
  if (size < 1e6) return `${digits(ns / 1e3)} µs`;
  if (size < 1e10) return `${digits(ns / 1e6)} ms`;
  return `${digits(ns / 1e9)} s`;
}

/** A moment of the step: "58.314 ms". */
const momentText = (ns) => `${(ns / 1e6).toFixed(3)} ms`;

/** Nanoseconds in milliseconds, whatever the size: for columns of a table. */
const milliseconds = (ns) => (ns === null || ns === undefined ? "–" : `${digits(ns / 1e6)} ms`);

function scaled(value, units, step) {
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : digits(value)} ${units[unit]}`.trim();
}

/** Bytes: "863 MB". */
const bytesText = (bytes) =>
  bytes === null || bytes === undefined ? "–" : scaled(bytes, ["B", "kB", "MB", "GB", "TB"], 1000);
const rateText = (rate) => `${bytesText(rate)}/s`;
const flopsText = (flops) => scaled(flops, ["", "thousand", "million", "billion", "trillion", "quadrillion"], 1000);
const shareText = (share) => `${share > 0 && share < 0.01 ? "<1" : Math.round(share * 100)}%`;
const timesText = (ratio) => (ratio === null || ratio === undefined ? "–" : `${ratio.toFixed(2)}×`);
const countText = (count, one, many = `${one}s`) => `${count.toLocaleString("en-US")} ${count === 1 ? one : many}`;

/** The tail of a name that fits, as it tells more than the head. */
function tailText(name, length) {
  return name.length <= length ? name : `…${name.slice(name.length - length + 1)}`;
}

const measuring = document.createElement("canvas").getContext("2d");

/** The tail of a name that fits into some pixels of a font. */
function fittedText(name, width, font) {
  measuring.font = `${font} system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif`;
  const whole = measuring.measureText(name).width;
  if (whole <= width) return name;
  let length = Math.max(1, Math.floor((name.length * width) / whole));
  while (length > 1 && measuring.measureText(tailText(name, length)).width > width) length -= 1;
  return tailText(name, length);
}

/** Sorted numbers as ranges: "0–3, 8". */
function rangesText(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const found = [];
  for (let i = 0; i < sorted.length; i += 1) {
    const first = sorted[i];
    while (sorted[i + 1] === sorted[i] + 1) i += 1;
    found.push(
      sorted[i] === first ? `${first}` : sorted[i] === first + 1 ? `${first}, ${sorted[i]}` : `${first}–${sorted[i]}`,
    );
  }
  return found.join(", ");
}

/** Round steps for an axis: about `wanted` of them over a length. */
function niceStep(length, wanted) {
  const rough = length / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}
