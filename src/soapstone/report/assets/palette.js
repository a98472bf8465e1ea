// Colours that people with any colour vision can tell apart (after Paul Tol's "bright"), and the light and dark scheme.

const BRIGHT = ["#4477AA", "#EE7733", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#999999", "#775533"];
const HUES = [
  [211, 43],
  [24, 85],
  [134, 60],
  [50, 57],
  [194, 75],
  [325, 54],
  [265, 40],
  [30, 35],
];

// What a device does is cool, what moves between devices warm; dark and light take turns, so that grey tells them apart too.
const TASK_COLOURS = {
  forward: "#2a6b85",
  backward: "#6aa9bf",
  combine: "#c9ae4a",
  transfer: "#e38b35",
  sync: "#a3304f",
  gather: "#d98fa5",
  update: "#8c8c8c",
};
const REAL_COLOURS = {
  ...TASK_COLOURS,
  compute: "#2a6b85",
  scatter: "#a3304f",
  wait: "#c4c4c4",
  announce: "#8c8c8c",
  message: "#e38b35",
  send: "#e38b35",
  receive: "#e38b35",
  round: "#e38b35",
};

let deviceColours = [];

/** Give each device a colour: one of eight, or on larger clusters a hue for its node and a shade of it. */
function colourDevices(devices) {
  if (devices.length <= BRIGHT.length) {
    deviceColours = devices.map((_, i) => BRIGHT[i]);
    return;
  }
  const inside = new Map();
  for (const [i, device] of devices.entries()) inside.set(device.node, [...(inside.get(device.node) ?? []), i]);
  deviceColours = devices.map((device, i) => {
    const mates = inside.get(device.node);
    const [hue, saturation] = HUES[[...inside.keys()].indexOf(device.node) % HUES.length];
    const shade = mates.length === 1 ? 0.5 : mates.indexOf(i) / (mates.length - 1);
    return fromHsl(hue, saturation, 36 + 40 * shade);
  });
}

const deviceColour = (device) => deviceColours[device] ?? "#999999";

function fromHsl(hue, saturation, light) {
  const s = saturation / 100,
    l = light / 100,
    a = s * Math.min(l, 1 - l);
  const channel = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (l - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))))
      .toString(16)
      .padStart(2, "0");
  };
  return `#${channel(0)}${channel(8)}${channel(4)}`;
}

/** Black or white, whichever is easier to read on a colour: one of them has a contrast of at least 4.5. */
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => linear(parseInt(colour.slice(i, i + 2), 16) / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

/** A channel of sRGB as light, by which WCAG measures contrast. */
const linear = (channel) => (channel <= 0.04045 ? channel / 12.92 : ((channel + 0.055) / 1.055) ** 2.4);

/** A colour of the style sheet as it is now. */
const themeColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The button that goes from the system's scheme to the other one, and back. */
function startTheme() {
  const button = byId("theme"),
    dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const show = () => {
    const isDark = chosen === null ? dark.matches : chosen;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    button.textContent = isDark ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark ? "Use light colours" : "Use dark colours");
    tell("theme");
  };
  button.addEventListener("click", () => {
    chosen = !(chosen === null ? dark.matches : chosen);
    show();
  });
  dark.addEventListener("change", show);
  show();
}
