// "How it was found": the best time so far over the seconds of the search, and the approaches side by side.

/** The section of the search. */
function showSearch(report) {
  if (!report.search && !report.approaches) return;
  const parts = [];
  if (report.search) parts.push(...searchCurve(report.search));
  if (report.approaches) parts.push(el("h3", { text: "Every approach" }), approachTable(report.approaches));
  section("search", "How it was found", "Search", ...parts);
}

function searchCurve(search) {
  const { curve } = search;
  if (!curve.length) return [];
  const [proposals, seconds, best] = curve.at(-1);
  const reached = curve.find(([, , ns]) => ns <= best * 1.01);
  const words =
    `The search by ${search.method} tried ${countText(proposals, "strategy", "strategies")} in ${digits(seconds)} s. ` +
    `It was within 1% of its best, ${timeText(best)}, after ${digits(reached[1])} s.`;
  const place = el("div", {
    class: "curve",
    role: "img",
    "aria-label": `${words} ${search.data_parallel ? `Data parallelism takes ${timeText(search.data_parallel)}.` : ""}`,
  });
  const draw = () => drawCurve(place, search);
  whenNear(place, () => {
    draw();
    listen("theme", draw);
  });
  new ResizeObserver(() => {
    if (place.chart && Math.abs(place.chart.width - place.clientWidth) > 2)
      place.chart.setSize({ width: place.clientWidth, height: 260 });
  }).observe(place);
  return [
    el("p", { text: words }),
    legend([
      ["#4477AA", "best so far"],
      ["#AA3377", "data parallelism", "hatched"],
    ]),
    place,
  ];
}

/** Draw the chart in the colours of now. */
function drawCurve(place, { curve, data_parallel: parallel }) {
  if (!place.clientWidth) return;
  place.chart?.destroy();
  const x = curve.map(([, seconds]) => Math.max(seconds, 1e-3)),
    y = curve.map(([, , ns]) => ns / 1e6);
  const ink = themeColour("faint"),
    grid = { stroke: themeColour("line"), width: 1 };
  const font = "12px system-ui, sans-serif";
  const axis = { stroke: ink, grid, ticks: { show: false }, font };
  const most = Math.max(...y, (parallel ?? 0) / 1e6) * 1.08;
  place.chart = new uPlot(
    {
      width: place.clientWidth,
      height: 260,
      legend: { show: false },
      cursor: { y: false },
      scales: { x: { time: false, distr: 3, range: [x[0], Math.max(x.at(-1), x[0] * 1.01)] }, y: { range: [0, most] } },
      axes: [
        {
          ...axis,
          grid: { ...grid, filter: decades },
          values: (_, ticks) => ticks.map((t) => (t === null ? "" : `${+t.toPrecision(2)} s`)),
          space: 60,
        },
        { ...axis, size: 64, values: (_, ticks) => ticks.map((t) => `${+t.toPrecision(3)} ms`) },
      ],
      series: [
        {},
        {
          label: "best so far",
          stroke: themeColour("mine"),
          width: 2,
          paths: uPlot.paths.stepped({ align: 1 }),
          points: { show: false },
        },
        { label: "data parallelism", stroke: themeColour("loss"), width: 2, dash: [6, 5], points: { show: false } },
      ],
      hooks: { setCursor: [(chart) => curveTip(chart, curve)] },
    },
    [x, y, x.map(() => (parallel ? parallel / 1e6 : null))],
    place,
  );
  place.chart.over.addEventListener("mouseleave", hideTip);
}

/** Only the ticks that are powers of ten. */
const decades = (_, ticks) => ticks.map((t) => (t && Number.isInteger(+Math.log10(t).toFixed(6)) ? t : null));

function curveTip(chart, curve) {
  const { idx, left } = chart.cursor;
  if (idx === null || idx === undefined || left < 0) return;
  const [proposals, seconds, ns] = curve[idx],
    box = chart.over.getBoundingClientRect();
  showTip(
    box.left + left,
    box.top + 20,
    el("strong", { text: timeText(ns) }),
    el("div", { text: `after ${digits(seconds)} s, ${countText(proposals, "strategy", "strategies")}` }),
  );
}
