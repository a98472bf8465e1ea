// Tables that are sorted by a click on a heading.

/** A table of columns {label, value(row), text(row), number} that sorts itself. */
function sortedTable(caption, columns, rows, mark = () => false) {
  const body = el("tbody", {});
  const heads = columns.map((column, i) => {
    const button = el("button", { type: "button", class: "sort", text: column.label });
    const head = el("th", { scope: "col", class: column.number ? "number" : "", "aria-sort": "none" }, button);
    button.addEventListener("click", () => sort(i, head.getAttribute("aria-sort") === "ascending"));
    return head;
  });
  const sort = (i, down) => {
    for (const [j, head] of heads.entries())
      head.setAttribute("aria-sort", i !== j ? "none" : down ? "descending" : "ascending");
    fill([...rows].sort((a, b) => (down ? -1 : 1) * compare(columns[i].value(a), columns[i].value(b))));
  };
  const fill = (sorted) =>
    body.replaceChildren(
      ...sorted.map((row) =>
        el(
          "tr",
          { class: mark(row) ? "chosen" : "" },
          ...columns.map((column, i) =>
            el(i ? "td" : "th", {
              class: column.number ? "number" : "",
              scope: i ? null : "row",
              text: column.text(row),
            }),
          ),
        ),
      ),
    );
  fill(rows);
  const table = el(
    "table",
    {},
    el("caption", { class: "hidden", text: caption }),
    el("thead", {}, el("tr", {}, ...heads)),
    body,
  );
  return el("div", { class: "table-frame", tabindex: "0", role: "group", "aria-label": caption }, table);
}

function compare(a, b) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

/** The approaches side by side. */
function approachTable(approaches) {
  const number = (label, key, text) => ({
    label,
    number: true,
    value: (row) => row[key],
    text: (row) => text(row[key]),
  });
  return sortedTable(
    "Every approach, side by side",
    [
      { label: "approach", value: (row) => row.name, text: (row) => `${row.name}${row.chosen ? " ✓ chosen" : ""}` },
      number("time", "makespan", milliseconds),
      number("speed-up", "speed_up", timesText),
      number("moved", "bytes_moved", bytesText),
      number("compute", "compute_ns", milliseconds),
      number("exposed", "exposed_ns", milliseconds),
      number("peak memory", "peak_memory", bytesText),
      { label: "fits", value: (row) => (row.fits ? 0 : 1), text: (row) => (row.fits ? "yes" : "no") },
      number("search", "search_seconds", (seconds) => (seconds ? `${digits(seconds)} s` : "–")),
    ],
    approaches,
    (row) => row.chosen,
  );
}
