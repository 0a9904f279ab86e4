"""A headless Chromium, for all tests of the page."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE_MS = 300_000  # on a machine that has other things to do
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if os.environ.get("CASCADE_WITHOUT_BROWSER") == "1":
        pytest.skip("CASCADE_WITHOUT_BROWSER=1")
    chromium = shutil.which("chromium") or installed_chromium()
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, timeout=PATIENCE_MS, args=["--no-sandbox"])


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A tab that has no network, and in which no error may occur."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    tab, errors = context.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: errors.extend({request.url} if request.url.startswith("http") else ()))
    tab.add_init_script(
        "window.tasks = []; new PerformanceObserver((list) => tasks.push(...list.getEntries().map((e) => e.duration)))"
        ".observe({type: 'longtask', buffered: true})"
    )
    yield tab
    context.close()
    assert errors == []


def installed_chromium() -> str:
    for command in ("update", "install -y --no-install-recommends chromium"):
        apt = ["apt-get", "-o", "DPkg::Lock::Timeout=120", *command.split()]
        told = subprocess.run(
            apt, capture_output=True, text=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
        assert told.returncode == 0, f"apt-get said: {told.stderr} Install chromium, or set CASCADE_WITHOUT_BROWSER=1"
    return "/usr/bin/chromium"


def opened(tab: Page, file: Path, state: str = "") -> Page:
    tab.goto(f"file://{file}{state}", wait_until="commit")
    tab.wait_for_selector("html[data-ready]", state="attached")
    return tab
