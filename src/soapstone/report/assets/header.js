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
  byId("top").append(
    el("p", { class: "kicker", text: "Soapstone report" }),
    el("h1", { text: report.title }),
    el(
      "div",
      { class: "answer-row" },
      el("div", {}, answer, verdict(headline), measured(report)),
      comparison(headline),
    ),
    pairs(headline.figures, "figures"),
    el("details", { class: "setting" }, el("summary", { text: "Setting" }), pairs(report.setting, "pairs")),
  );
  byId("footer").append(
    `Soapstone ${report.version}. Times are the simulator’s prediction`,
    report.real ? " unless they are called measured." : ".",
  );
}

/** How it compares with data parallelism, in words. */
function verdict({ makespan, data_parallel: parallel }) {
  if (!parallel) return null;
  const ratio = parallel / makespan;
  if (Math.abs(ratio - 1) < 0.005) return el("p", { class: "verdict", text: "As fast as data parallelism" });
  return el("p", { class: "verdict" }, el("strong", { text: timesText(ratio) }), " as fast as data parallelism");
}

/** What a step really took, where one was run. */
function measured({ real, headline }) {
  if (!real) return null;
  const off = real.makespan / headline.makespan - 1;
  const than =
    Math.abs(off) < 0.005 ? "as predicted" : `${shareText(Math.abs(off))} ${off > 0 ? "more" : "less"} than predicted`;
  return el("p", { class: "hint", text: `Measured: ${timeText(real.makespan)} a step, ${than}.` });
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
