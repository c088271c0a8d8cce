"Two models on the same cases: DeLong against the definition, patients, the gap, and what is refused."
import itertools
import math
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, ttest_rel

import fairmedfm as fm
from fairmedfm.core import InputError
from fairmedfm.paired import compare, gap_change, summary_value

sys.path.insert(0, str(Path(__file__).resolve().parents[1]/"benchmarks"))
import coverage  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def phantom(n=300, seed=0, lift=(0.0, 0.0), images=1):
    "Two models of n cases; `lift` makes the second better in each group."
    rng = np.random.default_rng(seed)
    who = np.arange(n)//images
    sex, y = rng.choice(["F", "M"], n)[who], rng.integers(0, 2, n)[who]
    shared = rng.normal(size=n)[who] + .5*rng.normal(size=n)
    base = pd.DataFrame({"id": [f"c{i}" for i in range(n)], "sex": sex, "y_true": y} | ({"patient": who} if images > 1 else {}))
    p = lambda up: 1/(1 + np.exp(-(np.where(sex == "F", .5 + up[0], 1.2 + up[1])*y + shared + .4*rng.normal(size=n) - .5)))
    return base.assign(y_score=p((0, 0))), base.assign(y_score=p(lift))


def delong(y, a, b):
    "The paired test as DeLong et al. wrote it, quadratic in n."
    parts = []
    for s in (a, b):
        wins = (s[y == 1][:, None] > s[y == 0]) + .5*(s[y == 1][:, None] == s[y == 0])
        parts.append((wins.mean(), wins.mean(1), wins.mean(0)))
    d = parts[1][0] - parts[0][0]
    v = (parts[1][1] - parts[0][1]).var(ddof=1)/(y == 1).sum() + (parts[1][2] - parts[0][2]).var(ddof=1)/(y == 0).sum()
    return d, v**.5, 2*norm.sf(abs(d)/v**.5)


@pytest.mark.parametrize("digits", [12, 1])
def test_auc_is_delongs_paired_test_overall_and_in_each_group(digits):
    a, b = phantom(lift=(.5, .1))
    a, b = (f.assign(y_score=f.y_score.round(digits)) for f in (a, b))
    c = compare({"A": a, "B": b}, metrics="auc", gaps="auc-gap", n_resamples=20)
    rows = {"all": (a.index == a.index, c.pairwise.iloc[0])} | {g: (a.sex == g, c.by_group.query("group == @g").iloc[0]) for g in "FM"}
    for inside, row in rows.values():
        d, se, p = delong(a.y_true[inside].to_numpy(), a.y_score[inside].to_numpy(), b.y_score[inside].to_numpy())
        assert np.allclose([row.difference, row.high - row.low, row.p_value], [d, 2*norm.ppf(.975)*se, p], rtol=1e-9)


def test_dice_is_the_paired_t_test_over_patients():
    rng = np.random.default_rng(1)
    base = pd.DataFrame({"id": range(120), "patient": np.arange(120)//2, "sex": np.repeat(["F", "M"], 60), "dice": rng.beta(9, 2, 120)})
    other = base.assign(dice=np.clip(base.dice + rng.normal(.01, .03, 120), 0, 1))
    row = compare({"A": base, "B": other}, n_resamples=20).pairwise.iloc[0]
    per_patient = [f.groupby("patient").dice.mean() for f in (base, other)]
    assert np.isclose(row.p_value, ttest_rel(*per_patient).pvalue, rtol=1e-9) and "patient" in row.method
    flat = compare({"A": base, "B": other}, clusters=False, n_resamples=20)
    assert flat.pairwise.p_value[0] != row.p_value and flat.metadata["n_clusters"] is None


def test_repeated_rows_of_a_patient_add_nothing():
    a, b = phantom(150, lift=(.6, .2))
    many = [pd.concat([f.assign(patient=f.id, id=f.id + s) for s in "xyz"]) for f in (a, b)]
    once = compare({"A": a.assign(patient=a.id), "B": b.assign(patient=b.id)}, metrics=["auc", "bce"], gaps="auc-gap", n_resamples=150).pairwise
    thrice = compare({"A": many[0], "B": many[1]}, metrics=["auc", "bce"], gaps="auc-gap", n_resamples=150).pairwise
    assert np.allclose(once.difference, thrice.difference)
    width = lambda t: (t.high - t.low)[t.kind == "performance"]            # the gap's comes from other draws
    assert np.allclose(width(thrice), width(once), rtol=.03)


def test_rows_in_another_order_change_nothing_and_the_models_change_sign():
    a, b = phantom(lift=(.4, 0))
    one, two = compare({"A": a, "B": b}, n_resamples=50), compare({"A": a, "B": b.sample(frac=1, random_state=0)}, n_resamples=50)
    pd.testing.assert_frame_equal(one.pairwise, two.pairwise)
    back = compare({"B": b, "A": a}, n_resamples=50).pairwise
    assert np.allclose(back.difference, -one.pairwise.difference) and np.allclose(back.low, -one.pairwise.high, atol=1e-9)


@pytest.mark.parametrize("name", ["K=2 n=300, B closes .1", "K=3 n=200, both fair", "K=2 n=300/600, 3 images"])
def test_the_interval_of_the_change_of_the_gap_covers(name):
    "benchmarks/coverage.py paired, smaller: whatever the truth, and for the change in each group."
    a, b, images = coverage.PAIRED[name]
    for m, (groups, gap, _) in coverage.paired(a, b, 120, ["auc", "acc", "eod"], images, seed=5).items():
        assert gap >= .91 and (m == "eod" or .9 <= groups <= .995), m


def test_a_gap_that_is_clearly_smaller_is_found():
    a, b, images = coverage.PAIRED["K=2 n=2000, B halves .12"]
    assert coverage.paired(a, b, 25, ["auc"], images, seed=5)["auc"][2] > .8


def brute_change(a, b, S, alpha):
    "The interval of the change of the gap as the chapter says it, contrast by contrast."
    k, low, high = len(a), np.inf, -np.inf
    theta, beta = np.r_[a, b], alpha/10
    z = norm.isf(beta/2) if k == 2 else norm.isf(beta/2/(2*(k - 1)))
    se = lambda c: math.sqrt(max(c @ S @ c, 0))
    def unit(i, j, first): c = np.zeros(2*k); c[first + i] += 1; c[first + j] -= 1; return c
    def could(first, i, sign): return all(sign*(theta[first + i] - theta[first + j]) + z*se(unit(i, j, first)) >= 0 for j in range(k) if j != i)
    pairs = [[(i, j) for i in range(k) for j in range(k) if i != j and could(first, i, 1) and could(first, j, -1)] for first in (0, k)]
    for (i, j), (m, l) in itertools.product(pairs[1], pairs[0]):
        c, own_b, own_a = unit(i, j, k) - unit(m, l, 0), unit(i, j, k) - unit(i, j, 0), unit(m, l, k) - unit(m, l, 0)
        one, two = norm.isf(.9*alpha/2), norm.isf(.9*alpha/4)
        if (i, j) == (m, l): up, down = c @ theta + one*se(c), c @ theta - one*se(c)
        else: up, down = min(c @ theta + two*se(c), own_b @ theta + two*se(own_b)), max(c @ theta - two*se(c), own_a @ theta - two*se(own_a))
        low, high = min(low, down), max(high, up)
    return low, high


@pytest.mark.parametrize("k", [2, 3, 5])
def test_the_change_of_the_gap_by_brute_force(k):
    rng = np.random.default_rng(k)
    for spread in (0, .05, .3):
        L = rng.normal(size=(2*k, 2*k))*.02
        a, b, S = rng.normal(.8, spread + 1e-3, k), rng.normal(.8, spread + 1e-3, k), L @ L.T
        got = gap_change(a, b, S, .05)
        assert np.allclose(got, brute_change(a, b, S, .05), atol=1e-10) and got[0] <= np.ptp(b) - np.ptp(a) <= got[1]
        assert np.allclose(gap_change(b, a, S[np.ix_([*range(k, 2*k), *range(k)], [*range(k, 2*k), *range(k)])], .05), [-got[1], -got[0]])
        wider = gap_change(a, b, S, .01)
        assert wider[0] <= got[0] and got[1] <= wider[1]


def test_no_difference_seen_is_not_no_difference():
    "Two models that decide alike on every case, or separate a group perfectly, differ by something; a copy does not."
    y, sex = np.tile([0, 1], 20), np.repeat(["F", "M"], 20)
    frame = lambda s: pd.DataFrame({"id": range(40), "sex": sex, "y_true": y, "y_score": s})
    a, b = frame(.2 + .6*y), frame(.3 + .5*y)
    t = compare({"A": a, "B": b}, threshold=.5, n_resamples=20).pairwise.set_index("measure")
    for m in ("auc", "acc", "auc-gap", "eod"): assert t.difference[m] == 0 and t.low[m] < -.02 and t.high[m] > .02 and t.p_value[m] == 1 and t.verdict[m] == "cannot say", m
    copy = compare({"A": a, "B": a}, threshold=.5, n_resamples=20).pairwise
    assert np.allclose(copy[["difference", "low", "high"]], 0, atol=1e-12) and (copy.p_value == 1).all()
    shifted = pd.DataFrame({"id": range(40), "sex": sex, "dice": np.linspace(.5, .8, 40)})
    constant = compare({"A": shifted, "B": shifted.assign(dice=shifted.dice + .1)}).pairwise.iloc[0]
    assert np.isclose(constant.difference, .1) and np.isnan(constant.low) and constant.verdict == "cannot say"       # no spread is no certainty


def test_draws_are_shared_by_the_models_and_cost_no_memory():
    a, b = phantom(200, seed=2)
    peaks = []
    for n in (100, 100, 300):
        tracemalloc.start(); t = compare({"A": a, "B": b}, metrics="ece", gaps="ece-gap", n_resamples=n).pairwise; peaks.append(tracemalloc.get_traced_memory()[1]); tracemalloc.stop()
    assert peaks[2] < 1.3*peaks[1] and (t.method == "paired bootstrap").iloc[0]
    again = compare({"A": a, "B": b}, metrics="ece", gaps="ece-gap", n_resamples=300, n_jobs=2).pairwise
    pd.testing.assert_frame_equal(t, again)


def test_values_are_those_of_evaluate_also_with_unknown_groups_and_bins():
    a, b = phantom(400, seed=3)
    a["age"] = b["age"] = np.random.default_rng(0).integers(20, 90, 400)
    for f in (a, b): f.loc[:20, "sex"] = "unknown"
    c = compare({"A": a, "B": b}, sensitive_features=["sex", "age"], bins={"age": [40, 60]}, n_resamples=5)
    for name, f in (("A", a), ("B", b)):
        want = fm.evaluate(f.y_true, f.y_score, f[["sex", "age"]], bins={"age": [40, 60]}).summary
        for s in ("sex", "age"): assert np.allclose(c.summary.loc[(s, name), ["auc-gap", "acc-gap", "bce-gap", "ece-gap", "eod", "eo"]].astype(float), want.loc[s, ["auc-gap", "acc-gap", "bce-gap", "ece-gap", "eod", "eo"]].astype(float))


def test_holm_over_the_pairs_of_each_measure():
    a, b = phantom(lift=(.3, .1))
    _, c = phantom(lift=(.8, .1))
    t = compare({"A": a, "B": b, "C": c}, metrics=["auc", "acc"], gaps="auc-gap", n_resamples=30).pairwise
    for _, f in t.groupby(["kind", "measure"]):
        p = f.p_value.sort_values()
        assert np.allclose(f.p_adjusted[p.index], np.minimum(np.maximum.accumulate(p*np.array([3, 2, 1])), 1))
    assert list(zip(t.a[:3], t.b[:3])) == list(itertools.combinations("ABC", 2))


def test_files_and_run_folders(tmp_path):
    a, b = phantom()
    run = tmp_path/"run"
    run.mkdir()
    a.to_csv(run/"predictions.csv", index=False)
    b.to_csv(tmp_path/"b.csv", index=False)
    got, want = compare({"A": run, "B": tmp_path/"b.csv"}, n_resamples=10), compare({"A": a, "B": b}, n_resamples=10)
    assert np.allclose(got.pairwise.difference, want.pairwise.difference)
    attributes = a.set_index("id")[["sex"]].iloc[::-1]
    again = compare({"A": a.drop(columns="sex"), "B": b.drop(columns="sex")}, sensitive_features=attributes, n_resamples=10)
    assert np.allclose(again.pairwise.difference, want.pairwise.difference)
    for write, end in ((got.to_markdown, "md"), (got.to_csv, "csv"), (got.to_latex, "tex")):
        assert (tmp_path/f"c.{end}").exists() is False and write(tmp_path/f"c.{end}") == (tmp_path/f"c.{end}").read_text(encoding="utf-8")


def test_names_are_text_in_every_rendering():
    a, b = phantom(60)
    c = compare({"<script>": a, "50 %_$": b}, metrics="auc", gaps="auc-gap", n_resamples=5)
    assert "<script>" not in c._repr_html_() and "<script>" not in c.to_markdown() and r"50 \%\_\$" in c.to_latex()


@pytest.mark.parametrize("change, message", [
    (lambda f: f.iloc[5:], "not in B"), (lambda f: f.assign(y_true=1 - f.y_true), "disagree on the label"), (lambda f: f.assign(sex="F"), "disagree on the sex"),
    (lambda f: f.assign(id="x"), "occurs twice"), (lambda f: f.assign(id=f.id.str.upper()), "capital"), (lambda f: f.drop(columns="id"), "no column holds the id"), (lambda f: 3, "is a int"),
])
def test_what_is_not_about_the_same_cases_is_refused(change, message):
    a, b = phantom(50)
    with pytest.raises(InputError, match=message): compare({"A": a, "B": change(b)}, n_resamples=2)


def test_dropped_cases_are_said_and_gone():
    a, b = phantom(80)
    c = compare({"A": a, "B": b.iloc[7:]}, unmatched="drop", n_resamples=5)
    assert c.metadata["n_cases"] == 73 and any("7 cases of A not in B" in w for w in c.warnings)


def test_summary_value_says_what_there_is():
    with pytest.raises(InputError, match="auc-gap"): summary_value("auc_gap", [0, 1], [.1, .9], ["F", "M"])


def test_a_group_with_few_positives_is_named():
    few = [f.assign(y_true=np.where((f.sex == "F") & (f.y_true > 0) & (np.arange(len(f)) > 20), 0, f.y_true)) for f in phantom(seed=3)]
    assert few[0].groupby("sex").y_true.sum()["F"] < 10
    said = lambda frames: [w for w in compare(dict(zip("AB", frames)), sensitive_features=["sex"]).warnings if "change of auc" in w]
    assert said(few) == ["sex 'F': with fewer than 10 of a label the interval of a group's change of auc can be too short (91 % instead of 95 %)"]
    assert not said(phantom(seed=3))
