"""Pages in a real browser: clicks, charts, a narrow screen; no script fails, no layout shifts."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import postroom
import postroom.web
from postroom.web.table import PAGES
from tests.gateway.processes import free_address
from tests.web.visits import HOSTILE, filled

if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("Chromium and its driver are not installed", allow_module_level=True)

webdriver = pytest.importorskip("selenium.webdriver")
ui = pytest.importorskip("selenium.webdriver.support.ui")
errors = pytest.importorskip("selenium.common.exceptions")

SECONDS_MAX = 60
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1280,900",
)  # fmt: skip


class Served:
    """The pages of a store at an address, from a thread."""

    def __init__(self, db: postroom.Database) -> None:
        self.db = db
        port = int(free_address().rpartition(":")[2])
        self.address = f"http://127.0.0.1:{port}"
        app = postroom.web.app(db, payloads=True)
        config = uvicorn.Config(app, port=port, log_level="warning", lifespan="off", http="h11")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    folder: Path = tmp_path_factory.mktemp("browser")
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options, service)
    driver.set_page_load_timeout(SECONDS_MAX)
    yield driver
    driver.quit()


@pytest.fixture
def served() -> Iterator[Served]:
    with filled() as db:
        pages = Served(db)
        try:
            yield pages
        finally:
            pages.stop()


GONE = (errors.NoSuchElementException, errors.StaleElementReferenceException)
"""The errors about an element of the page that another one is just taking the place of."""


def until(browser: Any, condition: Any) -> Any:
    return ui.WebDriverWait(browser, SECONDS_MAX, ignored_exceptions=GONE).until(condition)


def one(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def test_scripts_of_all_pages_run(browser: Any, served: Served) -> None:
    browser.get_log("browser")
    for page in PAGES:
        if page.title:
            browser.get(f"{served.address}{page.path}?queue=mail&id=held&kind=welcome&key=text")
            assert one(browser, "h1").text
    browser.get(f"{served.address}/key?key_hex={HOSTILE.hex()}")
    assert HOSTILE.decode() in one(browser, "h1").text
    assert [each["message"] for each in browser.get_log("browser")] == []


def test_a_dead_letter_is_discarded_by_clicks(browser: Any, served: Served) -> None:
    browser.get(f"{served.address}/dead-letters")
    one(browser, "[data-all]").click()
    assert one(browser, "input[name=id]").is_selected()
    one(browser, "button.danger").click()
    until(browser, lambda _: "given up for good" in one(browser, "main").text)
    assert served.db.dead_letters() == []


def test_a_queue_has_a_chart(browser: Any, served: Served) -> None:
    browser.get(f"{served.address}/queue?queue=mail")
    until(browser, lambda _: browser.find_elements("css selector", ".chart canvas"))
    assert "ready" in one(browser, ".chart .u-legend").text


@pytest.mark.parametrize("width", [360, 1600])
def test_pages_fit_narrow_and_wide_screens(browser: Any, served: Served, width: int) -> None:
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for path in ("/", "/queue?queue=mail", "/dead-letters", "/cluster"):
            browser.get(f"{served.address}{path}")
            widest = browser.execute_script("return document.documentElement.scrollWidth")
            assert widest <= width, path
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_first_link_of_a_page_leads_to_its_content(browser: Any, served: Served) -> None:
    browser.get(f"{served.address}/")
    focused = browser.switch_to.active_element
    focused.send_keys("\t")
    assert browser.switch_to.active_element.text == "Skip to the content"


QUICKLY = """
for (const name of ["setInterval", "setTimeout"]) {
  const real = window[name];
  window[name] = (act, milliseconds, ...rest) => real(act, (milliseconds || 0) / 250, ...rest);
}
window.asked = 0;
const send = XMLHttpRequest.prototype.send;
XMLHttpRequest.prototype.send = function (...given) {
  window.asked++;
  return send.apply(this, given);
};
"""
"""A script that lets the time of a page pass 250 times as fast, and counts what htmx asks for."""


def held(browser: Any) -> tuple[float, float]:
    """Return the numbers of nodes and listeners of the page, after garbage was collected."""
    browser.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    told = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    numbers = {each["name"]: each["value"] for each in told}
    return numbers["Nodes"], numbers["JSEventListeners"]


def test_a_page_that_is_left_open_does_not_grow(browser: Any, served: Served) -> None:
    asked = lambda: browser.execute_script("return window.asked")  # noqa: E731
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": QUICKLY})
    browser.execute_cdp_cmd("Performance.enable", {})
    try:
        browser.get(f"{served.address}/")
        until(browser, lambda _: asked() >= 60)
        nodes, listeners = held(browser)
        until(browser, lambda _: asked() >= 260)
        more_nodes, more_listeners = held(browser)
        elements = browser.execute_script("return document.getElementsByTagName('*').length")
        assert browser.find_elements("css selector", ".chart canvas")
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
        browser.execute_cdp_cmd("Performance.disable", {})
        browser.get("about:blank")  # it would ask on when the server is gone
    assert more_nodes < nodes + 3 * elements, "a few answers may be under way"
    assert more_listeners < listeners + 100
