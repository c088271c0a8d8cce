"Rank tests against printed numbers, trade-offs and the decomposition against their definitions, runs against tables."
import argparse
import itertools
import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("scikit_posthocs")
pytest.importorskip("matplotlib")

import fairmedfm as fm  # noqa: E402
from fairmedfm.bench.leaderboard import (add_compare_arguments, distance_to_optimum, explain_gaps, leaderboard, pareto, plot_gaps, plot_ranks, plot_tradeoff,  # noqa: E402
                                         rank_test, read_runs, run_compare, said)
from fairmedfm.core import InputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def table(seed=0, data=5, models=("CLIP", "BLIP", "DINOv2"), attributes=("sex", "age")):
    r = np.random.default_rng(seed)
    rows = [(f"d{d}", m, a, .7 + .05*i + .01*r.normal(), abs(.03 + .01*d + .01*r.normal())) for d in range(data) for i, m in enumerate(models) for a in attributes]
    return pd.DataFrame(rows, columns=["dataset", "model", "attribute", "utility", "gap"])


def test_nemenyi_p_values_agree_with_the_critical_difference():
    for seed in range(5):
        t = rank_test(pd.DataFrame(np.random.default_rng(seed).normal(size=(9, 5)) + np.arange(5)*.4))
        far = np.abs(t.ranks.to_numpy()[:, None] - t.ranks.to_numpy()) > t.critical_difference
        assert ((t.pairwise.to_numpy() < .05) == far).all()
        for g in t.groups(): assert t.ranks[g].max() - t.ranks[g].min() <= t.critical_difference


def test_two_models_or_one_block_have_no_friedman_test():
    t = leaderboard(table(models=("CLIP", "BLIP")))
    assert np.isnan(t.tests["gap"].p_value) and any("Friedman" in w for w in t.warnings)
    assert np.isnan(rank_test(pd.DataFrame(np.ones((4, 3)))).p_value) and np.isnan(rank_test(pd.DataFrame(np.random.rand(1, 3))).p_value)
    with pytest.raises(InputError, match="every model"): rank_test(pd.DataFrame([[1, 2, np.nan], [1, 2, 3]]))


@pytest.mark.parametrize("seed", range(5))
def test_pareto_and_distance_by_brute_force(seed):
    r = np.random.default_rng(seed)
    u, g = r.integers(0, 6, 12)/6, r.integers(0, 6, 12)/6
    want = [not any((u[j] >= u[i] and g[j] <= g[i]) and (u[j] > u[i] or g[j] < g[i]) for j in range(12)) for i in range(12)]
    assert pareto(u, g).tolist() == want
    v = pd.DataFrame(r.random((4, 3)))
    assert np.allclose(distance_to_optimum(v), [np.sqrt(sum((v.iloc[i, k]/v[k].max() - 1)**2 for k in range(3))) for i in range(4)])


def test_the_decomposition_is_the_textbook_analysis_of_variance():
    "Against least squares with dummies, and against what was put in."
    r = np.random.default_rng(4)
    index = pd.MultiIndex.from_tuples([("a", "sex"), ("a", "age"), ("b", "sex"), ("b", "age"), ("b", "race"), ("c", "sex")], names=["dataset", "attribute"])
    cells = pd.DataFrame(r.normal(size=(6, 4)), index=index)
    y, block, model = cells.to_numpy().ravel(), np.repeat(np.arange(6), 4), np.tile(np.arange(4), 6)
    data = np.repeat([0, 0, 1, 1, 1, 2], 4)
    left = lambda *f: (lambda X: np.square(y - X @ np.linalg.lstsq(X, y, rcond=None)[0]).sum())(np.column_stack([np.ones(24), *(np.eye(k.max() + 1)[k] for k in f)]))
    ss = [left(model) - left(model, data), left(model, data) - left(model, block), left(block) - left(block, model), left(block, model)]
    t = explain_gaps(cells)
    assert np.allclose(t.share_of_squares, np.array(ss)/left()) and t.df.tolist() == [2, 3, 3, 15]
    assert np.isclose(t.f["model"], (ss[2]/3)/(ss[3]/15))
    made = []
    for s in range(30):
        r = np.random.default_rng(s)
        made.append(explain_gaps(pd.DataFrame(r.normal(0, .03, 12)[:, None] + r.normal(0, .01, 8) + r.normal(0, .01, (12, 8)), index=pd.MultiIndex.from_product([range(12), ["sex"]], names=["dataset", "attribute"]))).variance)
    assert np.allclose(np.mean(made, axis=0), [.03**2, 0, .01**2, .01**2], rtol=.3)
    with pytest.raises(InputError, match="two of each"): explain_gaps(cells.iloc[:, :1])


def runs(root, seeds=(0, 1)):
    for k, (d, m, s) in enumerate(itertools.product(("A", "B"), ("CLIP", "BLIP", "MedCLIP"), seeds)):
        r, folder = np.random.default_rng(k), root/f"cls/lp/erm/{d}/{m}/sex/seed{s}"
        folder.mkdir(parents=True)
        y = r.integers(0, 2, 90)
        pd.DataFrame({"id": range(90), "y_true": y, "y_score": r.random(90)*.6 + .4*y*r.random(90), "sex": r.choice(["F", "M"], 90), "age_group": r.choice(["<60", "60+"], 90)}).to_csv(folder/"predictions.csv", index=False)
    return root


def test_run_folders_give_what_evaluate_gives_and_seeds_are_averaged(tmp_path):
    root = runs(tmp_path)
    frame, groups, names = read_runs(root)
    assert len(frame) == 12 and names == ("overall-auc", "auc-gap") and set(frame.attribute) == {"sex"} and set(frame.seed) == {"0", "1"}
    file = pd.read_csv(root/"cls/lp/erm/B/BLIP/sex/seed1/predictions.csv")
    want = fm.evaluate(file.y_true, file.y_score, file.sex)
    row = frame.query("dataset == 'B' and model == 'BLIP' and seed == '1'").iloc[0]
    assert np.allclose([row.utility, row.gap], want.summary.loc["sex", ["overall-auc", "auc-gap"]].astype(float))
    want.to_json(root/"cls/lp/erm/B/BLIP/sex/seed1/report.json")
    (root/"cls/lp/erm/B/BLIP/sex/seed1/config.json").write_text(json.dumps({"model": "BLIP", "sensitive_name": "sex", "seed": 1, "lr": .1}))
    again = read_runs(root)[0]
    assert np.allclose(again.sort_values(["dataset", "model", "seed"]).gap, frame.sort_values(["dataset", "model", "seed"]).gap)
    board = leaderboard(root)
    cell = frame.query("dataset == 'B' and model == 'BLIP'").gap.mean()
    assert np.isclose(board.cells.loc[("B", "sex"), "BLIP"], cell) and any("mean is taken" in w for w in board.warnings) and board.runs.dto.notna().all()
    assert leaderboard(root, gap="eod").tests["gap"].ranks.sum() == pytest.approx(6)


def test_usage_and_method_become_part_of_the_name(tmp_path):
    runs(tmp_path, (0,))
    other = tmp_path/"cls/lp/dro"
    (tmp_path/"cls/lp/erm").rename(other)
    runs(tmp_path, (0,))
    assert set(leaderboard(tmp_path).cells.columns) == {f"{m} ({k})" for m in ("CLIP", "BLIP", "MedCLIP") for k in ("erm", "dro")}


def test_a_higher_score_that_is_fairer_ranks_first():
    t = table().assign(gap=lambda f: 1 - f.gap)
    assert leaderboard(t, gap="eod").tests["gap"].ranks.to_dict() == pytest.approx(leaderboard(table(), gap="auc-gap").tests["gap"].ranks.to_dict())


def test_incomplete_blocks_are_left_out_and_said():
    t = table()
    b = leaderboard(t.drop(index=t.index[0]))
    assert b.tests["gap"].n_blocks == 9 and b.tests["utility"].n_blocks == 5 and any("d0 / sex" in w for w in b.warnings)


def test_every_rendering_and_every_picture(tmp_path):
    import matplotlib
    matplotlib.use("Agg")
    b = leaderboard(table().replace("CLIP", "<b>$x_1"))
    for kind, end in (("html", "html"), ("markdown", "md"), ("latex", "tex"), ("csv", "csv")):
        text = getattr(b, f"to_{kind}")(tmp_path/f"b.{end}")
        assert (tmp_path/f"b.{end}").read_text(encoding="utf-8") == text and (kind == "csv" or "<b>$" not in text)
    for plot in (plot_ranks, plot_tradeoff, plot_gaps): assert plot(b).figure
    matplotlib.pyplot.close("all")


def test_what_is_said_is_what_the_tests_show():
    "The best by mean rank, all of them where they tie; behind are those beyond Nemenyi's difference; nobody where Friedman's test shows nothing."
    t = table(models=("CLIP", "BLIP", "DINOv2", "MedCLIP", "BiomedCLIP"))
    b = leaderboard(t)
    for k, line in zip(("utility", "gap"), said(b)):
        test = b.tests[k]
        if test.p_value > test.alpha: assert "no difference between the models is shown" in line and "rank behind" not in line
        else:
            best = line.split(". ", 1)[1].split(" has the best")[0].split(" have the best")[0].replace(" and ", ", ").split(", ")
            assert set(best) == set(test.ranks.index[np.isclose(test.ranks, test.ranks.min())])
            assert ("ranks behind" in line or "rank behind" in line) == bool((test.ranks - test.ranks.min() > test.critical_difference).any())
    alike = leaderboard(t.assign(utility=np.random.default_rng(0).random(len(t)), gap=.1))
    assert "no difference between the models is shown" in said(alike)[0]
    tie = leaderboard(pd.concat([t, t[t.model == t.model.iloc[0]].assign(model="a twin")]))
    best = tie.tests["utility"].ranks
    assert all(m in said(tie)[0].split("best mean rank")[0] for m in best.index[np.isclose(best, best.min())])


def test_the_pictures_show_the_numbers():
    import matplotlib
    matplotlib.use("Agg")
    b = leaderboard(table())
    t, ax = b.tests["gap"], plot_ranks(b, "gap")
    bar = [l for l in ax.lines if l.get_marker() == "|"]
    assert len(bar) == 1 and np.isclose(np.ptp(bar[0].get_xdata()), t.critical_difference)
    assert {f"({r:.2f})" for r in t.ranks} <= {w for x in ax.texts for w in x.get_text().split()}
    ax = plot_gaps(b)
    assert [x.get_text() for x in ax.texts] == [f"{v:.3f}" for v in b.cells.T.to_numpy().ravel()]
    ax.figure.canvas.draw()
    rgb = ax.collections[0].get_facecolor()[:, :3] @ [.299, .587, .114]
    values = b.cells.T.to_numpy().ravel()
    assert rgb[values.argmax()] < rgb[values.argmin()]                                           # less fair is darker
    matplotlib.pyplot.close("all")


def test_the_command(tmp_path, capsys):
    table().to_csv(tmp_path/"t.csv", index=False)
    add_compare_arguments(parser := argparse.ArgumentParser())
    assert run_compare(parser.parse_args([str(tmp_path/"t.csv")])) == 0 and "Friedman" in capsys.readouterr().out
    assert run_compare(parser.parse_args([str(tmp_path/"t.csv"), "-o", str(tmp_path/"b.html"), "-o", str(tmp_path/"b.tex")])) == 0 and "<svg" in (tmp_path/"b.html").read_text()
    with pytest.raises(InputError, match=".docx"): run_compare(parser.parse_args(["x", "-o", "b.docx"]))
    with pytest.raises(InputError, match="no run"): leaderboard(tmp_path)
