// The first screen: what a step takes, against data parallelism.

/** Fill the header. */
function showHeader(report) {
  const { headline } = report;
  const [number, unit] = timeText(headline.makespan).split(" ");
  const answer = el(
    "p",
    { class: "answer" },
    el("span", { class: "number", text: number }),
    " ",
    el("span", { class: "unit", text: `${unit} a step` }),
  );
  const ratio = headline.data_parallel ? headline.data_parallel / headline.makespan : null;
  const verdict =
    ratio === null
      ? null
      : el(
          "p",
          { class: "verdict" },
          el("strong", { text: timesText(ratio) }),
          ratio >= 1.005 ? " as fast as data parallelism" : " data parallelism’s speed",
        );
  byId("top").append(
    el("p", { class: "kicker", text: "Soapstone report" }),
    el("h1", { text: report.title }),
    el("div", { class: "answer-row" }, el("div", {}, answer, verdict), comparison(headline)),
    pairs(headline.figures, "figures"),
    el("details", { class: "setting" }, el("summary", { text: "Setting" }), pairs(report.setting, "pairs")),
  );
  byId("footer").append(
    `Soapstone ${report.version}. Times are the simulator’s prediction`,
    report.real ? " unless they are called measured." : ".",
  );
}

/** Two plain bars: this strategy and data parallelism. */
function comparison(headline) {
  const rows = [[headline.strategy, headline.makespan, "mine"]];
  if (headline.data_parallel) rows.push(["data parallelism", headline.data_parallel, "other"]);
  const longest = Math.max(...rows.map(([, ns]) => ns));
  return el(
    "div",
    { class: "comparison" },
    ...rows.map(([name, ns, style]) =>
      el(
        "div",
        { class: "compared" },
        el("span", { class: "name", text: name }),
        el(
          "span",
          { class: "track", "aria-hidden": "true" },
          el("span", { class: `bar ${style}`, style: `width:${(100 * ns) / longest}%` }),
        ),
        el("span", { class: "value", text: timeText(ns) }),
      ),
    ),
  );
}
