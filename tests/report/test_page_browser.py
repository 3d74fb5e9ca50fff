"""The page as a reader has it: in a browser, wide and narrow, light and dark, mouse and keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bombus.cli.report import report
from bombus.report.layout import SHORT
from browser import CHROMIUM, Page, open_browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")

STANDARD = tuple(SHORT)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def html(write_run, tmp_path, capsys) -> Path:
    size = {"domains": STANDARD, "samples": 400, "batch": 100, "log": True}
    write_run("runs/source", "source", [50 + i for i in range(15)], **size)
    write_run("runs/bn", "bn", [40 - i for i in range(15)], **size)
    write_run("runs/tent", "tent", [9 + i for i in range(15)], **size)
    write_run("runs/rdumb", "rdumb", [35] * 15, **size)
    bee = write_run("runs/bee", "bee", [12] * 15, source_access="samples", **size)
    log = bee / "batches.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    for record in records:
        replay = record["batch"] % 7 == 5
        record |= {"signals": {"mcr": 2.0 + replay, "z": 7.0 * replay}}
        record |= {"events": [{"event": "replay"}] if replay else []}
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    report((tmp_path / "runs",), out=tmp_path / "report.html")
    return tmp_path / "report.html"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_opens_without_complaint_and_fits(browser, html, width, dark):
    browser.open(html, width=width, dark=dark)
    assert browser.complaints() == []
    assert browser.requests() == [html.as_uri()]
    # Even with everything unfolded only what is made for it scrolls sideways.
    browser.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    ink, paper = browser.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    lightness = [sum(map(int, c[4:-1].split(","))) for c in (ink, paper)]
    assert (lightness[0] > lightness[1]) == dark
    # Letters in pictures stay large enough on a phone.
    size = browser.evaluate(
        "Math.min(...[...document.querySelectorAll('svg text')].map((t) => "
        "parseFloat(getComputedStyle(t).fontSize) * "
        "t.ownerSVGElement.getScreenCTM().a))"
    )
    assert size >= 8


def test_on_a_phone_a_tables_caption_is_free_of_the_shade_beside_its_numbers(browser, html):
    browser.open(html, width=390)
    gaps = browser.evaluate(
        "[...document.querySelectorAll('caption span')].map((span) => [span, "
        "span.closest('.scroll')]).filter(([span, around]) => around.scrollWidth > "
        "around.clientWidth).map(([span, around]) => around.getBoundingClientRect().right - "
        "span.getBoundingClientRect().right)"
    )
    assert len(gaps) >= 2  # tables that are wider than the phone
    assert max(gaps) < 1


def in_order(browser: Page) -> list[list[str]]:
    """Labels of the first table's rows, by section."""
    return browser.evaluate(
        "[...document.querySelector('table.sortable').tBodies].map((body) => "
        "[...body.rows].map((row) => row.cells[0].textContent))"
    )


def test_a_click_on_a_head_sorts(browser, html):
    browser.open(html)
    head = "document.querySelectorAll('table.sortable thead th')[{}]"
    before = in_order(browser)
    assert [section[0] for section in before] == ["source-free", "source-assisted"]
    ours = [name for name in before[0] if name in ("source", "bn", "tent")]
    assert ours == ["source", "bn", "tent"]

    def click(column: int) -> list[str]:
        browser.evaluate(head.format(column) + ".querySelector('button').click()")
        sections = in_order(browser)
        assert sections[0][0] == "source-free"
        assert sorted(sections[0]) == sorted(before[0])
        assert sections[1] == before[1] or column == 16
        return [name for name in sections[0] if name in ours]

    # Gaussian noise: source 50, bn 40, tent 9 (as a number: less than 40, though "9" > "40").
    assert click(1) == ["tent", "bn", "source"]
    assert browser.evaluate(head.format(1) + ".getAttribute('aria-sort')") == "ascending"
    assert click(1) == ["source", "bn", "tent"]
    assert browser.evaluate(head.format(1) + ".getAttribute('aria-sort')") == "descending"
    assert click(1) == ours
    assert in_order(browser) == before
    # JPEG: source 64, bn 26, tent 23; then by name.
    assert click(15) == ["tent", "bn", "source"]
    assert click(0) == ["bn", "source", "tent"]
    # Published, the paper's: bn 20.4, tent 20.7, source 43.5; what has none is last, either way.
    assert click(17) == ["bn", "tent", "source"]
    assert in_order(browser)[0][-1] == "rdumb"
    assert click(17) == ["source", "tent", "bn"]
    assert in_order(browser)[0][-1] == "rdumb"
    assert browser.evaluate(head.format(15) + ".hasAttribute('aria-sort')") is False
    assert browser.complaints() == []


def test_works_from_the_keyboard(browser, html):
    browser.open(html)
    browser.evaluate("document.querySelectorAll('table.sortable thead button')[0].focus()")
    browser.press("Tab", 9)
    focused = browser.evaluate("document.activeElement.textContent")
    assert focused == "Gauss"
    browser.press("Enter", 13, "\r")
    assert browser.evaluate("document.activeElement.parentElement.ariaSort") == "ascending"


def test_a_legend_hides_its_line(browser, html):
    browser.open(html)
    shown = (
        "[...document.querySelectorAll('figure')[0].querySelectorAll('svg[role=img] .series')]"
        ".map((g) => getComputedStyle(g).display !== 'none')"
    )
    assert browser.evaluate(shown) == [True] * 5
    key = "document.querySelectorAll('figure')[0].querySelectorAll('.legend button')[2]"
    browser.evaluate(f"{key}.click()")
    assert browser.evaluate(shown) == [True, True, False, True, True]
    assert browser.evaluate(f"{key}.ariaPressed") == "false"
    browser.evaluate(f"{key}.click()")
    assert browser.evaluate(shown) == [True] * 5


def test_a_strange_script_does_not_run(browser, html, tmp_path):
    """The page's policy lets its own script run and no other: this is what the policy is for."""
    hurt = tmp_path / "hurt.html"
    strange = "<script>document.title = 'hurt'</script></body>"
    hurt.write_text(html.read_text().replace("</body>", strange))
    browser.open(hurt)
    assert browser.evaluate("document.title").startswith("Test-time adaptation")
    assert browser.evaluate("document.documentElement.className") == "js"
    assert len(browser.complaints()) == 1
