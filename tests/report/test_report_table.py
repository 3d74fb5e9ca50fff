from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import asdict, replace

import pytest

from bombus.methods import find_method
from bombus.report.layout import SHORT
from bombus.report.records import read_run
from bombus.report.table import make_tables, to_csv, to_latex, to_markdown, to_text

STANDARD = tuple(SHORT)


@pytest.fixture
def tables_of(write_run):
    """Tables from (method, errors, other settings) triples."""

    def make(*runs, **options):
        folders = [
            write_run(f"{number}", method, errors, **more)
            for number, (method, errors, more) in enumerate(runs)
        ]
        return make_tables([read_run(folder) for folder in folders], **options)

    return make


def marks(table, column=0):
    return [row.cells[column].mark for row in table.rows]


def labels(table):
    return [row.label for row in table.rows]


def full(shift=0.0):
    return [round(10 + i + shift, 4) for i in range(15)]


def test_seeds_are_averaged_and_spread_is_the_sample_deviation(tables_of):
    (table,) = tables_of(
        ("source", (50.0, 60.0, 70.0), {}),
        ("tent", (10.0, 20.0, 30.0), {"seed": 1}),  # mean 20
        ("tent", (13.0, 20.0, 33.0), {"seed": 2}),  # mean 22
        ("tent", (16.0, 26.0, 36.0), {"seed": 3}),  # mean 26
    )
    assert labels(table) == ["source", "tent (3 seeds)"]
    assert [row.seeds for row in table.rows] == [1, 3]
    values = [cell.value for cell in table.rows[1].cells]
    assert values == pytest.approx([13.0, 22.0, 33.0, 68 / 3])
    # Deviations from 68/3: -8/3, -2/3, 10/3; squares 64/9 + 4/9 + 100/9 = 56/3; over n - 1 = 2.
    assert table.rows[1].cells[-1].spread == pytest.approx((28 / 3) ** 0.5)
    assert table.rows[0].cells[-1].spread is None
    assert "22.7±3.06" in to_text([table])
    assert "**22.7 ± 3.06**" in to_markdown([table])
    assert "\\textbf{22.7 $\\pm$ 3.06}" in to_latex([table])


def test_what_all_rows_share_is_said_once(tables_of):
    runs = [(m, (e, e, e), {"seed": n}) for m, e in (("a", 9.0), ("b", 8.0)) for n in (1, 2)]
    (table,) = tables_of(*runs)
    assert labels(table) == ["a", "b"]
    assert table.notes == ("± is the standard deviation over 2 seeds.",)


def test_the_quickest_seed_says_what_a_batch_costs(tables_of):
    def took(ms, forwards):
        passes = {"forwards_per_batch": forwards, "backwards_per_batch": 1}
        return {"cost": {"ms_per_batch": ms, "peak_memory_mb": 50.4, **passes}}

    (table,) = tables_of(
        ("cotta", (9.0, 9.0, 9.0), {"seed": 1, **took(70.0, 12.0797)}),
        ("cotta", (9.0, 9.0, 9.0), {"seed": 2, **took(50.26, 12.0791)}),
        cost=True,
    )
    line = to_text([table]).splitlines()[-4]
    assert "50.3" in line
    assert " 12.08 " in line
    assert " 1 " in line


@pytest.mark.parametrize(
    ("other", "differing"),
    [
        ({"weights_sha256": "f" * 64}, "weights"),
        ({"precision": "bf16", "batch": 100}, "batch size and precision"),
        ({"samples": 100}, "number of images"),
        ({"data": {"name": "cifar10-c", "folder": "elsewhere"}}, None),
    ],
)
def test_runs_that_do_not_answer_the_same_question_are_told_of(tables_of, other, differing):
    (table,) = tables_of(("a", (9.0, 9.0, 9.0), {}), ("b", (9.0, 9.0, 9.0), other))
    told = f"The runs differ in their {differing}: compare with care."
    assert table.notes == ((told,) if differing else ())


def test_best_and_second_best_with_ties_as_shown(tables_of):
    (table,) = tables_of(
        ("a", (20.0, 20.01, 5.0), {}),
        ("b", (10.0, 20.04, 7.0), {}),
        ("c", (30.0, 30.0, 7.04), {}),
        ("d", (40.0, 40.0, 9.0), {}),
    )
    assert marks(table, 0) == ["second", "best", "", ""]
    assert marks(table, 1) == ["best", "best", "", ""]  # equal as printed: no second
    assert marks(table, 2) == ["best", "second", "second", ""]


def test_digits_decide_what_is_a_tie(write_run):
    runs = [
        read_run(write_run(m, m, (e,), domains=["fog"])) for m, e in (("a", 20.01), ("b", 20.04))
    ]
    assert marks(make_tables(runs, digits=1)[0]) == ["best", "best"]
    assert marks(make_tables(runs, digits=2)[0]) == ["best", "second"]
    assert "20.04" in to_text(make_tables(runs, digits=2))


def test_one_row_alone_is_not_called_best(tables_of):
    (table,) = tables_of(("tent", (1.0, 2.0, 3.0), {}))
    assert marks(table) == [""]
    assert "*" not in to_text([table])


def printed_in(table):
    return [column.head for column in table.columns if column.kind == "published"]


def test_published_means_only_beside_the_same_task(tables_of):
    standard = {"domains": STANDARD}
    cases = {
        "same": standard,
        "other network": {**standard, "backbone": "wrn-40-2"},
        "other benchmark": {**standard, "benchmark": "cifar100-c"},
        "other severity": {**standard, "stream": {"severity": 3}},
        "other order": {"domains": STANDARD[::-1]},
    }
    tables = tables_of(*(("tent", full(), case) for case in cases.values()))
    shown = {name: printed_in(t) for name, t in zip(cases, tables, strict=True)}
    assert shown.pop("same") == ["BEE paper", "TTA repo"]
    assert not any(shown.values())
    assert all(labels(table) == ["tent"] for table in tables)


def test_published_means_are_never_ranked_and_say_where_they_come_from(tables_of):
    methods = (("source", 50), ("bn", 45), ("roid", 20), ("rdumb", 10))
    (table,) = tables_of(*((m, full(s), {"domains": STANDARD}) for m, s in methods))
    assert [[c.value for c in row.cells[-2:]] for row in table.rows] == [
        [43.5, 43.5],
        [20.4, 20.4],
        [None, 16.2],
        [None, None],
    ]
    assert table.rows[2].cells[-1].spread == 0.05
    assert not any(cell.mark for row in table.rows for cell in row.cells[-2:])
    assert marks(table, -3) == ["", "", "second", "best"]
    assert any("arXiv:2508.12643), Table 2" in note for note in table.notes)
    assert not any("unlike ours" in note for note in table.notes)
    stored = next(csv.DictReader(io.StringIO(to_csv([table]))))
    assert (stored["published, BEE paper"], stored["mean"]) == ("43.5", "67.0")


def test_published_means_of_another_protocol_say_so(tables_of):
    (table,) = tables_of(("bn", full(), {"domains": STANDARD, "samples": 400, "batch": 100}))
    unlike = "unlike ours: 10,000 images, batches of 200."
    assert f"published (TTA repo), {unlike}" in table.notes


def test_every_variant_of_a_method_stands_beside_its_published_mean(tables_of):
    task = {"domains": STANDARD}
    (table,) = tables_of(
        ("cotta", full(), {**task, "config": {"lr": 1e-3}}),
        ("cotta", full(1), {**task, "config": {"lr": 1e-4}}),
        ("roid", full(2), task),
        ("roid", full(4), {**task, "seed": 2}),
    )
    assert labels(table) == ["cotta (lr=0.001)", "cotta (lr=0.0001)", "roid (2 seeds)"]
    assert [row.cells[-2].value for row in table.rows] == [16.2, 16.2, None]
    # The deviation of a program's table is ours, never the printed one.
    deviations = [line["std"] for line in csv.DictReader(io.StringIO(to_csv([table])))]
    assert deviations == ["", "", "1.41"]


def test_published_rows_tell_of_another_protocol_and_of_misprints(tables_of):
    task = {"domains": STANDARD, "benchmark": "imagenet-c", "backbone": "resnet50"}
    (table,) = tables_of(("obao", full(), {**task, "samples": 500, "batch": 64}))
    assert labels(table) == ["obao", "published (BEE paper, 5,000 images)"]
    assert "OBAO is printed as 59.0, but its columns average 59.07." in table.notes
    assert table.rows[1].cells[0].value == 78.5


def test_published_can_be_left_out(tables_of):
    (table,) = tables_of(("tent", full(), {"domains": STANDARD}), published=False)
    assert labels(table) == ["tent"]
    assert printed_in(table) == []


def test_where_many_settings_differ_a_row_names_what_is_not_the_methods_own(tables_of):
    own = json.loads(json.dumps(asdict(find_method("bee").Config.for_benchmark("cifar10-c"))))
    changes = [
        {},
        {"inner_steps": 0},
        {"levels": [-2, -1], "replay": "weighted"},
        {"prediction_weight": 0.0, "momentum": 0.99},
    ]
    (table,) = tables_of(
        *(
            ("bee", (1, 2, place), {"config": {**own, **change}})
            for place, change in enumerate(changes, start=1)
        ),
    )
    assert sorted(labels(table)) == [
        "bee",
        "bee (inner_steps=0)",
        "bee (levels=[-2, -1], replay=weighted)",
        "bee (momentum=0.99, prediction_weight=0)",
    ]


@pytest.mark.parametrize(("method", "benchmark"), [("anothers", "cifar10-c"), ("tent", "anothers")])
def test_what_is_unknown_here_names_all_that_differs(tables_of, method, benchmark):
    names = ("one", "two", "three", "four")
    base = dict.fromkeys(names, 0)
    (table,) = tables_of(
        *(
            (method, (1, 2, place), {"config": {**base, name: 1}, "benchmark": benchmark})
            for place, name in enumerate(names)
        ),
    )
    assert labels(table)[0] == f"{method} (one=1, two=0, three=0, four=0)"
    assert len(set(labels(table))) == 4


def test_different_settings_are_kept_apart_and_named(tables_of):
    (table,) = tables_of(
        ("tent", (1, 2, 3), {}),
        ("bn", (4, 5, 6), {}),
        ("tent", (1, 2, 4), {"config": {"lr": 0.0001}}),
        ("tent", (1, 2, 5), {"config": {"lr": 0.0001}, "seed": 2}),
        ("tent", (1, 2, 6), {"stream": {"batch_size": 64}}),
    )
    assert labels(table) == [
        "tent (lr=0.001, batch_size=200)",
        "tent (lr=0.0001, batch_size=200; 2 seeds)",
        "tent (lr=0.001, batch_size=64)",
        "bn",
    ]


def test_a_setting_that_older_runs_do_not_know_sets_nobody_apart(tables_of):
    """Unless it has two values among those who know it: then nobody can say which is theirs."""
    old = [("bee", (1, 2, 3), {"seed": 1}), ("bee", (1, 2, 4), {"seed": 2})]
    new = ("bee", (1, 2, 5), {"seed": 3, "config": {"loss": "a"}})
    (table,) = tables_of(*old, new)
    assert labels(table) == ["bee (3 seeds)"]


def test_a_young_setting_with_two_values_does(tables_of):
    old = ("bee", (1, 2, 3), {"seed": 1})
    new = [("bee", (1, 2, 5), {"seed": s, "config": {"loss": v}}) for s, v in ((2, "a"), (3, "b"))]
    (table,) = tables_of(old, *new)
    assert labels(table) == ["bee (loss=null)", "bee (loss=a)", "bee (loss=b)"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": 500}, "samples=500"),
        ({"weights_sha256": "f" * 64}, "weights=ffffffff"),
        ({"precision": "bf16"}, "precision=bf16"),
        ({"input": {"size": 32, "mean": None}}, "input mean=null"),
        ({"data": {"name": "cifar10-c", "generator": "bombus"}}, "data generator=bombus"),
    ],
)
def test_other_inputs_are_not_averaged_over(tables_of, change, said):
    (table,) = tables_of(("tent", (1, 2, 3), {}), ("tent", (1, 2, 4), {"seed": 2, **change}))
    assert len(table.rows) == 2
    assert said in table.rows[1].label


def test_the_same_run_twice_counts_once_but_another_result_does_not_vanish(tables_of):
    (table,) = tables_of(("tent", (1, 2, 3), {}), ("tent", (1, 2, 3), {"device": "gpu"}))
    assert [row.seeds for row in table.rows] == [1]


def test_the_same_seed_with_another_result_is_a_row_of_its_own(tables_of):
    (table,) = tables_of(("tent", (1, 2, 3), {}), ("tent", (1, 2, 4), {}))
    assert labels(table) == ["tent (repeat=1)", "tent (repeat=2)"]


def test_other_tasks_get_tables_of_their_own(tables_of):
    tables = tables_of(
        ("tent", (1, 2, 3), {}),
        ("tent", (1, 2, 3), {"benchmark": "demo", "backbone": "wrn-16-1"}),
        ("bn", (4, 5, 6), {}),
        ("bn", (4,), {"domains": ["fog"]}),
    )
    assert [t.heading for t in tables] == [
        "cifar10-c, wrn-28-10, severity 5, 3 domains",
        "demo, wrn-16-1, severity 5, 3 domains",
        "cifar10-c, wrn-28-10, severity 5, 1 domain",
    ]
    assert labels(tables[0]) == ["tent", "bn"]


@pytest.fixture
def everything(tables_of):
    task = {"domains": STANDARD}
    return tables_of(
        ("source", full(50), task),
        ("tent", full(5), {**task, "config": {"set_of": "a_b"}}),
        ("tent", full(6), {**task, "config": {"set_of": "a_b"}, "seed": 2}),
        ("tent", full(8), {**task, "config": {"set_of": "50%"}}),
        ("bee", full(1), {**task, "source_access": "samples"}),
        ("bee", (1.0, 100.0), {"domains": ["day_1", "fog"]}),
        cost=True,
    )


def make_tables_without_published(tables):
    """The same without the columns of printed numbers."""
    kept = []
    for table in tables:
        places = [i for i, column in enumerate(table.columns) if column.kind != "published"]
        rows = [replace(r, cells=tuple(r.cells[i] for i in places)) for r in table.rows]
        columns = tuple(table.columns[i] for i in places)
        kept.append(replace(table, columns=columns, rows=tuple(rows)))
    return kept


def test_text_fits_and_lines_up(everything):
    text = to_text(everything)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    heads = "Gauss Shot Impul Defoc Glass Motion Zoom Snow Frost Fog Brit Contr Elast Pixel JPEG"
    assert lines[2].split() == heads.split()
    bee = next(line for line in lines if line.startswith("bee "))
    assert re.findall(r"[\d.]+\*", bee) == [f"{v:.1f}*" for v in full(1)]
    assert bee.index("11.0*") == lines[2].index("Gauss")
    # What is printed never stands without the mean that it belongs to.
    beside = "Mean +BEE paper TTA repo ms/batch forwards backwards peak MiB source data"
    assert re.search(beside, text)
    assert re.search(r"bee +18\.0\* +12\.7 +12\.3 +1 +0\.5 +1234 +samples", text)
    narrow = to_text(make_tables_without_published(everything))
    assert f"{heads} Mean".split() in [line.split() for line in narrow.splitlines()]
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_text_bends_to_the_terminal(everything, width):
    text = to_text(everything, width=width)
    assert max(map(len, text.splitlines())) <= width
    styled = to_text(everything, width=width, styled=True)
    assert "\x1b[1m" in styled
    plain = re.sub(r"\x1b\[\d+m", "", styled)
    assert [line.rstrip() for line in plain.splitlines()] == text.splitlines()


def test_markdown_has_as_many_cells_everywhere(everything):
    for part, table in zip(to_markdown(everything).split("### ")[1:], everything, strict=True):
        lines = [line for line in part.splitlines() if line.startswith("|")]
        sections = {row.section for row in table.rows} - {""}
        assert len(lines) == 2 + len(table.rows) + len(sections)
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert counts == {len(table.columns) + 2}
    assert "| **11.0** |" in to_markdown(everything)


def test_names_of_folders_do_not_break_markdown(tables_of):
    names = ("a|b", "<i>", "plain")
    (table,) = tables_of(("tent", [1, 2, 3], {"domains": names}))
    head = to_markdown([table]).splitlines()[2]
    assert head == r"| Method | a\|b | &lt;i> | plain | Mean |"


def test_a_folder_of_images_has_no_severity(tables_of):
    bare = {"name": "mine", "severities": "none; the severity asked for is ignored"}
    own = {"benchmark": "folder", "domains": ("day", "night", "fog"), "data": bare}
    runs = [
        ("tent", [1, 2, 3], own),
        ("bn", [1, 2, 3], {**own, "stream": {"severity": 3}}),
    ]
    (table,) = tables_of(*runs)  # one, though somebody asked for another severity
    assert table.heading == "folder, wrn-28-10, 3 domains"


def test_latex_is_balanced_and_escaped(everything):
    text = to_latex(everything)
    body = re.sub(r"\\[{}&%$#_\\]", "", text)
    assert body.count("{") == body.count("}")
    assert body.count("$") % 2 == 0
    for name in ("table*", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}") == 2
    assert "set\\_of=50\\%" in text
    assert "day\\_1" in text
    assert not re.search(r"(?<!\\)[_#]", body)
    lines = [line for line in text.splitlines() if line.startswith("    ") and "&" in line]
    wide = len(everything[0].columns)
    narrow = len(everything[1].columns)
    assert [line.count(" & ") for line in lines] == [wide] * (1 + len(everything[0].rows)) + [
        narrow
    ] * (1 + len(everything[1].rows))
    assert "\\begin{tabular}{l|ccccccccccccccc|c|cc|cccccc}" in text


def test_whoever_saw_source_data_stands_apart(everything):
    mixed, alone = everything
    order = [row.section for row in mixed.rows]
    assert order == sorted(order, reverse=True)
    assert set(order) == {"source-free", "source-assisted"}
    for row in mixed.rows:
        assert (row.section == "source-assisted") == (row.method == "bee")
    assert {row.section for row in alone.rows} == {""}
    text, markdown, latex = to_text([mixed]), to_markdown([mixed]), to_latex([mixed])
    assert text.index("[source-free]") < text.index("[source-assisted]") < text.index("\nbee ")
    assert markdown.count("| *source-assisted* |") == 1
    assert latex.count("\\textit{source-free}") == 1
    assert "[source" not in to_text([alone])


def test_source_data_read_is_a_cost(write_run):
    folders = [write_run(f"{seed}", "bee", seed=seed, source_access="samples") for seed in (1, 2)]
    (table,) = make_tables([read_run(f) for f in folders], cost=True, published=False)
    index = [c.name for c in table.columns].index("source_mb")
    assert table.rows[0].cells[index].value is None
    stored = json.loads((folders[1] / "run.json").read_text())
    stored["cost"]["source_bytes"] = 153_600_000
    (folders[1] / "run.json").write_text(json.dumps(stored))
    (table,) = make_tables([read_run(f) for f in folders], cost=True, published=False)
    assert table.rows[0].cells[index].value == pytest.approx(153.6)


def test_csv_reads_back(everything):
    rows = list(csv.DictReader(io.StringIO(to_csv(everything)), strict=True))
    assert len(rows) == sum(len(t.rows) for t in everything)
    bee = next(row for row in rows if row["method"] == "bee")
    assert [float(bee[name]) for name in STANDARD] == full(1)
    assert (bee["mean"], bee["std"], bee["kind"], bee["seeds"]) == ("18.0", "", "run", "1")
    assert bee["source_access"] == "samples"
    spread = [row for row in rows if row["std"]]
    assert [row["seeds"] for row in spread] == ["2"]
    assert spread[0]["std"] == "0.71"  # of 22 and 23
    assert rows[-1]["day_1"] == "1.0"
    assert rows[-1]["gaussian_noise"] == ""


def test_csv_gives_intervals_their_own_columns(write_run):
    folders = [write_run(f"r{seed}", "bn", (20 + seed, 40, 40), seed=seed) for seed in (1, 2)]
    (table,) = make_tables([read_run(f) for f in folders], intervals=True, published=False)
    (row,) = csv.DictReader(io.StringIO(to_csv([table])))
    assert row["std"] == ""
    name = table.columns[0].name
    # Of 21 and 22, two seeds: t is 12.71, the deviation of the mean a half.
    assert float(row[f"{name} ±95 %"]) == pytest.approx(6.35, abs=0.01)
    assert float(row["mean ±95 %"]) == pytest.approx(2.12, abs=0.01)


def test_a_collapsed_method_is_marked_and_explained(write_run):
    runs = [
        read_run(write_run("a", "tent", collapsed=True)),
        read_run(write_run("b", "bn", calibration_error=3.25, log_loss=0.5, batches_to_adapt=2)),
    ]
    tables = make_tables(runs, quality=True)
    fallen, fine = tables[0].rows
    assert fallen.label == "tent †"
    assert fine.label == "bn"
    assert any("collapsed" in note for note in tables[0].notes)
    assert "$\\dagger$" in to_latex(tables)
    assert [cell.value for cell in fine.cells[-3:]] == [3.25, 0.5, 2]
    assert [cell.value for cell in fallen.cells[-3:]] == [None] * 3
    assert not any("collapsed" in note for note in make_tables(runs[1:])[0].notes)


def test_a_seed_that_diverged_is_not_made_up_for_by_the_others(write_run):
    known = {"calibration_error": 3.25, "log_loss": 0.5, "batches_to_adapt": 2}
    lost = {"calibration_error": None, "log_loss": None, "batches_to_adapt": 4}
    runs = [
        read_run(write_run("a", "tent", seed=1, not_finite=0, **known)),
        read_run(write_run("b", "tent", seed=2, not_finite=1234, **lost)),
        read_run(write_run("c", "bn", **known)),
    ]
    (table,) = make_tables(runs, quality=True)
    bn, tent = sorted(table.rows, key=lambda row: row.method)
    assert [cell.value for cell in bn.cells[-3:]] == [3.25, 0.5, 2]
    assert [cell.value for cell in tent.cells[-3:]] == [None, None, 3]
    assert [note for note in table.notes if "not finite" in note] == [
        "tent (2 seeds): 1,234 answers are not finite, so there is no calibration error and no log "
        "loss."
    ]


def test_intervals_stand_at_every_error(write_run):
    errors = [(20.0, 30.0, 40.0), (22.0, 30.0, 44.0), (24.0, 30.0, 42.0)]
    runs = [
        read_run(write_run(str(seed), "tent", e, seed=seed)) for seed, e in enumerate(errors, 1)
    ]
    (row,) = make_tables(runs, intervals=True)[0].rows
    # Student's t with 2 degrees of freedom, 4.303, times 2 / sqrt(3).
    assert row.cells[0].spread == pytest.approx(4.303 * 2 / 3**0.5)
    assert row.cells[1].spread == 0
    plain = make_tables(runs)[0].rows[0]
    assert [cell.spread for cell in plain.cells[:-1]] == [None] * 3
    assert plain.cells[-1].spread == pytest.approx((4 / 3) ** 0.5)  # of 30, 32, 32
