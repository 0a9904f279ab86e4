"""`cascade watch`: a page that a browser keeps open while the run goes on, as one that trains does."""

import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from cascade_rl.engine.core.errors import UserError
from cascade_rl.launchers.cli.main import _run
from cascade_rl.launchers.report import watch
from cascade_rl.launchers.report.watch import LivePage, Server
from cascade_rl.rl_stages.run.run_folder import RunFolder, StageFolder
from cascade_rl.rl_stages.run.sample_record import write_samples
from tests.launchers.report.report_run import cascade, keep_tokenizer
from tests.launchers.report.test_report import TAUGHT, sample

SOONER = """
const later = setTimeout;
window.setTimeout = (act, ms) => later(act, ms === 2000 ? 50 : ms);
addEventListener("followed", () => { window.followed = (window.followed ?? 0) + 1; });
"""
LATER = sample(
    "mopd/2/0/three/0", "math", [12, 0], [-0.5, -1.5], [-0.5, -1.5], teacher_logprobs=TAUGHT.teacher_logprobs[:2]
)


def take(stage: StageFolder, step: int, *samples: object) -> None:
    write_samples(stage.rollouts(step), samples)  # type: ignore[arg-type]
    stage.record_step(step, {"reward": 0.25 * step, "length": 3.0}, {"generation": 1.5}, tokens=100)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    """At work: its launcher holds the lock, and one step of MOPD is made."""
    with RunFolder.claim(tmp_path / "run", cascade(steps=4)) as (run, _):
        keep_tokenizer(run)
        run.stage("mopd").record_event("attempt", from_step=0)
        take(run.stage("mopd"), 1, TAUGHT)
        longer = [{"step": step, "length": 5 * step} for step in range(1, 21)]
        run.stage("if_rl").metrics.path.write_text("".join(f"{json.dumps(row)}\n" for row in longer))
        yield run


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page does not rest: on a busy machine ten times what it took to make is longer than a test waits."""
    monkeypatch.setattr(watch, "REST", 0)


@pytest.fixture
def served(run: RunFolder, at_once: None) -> Iterator[Server]:
    with Server(LivePage(run.root, 1000, lambda: ()), port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def opened(browser: Browser, url: str, width: int = 1280, scheme: str = "light") -> Page:
    """A tab in which no error may occur, on a page that asks every 50 ms."""
    tab = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 844})  # type: ignore[arg-type]
    tab.on("pageerror", lambda error: pytest.fail(str(error)))
    tab.add_init_script(SOONER)
    tab.goto(url)
    tab.wait_for_selector("html[data-ready]", state="attached")
    return tab


def test_a_step_appears_and_what_the_reader_opened_stays(run: RunFolder, served: Server, browser: Browser) -> None:
    tab = opened(browser, f"{served.url}#rollout=0&curve=series length")
    expect(tab.locator("#graph .stage", has_text="05_mopd")).to_contain_text("running")
    tab.fill("[name=q]", "tw")
    expect(tab.locator("#summary")).to_contain_text("1 of 1")
    tab.click("#theme")
    tab.click(".alert summary")
    tab.focus("#theme")
    top = "Math.round(document.getElementById('rollouts').getBoundingClientRect().top)"
    tab.evaluate(
        "window.kept = document.querySelector('#tokentable'); document.getElementById('filters').scrollIntoView()"
    )
    before = tab.evaluate(top)
    take(run.stage("mopd"), 2, LATER)
    expect(tab.locator("#rollouts-note")).to_contain_text("All 2 rollouts")
    tab.wait_for_function("window.followed === 1")
    label = "05_mopd: 2 steps, first 3, last 3, lowest 3, highest 3"
    expect(tab.locator("#curves-charts svg").last).to_have_attribute("aria-label", label)
    expect(tab.locator("#summary")).to_contain_text("1 of 2")  # the filter holds
    expect(tab.locator(".alert[open] pre")).to_contain_text("# Answers get longer and longer")
    assert tab.evaluate("window.kept === document.querySelector('#tokentable')")  # the open rollout was not touched
    assert tab.evaluate(f"[document.activeElement.id, {top}]") == ["theme", before]
    expect(tab.locator("html")).to_have_attribute("data-theme", "light")
    expect(tab.locator("[name=q]")).to_have_value("tw")
    tab.click("button[type=reset]")
    expect(tab.locator("[name=domain] option")).to_have_text(["all", "code", "math"])
    tab.close()


def test_an_open_rollout_is_found_again_under_another_number(run: RunFolder, served: Server, browser: Browser) -> None:
    tab = opened(browser, f"{served.url}#rollout=0")
    take(run.stage("if_rl"), 1, sample("if_rl/1/0/one/0", "instruction_following", [5, 0], [-0.5, -1.5], [-0.5, -1.5]))
    tab.wait_for_function("window.followed === 1")
    expect(tab.locator("#detail h3").first).to_have_text(TAUGHT.id)
    assert tab.url.endswith("#rollout=1")
    tab.close()


def test_the_first_rollouts_appear_in_a_page_that_had_none(tmp_path: Path, at_once: None, browser: Browser) -> None:
    with RunFolder.claim(tmp_path / "run", cascade(steps=4)) as (run, _):
        keep_tokenizer(run)
        with Server(LivePage(run.root, 1000, lambda: ()), port=0) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            tab = opened(browser, server.url)
            expect(tab.locator("#rollouts-note")).to_have_text("No stage has sampled rollouts yet.")
            take(run.stage("mopd"), 1, TAUGHT)
            expect(tab.locator("#detail h3").first).to_have_text(TAUGHT.id)
            server.shutdown()
        expect(tab.locator("#live")).to_have_text("no answer")
        tab.close()


@pytest.mark.parametrize("scheme, dark", [("light", False), ("dark", True)])
def test_both_schemes_at_both_widths(served: Server, browser: Browser, scheme: str, dark: bool) -> None:
    for width in (1280, 390):
        tab = opened(browser, served.url, width, scheme)
        expect(tab.locator("#live")).to_be_visible()
        assert tab.evaluate("document.documentElement.scrollWidth") == width
        paper = tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (max(paper) < 60) == dark
        tab.close()


def test_nothing_is_written_and_only_one_address_is_answered(run: RunFolder, served: Server) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.root.rglob("*")}
    answers = {}
    for place in ("/", f"{served.place}../", served.place):
        connection = http.client.HTTPConnection("127.0.0.1", served.server_port)
        connection.request("GET", place)
        answers[place] = connection.getresponse().status
        connection.close()
    assert list(answers.values()) == [404, 404, 200]
    assert served.server_address[0] == "127.0.0.1"
    assert {path: path.stat().st_mtime_ns for path in run.root.rglob("*")} == before


def test_a_page_is_made_once_for_each_state_and_rests_ten_times_as_long(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]

    def slow(*_: object, follow: str) -> tuple[str, None]:
        now[0] += 3.0
        return follow, None

    monkeypatch.setattr(watch, "page", slow)
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    live = LivePage(run.root, 1000, lambda: ())
    first = live.content()
    take(run.stage("mopd"), 2, LATER)
    now[0] += 29
    assert live.content() is first and live.tag() == first[0]
    now[0] += 2
    second = live.content()
    assert second != first and second[1] == f'"{second[0]}"'.encode()
    now[0] += 31
    assert live.content() is second  # nothing has changed


def test_a_port_that_is_taken_is_told(run: RunFolder, served: Server) -> None:
    with pytest.raises(UserError, match=f"--port: expected a free port, found {served.server_port}"):
        Server(served.live_page, served.server_port)


def test_the_address_and_the_way_to_it_are_printed(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Server, "serve_forever", lambda _: None)
    assert _run(["watch", str(run.root), "--port", "0"]) == 0
    address, way = capsys.readouterr().out.splitlines()
    (port,) = re.findall(rf"^{re.escape(str(run.root))}: http://127\.0\.0\.1:(\d+)/[\w-]{{22}}/$", address)
    assert re.search(rf"ssh -N -L {port}:127\.0\.0\.1:{port} \S+@\S+$", way)
