from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bombus.cli.report import report
from bombus.errors import BombusError
from bombus.report.layout import SHORT
from bombus.report.page import make_page
from bombus.report.records import find_runs, read_run
from html_tree import Element, Reader

STANDARD = tuple(SHORT)
SMALL = {"samples": 600, "batch": 100, "log": True}


def page_of(*folders: Path) -> Element:
    return Reader(make_page([read_run(path) for path in find_runs(folders)])).root


def headings(page: Element) -> list[str]:
    return [e.words for e in page.all("h3")]


def pictures(page: Element) -> list[str]:
    return [svg.all("title")[0].words for svg in page.all("svg", role="img")]


def rows(table: Element) -> list[tuple[str, list[Element]]]:
    found = [row for body in table.all("tbody") for row in body.all("tr")]
    return [(row.all("th")[0].words, row.all("td")) for row in found]


def add_signals(folder: Path, replays: tuple[int, ...]) -> None:
    log = folder / "batches.jsonl"
    lines = []
    for record in map(json.loads, log.read_text().splitlines()):
        batch = record["batch"]
        signals = {"mcr": 3.0 + (batch in replays), "mcr_2": 1.5, "z": 9.0 * (batch in replays)}
        signals |= {"teacher_perplexity_2": 12.0, "student_perplexity_2": 40.0}
        shift = [{"event": "shift", "z": 9.0}, {"event": "replay"}]
        events = shift if batch in replays else []
        lines.append({**record, "signals": signals, "events": events})
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def runs(write_run, tmp_path) -> Path:
    """Four methods, one of them with source data, one with two seeds."""
    write_run("runs/source", "source", (50, 60, 70), **SMALL)
    write_run("runs/tent-1", "tent", (20, 30, 40), **SMALL)
    write_run("runs/tent-2", "tent", (22, 32, 42), seed=2, **SMALL)
    facts = {"source_access": "samples", "config": {"threshold": 6.0}}
    bee = write_run("runs/bee", "bee", (10, 20, 30.5), **facts, **SMALL)
    add_signals(bee, replays=(6, 12))
    return tmp_path / "runs"


def test_is_sound_html(runs):
    page = page_of(runs)
    (html,) = page.all("html")
    assert html.attributes["lang"] == "en"
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("script")) == 1
    ids = [e.attributes["id"] for e in page.all("*") if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    figures = page.all("figure")
    assert figures
    for figure in figures:
        (svg,) = figure.all("svg", role="img")
        assert figure.all("figcaption")[0].words
        told = (svg.attributes["aria-labelledby"] or "").split()
        named = {e.attributes["id"]: e.words for e in svg.all("*") if "id" in e.attributes}
        assert len(told) == 2
        assert all(named[id] for id in told)
    for table in page.all("table"):
        assert table.all("caption")[0].words
        assert all("scope" in head.attributes for head in table.all("th"))


def test_loads_nothing_and_runs_only_its_own_script(runs):
    page = page_of(runs)
    for element in page.all("*"):
        assert element.name not in ("link", "img", "iframe", "object", "base")
        assert "src" not in element.attributes
        assert not any(name.startswith("on") for name in element.attributes)
        assert not any("http" in (value or "") for value in element.attributes.values())
        assert (element.attributes.get("href") or "#").startswith("#")
    style = page.all("style")[0].words
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [m.attributes["content"] for m in page.all("meta") if "http-equiv" in m.attributes]
    digest = hashlib.sha256(page.all("script")[0].words.encode()).digest()
    own = base64.b64encode(digest).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'"


def test_says_what_was_run_and_what_came_out(runs):
    said = [p.words for p in page_of(runs).all("header")[0].all("p")]
    assert said[0] == (
        "4 runs of 3 methods (source, tent and bee) with seeds 1 and 2, on cifar10-c with "
        "wrn-28-10: a continual stream of 3 domains at severity 5, 600 images a domain, in batches "
        "of 100."
    )
    # bee: (10 + 20 + 30.5) / 3 = 20.2; tent: (30 + 32) / 2; source: 60.
    assert said[1] == (
        "bee makes the fewest errors: 20.2 % on average over the domains, 10.8 points below the "
        "next best, tent (2 seeds) (31.0 %), and 39.8 points below the model that does not adapt "
        "(60.0 %)."
    )
    assert said[2].endswith("of what did not, the best is tent (2 seeds) (31.0 %).")
    assert len(said) == 3


def test_a_folder_of_images_has_no_severity(write_run):
    bare = {"name": "mine", "severities": "none; the severity asked for is ignored"}
    folder = write_run("x", benchmark="folder", domains=("day", "dusk", "fog"), data=bare, **SMALL)
    summary = page_of(folder).all("p")[0].words
    assert "a continual stream of 3 domains, 600 images a domain" in summary


def test_says_what_cannot_be_concluded(write_run, tmp_path):
    write_run("tent", "tent", (20, 30, 40))
    write_run("bn", "bn", (20, 30, 40.04), samples=500, precision="bf16")
    said = [p.words for p in page_of(tmp_path).all("header")[0].all("p")]
    assert said[1].startswith("bn and tent: 30.0 % ")  # equal as the table shows them
    assert "one seed" in said[2]
    assert said[3] == "The runs differ in their number of images and precision: compare with care."
    write_run("sar", "sar", (10, 30, 20))
    said = [p.words for p in page_of(tmp_path).all("header")[0].all("p")]
    assert said[1].endswith("10.0 points below the next best, bn and tent (30.0 %).")
    alone = page_of(tmp_path / "tent").all("header")[0].all("p")
    assert [p.words for p in alone[1:]] == ["tent: 30.0 % of the answers are wrong."]


def test_the_table_is_the_papers(write_run, tmp_path):
    errors = [float(20 + i) for i in range(15)]
    write_run("bn", "bn", errors, domains=STANDARD)
    write_run("tent", "tent", [e - 1 for e in errors], domains=STANDARD)
    write_run("rmt", "rmt", [e - 2 for e in errors], domains=STANDARD, source_access="labels")
    page = page_of(tmp_path)
    table = page.all("table", class_="sortable")[0]
    heads = [b.words for th in table.all("thead")[0].all("th") for b in th.all("button")]
    assert heads == ["Method", *SHORT.values(), "Mean", "BEE paper", "TTA repo"]
    assert [tr.words for tr in table.all("tr", class_="section")] == [
        "source-free",
        "source-assisted",
    ]
    shown = dict(rows(table))
    assert [td.words for td in shown["tent"]][:2] == ["19.0", "20.0"]
    assert {td.attributes["class"] for td in shown["rmt"]} == {
        "domain best",
        "mean best",
        "published",
    }
    assert len([td for td in shown["rmt"] if td.all("strong")]) == 16
    assert len([td for td in shown["tent"] if td.all("u")]) == 16
    printed = {name: [td.words for td in cells[-2:]] for name, cells in shown.items() if cells}
    assert printed == {"bn": ["20.4", "20.4"], "tent": ["20.7", "20.0"], "rmt": ["14.5", ""]}
    notes = page.all("ul", class_="notes")[0].words
    assert "2508.12643" in notes


def test_cells_carry_the_value_they_are_sorted_by(runs):
    errors, cost = page_of(runs).all("table", class_="sortable")
    shown = dict(rows(errors))
    values = [td.attributes["data-value"] for td in shown["tent (2 seeds)"]]
    assert values == ["21.0", "31.0", "41.0", "31.0"]
    assert shown["tent (2 seeds)"][-1].words == "31.0 ± 1.41"
    assert [th.attributes["data-kind"] for th in errors.all("thead")[0].all("th")] == [
        "text",
        *["number"] * 4,
    ]
    shown = dict(rows(cost))
    heads = [th.words for th in cost.all("thead")[0].all("th")]
    beside = dict(zip(heads[1:], shown["bee"], strict=True))
    assert beside["ms/batch"].attributes["data-value"] == "12.3"
    assert beside["source data"].attributes["data-value"] == "samples"
    assert "data-value" not in beside["source MB"].attributes  # the run does not say


def test_quality_is_shown_where_it_is_known(write_run, tmp_path):
    early = write_run("early", "bn")
    assert "log loss" not in page_of(early).words
    known = {"calibration_error": 4.321, "log_loss": 0.98765, "batches_to_adapt": 2.5}
    write_run("tent", "tent", **known)
    cost = page_of(tmp_path).all("table", class_="sortable")[1]
    heads = [th.words for th in cost.all("thead")[0].all("th")]
    assert heads[2:5] == ["calib. %", "log loss", "to adapt"]
    assert [td.words for td in dict(rows(cost))["tent"]][1:4] == ["4.32", "0.988", "2.5"]
    short = write_run("short", "sar", **{**known, "batches_to_adapt": None})
    cost = page_of(short).all("table", class_="sortable")[1]
    assert [th.words for th in cost.all("thead")[0].all("th")][2:5] == [
        "calib. %",
        "log loss",
        "ms/batch",
    ]


def test_sections_follow_what_the_runs_have(runs, write_run):
    whole = page_of(runs)
    assert pictures(whole) == [
        "Error over the stream",
        "Error against cost",
        "Consistency loss over the stream",
        "Shift score over the stream",
        "Perplexity over the stream",
    ]
    assert headings(whole)[-2:] == ["Inside the method", "Where the numbers come from"]
    loss = whole.all("svg", role="img")[2]
    assert len(loss.all("circle", class_="replay")) == 2
    assert "2 of 2 borders found within 3 batches, 0 of 2 alarms false" in whole.words

    score = whole.all("svg", role="img")[3]
    assert len(score.all("line", class_="threshold")) == 1

    plain = page_of(runs / "source", runs / "tent-1")
    assert "Inside the method" not in headings(plain)
    assert pictures(page_of(runs / "source")) == ["Error over the stream"]

    (runs / "tent-1" / "batches.jsonl").unlink()
    (runs / "tent-2" / "batches.jsonl").unlink()
    part = page_of(runs)
    assert "by method and seed: tent (1, 2)." in part.words
    lines = part.all("svg", role="img")[0].all("g")
    assert [line.all("title")[0].words for line in lines] == [
        "source: mean error 60.0 %",
        "bee: mean error 20.2 %",
    ]


def test_a_trigger_of_both_directions_has_two_thresholds(write_run):
    config = {"trigger": "level", "threshold": 2.0}
    folder = write_run("bee", "bee", config=config, **SMALL)
    add_signals(folder, replays=(6, 12))  # z is 9 there
    page = page_of(folder)
    (score,) = [s for s in page.all("svg", role="img") if "Shift score" in s.words]
    levels = [float(e.attributes["y1"] or "") for e in score.all("line", class_="threshold")]
    grid = [float(e.attributes["y1"] or "") for e in score.all("line", class_="grid")]
    # Grid lines at -2, 0, 2, ...
    assert levels == pytest.approx([grid[2], grid[0]])
    assert "Beyond the dashed lines, either way (2)" in page.words


def test_runs_of_one_method_are_told_apart_wherever_they_are_named(write_run, tmp_path):
    for name, replay in (("with", "weighted"), ("without", "off")):
        for seed in (1, 2):
            folder = f"runs/{name}-{seed}"
            write_run(folder, "bee", config={"replay": replay}, seed=seed, **SMALL)
            add_signals(tmp_path / folder, replays=(6,))
    page = page_of(tmp_path / "runs")
    names = [f"bee (replay={r}), seed {s}" for r in ("off", "weighted") for s in (1, 2)]
    summaries = [details.all("summary")[0].words for details in page.all("details")]
    assert sorted(summaries[:4]) == names  # what each saw inside
    assert sorted(words.partition(":")[0] for words in summaries[4:]) == names  # its provenance
    # That each has two seeds is said once, below the table, and not at every name.
    assert "2 seeds)" not in page.words
    keys = [button.words for button in page.all("ul", class_="legend")[0].all("button")]
    assert [key.partition(":")[0] for key in keys] == ["bee (replay=weighted)", "bee (replay=off)"]


def test_a_ledger_of_results_is_enough(runs, tmp_path):
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    for name in ("source", "bee"):
        shutil.copy(runs / name / "run.json", ledger / f"{name}.json")
    page = page_of(ledger)
    assert pictures(page) == ["Error against cost"]
    assert "not its batches.jsonl" in page.words
    # The run itself and its copy are one, and the one that can be drawn is taken.
    assert "Error over the stream" in pictures(page_of(ledger, runs))
    assert "not its batches.jsonl" not in page_of(ledger, runs).words


def test_a_long_stream_makes_no_huge_page(write_run):
    folder = write_run("tent", samples=20_000, batch=10, log=True)  # 6,000 batches
    page = make_page([read_run(folder)])
    assert len(page) < 60_000
    (path,) = Reader(page).root.all("svg", role="img")[0].all("path")
    # Of each stretch two points, or one where the error stays the same, as here.
    assert 700 < (path.attributes["d"] or "").count(" ") < 1600


def test_the_heat_map_shades_by_error(runs):
    (heat,) = page_of(runs).all("table", class_="heat")
    shown = {
        name: [(td.words, td.attributes["class"]) for td in cells] for name, cells in rows(heat)
    }
    # From 10 to 70 in eight shades, 7.5 points each.
    assert shown["bee"] == [("10", "h0"), ("20", "h1"), ("30", "h2")]
    assert shown["source"] == [("50", "h5"), ("60", "h6"), ("70", "h7")]
    assert heat.all("td")[0].attributes["title"] == "source, gaussian noise: 50.0 %"


def test_provenance_is_complete_and_folded(runs):
    told = page_of(runs).all("details", class_="run")
    assert [t.all("summary")[0].words for t in told] == [
        "source, seed 1: 60.00 %",
        "tent, seed 1: 30.00 %",
        "tent, seed 2: 32.00 %",
        "bee, seed 1: 20.17 %",
    ]
    assert not any("open" in t.attributes for t in told)
    facts = {div.all("dt")[0].words: div.all("dd")[0].words for div in told[1].all("div")}
    stored = json.loads((runs / "tent-1" / "run.json").read_text())
    assert facts["command"] == "bombus run"
    assert facts["SHA-256 of the weights"] == stored["weights_sha256"]
    assert facts["lr"] == "0.001"
    assert facts["batch_size"] == "100"
    assert facts["events"] == "none"
    assert {
        "settings",
        "stream",
        "data",
        "input",
        "device",
        "precision",
        "versions",
    } <= facts.keys()
    assert facts["file"] == "tent-1/run.json"


def test_tells_findings_events_and_what_it_does_not_know_of(write_run, tmp_path):
    write_run(
        "tent",
        events=[{"batch": 3, "event": "rollback", "why": {"loss": None}}],
        preflight=["The batches are small.", "Norm layers: 2."],
        clean_before=5.25,
    )
    (told,) = page_of(tmp_path).all("details", class_="run")
    facts = {div.all("dt")[0].words: div.all("dd")[0] for div in told.all("div")}
    assert facts["events"].words == "batch: 3, event: rollback, why: loss: none"
    assert [li.words for li in facts["preflight findings"].all("li")][1] == "Norm layers: 2."
    assert facts["clean before"].words == "5.25"


HOSTILE = "</title><script>alert(1)</script><b evil='\"&amp;"


def test_what_files_say_stays_text(write_run, tmp_path):
    domains = (HOSTILE, "fog")
    for name, method, error in (("a", HOSTILE, 20.0), ("b", "tent", 30.0)):
        write_run(
            name,
            method,
            (error, 30.0),
            domains=domains,
            device=HOSTILE,
            command=HOSTILE,
            events=[{"event": HOSTILE}],
            config={HOSTILE: HOSTILE},
            benchmark=HOSTILE,
            backbone="\ud800",  # no letter at all: it cannot even be encoded
            **SMALL,
        )
    page = page_of(tmp_path)
    assert len(page.all("script")) == 1
    assert not page.all("b")
    for element in ("h1", "title", "th", "dd", "dt", "text", "figcaption", "desc", "button"):
        assert any(HOSTILE in e.words for e in page.all(element)), element
    assert not any("evil" in e.attributes for e in page.all("*"))


def test_the_same_runs_give_the_same_bytes_anywhere(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "elsewhere" / "runs")
    report((runs,), out=tmp_path / "a.html")
    report((tmp_path / "elsewhere" / "runs",), out=tmp_path / "b.html")
    page = (tmp_path / "a.html").read_bytes()
    assert page == (tmp_path / "b.html").read_bytes()
    assert str(tmp_path).encode() not in page


def test_tasks_stand_apart(runs, write_run):
    other = write_run("other", "tent", (5.0,), domains=("fog",), benchmark="cifar100-c")
    recurring = write_run("again", "tent", stream={"kind": "recurring", "visits": 3})
    page = page_of(runs, other, recurring)
    assert page.all("h1")[0].words == "Test-time adaptation: 3 tasks"
    names = [h2.words for h2 in page.all("h2")]
    assert names == [
        "cifar10-c, wrn-28-10, severity 5, 3 domains",
        "cifar100-c, wrn-28-10, severity 5, 1 domain",
        "cifar10-c, wrn-28-10, severity 5, recurring, visits 3, 3 domains",
    ]
    links = page.all("header")[0].all("a")
    assert [a.words for a in links] == names
    ids = [section.attributes.get("id") for section in page.all("main")[0].children]
    assert [a.attributes["href"] for a in links] == [f"#{id}" for id in ids]
    assert "a recurring stream (visits 3) of 3 domains" in page.words


def test_command(runs, write_run, tmp_path, capsys):
    (write_run("runs/late") / "run.json").unlink()
    out = tmp_path / "new" / "report.html"
    report((runs,), out=out)
    said = capsys.readouterr()
    assert said.out == f"Written to {out}\n"
    assert said.err == f"bombus: left out {runs / 'late'}, which is unfinished (--resume).\n"
    assert out.read_text().startswith("<!doctype html>\n<html")
    with pytest.raises(BombusError, match="Name the runs"):
        report(())
    with pytest.raises(BombusError, match=r"ends in \.html"):
        report((runs,), out=runs / "bee" / "run.json")
    (runs / "bee" / "batches.jsonl").write_text("torn")
    with pytest.raises(BombusError, match=r"Line 1 of .* is not a batch record"):
        report((runs,), out=out)


def test_needs_neither_torch_nor_matplotlib(runs, tmp_path):
    code = (
        "import sys; from pathlib import Path; from bombus.cli.report import report\n"
        "report((Path(sys.argv[1]),), out=Path(sys.argv[2]))\n"
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(runs), str(tmp_path / "report.html")]
    subprocess.run(command, check=True, capture_output=True)
