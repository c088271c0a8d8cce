"""Every number that the published package 0.4.2 gives for the inputs in `golden.json` is met to 1e-12, and the rows that the published
tutorials print are met to their printed digits."""
import inspect
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fairmedfm as fm

pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")

GOLDEN = json.loads((Path(__file__).parent/"golden.json").read_text(encoding="utf-8"))
CLS, SEG = ({c["name"]: c for c in GOLDEN[task]} for task in ("classification", "segmentation"))


def meets(got, want, where): np.testing.assert_allclose(float(got), want, rtol=1e-12, atol=0, err_msg=where)


@lru_cache(None)
def scored(name):
    c = CLS[name]
    return fm.evaluate(c["y_true"], c["y_score"], pd.DataFrame(c["attributes"]), **c["kwargs"])


@lru_cache(None)
def segmented(name):
    c = SEG[name]
    return fm.evaluate_segmentation(pd.DataFrame(c["attributes"]), dice=c["dice"], **c["kwargs"])


def test_the_copy_is_complete():
    assert len(CLS) == len(GOLDEN["classification"]) == 45 and len(SEG) == len(GOLDEN["segmentation"]) == 4
    numbers = [v for c in CLS.values() for e in c["expected"].values() for row in (e["summary"], *e["by_group"].values())
               for v in row.values()]
    assert len(numbers) > 3000


@pytest.mark.parametrize("name", CLS)
def test_summary(name):
    want = CLS[name]["expected"]
    assert list(scored(name).summary.index) == list(want), "the attributes, in order"
    for attribute, e in want.items():
        for k, v in e["summary"].items(): meets(scored(name).summary.loc[attribute, k], v, f"{attribute} {k}")


@pytest.mark.parametrize("name", CLS)
def test_by_group(name):
    want = {(a, g): row for a, e in CLS[name]["expected"].items() for g, row in e["by_group"].items()}
    assert list(scored(name).by_group.index) == list(want), "the groups, in order"
    for key, row in want.items():
        for k, v in row.items():
            if v is not None: meets(scored(name).by_group.loc[key, k], v, f"{key} {k}")


def test_a_group_with_one_label_keeps_what_is_defined():
    "The published package leaves its row empty. Ours holds n and what is defined, and the gaps leave it out as published."
    c, row = CLS["group_with_one_label"], scored("group_with_one_label").by_group.loc[("site", "only_negatives")]
    inside = np.array(c["attributes"]["site"]) == "only_negatives"
    published = c["expected"]["site"]["by_group"]["only_negatives"]
    assert row["n"] == published["n"] == inside.sum() and not np.array(c["y_true"])[inside].any()
    called = np.array(c["y_score"])[inside] > .5
    assert (row["fp"], row["tn"], row["fn"], row["tp"]) == (called.sum(), (~called).sum(), 0, 0)
    assert row["acc"] == row["tnr"] == 1 - called.mean() and row["bce"] > 0 and row["ece"] > 0
    assert np.isnan(row["auc"]) and np.isnan(row["tpr"]) and np.isnan(row["tpr@best_f1"]) and "label" in row["skipped"]
    assert scored("group_with_one_label").summary.loc["site", "n_left_out"] == 1


@pytest.mark.parametrize("name", CLS)
def test_overall(name):
    for k, v in CLS[name]["overall"].items(): meets(scored(name).overall[k], v, k)


ONE_NUMBER = {"auc-gap": fm.auc_gap, "worst-auc": fm.worst_group_auc, "acc-gap": fm.accuracy_gap, "bce-gap": fm.bce_gap,
              "ece-gap": fm.ece_gap,
              "eod": fm.equalized_odds_score, "eo": fm.equal_opportunity_difference}


@pytest.mark.parametrize("name", [n for n, c in CLS.items() if "intersectional" not in c["kwargs"]])
def test_one_number_functions(name):
    "They say what the summary says, for each attribute alone."
    c = CLS[name]
    for attribute, e in c["expected"].items():
        options = {k: v for k, v in c["kwargs"].items() if k != "bins" or attribute in v}
        for column, function in ONE_NUMBER.items():
            got = function(c["y_true"], c["y_score"], sensitive_features=pd.Series(c["attributes"][attribute], name=attribute), **options)
            meets(got, e["summary"][column], f"{function.__name__} {attribute}")


def test_one_number_functions_of_several_attributes():
    "They compare the combinations, as the published package does."
    c = CLS["intersection"]
    for column, function in ONE_NUMBER.items():
        got = function(c["y_true"], c["y_score"], sensitive_features=pd.DataFrame(c["attributes"]))
        meets(got, c["expected"]["sex & race"]["summary"][column], function.__name__)


@pytest.mark.parametrize("name", SEG)
def test_dice(name):
    report, c = segmented(name), SEG[name]
    for attribute, e in c["expected"].items():
        for k, v in e["summary"].items(): meets(report.summary.loc[attribute, k], v, f"{attribute} {k}")
        for group, v in e["mean_dice"].items(): meets(report.by_group.loc[(attribute, group), "mean_dice"], v, f"{attribute} {group}")
        assert len(report.by_group.loc[attribute]) == len(e["mean_dice"])
        series = pd.Series(c["attributes"][attribute], name=attribute)
        for column, function in {"delta_dice": fm.dice_gap, "min_dice": fm.worst_group_dice, "std_dice": fm.dice_std,
                                 "skewness_dice": fm.dice_skewness,
                                 "es_dice": fm.equity_scaled_dice}.items():
            meets(function(c["dice"], sensitive_features=series, **c["kwargs"]), e["summary"][column], function.__name__)


def test_the_order_of_samples_does_not_matter():
    "The same numbers to the same precision when the rows are shuffled, or doubled by a weight of 2."
    for name in ("smooth_n300_k7", "ties_n300_k7", "narrow_n300_k3"):
        c = CLS[name]
        order = np.random.default_rng(0).permutation(len(c["y_true"]))
        y, s, g = (np.array(v)[order] for v in (c["y_true"], c["y_score"], c["attributes"]["site"]))
        for got in (fm.evaluate(y, s, {"site": g}), fm.evaluate(y, s, {"site": g}, sample_weight=np.full(len(y), 2.0))):
            for k, v in c["expected"]["site"]["summary"].items(): meets(got.summary.loc["site", k], v, k)


# ---------------------------------------------------------------- the rows that the published tutorials print

def digits(got, printed, places=4):
    for k, v in printed.items(): assert round(float(got[k]), places) == v, f"{k}: {got[k]} is not {v}"


def tuned(order, **printed):
    """A model's ranking as text, from the lowest score to the highest: F and M are positives of the two groups, f and m negatives.
    Group sizes, positives and pairs of scores agree with what the tutorial prints, so its rank and threshold numbers have to come out."""
    y, group = [int(c.isupper()) for c in order], [c.upper() for c in order]
    report = fm.evaluate(y, np.linspace(.2, .8, len(order)), {"sex": group})
    digits({**report.summary.loc["sex"], **{g: report.by_group.loc[("sex", g), "auc"] for g in "FM"}}, printed)


def test_zero_shot_row():
    "MedCLIP on PAPILA by sex: 28 and 28 eyes, 5 and 4 with glaucoma. At the best-F1 threshold all but two eyes are called positive."
    tuned(
        "fFfMMFFfffffffffmFmffmffMMFmmmmmmffmmmffmmmmmfmfmmmfmmfm",
        **{
            "overall-auc": .1773, "overall-acc": .1607, "F": .2696, "M": .0625, "worst-auc": .0625, "auc-gap": .2071, "acc-gap": .0357,
            "eod": .8783, "eo": .2})


def test_adapted_row():
    "The same model, adapted."
    tuned("fmMmFFffmfFffffffMmfFfFfffMfMmmmmmmmmffmffmmfmmmffmmmmmm", **{
        "overall-auc": .2317, "overall-acc": .1786, "F": .2522, "M": .125, "worst-auc": .125, "auc-gap": .1272, "eod": .8741, "eo": .25})


def test_linear_probe_row():
    "BiomedCLIP on HAM10000 by sex: the rates are printed, so the counts are known (904 and 907 images, 167 and 96 malignant)."
    counts = {"F": dict(tp=111, fn=56, tn=578, fp=159), "M": dict(tp=58, fn=38, tn=630, fp=181)}
    rows = [(int(k in ("tp", "fn")), .9 if k in ("tp", "fp") else .1, g) for g, c in counts.items() for k, n in c.items() for _ in range(n)]
    y, s, g = zip(*rows)
    report = fm.evaluate(y, s, {"sex": list(g)}, threshold=0.5)
    digits(report.summary.loc["sex"], {"n": 1811, "overall-acc": .7604, "acc-gap": .0036, "eod": .966, "eo": .0605})
    digits(report.by_group["tpr"].loc["sex"], {"F": .6647, "M": .6042})
    digits(report.by_group["tnr"].loc["sex"], {"F": .7843, "M": .7768})


@pytest.mark.parametrize("row", GOLDEN["published_rows"], ids=lambda r: r["name"])
def test_segmentation_row(row):
    "SAM on thyroid ultrasound by sex, 860 images: group means within the printed digits give every other printed digit."
    dice = np.repeat([0.25634, 0.28001], [722, 138])
    report = fm.evaluate_segmentation({"sex": np.repeat(["M", "F"], [722, 138])}, dice=dice)
    digits(report.summary.loc["sex"], {k: v for k, v in row.items() if k != "name"})


def test_skewness_is_a_ratio_of_errors():
    "Not the third moment of anything, which for two groups is always 0."
    assert fm.dice_skewness([.9, .9, .7, .7], sensitive_features=list("FFMM")) == pytest.approx(3.0)


def test_names_and_arguments_are_the_published_ones():
    for f in ONE_NUMBER.values():
        assert list(inspect.signature(f).parameters)[:3] == ["y_true", "y_score", "sensitive_features"]
        assert inspect.signature(f).parameters["sensitive_features"].kind is inspect.Parameter.KEYWORD_ONLY
    assert list(inspect.signature(fm.evaluate).parameters)[:3] == ["y_true", "y_score", "sensitive_features"]
    assert list(inspect.signature(fm.evaluate_segmentation).parameters)[0] == "sensitive_features"
