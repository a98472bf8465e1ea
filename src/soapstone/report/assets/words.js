// "Why it wins": sentences, and the choices that matter with what each gains.

const MOST_CHOICES = 6;

/** The section of words; a choice lights its layers in the drawing, and a lit layer its choices. */
function showWords(report) {
  if (!report.words) return;
  const { summary, choices, closing } = report.words;
  const most = Math.max(...choices.map((choice) => Math.abs(choice.gain)), 1);
  const buttons = choices.map((choice) => choiceButton(choice, most));
  const items = buttons.map((button) => el("li", {}, button)),
    rest = items.slice(MOST_CHOICES);
  const { makespan, data_parallel: parallel } = report.headline;
  section(
    "why",
    parallel && parallel < makespan * 1.005 ? "What it chose" : "Why it wins",
    "Why",
    el("div", { class: "summary" }, ...summary.map((text) => el("p", { text }))),
    choices.length ? el("h3", { text: "The choices that matter most" }) : null,
    choices.length ? el("p", { class: "hint", text: "Choose one to see its layers in the drawing below." }) : null,
    el("ol", { class: "choices" }, ...items.slice(0, MOST_CHOICES)),
    rest.length
      ? el("details", {}, el("summary", { text: `${rest.length} more` }), el("ol", { class: "choices" }, ...rest))
      : null,
    el("div", { class: "closing" }, ...closing.map((text) => el("p", { text }))),
  );
  listen("lit", ({ layers }) => {
    for (const [i, choice] of choices.entries()) {
      const shared = layers.size > 0 && choice.layers.some((layer) => layers.has(layer));
      buttons[i].setAttribute("aria-pressed", shared ? "true" : "false");
    }
  });
}

function choiceButton(choice, most) {
  const sooner = choice.gain >= 0;
  const width = (100 * Math.abs(choice.gain)) / most;
  const button = el(
    "button",
    { type: "button", class: "choice", "aria-pressed": "false" },
    el("span", { class: "title", text: choice.title }),
    el(
      "span",
      { class: "gain" },
      el(
        "span",
        { class: "track", "aria-hidden": "true" },
        el("span", { class: `bar ${sooner ? "mine" : "loss"}`, style: `width:${width}%` }),
      ),
      el("span", { class: "value", text: `${timeText(Math.abs(choice.gain))} ${sooner ? "sooner" : "later"}` }),
    ),
    el("span", { class: "sentence", text: choice.sentence }),
  );
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") === "true";
    tell("lit", { layers: new Set(on ? [] : choice.layers), from: "words" });
  });
  return button;
}
