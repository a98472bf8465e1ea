// Elements, the one tooltip, and the bus by which the sections tell one another what is lit. Names are only ever text.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; "text" sets its text, "on…" listens, null and false are left out. */
function el(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

/** An SVG element, likewise. */
function svg(tag, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

function dress(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** A section with a heading, appended to the page and to the navigation. */
function section(id, heading, short, ...children) {
  const title = el("h2", { id: `${id}-title`, text: heading });
  const node = el("section", { id, "aria-labelledby": `${id}-title` }, title, ...children);
  byId("main").append(node);
  byId("nav").append(el("li", {}, el("a", { href: `#${id}`, text: short })));
  return node;
}

/** How a picture is moved, folded away; a screen reader hears it as the picture's description. */
function keysHelp(id, text) {
  return el(
    "details",
    { class: "keys" },
    el("summary", { text: "Keys and gestures" }),
    el("p", { class: "hint", id, text }),
  );
}

/** A list of label and value pairs. */
function pairs(rows, name = "pairs") {
  return el(
    "dl",
    { class: name },
    ...rows.map(([label, value]) =>
      el("div", {}, el("dt", { text: label }), value instanceof Node ? el("dd", {}, value) : el("dd", { text: value })),
    ),
  );
}

/** A key of colours: [colour, label, extra class]. */
function legend(entries) {
  return el(
    "ul",
    { class: "legend" },
    ...entries.map(([colour, label, style]) =>
      el(
        "li",
        {},
        el("span", { class: `swatch ${style ?? ""}`, style: `--c:${colour}`, "aria-hidden": "true" }),
        label,
      ),
    ),
  );
}

/** Show nodes in the tooltip near a point of the window. */
function showTip(x, y, ...children) {
  const tip = byId("tip");
  tip.replaceChildren(...children);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth - 8 ? x - width - 16 : x + 16;
  const top = y + 16 + height > innerHeight - 8 ? y - height - 16 : y + 16;
  tip.style.transform =
    `translate(${Math.round(clamp(left, 8, Math.max(8, innerWidth - width - 8)))}px,` +
    `${Math.round(clamp(top, 8, Math.max(8, innerHeight - height - 8)))}px)`;
}

function hideTip() {
  byId("tip").hidden = true;
}

const bus = new EventTarget();

/** Call back with what is told under a name. */
function listen(name, callback) {
  bus.addEventListener(name, (event) => callback(event.detail));
}

function tell(name, detail) {
  bus.dispatchEvent(new CustomEvent(name, { detail }));
}

/** Call back once, when a node comes near the window or is printed: what nobody sees yet costs nothing. */
function whenNear(node, callback) {
  const arrive = () => {
    watch.disconnect();
    removeEventListener("beforeprint", arrive);
    callback();
  };
  const watch = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && arrive(), {
    rootMargin: "800px",
  });
  watch.observe(node);
  addEventListener("beforeprint", arrive);
}

/** Run at most once a frame. */
function perFrame(callback) {
  let asked = 0;
  return () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      callback();
    });
  };
}
