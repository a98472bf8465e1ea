// One task in words: for the tooltip, the panel and a screen reader.

const GLYPHS = {
  forward: "▸",
  backward: "◂",
  combine: "Σ",
  transfer: "⇢",
  sync: "⇄",
  gather: "⇉",
  scatter: "⇄",
  update: "↻",
  compute: "▪",
  wait: "…",
  message: "⇢",
  send: "⇢",
  receive: "⇠",
  round: "⇄",
};

/** "forward layers.0.mlp.up, part 2 of 4". */
function taskName(model, task) {
  const { tasks, kinds, report } = model,
    op = report.ops[tasks.op[task]];
  return `${kinds[tasks.kind[task]]} ${op ? op.name : ""}`.trim();
}

function partText(model, task) {
  const op = model.report.ops[model.tasks.op[task]],
    part = model.tasks.part[task];
  if (!op || part < 0 || op.devices.length < 2) return null;
  return `${part + 1} of ${op.devices.length}`;
}

/** What a task waits for, the last first. */
function waitsFor(model, task) {
  const { begin, task: list } = model.after,
    { end } = model.tasks;
  return [...new Set(list.subarray(begin[task], begin[task + 1]))].sort((a, b) => end[b] - end[a]);
}

/** The lanes that a task holds, by name. */
function lanesOf(model, task) {
  const { begin, row } = model.holdsOf,
    found = [];
  for (let i = begin[task]; i < begin[task + 1]; i += 1) found.push(model.rows[row[i]].name);
  return found;
}

/** Everything about a task as label and value pairs. */
function taskFacts(model, task) {
  const { tasks } = model,
    start = tasks.start[task],
    end = tasks.end[task],
    waited = Math.max(0, start - tasks.ready[task]);
  const lanes = lanesOf(model, task),
    part = partText(model, task),
    facts = [];
  const { microbatches } = model.report.timeline;
  if (part) facts.push(["part", part]);
  if (microbatches > 1) facts.push(["microbatch", `${tasks.microbatch[task] + 1} of ${microbatches}`]);
  facts.push([
    "on",
    lanes.length > 3 ? `${lanes.slice(0, 3).join(", ")} and ${lanes.length - 3} more` : lanes.join(", ") || "nothing",
  ]);
  if (tasks.bytes[task] > 0) facts.push(["bytes", bytesText(tasks.bytes[task])]);
  facts.push(
    ["from", momentText(start)],
    ["to", momentText(end)],
    ["takes", timeText(end - start)],
    ["waited", waited ? `${timeText(waited)} for its turn` : "not at all"],
  );
  if (model.onPath[task] >= 0) facts.push(["critical path", `${model.onPath[task] + 1} of ${model.critical.length}`]);
  return facts;
}

/** What a span that really ran is, likewise. */
function spanFacts(model, span) {
  const { spans } = model,
    facts = [["measured", model.realKinds[spans.kind[span]]]];
  if (spans.bytes[span] > 0) facts.push(["bytes", bytesText(spans.bytes[span])]);
  facts.push(
    ["from", momentText(spans.start[span])],
    ["to", momentText(spans.start[span] + spans.duration[span])],
    ["took", timeText(spans.duration[span])],
  );
  return facts;
}

/** A name for whatever stands at a position of a row. */
const holdName = (model, row, at) =>
  row.real ? model.realNames[model.spans.name[row.id[at]]] : taskName(model, row.id[at]);
const holdFacts = (model, row, at) => (row.real ? spanFacts(model, row.id[at]) : taskFacts(model, row.id[at]));

/** One sentence for a screen reader. */
function holdSentence(model, row, at, pinned) {
  const facts = holdFacts(model, row, at)
    .map(([label, value]) => `${label} ${value}`)
    .join(", ");
  return `${row.name}: ${holdName(model, row, at)}, ${facts}${pinned ? ", pinned" : ""}`;
}

/** The tooltip of a hold: its facts, and the first few tasks that it waited for. */
function holdTip(model, row, at) {
  const nodes = [el("strong", { text: holdName(model, row, at) }), pairs(holdFacts(model, row, at), "pairs tight")];
  if (row.real) return nodes;
  const before = waitsFor(model, row.id[at]);
  if (before.length)
    nodes.push(
      el("div", {
        class: "faint",
        text: `after ${before
          .slice(0, 3)
          .map((task) => taskName(model, task))
          .join("; ")}${before.length > 3 ? `; and ${before.length - 3} more` : ""}`,
      }),
    );
  return nodes;
}

/** The panel of the chosen hold; `go` goes to another task. */
function holdPanel(model, row, at, pinned, go) {
  const nodes = [
    el(
      "p",
      { class: "panel-title" },
      holdName(model, row, at),
      pinned ? el("span", { class: "pin", text: "pinned" }) : null,
    ),
    pairs(holdFacts(model, row, at), "pairs inline"),
  ];
  if (row.real) return nodes;
  const task = row.id[at],
    before = waitsFor(model, task),
    op = model.report.ops[model.tasks.op[task]];
  if (before.length) {
    const shown = before.slice(0, 8).map((other, i) =>
      el(
        "li",
        {},
        el("button", { type: "button", class: "link-like", text: taskName(model, other), onclick: () => go(other) }),
        el("span", {
          class: "faint",
          text: ` until ${momentText(model.tasks.end[other])}${i === 0 ? ", the last" : ""}`,
        }),
      ),
    );
    if (before.length > 8) shown.push(el("li", { class: "faint", text: `and ${before.length - 8} more` }));
    nodes.push(el("p", { class: "panel-sub", text: "It waited for" }), el("ul", { class: "before" }, ...shown));
  } else nodes.push(el("p", { class: "panel-sub", text: "It waits for nothing." }));
  if (op)
    nodes.push(
      el("button", {
        type: "button",
        text: "Show its layer in the drawing",
        onclick: () => tell("lit", { layers: new Set([op.layer]), from: "words" }),
      }),
    );
  return nodes;
}
