"""The report's page in a real browser: what it shows, how it is moved, and what hostile names do to it: nothing."""

import copy
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from soapstone.report.page import render, write_page
from tests.support import payloads

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\"><!-- {{payload}} 'q' & \u2028"
Opener = Callable[..., Page]
STILL = """() => new Promise((done) => {
  let last = -1;
  const look = () => (scrollY === last ? done() : ((last = scrollY), setTimeout(look, 100)));
  look();
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here to open the page with")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opener]:
    """Opens a payload as a file; at the end nothing may have failed or been asked from a network."""
    trouble: list[str] = []
    contexts: list[BrowserContext] = []

    def open_page(payload: payloads.Payload, *, width: int = 1280, height: int = 900, scheme: Any = "light") -> Page:
        path = tmp_path / f"report{len(contexts)}.html"
        write_page(payload, path)
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: None if request.url == path.as_uri() else trouble.append(request.url))
        page.goto(path.as_uri(), wait_until="commit")
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not [text for text in trouble if not text.startswith("data:")]


@pytest.fixture(scope="module")
def huge() -> payloads.Payload:
    return payloads.large()


def visible_range(page: Page) -> tuple[float, float]:
    return tuple(page.eval_on_selector(".lanes canvas", "c => [+c.dataset.from, +c.dataset.to]"))


def wait_for_range(page: Page, other_than: tuple[float, float]) -> tuple[float, float]:
    page.wait_for_function(
        "old => +document.querySelector('.lanes canvas').dataset.from !== old[0] ||"
        " +document.querySelector('.lanes canvas').dataset.to !== old[1]",
        arg=list(other_than),
    )
    return visible_range(page)


def focus_timeline(page: Page) -> None:
    page.locator(".lanes canvas").focus()


def spoken(page: Page) -> str:
    return page.locator("#timeline-live").inner_text()


@pytest.mark.parametrize(("make", "scheme"), [(payloads.transformer, "light"), (payloads.branches, "dark")])
def test_the_first_screen_has_the_answer_and_every_section_is_there(
    opened: Opener, make: Callable[[], payloads.Payload], scheme: str
) -> None:
    payload = make()
    page = opened(payload, scheme=scheme)
    assert page.locator("h1").inner_text() == payload["title"]
    assert "2.33×" in page.locator(".verdict").inner_text()
    box = page.locator(".comparison").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 900
    headings = page.locator("h2").all_inner_texts()
    assert headings == [
        "Why it wins",
        "The strategy",
        "One step, moment by moment",
        "Where the time goes",
        "What fills the memory",
        "How it was found",
        "The cluster",
    ]
    assert page.locator("html").get_attribute("data-theme") == scheme
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.locator("html").get_attribute("data-theme") == ("light" if scheme == "dark" else "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_a_strategy_that_wins_nothing_is_not_said_to_win(opened: Opener) -> None:
    payload = payloads.transformer(2)
    payload["headline"]["data_parallel"] = payload["headline"]["makespan"]
    payload["words"]["choices"] *= 5
    page = opened(payload)
    assert page.locator(".verdict").inner_text() == "As fast as data parallelism"
    assert page.locator("h2").first.inner_text() == "What it chose"
    assert page.locator(".choice").locator("visible=true").count() == 6
    page.get_by_text("4 more").click()
    assert page.locator(".choice").locator("visible=true").count() == 10


def test_sections_without_data_are_not_shown(opened: Opener) -> None:
    payload = payloads.transformer(2)
    for key in ("words", "search", "approaches", "real"):
        payload[key] = None
    payload["headline"]["data_parallel"] = None
    page = opened(payload)
    headings = page.locator("h2").all_inner_texts()
    assert "Why it wins" not in headings
    assert "How it was found" not in headings
    assert page.locator(".verdict").count() == 0


@pytest.mark.parametrize("make", [payloads.transformer, payloads.branches])
def test_every_op_is_reachable_in_the_drawing(opened: Opener, make: Callable[[], payloads.Payload]) -> None:
    payload = make()
    page = opened(payload)
    if payload["folds"]:
        assert page.locator(".layer").count() < len(payload["layers"])
        page.click("#unfold")
    assert page.locator(".layer").count() == len(payload["layers"])
    page.locator(".layer").first.focus()
    named: set[str] = set()
    page.keyboard.press("Home")
    for _ in range(len(payload["layers"]) + 20):
        named.update(page.locator("#strategy .op-name").all_text_contents())
        page.keyboard.press("PageDown")
    assert named == {op["name"] for op in payload["ops"]}


def test_a_fold_opens_and_closes_by_click_and_by_key(opened: Opener) -> None:
    payload = payloads.transformer()
    page = opened(payload)
    folded = page.locator(".layer").count()
    head = page.locator(".group-head")
    assert head.count() == 1
    assert "×12" in (head.text_content() or "")
    page.locator(".group-title").click()
    assert page.locator(".group-head").count() == 12
    assert page.locator(".group-title").last.text_content() == "▾ layers.11"
    assert page.locator(".layer").count() == len(payload["layers"])
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.keyboard.press("Enter")
    assert page.locator(".layer").count() == folded


def test_parts_stand_in_the_grid_where_their_dims_say(opened: Opener) -> None:
    page = opened(payloads.transformer(2))
    layer = page.locator(".layer[aria-label^='layers.0.attention.qkv']")
    numbers = layer.locator(".cell-number").evaluate_all(
        "nodes => nodes.map(n => [+n.textContent, +n.getAttribute('x'), +n.getAttribute('y')])"
    )
    places = {int(device): (x, y) for device, x, y in numbers}
    assert places[0][1] == places[1][1] < places[2][1] == places[3][1]  # samples are rows
    assert places[0][0] == places[2][0] < places[1][0] == places[3][0]


def test_a_layer_of_more_than_64_parts_is_drawn_as_a_strip(opened: Opener) -> None:
    payload = payloads.transformer(2)
    payload["ops"][0] |= {"degrees": {"sample": 64, "hidden": 16}, "devices": [i // 256 for i in range(1024)]}
    page = opened(payload)
    layer = page.locator(".layer").first
    assert "1,024 parts" in (layer.get_attribute("aria-label") or "")
    assert layer.locator(".cells").count() == 4
    assert layer.locator("path").evaluate_all("ps => ps.reduce((n, p) => n + p.getAttribute('d').length, 0)") < 4000


def test_a_choice_lights_its_layers_and_a_layer_its_choices(opened: Opener) -> None:
    payload = payloads.transformer()
    page = opened(payload)
    choice = page.locator(".choice").nth(1)
    choice.click()
    assert page.locator(".layer.lit").get_attribute("data-layer") == "0"
    assert choice.get_attribute("aria-pressed") == "true"
    last = page.locator(f".layer[data-layer='{len(payload['layers']) - 1}']")
    last.click()
    assert page.locator(".choice").first.get_attribute("aria-pressed") == "true"
    assert choice.get_attribute("aria-pressed") == "false"
    last.press("Enter")
    assert page.locator(".layer.lit").count() == 0


def test_layers_that_feed_one_another_in_a_circle_are_drawn(opened: Opener) -> None:
    payload = payloads.transformer(2)
    last = len(payload["ops"]) - 1
    payload["edges"] += [[last, 0, 1e6], [last, last - 1, 1e6]]
    page = opened(payload)
    page.click("#unfold")
    assert page.locator(".layer").count() == len(payload["layers"])


def test_pointing_at_a_device_dims_the_others(opened: Opener) -> None:
    page = opened(payloads.transformer())
    page.locator(".chip").nth(2).hover()
    assert page.locator("svg.dimming").count() == 1
    lit = page.locator(".on-device").evaluate_all("nodes => [...new Set(nodes.map(n => n.dataset.device))]")
    assert lit == ["2"]


def test_the_timeline_zooms_pans_and_resets(opened: Opener) -> None:
    payload = payloads.transformer()
    page = opened(payload)
    whole = visible_range(page)
    assert whole == (0, payload["timeline"]["makespan"])
    canvas = page.locator(".lanes canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    zoomed = wait_for_range(page, whole)
    assert zoomed[1] - zoomed[0] < 0.9 * whole[1]
    page.mouse.wheel(120, 0)
    panned = wait_for_range(page, zoomed)
    assert panned[0] > zoomed[0]
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 60, steps=3)
    page.mouse.up()
    dragged = wait_for_range(page, panned)
    assert dragged[0] < panned[0]
    page.mouse.move(box["x"] + 400, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 10, steps=3)
    page.mouse.up()
    chosen = wait_for_range(page, dragged)
    assert chosen[1] - chosen[0] < 0.2 * (dragged[1] - dragged[0])
    focus_timeline(page)
    page.keyboard.press("-")
    assert wait_for_range(page, chosen)[0] < chosen[0]
    page.keyboard.press("0")
    page.wait_for_function("whole => +document.querySelector('.lanes canvas').dataset.to === whole", arg=whole[1])


def test_hovering_names_the_task_and_a_click_pins_it(opened: Opener) -> None:
    page = opened(payloads.transformer())
    canvas = page.locator(".lanes canvas")
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": 114, "y": 64})
    assert "forward embedding" in page.locator("#tip").inner_text()
    canvas.click(position={"x": 114, "y": 64})
    panel = page.locator("#timeline .panel")
    assert "forward layers.0.norm1" in panel.inner_text()
    assert "pinned" in panel.inner_text()
    panel.get_by_role("button", name="forward embedding").click()
    assert "waits for nothing" in panel.inner_text()


def test_the_timeline_is_moved_by_keys_alone(opened: Opener) -> None:
    page = opened(payloads.transformer())
    focus_timeline(page)
    page.keyboard.press("ArrowRight")
    assert spoken(page).startswith("gpu0: forward embedding")
    page.keyboard.press("ArrowRight")
    assert "layers.0" in spoken(page)
    second = spoken(page)
    page.keyboard.press("ArrowDown")
    assert spoken(page).startswith("gpu1: ")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    assert spoken(page).startswith("gpu0: ")
    assert second.split(":")[0] == "gpu0"
    page.keyboard.press("Enter")
    assert spoken(page).endswith("pinned")
    page.keyboard.press("Escape")
    assert not spoken(page).endswith("pinned")
    page.keyboard.press("Home")
    page.keyboard.press("c")
    assert "critical path 2 of" in spoken(page)
    page.keyboard.press("c")
    assert "critical path 3 of" in spoken(page)
    page.keyboard.press("Shift+C")
    assert "critical path 2 of" in spoken(page)
    before = visible_range(page)
    page.keyboard.press("f")
    assert wait_for_range(page, before)[1] < before[1] / 10


def test_groups_of_lanes_close_and_idle_lanes_are_counted(opened: Opener) -> None:
    page = opened(payloads.transformer())
    height = "document.querySelector('.sheet').clientHeight"
    tall = page.evaluate(height)
    toolbar = page.get_by_role("group", name="Timeline", exact=True)
    toolbar.get_by_role("button", name="Links").click()
    closed = page.evaluate(height)
    assert closed < tall
    toolbar.get_by_role("button", name="Links").click()
    toolbar.get_by_role("button", name="idle lanes").click()
    assert page.evaluate(height) > tall


def test_measured_lanes_stand_under_the_predicted_ones(opened: Opener) -> None:
    page = opened(payloads.branches())
    focus_timeline(page)
    page.keyboard.press("ArrowRight")
    assert spoken(page).startswith("gpu0: ")
    page.keyboard.press("ArrowDown")
    assert spoken(page).startswith("rank 0: ")
    assert "measured" in spoken(page)


def test_tab_reaches_every_control(opened: Opener) -> None:
    page = opened(payloads.branches())
    wanted = page.evaluate(
        """() => {
          const all = [...document.querySelectorAll('a[href], button, summary, [tabindex="0"]')];
          window.wanted = new Set(all.filter(node => node.tabIndex >= 0 && node.checkVisibility()));
          window.reached = new Set();
          return wanted.size;
        }"""
    )
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        page.evaluate("reached.add(document.activeElement)")
    missed = page.evaluate("[...wanted].filter(n => !reached.has(n)).map(n => n.outerHTML.slice(0, 80))")
    assert missed == []


def test_every_control_has_a_name(opened: Opener) -> None:
    page = opened(payloads.transformer())
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, a, [role=button], [role=img], [role=application]')]
        .filter(n => !(n.getAttribute('aria-label') || n.textContent.trim())).map(n => n.outerHTML.slice(0, 80))"""
    )
    assert nameless == []


@pytest.mark.parametrize("make", [payloads.transformer, payloads.branches])
@pytest.mark.parametrize("width", [360, 768])
def test_a_narrow_page_does_not_scroll_sideways(
    opened: Opener, make: Callable[[], payloads.Payload], width: int
) -> None:
    page = opened(make(), width=width, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".answer .number").is_visible()


def test_the_table_of_approaches_sorts(opened: Opener) -> None:
    page = opened(payloads.transformer())
    names = page.locator("#search tbody th")
    assert names.all_inner_texts()[-1] == "soapstone ✓ chosen"
    button = page.locator("#search .sort", has_text="time")
    button.click()
    assert names.all_inner_texts()[0] == "soapstone ✓ chosen"
    assert page.locator("#search th[aria-sort=ascending]").inner_text() == "time"
    button.press("Enter")
    assert names.all_inner_texts()[-1] == "soapstone ✓ chosen"


def test_the_curve_of_the_search_is_drawn_when_it_comes_into_sight_or_is_printed(opened: Opener) -> None:
    page = opened(payloads.transformer())
    page.locator(".curve").scroll_into_view_if_needed()
    page.wait_for_selector(".curve canvas")
    assert "within 1% of its best" in (page.locator(".curve").get_attribute("aria-label") or "")
    printed = opened(payloads.transformer())
    assert printed.locator(".curve canvas").count() == 0
    printed.pdf()
    assert printed.locator(".curve canvas").count() == 1


def test_the_section_that_was_jumped_to_is_marked(opened: Opener) -> None:
    page = opened(payloads.transformer(2))
    marked = page.locator("#nav a[aria-current]")
    for link in page.locator("#nav a").all():
        link.click()
        page.evaluate(STILL)
        assert marked.all_inner_texts() == [link.inner_text()]
    page.mouse.wheel(0, -100_000)
    page.wait_for_function("() => document.querySelector('#nav a[aria-current]')?.textContent !== 'Cluster'")


CONTRASTS = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(
      (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const ratio = (a, b) => Math.max(light(a) / light(b), light(b) / light(a));
  const style = (node) => getComputedStyle(node);
  const boxes = [...document.querySelectorAll('.chip, .piece > span')].map(
    (node) => [style(node).color, style(node.closest('.chip, .piece')).backgroundColor]);
  const under = (node) => node.parentNode.querySelector(`.cells[data-device="${node.textContent}"]`);
  const cells = [...document.querySelectorAll('.cell-number')].map(
    (node) => [style(node).fill, style(under(node)).fill]);
  const spots = [...document.querySelectorAll('.vertex-name')].map(
    (node) => [style(node).fill, style(node.parentNode.querySelector('rect')).fill]);
  return [boxes, cells, spots].map((pairs) => Math.min(...pairs.map((pair) => ratio(...pair))));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("nodes", [2, 4])
def test_what_is_written_on_colours_can_be_read(opened: Opener, nodes: int, scheme: str) -> None:
    contrasts = opened(payloads.branches(nodes), scheme=scheme).evaluate(CONTRASTS)
    assert min(contrasts) >= 4.5


def test_more_than_16_equal_devices_are_one_bar(opened: Opener) -> None:
    payload = payloads.branches(nodes=5)
    for table in (payload["time"], payload["memory"]):
        for name, values in table.items():
            table[name] = [values[0]] * len(values)
    page = opened(payload)
    assert page.locator("#time .bar-row").count() == 1
    assert "20 alike" in page.locator("#time .bar-row").inner_text()
    assert page.locator("#memory .bar-row").count() == 1


def test_hostile_names_are_only_text(opened: Opener) -> None:
    payload = copy.deepcopy(payloads.branches())
    payload["title"] = HOSTILE
    for rows in (
        payload["ops"],
        payload["layers"],
        payload["devices"],
        payload["cluster"]["vertices"],
        payload["approaches"],
    ):
        for row in rows:
            row["name"] = HOSTILE
    for row in [*payload["timeline"]["lanes"], *payload["real"]["lanes"]]:
        row["name"] = HOSTILE
    payload["real"]["names"] = [HOSTILE] * 3
    payload["words"]["summary"] = [HOSTILE]
    for choice in payload["words"]["choices"]:
        choice["title"] = choice["sentence"] = HOSTILE
    payload["setting"] = payload["headline"]["figures"] = [[HOSTILE, HOSTILE]]
    page = opened(payload)
    page.locator(".layer").first.focus()
    focus_timeline(page)
    page.keyboard.press("ArrowRight")
    page.locator(".lanes canvas").hover(position={"x": 114, "y": 64})
    assert page.locator("h1").text_content() == HOSTILE
    assert page.title().startswith("</script>")
    assert page.locator("img").count() == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_page_holds_its_payload_escaped_and_no_address_to_load() -> None:
    text = render(payloads.transformer(1) | {"title": HOSTILE})
    assert text.count("</script>") == 3
    assert "<img" not in text
    for tag in ('<link rel="stylesheet"', 'src="http', "@import", "sourceMappingURL"):
        assert tag not in text


def test_a_payload_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError):
        render({"title": "x", "makespan": float("nan")})


PAN = """async (count) => {
  const canvas = document.querySelector('.lanes canvas'), gaps = [];
  const frame = () => new Promise(requestAnimationFrame);
  canvas.scrollIntoView({ block: 'center', behavior: 'instant' });
  canvas.dispatchEvent(new KeyboardEvent('keydown', { key: '+' }));
  await frame();
  for (let i = 0, last = performance.now(); i < count; i += 1) {
    canvas.dispatchEvent(new WheelEvent('wheel', { deltaX: i < count / 2 ? 12 : -12, cancelable: true }));
    await frame();
    const now = performance.now();
    gaps.push(now - last);
    last = now;
  }
  return gaps.sort((a, b) => a - b)[count >> 1];
}"""


def test_100000_tasks_open_and_pan_quickly(
    opened: Opener, huge: payloads.Payload, capsys: pytest.CaptureFixture[str]
) -> None:
    """In 3 s and at 50 ms a frame; a machine gets twice that, and the more the busier it is."""
    size = len(render(huge).encode())
    page = opened(huge)
    taken = page.evaluate("performance.getEntriesByName('ready')[0].startTime") / 1000
    frame = page.evaluate(PAN, 60)
    with capsys.disabled():
        print(f"\n100,000 tasks: {size / 1e6:.1f} MB, open in {taken:.2f} s, {frame:.1f} ms a frame")
    assert size <= 20e6
    slack = 2 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert taken < 3 * slack
    assert frame < 50 * slack


def test_1000_layers_unfold(opened: Opener, huge: payloads.Payload) -> None:
    page = opened(huge)
    assert len(huge["layers"]) == 1000
    assert page.locator(".layer").count() < 20
    page.click("#unfold")
    assert page.locator(".layer").count() == 1000


def test_a_switch_stands_in_the_node_of_its_devices_and_the_network_in_none(opened: Opener) -> None:
    page = opened(payloads.branches())
    inside = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.vertex.switch')].map(shape => {
          const spot = shape.getBoundingClientRect();
          const around = [...document.querySelectorAll('.node-box')].map(box => box.getBoundingClientRect());
          return [shape.parentNode.querySelector('title').textContent,
                  around.findIndex(box => box.left < spot.left && box.right > spot.right && box.top < spot.top)];
        }))"""
    )
    assert inside == {"host0": 0, "host1": 1, "network": -1}
