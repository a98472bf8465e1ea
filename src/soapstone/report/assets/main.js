// The page from top to bottom.

/** Show one part of the report; a part that fails says so and leaves the others alone. */
function attempt(show, report) {
  try {
    return show(report);
  } catch (error) {
    console.error(error);
    byId("main").append(el("p", { class: "warning", text: "A part of this report could not be shown." }));
    return null;
  }
}

async function showReport() {
  const report = JSON.parse(byId("payload").textContent);
  colourDevices(report.devices);
  startTheme();
  let timeline = null;
  for (const show of [
    showHeader,
    showWords,
    showStrategy,
    showTimeline,
    showTime,
    showMemory,
    showSearch,
    showCluster,
  ]) {
    const result = attempt(show, report);
    if (show === showTimeline) timeline = result;
  }
  markSections();
  await timeline;
  performance.mark("ready");
  document.documentElement.dataset.ready = "true";
}

/** The navigation marks the section that was jumped to, and once the reader moves on, the one that is being read. */
function markSections() {
  const links = new Map(
    [...document.querySelectorAll("#nav a")].map((link) => [link.getAttribute("href").slice(1), link]),
  );
  const seen = new Set();
  let jumped = null;
  const mark = () => {
    const marked = jumped ?? [...links.keys()].find((id) => seen.has(id));
    for (const [id, link] of links) {
      if (id === marked) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  const watch = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) seen.add(target.id);
        else seen.delete(target.id);
      }
      mark();
    },
    { rootMargin: "-60px 0px -55% 0px" },
  );
  for (const [id, link] of links) {
    watch.observe(byId(id));
    link.addEventListener("click", () => {
      jumped = id;
      mark();
    });
  }
  for (const move of ["wheel", "touchmove", "pointerdown", "keydown"])
    addEventListener(move, () => (jumped = null), { passive: true });
}

showReport();
