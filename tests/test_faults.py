"""What today's tools get wrong, and everything of the same kind that we could think of: wrong numbers, silence, errors that do not help.

A case that is right gives the number that a careful reader would give. A case that nobody can read is an `InputError` of one line.
Whatever was dropped, converted or assumed stands in a `FairnessWarning` and in the report; any other Python warning is a failure here,
and so is a finite number from data that do not define one."""
import collections
import datetime as dt
import json
import math
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import fairmedfm as fm
from fairmedfm.core import FairnessWarning, InputError, Notes
from fairmedfm.inputs import as_array, groupings
from fairmedfm.metrics import METRICS, PUBLISHED
from fairmedfm.tables import read_table

pytestmark = pytest.mark.filterwarnings("error")

Y, S, G = [0, 1, 0, 1, 1, 0, 1, 0], [.1, .9, .6, .4, .8, .2, .7, .3], list("FFMMFFMM")
IX = list("abcdefgh")
GAP = 0.25                                    # AUC of F is 1, of M 0.75
y_, s_, g_ = np.array(Y), np.array(S), np.array(G)


def hear(f, *args, **kw):
    "`(result, what was said)`; a warning that is not ours stays an error."
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", FairnessWarning)
        out = f(*args, **kw)
    return out, [str(w.message) for w in heard]


def score(y=Y, s=S, g=G, **kw): return hear(fm.evaluate, y, s, g, **kw)[0]


def gap(y=Y, s=S, g=G, **kw): return hear(fm.auc_gap, y, s, sensitive_features=g, **kw)[0]


def refuses(f, *args, says=(), **kw):
    "An `InputError` of one line, not too long, with these words."
    with pytest.raises(InputError) as e: hear(f, *args, **kw)
    text = str(e.value)
    assert text and "\n" not in text and len(text) < 700, text
    for word in [says] if isinstance(says, str) else says: assert word in text, f"{word!r} is not in: {text}"
    return text


def names(report): return list(report.by_group.index.get_level_values("group"))


def finite(report):
    "Every finite number of the summary but counts and overall values."
    return {k: v for k, v in report.summary.iloc[0].items() if not k.startswith(("n", "overall")) and not math.isnan(v)}


def by(*rows): return dict(argvalues=[r[1:] if len(r) > 2 else r[1] for r in rows], ids=[r[0] for r in rows])


# ================================================================ numbers that are wrong

HARD = dict(y=[1, 1, 1, 1, 0, 0, 0, 0], s=[1, 0, 1, 1, 0, 0, 0, 0], g=list("FFMMFFMM"))


def test_hard_predictions_are_not_called_fair():
    "Half of the women's positives are missed. The published rule gives eo 0 and eod 1, the warning what is true; both are in `by_group`."
    r, said = hear(fm.evaluate, HARD["y"], HARD["s"], HARD["g"])
    row = r.summary.loc["sensitive"]
    assert (row["eo"], row["eod"], row["overall-acc"]) == (0, 1, .5), "the published numbers"
    assert any("max_f1" in w and "0.7500" in w and "0.5000" in w for w in said) and any(w in r.warnings for w in said if "max_f1" in w)
    assert r.by_group["tpr@max_f1"].tolist() == [.5, 1.0] and r.by_group["tpr@best_f1"].tolist() == [0, 0]
    true = score(**HARD, threshold="max_f1").summary.loc["sensitive"]
    assert (true["eo"], true["eod"], true["overall-acc"]) == (.5, .75, .875)
    assert any("no sample is called positive" in w for w in said), "undefined in substance, and said"


def test_the_tie_is_said_by_every_function_that_depends_on_it():
    for f in (fm.accuracy_gap, fm.equal_opportunity_difference, fm.equalized_odds_score):
        assert any("max_f1" in w for w in hear(f, HARD["y"], HARD["s"], sensitive_features=HARD["g"])[1]), f.__name__
        assert not any("max_f1" in w for w in hear(f, HARD["y"], HARD["s"], sensitive_features=HARD["g"],
                                                   threshold="max_f1")[1]), f.__name__


@pytest.mark.parametrize("decimals", [0, 1, 2])
def test_rounded_scores_say_when_the_threshold_is_tied(decimals):
    rng = np.random.default_rng(decimals)
    y = rng.integers(0, 2, 400)
    s = np.round(np.clip(rng.normal(.35 + .3*y, .2), 0, 1), decimals)
    g = rng.choice(["F", "M"], 400)
    r, said = hear(fm.evaluate, y, s, g)
    t = r.metadata["threshold"]["value"]
    assert ((s == t).sum() > 1) == any("stand on the best-F1 threshold" in w for w in said) == ("acc@max_f1" in r.by_group)
    fine = score(y, s + rng.random(400)*1e-9*(s < 1), g) if decimals else None
    assert fine is None or not any("stand on" in w for w in fine.warnings), "one sample on the threshold is what the rule costs"


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s*100, lambda s: s*255, lambda s: np.round(s*255).astype(np.uint8), lambda s: s*1e6 - 3e5, lambda s: np.log(s/(1 - s))*50,
        lambda s: s.astype(np.float32)*100, lambda s: s*1e300], ids=["percent", "255", "uint8", "large", "logits", "float32", "1e300"])
@pytest.mark.parametrize("kind", ["auto", "rank", "logit"])
def test_auc_comes_from_the_raw_scores(change, kind):
    from sklearn.metrics import roc_auc_score
    rng = np.random.default_rng(0)
    y, g = rng.integers(0, 2, 300), rng.choice(["F", "M"], 300)
    s = change(np.clip(rng.normal(.45 + .15*y, .15), .01, .99))
    (r, said) = hear(fm.evaluate, y, s, g, score_type=kind)
    assert r.overall["auc"] == pytest.approx(roc_auc_score(y, s), abs=1e-12)
    assert [r.by_group.loc[("sensitive", k), "auc"] for k in "FM"] == pytest.approx(
        [roc_auc_score(y[g == k], s[g == k]) for k in "FM"], abs=1e-12)
    assert kind != "auto" or any("read as logits" in w for w in said)


@pytest.mark.parametrize("value,dtype", [(1.0000001, np.float32), (1 + 1e-9, float), (-1e-9, float), (-1e-7, np.float32),
                                         (np.nextafter(1, 2), float), (-5e-324, float), (1.001, np.float16)])
def test_a_rounding_error_does_not_turn_probabilities_into_logits(value, dtype):
    s = np.array(S, dtype)
    s[1] = value if value > .5 else s[1]
    s[0] = value if value < .5 else s[0]
    r, said = hear(fm.evaluate, Y, s, G)
    assert r.metadata["score_type"].startswith("probability") and gap(s=s) == GAP
    assert any("1 value outside [0, 1]" in w for w in said) or not ((s < 0) | (s > 1)).any()


def test_more_than_a_rounding_error_is_not_clipped():
    r, said = hear(fm.evaluate, Y, [*S[:7], 1.01], G)
    assert r.metadata["score_type"].startswith("logit") and any("read as logits" in w for w in said)
    refuses(fm.evaluate, Y, [*S[:7], 1.01], G, score_type="probability", says="[0, 1]")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", ["vector", "matrix"])
def test_scores_that_are_no_number_name_their_rows(bad, shape):
    s = s_.copy(); s[[2, 5]] = bad
    refuses(fm.evaluate, Y, s if shape == "vector" else np.c_[1 - s_, s], G, says=["2 rows", "row 2, 5"])
    refuses(fm.auc_gap, Y, s, sensitive_features=G, says="row 2, 5")
    refuses(fm.evaluate, Y, np.full(8, bad), G, missing="drop")
    if not np.isnan(bad):
        refuses(fm.evaluate, Y, s, G, missing="drop", says="row 2, 5")                  # infinite is not missing
        return
    r, said = hear(fm.evaluate, Y, s, G, missing="drop")
    assert r.summary.loc["sensitive", "n"] == 6 and any("2 rows without a score" in w for w in said)


def test_the_guess_of_the_scale_is_always_said():
    logits = [0.1, .9, .6, .4, .8, .2, .7, .3]                                    # a batch of logits that happens to lie in [0, 1]
    r = score(s=logits)
    assert "assumed" in r.metadata["score_type"] and "assumed" in repr(r) and "assumed" in r.to_markdown() and "assumed" in r._repr_html_()
    given = score(s=logits, score_type="logit")
    assert given.metadata["score_type"] == "logit (given)"
    assert given.overall["bce"] != r.overall["bce"] and given.overall["auc"] == r.overall["auc"]


def test_multi_label_rows_are_not_arg_maxed():
    y = np.array([[1, 1], [0, 1], [1, 0], [0, 0], [1, 1], [0, 1], [1, 0], [0, 0]])
    s = np.c_[S, S[::-1]]
    r = score(y, s)
    assert r.targets == ["finding 0", "finding 1"] and r.summary["n"].tolist() == [8, 8]
    alone = [score(y[:, j], s[:, j]).overall["auc"] for j in (0, 1)]
    assert [r.overall[name]["auc"] for name in r.targets] == alone, "sigmoids are not soft-maxed"
    refuses(fm.auc_gap, y, s, sensitive_features=G)
    refuses(fm.evaluate, y, s, G, multi_label=False, says="one-hot")
    hot = np.eye(2, dtype=int)[Y]
    assert gap(hot, np.c_[1 - s_, s_]) == GAP and "one-hot" in str(score(hot, np.c_[1 - s_, s_]).metadata)


MISSING = by(("NaN", np.nan), ("None", None), ("pd.NA", pd.NA), ("NaT", pd.NaT))


@pytest.mark.parametrize("missing", **MISSING)
@pytest.mark.parametrize("kw,values", [({}, (0, 1)), ({"pos_label": "sick"}, ("well", "sick"))], ids=["0/1", "words"])
def test_missing_labels_are_dropped_and_counted(missing, kw, values):
    y = [missing if i == 2 else values[v] for i, v in enumerate(Y)]
    r, said = hear(fm.evaluate, y, S, G, **kw)
    assert r.summary.loc["sensitive", "n"] == 7 and r.metadata["n_dropped"] == 1 and any("1 row without a usable label" in w for w in said)
    assert r.overall["auc"] == score(Y[:2] + Y[3:], S[:2] + S[3:], G[:2] + G[3:]).overall["auc"]


@pytest.mark.parametrize("third", [-1, 2, .5, np.inf, "unknown"])
def test_a_third_label_is_an_error_until_the_user_says(third):
    y = [third if i == 2 else v for i, v in enumerate(Y)]
    refuses(fm.evaluate, y, S, G, says="pos_label")
    refuses(fm.evaluate, y, S, G, pos_label=1, says=["one_vs_rest", "drop_labels"])
    assert score(y, pos_label=1, one_vs_rest=True).summary.loc["sensitive", "n"] == 8
    r, said = hear(fm.evaluate, y, S, G, pos_label=1, drop_labels=[third])
    assert r.summary.loc["sensitive", "n"] == 7 and any("1 row" in w for w in said)
    assert score(y, drop_labels=[third]).overall["auc"] == r.overall["auc"]


def test_minus_one_is_said_to_mean_uncertain_often(): refuses(
    fm.evaluate, [-1 if v == 0 else 1 for v in Y], S, G, says=["drop_labels=[-1]", "uncertain"])


def test_one_different_id_is_not_paired_by_position():
    y, s, g = (pd.Series(v, IX) for v in (Y, S, G))
    refuses(fm.auc_gap, y, s.rename({"a": "z"}), sensitive_features=g, says=["'a'", "'z'", "to_numpy"])
    refuses(fm.evaluate_segmentation, g, dice=s.rename({"a": "z"}), says="'z'")


def test_a_group_with_one_label_stays_visible():
    "A group at 0 % accuracy: left out of the gaps as published, but its row is full and the warning says what leaving it out hides."
    y, s, g = [0, 1, 0, 1, 0, 0], [.1, .9, .8, .7, .95, .99], ["a", "a", "b", "b", "only negatives", "only negatives"]
    r, said = hear(fm.evaluate, y, s, g, threshold=.5)
    row = r.by_group.loc[("sensitive", "only negatives")]
    assert (row["n"], row["acc"], row["tnr"], row["fp"]) == (2, 0, 0, 2) and row["bce"] > 0 and row["skipped"]
    assert math.isnan(row["auc"]) and math.isnan(row["tpr"])
    assert r.summary.loc["sensitive", "n_left_out"] == 1 and any("only negatives" in w and "1.0000 instead of 0.5000" in w for w in said)


def test_text_that_looks_missing_is_a_group():
    r = score(g=["NA", "NA", "None", "None", "NA", "NA", "None", "None"])
    assert names(r) == ["NA", "None"] and r.unknown.empty
    assert names(score(g=["01", "01", "1", "1"]*2)) == ["01", "1"], "not merged"
    assert names(score(g=["nan", "nan", "null", "null"]*2)) == ["nan", "null"]


def test_bin_names_round_trip():
    age = [11000, 13000, 12345, 20000]*2
    assert names(score(g={"x": age}, bins={"x": [12345]})) == ["<12345", ">=12345"]
    for cuts in ([.1 + .2], [1/3, 2/3], [1e-5], [-2.5, 1e6], [123456789], [1e16], [2**53 + 2]):
        got = names(score(g={"x": np.linspace(-3, 2e16, 8)}, bins={"x": cuts}))
        assert float(got[-1].removeprefix(">=")) == cuts[-1]
    r, said = hear(fm.evaluate, Y, S, {"x": age}, bins={"x": [12345, 12345, 20000]})
    assert any("equal cut points" in w for w in said) and len(names(r)) == 3
    r, said = hear(fm.evaluate, Y, S, {"x": [50]*8}, bins={"x": 4})
    assert names(r) and any("equal cut points" in w for w in said) and not finite(r)
    assert any("sorted" in w for w in hear(fm.evaluate, Y, S, {"x": age}, bins={"x": [20000, 12345]})[1])


def test_a_segmentation_group_without_a_value_keeps_its_row():
    r, said = hear(fm.evaluate_segmentation, list("FFMMXX"), dice=[np.nan, np.nan, .7, .8, .9, .6])
    assert r.by_group.loc[("sensitive", "F"), "n"] == 0 and r.by_group.loc[("sensitive", "F"), "skipped"] and any("'F'" in w for w in said)
    assert r.summary.loc["sensitive", "n_groups"] == 2
    lone = hear(fm.evaluate_segmentation, list("FFMM"), dice=[np.nan, np.nan, .7, .8])[0]
    assert math.isnan(lone.summary.loc["sensitive", "delta_dice"]) and names(lone) == ["F", "M"]


@pytest.mark.parametrize("t,word", [(2, "no"), (-1, "every")])
def test_no_decision_is_no_fairness(t, word):
    r, said = hear(fm.evaluate, Y, S, G, threshold=t)
    assert any(f"{word} sample is called positive" in w and "say nothing about fairness" in w
               for w in said) and any("say nothing" in w for w in r.warnings)
    assert any("say nothing" in w for w in hear(fm.equalized_odds_score, Y, S, sensitive_features=G, threshold=t)[1])


ONE_NUMBER = [fm.auc_gap, fm.worst_group_auc, fm.accuracy_gap, fm.bce_gap, fm.ece_gap, fm.equal_opportunity_difference,
              fm.equalized_odds_score, fm.equity_scaled_auc,
              fm.equalized_odds_difference, fm.metrics.performance_scaled_disparity]
UNDEFINED = by(
    ("one group", Y, S, ["F"]*8), ("one group with both labels", [0, 1, 0, 1, 1, 1, 1, 1], S, list("FFFFMMMM")), ("one label", [1]*8, S, G),
    ("no positive", [0]*8, S, G), ("one sample", [1], [.5], ["F"]), ("two samples", [0, 1], [.2, .8], ["F", "M"]),
    ("every sample its own group", Y, S, IX), ("all unknown", Y, S, ["unknown"]*8), ("all missing", Y, S, [None]*8),
    ("all empty", Y, S, [""]*8), ("all NaN", Y, S, [np.nan]*8), ("one known", Y, S, ["F"] + [None]*7))


@pytest.mark.parametrize("y,s,g", **UNDEFINED)
def test_no_gap_without_two_groups(y, s, g):
    "fairlearn says 0.0 when one group has an AUC. Here: NaN, and a reason; or an error, if nothing is left to evaluate."
    have = [{label for v, label in zip(g, y) if v == name} for name in set(v for v in g if isinstance(v, str) and v not in ("", "unknown"))]
    for f in ONE_NUMBER:
        try: value, said = hear(f, y, s, sensitive_features=g)
        except InputError: continue
        if f is fm.equalized_odds_difference and min(sum(label in h for h in have) for label in (0, 1)) > 1:
            assert 0 <= value <= 1                # both of its rates can be compared
            continue
        assert math.isnan(value) and said, f.__name__
        assert not any("nan" in w.lower().replace("are nan", "") for w in said), f"{f.__name__} says nan: {said}"
    try: r = score(y, s, g)
    except InputError: return
    assert not finite(r) and r.warnings


def test_an_attribute_that_is_all_unknown_does_not_spoil_the_others():
    r = score(g={"sex": G, "race": [None]*8})
    assert r.summary.loc["sex", "auc-gap"] == GAP and math.isnan(r.summary.loc["race", "auc-gap"]) and any("race" in w for w in r.warnings)
    both = score(g={"sex": G, "race": [None]*8}, intersectional=True)
    assert both.summary.loc["sex", "auc-gap"] == GAP and math.isnan(both.summary.loc["sex & race", "auc-gap"])


# ---------------------------------------------------------------- masks (the chapter's own tests hold more)

def masks(report): return report.summary.iloc[0]["mean_dice"]


M = [np.pad(np.ones((i + 2, 3), np.uint8), 3)[:8, :8] for i in range(4)]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m, lambda m: m*255, lambda m: m.astype(bool), lambda m: m*.7, lambda m: m*1.0000001,
        lambda m: m.astype(np.float32)*np.float32(1.0000001), lambda m: m*7, lambda m: m.astype(np.int64), lambda m: m*5.0],
    ids=["0/1", "0/255", "bool", "probability", "rounding", "float32 rounding", "7", "int64", "label as float"])
def test_dice_of_a_mask_with_itself_is_one(change):
    same = [change(m) for m in M]
    assert masks(hear(fm.evaluate_segmentation, G[:4], pred_masks=same, true_masks=same)[0]) == 1
    assert masks(hear(fm.evaluate_segmentation, G[:4], pred_masks=same, true_masks=M)[0]) == 1, "one rule for both sides"
    assert masks(hear(fm.evaluate_segmentation, G[:4], pred_masks=M, true_masks=same)[0]) == 1


@pytest.mark.parametrize(
    "change,says",
    [
        (lambda m: np.where(m, np.nan, 0), "NaN"), (lambda m: m*np.inf if m.all() else np.where(m, np.inf, 0), "infinity"),
        (lambda m: m*1.5, "probabilities"), (lambda m: m*-.5, "neither"), (lambda m: m + 0j, "complex"),
        (lambda m: np.where(m, 255, np.indices(m.shape)[0] % 2).astype(np.uint8), "255")])
@pytest.mark.parametrize("side", ["pred_masks", "true_masks"])
def test_masks_that_nobody_can_read(change, says, side):
    refuses(fm.evaluate_segmentation, G[:4], **{"pred_masks": M, "true_masks": M, side: [change(m) for m in M]}, says=[says, "mask 0"])


def test_void_pixels_count_nowhere():
    true = np.array([[1, 1, 0, 255]], np.uint8); pred = np.array([[1, 0, 0, 1]], np.uint8)
    r = hear(fm.evaluate_segmentation, ["F", "M"], pred_masks=[pred]*2, true_masks=[true]*2, ignore_label=255)[0]
    assert masks(r) == pytest.approx(2/3)
    refuses(fm.evaluate_segmentation, ["F", "M"], pred_masks=[pred]*2, true_masks=[true]*2, says="ignore_label=255")


def test_a_label_that_occurs_nowhere_is_a_typo():
    refuses(fm.evaluate_segmentation, G[:4], pred_masks=M, true_masks=M, label=7, says=["7", "occurs in no mask"])
    nothing = [m*0 for m in M]
    r, said = hear(fm.evaluate_segmentation, G[:4], pred_masks=nothing, true_masks=nothing)
    assert any("occurs in no mask" in w for w in said) and any("4 of 4 samples empty in both" in w for w in said)


def test_headers_decide_where_a_mask_lies(tmp_path):
    nib = pytest.importorskip("nibabel")
    m, place = np.zeros((6, 5, 4), np.uint8), np.diag([2, 2, 2, 1.])
    m[:2, :3] = 1
    turned = nib.Nifti1Image(m, place).as_reoriented(nib.orientations.axcodes2ornt("LPS"))
    moved = nib.Nifti1Image(m, np.array([[2, 0, 0, 50], [0, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 1.]]))
    for name, img in (("true", nib.Nifti1Image(m, place)), ("turned", turned), ("moved", moved)): nib.save(img, tmp_path/f"{name}.nii.gz")
    ask = lambda name, **kw: hear(fm.evaluate_segmentation, ["F", "M"], pred_masks=[tmp_path/f"{name}.nii.gz"]*2,
                                  true_masks=[tmp_path/"true.nii.gz"]*2, **kw)
    r, said = ask("turned")
    assert masks(r) == 1 and any("turned onto its grid" in w for w in said), "the same anatomy stored flipped"
    refuses(lambda: ask("moved"), says=["affine", "resample=True"])
    assert masks(ask("moved", resample=True)[0]) == 0, "a mask 50 mm away"
    (tmp_path/"cut.nii.gz").write_bytes((tmp_path/"true.nii.gz").read_bytes()[:40])
    for name in ("cut", "gone"): refuses(lambda: ask(name), says=f"{name}.nii.gz")


# ---------------------------------------------------------------- what is said, is said everywhere

def test_warnings_stand_in_every_rendering():
    r, said = hear(fm.evaluate, [*Y, 1, 0, 1], [*S, .5, .4, .6], [*G, None, "unknown", "X"])
    assert said and set(said) == set(r.warnings) and len(said) == len(set(said)), "a Python warning and an entry, once each"
    plain = "2 samples of unknown group"
    for text in (repr(r), r._repr_html_(), r.to_markdown(), r.to_json()): assert plain in text
    assert json.loads(r.to_json())["warnings"] == r.warnings
    assert {(a, v): n for a, v, n in r.unknown.itertuples(index=False)} == {("sensitive", "(missing)"): 1, ("sensitive", "unknown"): 1}


def test_json_never_holds_nan():
    r = score([1]*8, S, G)
    for text in (r.to_json(), score(g=["F"]*8).to_json()): json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} in JSON"))


def test_one_outlier_moves_the_published_bins_only():
    rng = np.random.default_rng(0)
    p = rng.beta(20, 80, 2000); y = (rng.random(2000) < p).astype(int)
    one = lambda p, y: score(y, p, ["F"]*len(y), metrics=["ece01"]).overall
    before, after = one(p, y), one(np.r_[p, .999], np.r_[y, 1])
    assert abs(after["ece"] - before["ece"]) > .003 > abs(after["ece01"] - before["ece01"])


# ================================================================ errors that do not help

HELPLESS = by(
    ("empty", ([], [], []), {}, "empty"), ("empty arrays", (np.array([]),)*3, {}, "empty"), ("lengths", (Y, S[:7], G), {}, ["8", "7"]),
    ("group lengths", (Y, S, G[:7]), {}, ["7", "8"]),
    ("continuous group", (np.tile(Y, 10), np.tile(S, 10), np.linspace(20, 90, 80)), {}, ["continuous", "bins="]),
    ("identifier", (np.tile(Y, 10), np.tile(S, 10), [f"p{i}" for i in range(80)]), {}, "identifies"),
    ("words", (["yes" if v else "no" for v in Y], S, G), {}, ["pos_label", "'no'", "'yes'"]),
    ("pos_label", (Y, S, G), {"pos_label": 7}, ["7", "0, 1"]), ("text score", (Y, ["high"]*8, G), {}, ["'high'", "row 0"]),
    ("percent", (Y, [f"{v*100:.0f}%" for v in S], G), {}, ["'10%'", "row 0"]), ("one string", ("01011010", S, G), {}, "str"),
    ("one number", (1, .5, "F"), {}, "single"), ("None", (Y, None, G), {}, "y_score"),
    ("no groups", (Y, S, None), {}, "sensitive_features"), ("ragged", (Y, [[.1, .9], [.2]]*4, G), {}, "row"),
    ("3-d", (Y, np.zeros((8, 1, 2)), G), {}, "shape"), ("threshold", (Y, S, G), {"threshold": "best-f1"}, "best_f1"),
    ("threshold None", (Y, S, G), {"threshold": None}, "best_f1"), ("target", (Y, S, G), {"threshold": "specificity=80"}, "(0, 1]"),
    ("metric", (Y, S, G), {"metrics": ["brierr"]}, "brier"), ("score_type", (Y, S, G), {"score_type": "prob"}, "probability"),
    ("missing", (Y, S, G), {"missing": "ignore"}, "'drop'"), ("bins for a typo", (Y, S, {"age": G}), {"bins": {"Age": [40]}}, "'age'"),
    ("bins of words", (Y, S, {"sex": G}), {"bins": {"sex": [40]}}, "'F'"),
    ("bins without a name", (Y, S, {"a": G, "b": G}), {"bins": [40]}, "'a'"),
    ("duplicate columns", (Y, S, pd.DataFrame([["F", "x"]]*8, columns=["sex", "sex"])), {}, "'sex'"),
    ("intersection of one", (Y, S, G), {"intersectional": True}, "two"),
    ("intersection typo", (Y, S, {"a": G, "b": G}), {"intersectional": [("a", "c")]}, "'c'"),
    ("negative weight", (Y, S, G), {"sample_weight": [-1]*8}, "row 0"), ("weight length", (Y, S, G), {"sample_weight": [1]*7}, "8"),
    ("all weights 0", (Y, S, G), {"sample_weight": [0]*8}, "zero"), ("score_column", (Y, np.c_[S, S], G), {"score_column": 5}, "2 columns"),
    ("columns and classes", ([0, 1, 2, 0, 1, 2, 0, 1], np.c_[S, S], G), {}, ["2 columns", "3 classes"]))


@pytest.mark.parametrize("args,kw,says", **HELPLESS)
def test_errors_say_what_is_wrong_and_what_to_do(args, kw, says): refuses(fm.evaluate, *args, **kw, says=says)


NO_TYPE_ERROR = by(
    ("threshold too large", {"threshold": 10**400}), ("threshold list", {"threshold": [.5]}), ("threshold bool", {"threshold": True}),
    ("threshold NaN", {"threshold": np.nan}), ("threshold dict", {"threshold": {"specificity": .8, "x": 1}}),
    ("metrics int", {"metrics": 3}), ("metrics nested", {"metrics": [["brier"]]}), ("intersectional int", {"intersectional": 2}),
    ("intersectional text", {"intersectional": "a"}), ("bins True", {"bins": {"a": True}}), ("bins text", {"bins": {"a": "4"}}),
    ("bins list text", {"bins": {"a": "40,60"}}), ("bins NaN", {"bins": {"a": [np.nan]}}), ("bins inf", {"bins": {"a": [np.inf]}}),
    ("bins 1", {"bins": {"a": 1}}), ("bins none", {"bins": {"a": []}}), ("bins set", {"bins": {"a": {40, 60}}}),
    ("bins dict", {"bins": {"a": {"x": 1}}}), ("bins nested", {"bins": {"a": [[40], [60]]}}), ("score_type None", {"score_type": None}),
    ("score_type list", {"score_type": ["logit"]}), ("pos_label list", {"pos_label": [1]}), ("weight scalar", {"sample_weight": 1}),
    ("weight text", {"sample_weight": ["a"]*8}), ("weight 2-d", {"sample_weight": np.ones((8, 2))}),
    ("weight NaN", {"sample_weight": [np.nan] + [1]*7}), ("weight complex", {"sample_weight": [1j]*8}),
    ("weight dict", {"sample_weight": dict.fromkeys(range(8), 1)}), ("weight set", {"sample_weight": set(range(8))}))


@pytest.mark.parametrize("kw", **NO_TYPE_ERROR)
def test_a_wrong_option_is_an_input_error(kw): refuses(fm.evaluate, Y, S, {"a": [20, 70, 30, 50, 80, 45, 33, 61], "b": list("xxyyxyxy")},
                                                       **({"bins": {"a": [40]}} | kw))


def test_none_and_single_values_are_read_as_meant():
    assert gap(g=[9, 9, 1, 1, 2, 2, 1, 2], unknown=9) == gap(g=[None, None, 1, 1, 2, 2, 1, 2])
    assert names(score(g=["unknown", "unknown", "M", "M"]*2, unknown=None)) == ["M", "unknown"]
    assert score(metrics=None).summary.equals(score().summary)
    assert score(metrics="brier").summary["brier-gap"].iloc[0] == score(metrics=["brier"]).summary["brier-gap"].iloc[0]
    assert gap([0, 1, -1, 1, 1, 0, 1, 0], drop_labels=-1) == gap([0, 1, None, 1, 1, 0, 1, 0])


# ---------------------------------------------------------------- files

def csv(tmp_path, text, name="p.csv", encoding="utf-8"):
    file = tmp_path/name
    file.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return file


PLAIN = "id,sex,y_true,y_score\n" + "".join(f"p{i},{g},{y},{s}\n" for i, (y, s, g) in enumerate(zip(Y, S, G)))
FORMS = by(
    ("semicolons", PLAIN.replace(",", ";"), "utf-8"), ("decimal commas", PLAIN.replace(",", ";").replace(".", ","), "utf-8"),
    ("spaces", PLAIN.replace(",", ", "), "utf-8"), ("spaces around", PLAIN.replace(",", " , "), "utf-8"),
    ("tabs", PLAIN.replace(",", "\t"), "utf-8"), ("latin-1", PLAIN.replace("p0", "pé"), "latin-1"),
    ("utf-16", PLAIN.replace("p0", "pé"), "utf-16"), ("BOM", PLAIN, "utf-8-sig"),
    (
        "percent",
        "\n".join(
            (f"{l.rpartition(',')[0]},{float(l.rpartition(',')[2])*100:.1f}%" if i and l else l) for i, l in enumerate(PLAIN.split("\n"))),
        "utf-8"), ("CRLF", PLAIN.replace("\n", "\r\n"), "utf-8"), ("CR", PLAIN.replace("\n", "\r"), "utf-8"),
    ("quoted", "\n".join(",".join(f'"{c}"' for c in l.split(",")) for l in PLAIN.strip().split("\n")), "utf-8"),
    ("no last newline", PLAIN.strip(), "utf-8"), ("blank lines", PLAIN.replace("\n", "\n\n"), "utf-8"),
    ("empty rows at the end", PLAIN + ",,,\n,,,\n", "utf-8"),
    ("index column", "\n".join(("," if i == 0 else f"{i},") + l for i, l in enumerate(PLAIN.strip().split("\n"))), "utf-8"),
    ("a column without values", PLAIN.replace("sex,", "note,sex,").replace(",F,", ",,F,").replace(",M,", ",,M,"), "utf-8"),
    ("sep line", "sep=,\n" + PLAIN, "utf-8"))


@pytest.mark.parametrize("text,encoding", **FORMS)
def test_tables_that_people_have(tmp_path, text, encoding):
    notes = Notes()
    frame, _ = hear(read_table, csv(tmp_path, text, encoding=encoding), text=["id", "sex"], notes=notes)
    assert gap(frame["y_true"], frame["y_score"], frame["sex"]) == GAP


@pytest.mark.parametrize(
    "text,says",
    **by(
        ("empty", "", "empty"), ("header only", PLAIN.split("\n")[0] + "\n", "no rows"),
        ("twice the same column", PLAIN.replace("id,sex", "sex,sex"), "'sex'"), ("a long row", PLAIN.replace("p3,", "p3,x,"), "line 5"),
        ("a short row", PLAIN.replace("p3,M,", "p3,"), "line 5"), ("an open quote", PLAIN.replace("p3", '"p3'), "quote"),
        ("binary", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary")))
def test_tables_that_nobody_can_read(tmp_path, text, says): refuses(read_table, csv(tmp_path, text), says=says)


def test_empty_attribute_cells_are_unknown(tmp_path):
    frame = hear(read_table, csv(tmp_path, PLAIN.replace("p0,F", "p0,").replace("p1,F", "p1,NA")), text="sex")[0]
    r = score(frame["y_true"], frame["y_score"], frame["sex"])
    assert names(r) == ["F", "M", "NA"] and r.unknown["n"].tolist() == [1]
    frame = hear(read_table, csv(tmp_path, PLAIN.replace(",F,", ",,").replace(",M,", ",,")), text="sex")[0]
    try: assert not finite(score(frame["y_true"], frame["y_score"], frame["sex"]))
    except InputError: pass


def test_an_output_path_that_cannot_be_written(tmp_path):
    r = score()
    for path, word in ((tmp_path, "folder"), (tmp_path/"no"/"such"/"r.json", "does not exist"), (tmp_path/("x"*300 + ".json"), "long"),
                       (str(tmp_path/"a\0b.json"), ""), ("", "")):
        for write in (r.to_json, r.to_markdown, r.to_csv): refuses(write, path, says=word)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


# ================================================================ kinds alike: containers

def batches(x, make): return [make(x[:5]), make(x[5:])]


class OnlyArray:
    "What JAX and h5py offer at least."
    def __init__(self, x): self.x = np.asarray(x)
    def __array__(self, dtype=None, copy=None): return np.asarray(self.x, dtype)
    def __len__(self): return len(self.x)


class OnlyDLPack:
    def __init__(self, x): self.x = np.asarray(x)
    def __dlpack__(self, **kw): return self.x.__dlpack__(**kw)
    def __dlpack_device__(self): return self.x.__dlpack_device__()


CONTAINERS = by(
    ("list", list), ("tuple", tuple), ("generator", lambda x: (v for v in x)), ("iterator", iter), ("deque", collections.deque),
    ("dict values", lambda x: dict(enumerate(x)).values()), ("array", np.array), ("object array", lambda x: np.array(x, dtype=object)),
    ("read-only", lambda x: np.frombuffer(np.array(x).tobytes(), np.array(x).dtype)), ("strided", lambda x: np.repeat(np.array(x), 2)[::2]),
    ("reversed", lambda x: np.array(x)[::-1].copy()[::-1]), ("broadcast column", lambda x: np.array(x)[:, None]),
    ("Fortran column", lambda x: np.asfortranarray(np.array(x)[:, None])), ("Series", pd.Series), ("Index", pd.Index),
    ("DataFrame", lambda x: pd.DataFrame({"x": x})), ("category", lambda x: pd.Series(x, dtype="category")),
    ("Categorical", pd.Categorical), ("batches", lambda x: batches(x, np.array)), ("batches of Series", lambda x: batches(x, pd.Series)),
    ("batches of columns", lambda x: batches(x, lambda b: np.array(b)[:, None])),
    ("a batch of none", lambda x: [np.array(x), np.array(x)[:0]]), ("only __array__", OnlyArray),
    ("sparse column", lambda x: x if isinstance(x[0], str) else pytest.importorskip("scipy.sparse").csr_array(np.array(x)[:, None])))


@pytest.mark.parametrize("make", **CONTAINERS)
@pytest.mark.parametrize("which", ["y", "s", "g"])
def test_any_container(make, which):
    args = dict(y=Y, s=S, g=G)
    assert gap(**(args | {which: make(args[which])})) == GAP


def test_numpys_own_matrix():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        y, s = np.matrix(Y), np.matrix(S)
        assert gap(y.T, s.T) == GAP
        refuses(fm.evaluate, y, s, G)


NUMERIC = by(
    *[(d, lambda x, d=d: np.array(x).astype(d)) for d in ("f2", "f4", "f8", "g", ">f2", ">f4", ">f8")],
    ("DLPack", lambda x: OnlyDLPack(np.array(x, float))), ("memoryview", lambda x: memoryview(np.array(x, float))),
    ("Decimal", lambda x: [Decimal(str(v)) for v in x]), ("Fraction", lambda x: [Fraction(v) for v in x]),
    ("text", lambda x: [str(v) for v in x]), ("NumPy text", lambda x: np.array([str(v) for v in x])),
    ("NumPy scalars", lambda x: [np.float32(v) for v in x]), ("Float64", lambda x: pd.Series(x, dtype="Float64")),
    ("Sparse", lambda x: pd.Series(x).astype("Sparse[float]")), ("masked, nothing masked", lambda x: np.ma.array(x)))


@pytest.mark.parametrize("make", **NUMERIC)
@pytest.mark.parametrize("which", ["y", "s"])
def test_any_number(make, which):
    args = dict(y=Y, s=S, g=G)
    assert gap(**(args | {which: make([float(v) for v in args[which]])})) == GAP


LABELS = by(
    *[(d, lambda d=d: y_.astype(d)) for d in ("i1", "i8", "u1", "u8", ">i4", ">u2", "?", "f2", ">f8")],
    ("bool objects", lambda: [bool(v) for v in Y]), ("mixed bool", lambda: [bool(v) if i % 2 else v for i, v in enumerate(Y)]),
    ("'0'/'1'", lambda: [str(v) for v in Y]), ("'True'/'False'", lambda: [str(bool(v)) for v in Y]),
    ("'1.0'", lambda: [str(float(v)) for v in Y]), ("Int64", lambda: pd.Series(Y, dtype="Int64")),
    ("boolean", lambda: pd.Series(Y, dtype="boolean")), ("string", lambda: pd.Series([str(v) for v in Y], dtype="string")),
    ("category with an unused one", lambda: pd.Series(pd.Categorical(Y, categories=[0, 1, 2]))),
    ("one column of a frame", lambda: pd.DataFrame({"y": Y})))


@pytest.mark.parametrize("make", **LABELS)
def test_any_label(make): assert gap(make()) == GAP


NO_ORDER = by(("set", set), ("frozenset", frozenset), ("dict", lambda x: dict(enumerate(x))), ("Counter", collections.Counter))


@pytest.mark.parametrize("make", **NO_ORDER)
def test_what_has_no_order_is_refused(make):
    "A set has no order, and iterating a dict gives its keys: both would be read as scores of somebody else."
    distinct = [v + i*1e-6 for i, v in enumerate(S)]
    refuses(fm.evaluate, Y, make(distinct), G)
    refuses(fm.evaluate, make(range(8)), S, G)
    refuses(fm.evaluate, Y, S, G, sample_weight=make([1.0 + i for i in range(8)]))
    refuses(fm.evaluate_segmentation, G, dice=make(distinct)) if not isinstance(make([1]), dict) else None
    if not isinstance(make([1]), dict): refuses(fm.evaluate, Y, S, make(range(8)))
    if isinstance(make([1]), (set, frozenset)): refuses(fm.evaluate_segmentation, G[:2], pred_masks=make(["a.png", "b.png"]),
                                                        true_masks=["c.png", "d.png"], says="order")


NOT_NUMBERS = by(
    ("dates", pd.date_range("2020", periods=8)), ("date Series", pd.Series(pd.date_range("2020", periods=8))),
    ("NumPy dates", np.arange(8).astype("M8[D]")), ("spans", pd.to_timedelta(range(8), unit="D")),
    ("NumPy spans", np.arange(8).astype("m8[s]")), ("date objects", [dt.date(2020, 1, i + 1) for i in range(8)]), ("complex", s_ + 0j),
    ("complex list", [complex(v, 1) for v in S]), ("words", ["high"]*8), ("bool words", ["True", "False"]*4), ("void", np.zeros(8, "V8")),
    ("objects", [object()]*8), ("too large", [10**400] + S[1:]), ("records", np.rec.fromarrays([s_, s_], names="a,b")),
    ("lists", pd.Series([[v] for v in S])), ("dicts", [{"p": v} for v in S]), ("1-d of one", np.array(.5)), ("0-d", np.float64(.5)))


@pytest.mark.parametrize("bad", **NOT_NUMBERS)
def test_what_is_no_number_is_refused(bad):
    refuses(fm.evaluate, Y, bad, G)
    refuses(fm.evaluate, Y, S, G, sample_weight=bad)
    refuses(fm.evaluate_segmentation, G, dice=bad)


@pytest.mark.parametrize(
    "bad",
    **by(
        ("dates", pd.date_range("2020", periods=8)), ("spans", pd.to_timedelta(range(8), unit="D")), ("complex", s_ + 1j),
        ("inf", [23, np.inf, 40, 50, 60, 70, 33, 45]), ("-inf", [-np.inf, 23, 40, 50, 60, 70, 33, 45]),
        ("text inf", ["inf", "23", "40", "50", "60", "70", "33", "45"]), ("90+", ["90+", "23", "40", "50", "60", "70", "33", "45"]),
        ("45 y", ["45 y", "23", "40", "50", "60", "70", "33", "45"]), ("hex", ["0x20", "23", "40", "50", "60", "70", "33", "45"]),
        ("a dict in a cell", [{"a": 1}]*8), ("all missing", [None]*8), ("all unknown", ["unknown"]*8)))
@pytest.mark.parametrize("bins", [[40], 2], ids=["cuts", "quantiles"])
def test_what_cannot_be_binned_is_refused(bad, bins): refuses(fm.evaluate, Y, S, {"age": bad}, bins={"age": bins})


BINNABLE = by(
    ("ints", [30, 50]*4), ("floats", [30., 50.]*4), ("text", ["30", " 50 "]*4), ("Decimal", [Decimal(30), Decimal(50)]*4),
    ("Int64", pd.array([30, 50]*4, dtype="Int64")), ("category", pd.Categorical([30, 50]*4)), ("float16", np.array([30, 50]*4, "f2")),
    ("big-endian", np.array([30, 50]*4, ">i4")), ("object", np.array([30, 50]*4, dtype=object)),
    ("masked, nothing masked", np.ma.array([30, 50]*4)))


@pytest.mark.parametrize("age", **BINNABLE)
def test_any_column_of_numbers_can_be_binned(age):
    r = score([0, 1, 1, 0]*2, S, {"age": age}, bins={"age": [40]})
    assert names(r) == ["<40", ">=40"] and r.by_group["n"].tolist() == [4, 4]


@pytest.mark.parametrize("age", **by(("NaN", [30, np.nan]*4), ("None", [30, None]*4), ("pd.NA", [30, pd.NA]*4),
                                     ("Int64", pd.array([30, None]*4, dtype="Int64")), ("text", ["30", ""]*4),
                                     ("unknown", ["30", "Unknown"]*4), ("masked", np.ma.array([30, 99]*4, mask=[0, 1]*4))))
def test_missing_ages_are_unknown(age):
    r = score(g={"age": age, "sex": G}, bins={"age": [40]})
    assert r.by_group.loc["age"]["n"].sum() == 4 and r.unknown.set_index("attribute").loc["age", "n"] == 4 and any(
        "age" in w and "4 samples of unknown group" in w for w in r.warnings)


def test_words_for_unknown_hold_for_numbers_too():
    r = score(g={"age": [999, 40, 59, 60, 71, 35, 44, 66]}, bins={"age": [45]}, unknown=["999"])
    assert r.by_group["n"].sum() == 7 and r.unknown["n"].tolist() == [1], "999 is a code for unknown, not an age"
    assert gap(g=[9, 9, 1, 1, 2, 2, 1, 2], unknown=["9"]) == gap(g=[None, None, 1, 1, 2, 2, 1, 2])


# ---------------------------------------------------------------- tensors and other libraries

def test_tensors_of_any_kind():
    torch = pytest.importorskip("torch")
    t = torch.tensor
    for make in (
        lambda x: t(x), lambda x: t(x, dtype=torch.float64), lambda x: t(x).half(), lambda x: t(x).bfloat16(),
        lambda x: t(x, requires_grad=True), lambda x: t(x)[:, None], lambda x: t([x, x]).T[:, 0], lambda x: torch.nn.Parameter(t(x)),
        lambda x: [t(v) for v in x], lambda x: batches(x, t), lambda x: tuple(batches(x, t)),
        lambda x: batches(x, lambda b: t(b).bfloat16()), lambda x: batches(x, lambda b: t(b)[:, None]), lambda x: t(x).to_sparse(),
        lambda x: torch._neg_view(-t(x))):
        assert gap(t(Y), make(S)) == GAP
    assert gap(t(Y).bool(), t(S), t([0, 0, 1, 1, 0, 0, 1, 1])) == gap(Y, S, [0, 0, 1, 1, 0, 0, 1, 1])
    soft = torch.softmax(t([[0., math.log(v/(1 - v))] for v in S]), dim=1)
    assert gap(t(Y), soft) == GAP and gap(t(Y), batches(soft, lambda b: b)) == GAP
    for bad in (t(S).to(torch.complex64), t(S).to("meta"), t(.5), [t(S[:7]), t(S[7])], [torch.rand(5, 2), torch.rand(3, 3)],
                [t(S[:5])[:, None], t(S[5:])], t(S)[None, None]): refuses(fm.evaluate, t(Y), bad, G)


def test_tensors_of_masks():
    torch = pytest.importorskip("torch")
    for make in (torch.tensor, lambda m: torch.tensor(m).bfloat16(), lambda m: torch.tensor(m).float().requires_grad_(),
                 lambda m: torch.tensor(m)[None], lambda m: torch.tensor(m).to_sparse()):
        assert masks(hear(fm.evaluate_segmentation, G[:4], pred_masks=[make(m) for m in M], true_masks=M)[0]) == 1


def test_polars():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"y": Y, "s": S, "sex": G, "age": [20, 70, 30, 50, 80, 45, 33, None]})
    assert gap(frame["y"], frame["s"], frame["sex"]) == gap(frame["y"], frame["s"], frame.select("sex")) == gap(
        frame.select("y"), frame.select("s"), frame["sex"]) == GAP
    r = score(frame["y"], frame["s"], frame.select("sex", "age"), bins={"age": [40, 60]})
    assert r.attributes == ["sex", "age"] and names(r) == ["F", "M", "<40", "40-60",
                                                           ">=60"] and r.unknown["n"].tolist() == [1], "names and bins are kept"
    for dtype in (pl.Categorical, pl.Enum(["M", "F"])): assert gap(g=pl.Series("sex", G, dtype=dtype)) == GAP
    assert gap(s=pl.Series(S, dtype=pl.Float32)) == gap(s=pl.DataFrame({"0": 1 - s_, "1": s_})) == GAP
    assert score(pl.Series([None, *Y[1:]])).summary["n"].iloc[0] == 7
    assert score(g=pl.Series("sex", [None, *G[1:]])).unknown["n"].tolist() == [1]
    refuses(fm.evaluate, Y, pl.Series([None, *S[1:]]), G, says="row 0")
    for bad in (pl.Series("sex", [[v] for v in G]), pl.Series("sex", [{"a": v} for v in G])): refuses(fm.evaluate, Y, S, bad)
    refuses(fm.evaluate, Y, S, frame.lazy().select("sex"), says="collect")


def test_arrow():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"y": Y, "s": S, "sex": G, "age": [20, 70, 30, 50, 80, 45, 33, None]})
    for f in (
        lambda c: table[c], lambda c: pa.chunked_array([table[c].to_pylist()[:3], table[c].to_pylist()[3:]]),
        lambda c: table[c].combine_chunks(),
        lambda c: pa.array([table[c].to_pylist()[0], *table[c].to_pylist()])[1:]): assert gap(f("y"), f("s"), f("sex")) == GAP
    words = pa.array(G)
    for g in (words.dictionary_encode(), pa.chunked_array([words[:3].dictionary_encode(), words[3:].dictionary_encode()]),
              words.cast(pa.large_string()), pa.table({"sex": words.dictionary_encode()}),
              pa.record_batch({"sex": words})): assert gap(g=g) == GAP
    r = score(table["y"], table["s"], table.select(["sex", "age"]), bins={"age": [40, 60]})
    assert r.attributes == ["sex", "age"] and names(r) == ["F", "M", "<40", "40-60",
                                                           ">=60"] and r.unknown["n"].tolist() == [1], "names and bins are kept"
    for g in (pa.array([None, *G[1:]]), pa.array([None, *G[1:]]).dictionary_encode(),
              pa.chunked_array([[None, *G[1:4]], G[4:]])): assert score(g=g).unknown["n"].tolist() == [1]
    for y in (pa.array([None, *Y[1:]]), pa.array([None, *map(bool, Y[1:])])): assert score(y).summary["n"].iloc[0] == 7
    for s in (pa.array(s_.astype("f2")), pa.array([Decimal(str(v)) for v in S]), pa.table({"0": 1 - s_, "1": s_})): assert gap(s=s) == GAP
    refuses(fm.evaluate, Y, pa.array([None, *S[1:]]), G, says="row 0")
    dice = hear(fm.evaluate_segmentation, G, dice=pa.table({"liver": S}))[0]
    assert dice.targets == ["liver"]
    for dtype in ("string[pyarrow]", pd.ArrowDtype(pa.string()), pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))):
        assert gap(g=pd.Series(G, dtype=dtype, name="sex")) == GAP
    assert score(pd.Series([None, *Y[1:]], dtype="int64[pyarrow]")).summary["n"].iloc[0] == 7


def test_sparse_matrices():
    sp = pytest.importorskip("scipy.sparse")
    assert gap(s=sp.csr_array(np.c_[1 - s_, s_])) == gap(s=sp.csc_matrix(s_[:, None])) == gap(sp.csr_matrix(y_[:, None])) == GAP
    refuses(fm.evaluate, Y, sp.csr_matrix(s_[None, :]), G)


# ---------------------------------------------------------------- masked arrays

def test_masked_values_are_missing():
    "NumPy fills masked integers with 999999 and masked text with '?'. A masked value is a missing one."
    hide = [0, 0, 1, 0, 0, 0, 0, 0]
    for y in (np.ma.array(Y, mask=hide), np.ma.array(np.array(Y, float), mask=hide), np.ma.array(np.array(Y, bool), mask=hide)):
        assert score(y).summary["n"].iloc[0] == 7
    r = score(g=np.ma.array(G, mask=hide))
    assert names(r) == ["F", "M"] and r.unknown["n"].tolist() == [1]
    assert names(score(g=np.ma.array([0, 0, 1, 1]*2, mask=hide))) == ["0", "1"]
    for s in (np.ma.array(S, mask=hide), np.ma.array(range(8), mask=hide)):
        refuses(fm.evaluate, Y, s, G, says="row 2")
        assert score(s=s, missing="drop").summary["n"].iloc[0] == 7
    assert hear(fm.evaluate_segmentation, G, dice=np.ma.array([1, 0]*4, mask=hide))[0].summary["n"].iloc[0] == 7


@pytest.mark.parametrize("missing", **MISSING)
def test_missing_scores_in_a_list(missing):
    s = [missing if i == 2 else v for i, v in enumerate(S)]
    refuses(fm.evaluate, Y, s, G, says="row 2")
    r, said = hear(fm.evaluate, Y, s, G, missing="drop")
    assert r.summary["n"].iloc[0] == 7 and any("without a score" in w for w in said)
    assert not any("without a usable label" in w for w in said), "its label is fine"
    assert hear(fm.evaluate_segmentation, G, dice=s)[0].summary["n"].iloc[0] == 7


# ---------------------------------------------------------------- rows that belong together

LABELLED = {k: pd.Series(v, IX, name=n) for k, v, n in (("y", Y, "y"), ("s", S, "s"), ("g", G, "sex"))}
TURNS = by(("reversed", lambda x: x[::-1]), ("shuffled", lambda x: x.sample(frac=1, random_state=0)),
           ("sorted the other way", lambda x: x.sort_index(ascending=False)))


@pytest.mark.parametrize("turn", **TURNS)
def test_labelled_rows_are_joined_on_their_labels(turn):
    y, s, g = LABELLED.values()
    w = pd.Series(range(1, 9), IX)
    for args in (
        (turn(y), s, g), (y, turn(s), g), (y, s, turn(g)), (y, s, turn(g.to_frame())), (y, s, {"sex": turn(g)}),
        (y, turn(s), {"sex": turn(g)}), (turn(y).to_frame(), s, g),
        (y, turn(pd.DataFrame({"0": 1 - s, "1": s})), g)): assert gap(*args) == GAP
    assert gap(y, s, g, sample_weight=turn(w)) == gap(y, s, g, sample_weight=w)
    assert score(y, s, {"sex": turn(g), "age": pd.Series([20, 70, 30, 50, 80, 45, 33, 61], IX)},
                 bins={"age": [40]}).summary.loc["sex", "auc-gap"] == GAP
    dice = lambda d, g: hear(fm.evaluate_segmentation, g, dice=d)[0].summary["delta_dice"].iloc[0]
    assert dice(turn(s), g) == dice(s, {"sex": turn(g)}) == dice(s, g) and dice({"liver": turn(s)}, g) == dice(s, g)
    assert hear(fm.dice_gap, turn(s), sensitive_features=g)[0] == pytest.approx(dice(s, g))


def test_an_index_of_several_levels():
    levels = pd.MultiIndex.from_product([["p1", "p2"], list("abcd")])
    y, s, g = (pd.Series(v, levels) for v in (Y, S, G))
    assert gap(y, s.sample(frac=1, random_state=0), g[::-1]) == GAP
    refuses(fm.auc_gap, y, pd.Series(S, IX), sensitive_features=g)
    refuses(fm.auc_gap, y, pd.Series(S, pd.MultiIndex.from_product([["p1", "p3"], list("abcd")])), sensitive_features=g)


def test_labels_that_repeat_are_not_joined():
    twice = list("aabbccdd")
    y, s, g = (pd.Series(v, twice) for v in (Y, S, G))
    assert gap(y, s, g) == GAP, "the same order is fine"
    for bad in (
        s[::-1], s.sample(frac=1, random_state=0), pd.Series(S, IX)): refuses(fm.auc_gap, y, bad, sensitive_features=g, says="repeat")


DISAGREE = by(
    ("one other", lambda x: x.rename({"a": "z"})), ("one less", lambda x: x[:-1]),
    ("one more", lambda x: pd.concat([x, pd.Series(x.iloc[:1].to_numpy(), ["z"])])), ("others", lambda x: x.set_axis(list("stuvwxyz"))),
    ("other case", lambda x: x.set_axis(list("ABCDEFGH"))), ("numbers for text", lambda x: x.set_axis(range(1, 9))),
    ("spaces", lambda x: x.rename({"a": "a "})), ("missing", lambda x: x.rename({"a": None})))


@pytest.mark.parametrize("change", **DISAGREE)
def test_labels_that_disagree_are_an_error(change):
    y, s, g = LABELLED.values()
    for f in (
        lambda: fm.evaluate(y, change(s), g), lambda: fm.evaluate(change(y), s, g), lambda: fm.evaluate(y, s, change(g)),
        lambda: fm.evaluate(y, s, {"sex": change(g)}), lambda: fm.evaluate(y, s, g, sample_weight=change(pd.Series(range(1, 9), IX))),
        lambda: fm.evaluate(Y, S, {"sex": change(g), "again": g}), lambda: fm.evaluate_segmentation(g, dice=change(s)),
        lambda: fm.evaluate_segmentation({"sex": change(g)}, dice=s)): refuses(f)


def test_pairing_by_position_is_said():
    y, s, g = LABELLED.values()
    for args in ((y.reset_index(drop=True), s, g), (y, s.reset_index(drop=True), g),
                 (y, s, g.reset_index(drop=True))): assert any("by position" in w for w in hear(fm.evaluate, *args)[1])
    assert not any("position" in w for w in hear(fm.evaluate, Y, s, g)[1]), "a list has no labels to ignore"
    turned = pd.Series(Y, [7, 6, 5, 4, 3, 2, 1, 0])
    for args in ((turned, pd.Series(S), pd.Series(G)), (pd.Series(Y), pd.Series(S, turned.index), pd.Series(G))):
        assert any("position" in w or "label" in w for w in hear(fm.evaluate, *args)[1]
                   if "threshold" not in w), "a fresh 0, 1, 2, … beside a turned one may mean either; which was taken is said"


def test_columns_of_the_same_name_belong_together():
    rng = np.random.default_rng(0)
    y = pd.DataFrame(rng.integers(0, 2, (60, 3)), columns=["mass", "edema", "effusion"])
    s = pd.DataFrame(rng.random((60, 3)), columns=y.columns)
    g = rng.choice(["F", "M"], 60)
    want = score(y, s, g).overall
    assert score(y, s[["effusion", "mass", "edema"]], g).overall == want, "not by position"
    assert score(y, s.to_numpy(), g).overall == want and score(y, s.add_prefix("score_"), g).targets == list(y.columns)
    refuses(fm.evaluate, y, s.rename(columns={"mass": "masses"}), g, says="masses")
    refuses(fm.evaluate, y.set_axis(["mass", "mass", "edema"], axis=1), s.to_numpy(), g, says="mass")
    refuses(fm.evaluate, y, s.set_axis(["mass", "mass", "edema"], axis=1), g, says="mass")


def test_columns_of_classes():
    two = pd.DataFrame({"0": 1 - s_, "1": s_})
    for s in (two, two[["1", "0"]], two.rename(columns=int)[[1, 0]]): assert gap(s=s) == GAP, "columns called like classes go by name"
    for s in (two.set_axis(["prob_1", "prob_0"], axis=1), two.set_axis(["pos", "neg"], axis=1)):
        r, said = hear(fm.evaluate, Y, s, G)
        by_name = r.overall["auc"] == score(s=s_ if s.columns[0] == "pos" else 1 - s_).overall["auc"]
        assert by_name or any(repr(str(s.columns[0])) in w for w in said), "columns taken by position are said"
    refuses(fm.evaluate, Y, two.set_axis(["1", "1"], axis=1), G)
    refuses(fm.evaluate, Y, two.to_numpy(), G, labels=[1, 1])
    refuses(fm.evaluate, Y, two.to_numpy(), G, labels=[0, 1, 2])
    refuses(fm.evaluate, Y, two.to_numpy(), G, labels=["a", "b"])
    for bad in (.5, True, np.nan, "2", 7, -3, None.__class__, [1]): refuses(fm.evaluate, Y, two, G, score_column=bad)
    assert gap(s=two, score_column="1") == gap(s=two.to_numpy(), score_column=1) == gap(s=two.to_numpy(), score_column=-1) == GAP
    refuses(fm.evaluate, Y, S, G, score_column=1)                                        # there is one column: the option would be ignored
    three = np.random.default_rng(0).dirichlet([1, 1, 1], 8)
    y3 = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    abc = pd.DataFrame(three[:, [2, 0, 1]], columns=["c", "a", "b"])
    assert score(np.array(list("abc"))[y3], abc).overall["b"] == score(y3, three).overall["1"]
    refuses(fm.evaluate, y3, three[:, :2], G)
    refuses(fm.evaluate, np.where(y3 == 1, -1, y3), np.c_[three, three[:, :1]], G)
    refuses(fm.evaluate, np.where(y3 == 1, 0, y3), three, G, pos_label=1, says="pos_label")
    r, said = hear(fm.evaluate, np.where(y3 == 1, 0, y3), three, G)
    assert r.targets == ["0", "2"] and any("class 1" in w for w in said)


# ---------------------------------------------------------------- groups of any kind

DAY, NEXT = dt.date(2020, 1, 1), dt.date(2021, 1, 1)
KINDS = by(
    ("text", G, ["F", "M"]), ("bytes", [v.encode() for v in G], ["F", "M"]), ("NumPy bytes", np.array(G, "S"), ["F", "M"]),
    ("NumPy text", np.array(G), ["F", "M"]), ("bool", [v == "F" for v in G], ["False", "True"]),
    ("NumPy bool", g_ == "F", ["False", "True"]), ("boolean", pd.Series(g_ == "F", dtype="boolean"), ["False", "True"]),
    ("int", [int(v == "F") for v in G], ["0", "1"]), ("float", [float(v == "F") for v in G], ["0", "1"]),
    ("halves", [.5 if v == "F" else 1 for v in G], ["0.5", "1"]), ("-0.0", [-0.0 if v == "F" else 1 for v in G], ["0", "1"]),
    ("big-endian", np.array([v == "F" for v in G], ">f8"), ["0", "1"]), ("int8", np.array([v == "F" for v in G], "i1"), ["0", "1"]),
    ("negative", [-5 if v == "F" else 30 for v in G], ["-5", "30"]), ("number order", [9 if v == "F" else 10 for v in G], ["9", "10"]),
    ("mixed", [1 if v == "F" else "M" for v in G], ["1", "M"]), ("Decimal", [Decimal(1) if v == "F" else Decimal("2.0") for v in G], None),
    ("dates", [DAY if v == "F" else NEXT for v in G], ["2020-01-01", "2021-01-01"]),
    ("times", pd.Series(pd.to_datetime([DAY if v == "F" else NEXT for v in G])), None),
    ("NumPy days", np.array([DAY if v == "F" else NEXT for v in G], "M8[D]"), ["2020-01-01", "2021-01-01"]),
    ("periods", pd.Series(pd.to_datetime([DAY if v == "F" else NEXT for v in G]).to_period("M")), ["2020-01", "2021-01"]),
    ("intervals", pd.cut(pd.Series([20 if v == "F" else 70 for v in G]), [0, 40, 90]), ["(0, 40]", "(40, 90]"]),
    ("category", pd.Series(pd.Categorical(G, ["X", "M", "F"])), ["M", "F"]), ("tuples", pd.Series([(v, 1) for v in G]), None),
    ("emoji", ["👩" if v == "F" else "👨" for v in G], None), ("right to left", ["\u200fג" if v == "F" else "ד" for v in G], None),
    ("newline", ["F\nG" if v == "F" else "M|N" for v in G], None), ("separator", ["a & b" if v == "F" else "c" for v in G], ["a & b", "c"]),
    ("markup", ["<b>F</b>" if v == "F" else "M`*_" for v in G], None), ("long", ["F"*5000 if v == "F" else "M" for v in G], None),
    ("missing-looking", ["NaN" if v == "F" else "None" for v in G], ["NaN", "None"]),
    ("inf", [np.inf if v == "F" else 1. for v in G], ["1", "inf"]),
    ("StringDType", np.array(G, np.dtypes.StringDType()) if hasattr(np.dtypes, "StringDType") else np.array(G), ["F", "M"]))


@pytest.mark.parametrize("g,want", **KINDS)
def test_groups_of_any_kind(g, want):
    r = score(g=g)
    assert len(names(r)) == 2 and r.summary["auc-gap"].iloc[0] == GAP and r.unknown.empty
    assert want is None or names(r) == want
    for text in (repr(r), r._repr_html_(), r.to_markdown(), r.to_csv(), r.to_json()): assert text
    assert list(json.loads(r.to_json())["by_group"]["sensitive"]) == names(r)
    assert len(r.to_frame()) == len(r.summary.columns) + 2*(len(r.by_group.columns) - ("skipped" in r.by_group))


@pytest.mark.parametrize(
    "g",
    **by(
        ("lists in cells", pd.Series([[v] for v in G])), ("dicts in cells", pd.Series([{"a": v} for v in G])),
        ("arrays in cells", pd.Series([np.array([v, v]) for v in G])), ("3-d", np.zeros((8, 1, 1))), ("0-d", np.array("F")),
        ("one string", "FFMMFFMM"), ("a number", 3), ("nothing", {}), ("an empty frame", pd.DataFrame(index=range(8))),
        ("ragged", [["F", 1], ["F"]]*4), ("columns of different lengths", {"a": G, "b": G[:5]}), ("complex", s_ + 1j),
        ("one name twice", {1: G, "1": list("xyxyxyxy")}), ("one name twice, frame", pd.DataFrame([["F", "x"]]*8, columns=[1, "1"])),
        ("lone surrogates", ["\ud800", "M"]*4)))
def test_groups_that_nobody_can_read(g):
    "Refused in one line. (A lone surrogate may also be replaced, as long as every rendering can be written.)"
    try: r = score(g=g)
    except InputError as e: assert "\n" not in str(e)
    else:
        assert isinstance(g, list) and g[0] == "\ud800", "read although nobody can"
        for text in (r.to_json(), r.to_csv(), r.to_markdown(), repr(r)): text.encode("utf-8")


@pytest.mark.parametrize("word", ["", " ", "\t", "unknown", "Unknown", "UNKNOWN ", None, np.nan, pd.NA, pd.NaT])
def test_unknown_is_no_group(word):
    g = [word if i == 2 else v for i, v in enumerate(G)]
    r = score(g=g)
    assert names(r) == ["F", "M"] and r.unknown["n"].tolist() == [1] and r.summary["n"].iloc[0] == 7
    assert any("1 sample of unknown group" in w for w in r.warnings)
    assert r.summary["auc-gap"].iloc[0] == score(Y[:2] + Y[3:], S[:2] + S[3:], G[:2] + G[3:]).summary["auc-gap"].iloc[0]


def test_large_numbers_stay_apart():
    "A missing value must not push whole numbers through a float."
    a, b = 2**53, 2**53 + 1
    ids = [a if v == "F" else b for v in G]
    for g in (ids, np.array(ids), pd.Series(ids, dtype="Int64"), [str(v) for v in ids]): assert names(score(g=g)) == [str(a), str(b)]
    for g in (pd.Series([None, *ids[1:]], dtype="Int64"), [None, *ids[1:]]): assert names(score(g=g)) == [str(a), str(b)]
    pa = pytest.importorskip("pyarrow")
    for g in (pa.array([None, *ids[1:]]), pa.table({"site": [None, *ids[1:]]})): assert names(score(g=g)) == [str(a), str(b)]


def test_a_missing_truth_value_does_not_rename_the_others():
    for g in (
        pd.Series([None, *[v == "F" for v in G[1:]]], dtype="boolean"),
        [None, *[v == "F" for v in G[1:]]]): assert names(score(g=g)) == ["False", "True"]


def test_whole_scores_beyond_floats():
    "2^60, 2^60 + 1, …: as floats they are all one. Ranks are taken from the raw scores, or the case is refused."
    from sklearn.metrics import roc_auc_score
    for s in ([2**60 + i for i in range(8)], np.array([2**60 + i for i in range(8)]),
              np.array([2**64 - 1 - i for i in range(8)], np.uint64)):
        try: r = score(s=s, score_type="rank")
        except InputError: continue
        assert r.overall["auc"] == roc_auc_score(Y, pd.Series(s).rank())


def test_spellings_that_are_merged_are_said():
    for g in (["F", "F ", "M", "M"]*2, ["F", "F\u00a0", "M", "M"]*2, [1, "1", 2, 2]*2):
        r, said = hear(fm.evaluate, Y, S, g)
        assert len(names(r)) == 2 and any("different spellings" in w for w in said)
    assert names(score(g=["F", "f", "M", "m"]*2)) == ["F", "M", "f", "m"], "case is kept"


def test_names_with_the_separator_do_not_collide():
    g = {"a": ["x", "x & y", "x", "x & y"]*2, "b": ["y & z", "z", "y & z", "z"]*2}
    r = score(g=g, intersectional=True)
    inter = r.by_group.loc[r.attributes[-1]]
    assert len(inter) == 2 and inter["n"].tolist() == [4, 4] and r.by_group.index.is_unique and len(set(inter.index)) == 2


CLASH = by(("an attribute called like the intersection", {"a": G, "b": list("xxyyxyxy"), "a & b": list("ppqqppqq")}, [("a", "b")]),
           ("the same twice", {"a": G, "b": list("xxyyxyxy")}, [("a", "b"), ("a", "b")]),
           ("with itself", {"a": G, "b": list("xxyyxyxy")}, [("a", "a")]))


@pytest.mark.parametrize("g,tuples", **CLASH)
def test_no_row_of_a_report_is_lost(g, tuples):
    try: r = score(g=g, intersectional=tuples)
    except InputError: return
    assert r.by_group.index.is_unique and r.summary.index.is_unique
    assert sum(len(v) for v in json.loads(r.to_json())["by_group"].values()) == len(r.by_group)
    assert ("a", "a") not in tuples or "a & a" not in r.attributes


def test_intersections_of_many_attributes():
    "8 to the 25th does not fit into 64 bits; the combinations that occur do."
    rng = np.random.default_rng(0)
    n = 400
    codes = rng.integers(0, 8, (n, 25))
    r = score(np.tile([0, 1], n//2), rng.random(n), {f"a{i}": [f"g{c}" for c in np.repeat(codes[::2, i], 2)] for i in range(25)},
              intersectional=True)
    inter = r.by_group.loc[r.attributes[-1]]
    assert len(inter) == n/2 and (inter["n"] == 2).all()


def test_many_numbered_sites_have_a_way_out():
    rng = np.random.default_rng(0)
    y, s, site = rng.integers(0, 2, 900), rng.random(900), rng.integers(0, 25, 900)
    refuses(fm.evaluate, y, s, {"site": site}, says=["bins", "text"])
    assert len(names(score(y, s, {"site": site.astype(str)}))) == 25


def test_inputs_are_left_as_they_are():
    y, s, g, w = np.array(Y), np.array(S), pd.DataFrame({"g": G, "age": [20, 30, 40, 50, 60, 70, 80, 90]}), np.arange(1.0, 9)
    before = [v.copy() for v in (y, s, g, w)]
    for kw in ({}, {"score_type": "logit"}, {"threshold": "max_f1", "metrics": list(METRICS)}, {"sample_weight": w},
               {"intersectional": True}): score(y, s, g, bins={"age": [50]}, **kw)
    score(s=s + 1e-9*(s == .9)); hear(fm.evaluate_segmentation, g, dice=s, bins={"age": 2})
    assert all(np.array_equal(a, b) for a, b in zip(before[:2] + before[3:], (y, s, w))) and g.equals(before[2])
    same = [m.copy() for m in M]
    hear(fm.evaluate_segmentation, G[:4], pred_masks=M, true_masks=M, ignore_label=255)
    assert all((a == b).all() for a, b in zip(same, M))


def test_very_many_groups():
    n = 6000
    y, s = np.arange(n) % 2, np.random.default_rng(0).random(n)
    g = np.array([f"s{i//2}" for i in range(n)])
    r = score(y, s, g)
    assert len(r.by_group) == n/2 and r.summary["n_groups"].iloc[0] == n/2 and r.summary["auc-gap"].iloc[0] == 1
    assert len(repr(r)) < 10**7 and all(len(w) < 1000 for w in r.warnings)
    lone = hear(fm.evaluate, y, s, {"a": np.where(np.arange(n) < n - 30, "big", [f"s{i}" for i in range(n)])})[0]
    assert lone.summary["n_left_out"].iloc[0] == 30 and all(len(w) < 1000 for w in lone.warnings)


# ---------------------------------------------------------------- scores at the edge

EDGES = by(("constant", [.5]*8), ("all 0", [0]*8), ("all 1", [1]*8), ("-0.0 and 0.0", [-0.0, 0.0]*4), ("false", [False]*8))


@pytest.mark.parametrize("s", **EDGES)
def test_scores_that_say_nothing(s):
    r = score(s=s)
    assert r.overall["auc"] == .5 and r.by_group["auc"].tolist() == [.5, .5] and r.summary["auc-gap"].iloc[0] == 0
    assert any("say nothing about fairness" in w for w in r.warnings)


def test_perfect_scores():
    r = score(s=Y, threshold="max_f1")
    assert r.overall["auc"] == 1 and r.overall["acc@max_f1"] == 1 and r.overall["bce"] == 0 and r.overall["ece"] == 0
    wrong = score(s=[1 - v for v in Y], threshold=.5)
    assert wrong.overall["auc"] == 0 and wrong.overall["acc"] == 0 and wrong.overall["bce"] == 100, "logarithms are clamped at −100"


def test_extreme_scores_order_as_they_are():
    from sklearn.metrics import roc_auc_score
    for z in (np.c_[-1e308*s_, 1e308*s_], np.c_[np.zeros(8), 1e308*(s_ - .5)], np.c_[-800*s_, 800*s_]):
        assert score(s=z, score_type="logit").overall["auc"] == roc_auc_score(Y, S)
    for s in ([1e-300*v for v in S], [5e-324*i for i in range(8)], [1 - 1e-16*i for i in range(8)], [1e308*(v - .5) for v in S],
              [-1e308, 1e308, 0, 5e-324, -5e-324, 1, -1, 2], [36.9, 37, 40, 800, 801, 802, 803, 804],
              [np.nextafter(.5, 1) if v else .5 for v in Y]):
        for kind in ("auto", "rank"): assert score(s=s, score_type=kind).overall["auc"] == roc_auc_score(Y, pd.Series(s).rank())


# ---------------------------------------------------------------- weights

def test_a_group_without_weight_has_no_number():
    r = score(sample_weight=[1, 1, 0, 0, 1, 1, 0, 0])
    row = r.by_group.loc[("sensitive", "M")]
    assert row[["auc", "acc", "tpr", "tnr", "bce", "ece"]].isna().all() and row["n"] in (0, 4) and not finite(r) and r.warnings


@pytest.mark.parametrize("seed", range(20))
def test_rounding_does_not_give_a_group_labels_it_has_not(seed):
    "Sums of weights that ought to be 0 are 1e-17 when they come from a difference of larger sums."
    w = np.random.default_rng(seed).random(8).round(2) + .01
    r = score([0, 1, 0, 1, 1, 1, 0, 0], [.2, .9, .3, .8, .5, .6, .1, .2], list("aabbccdd"), sample_weight=w)
    auc = r.by_group["auc"].to_numpy()
    assert np.isnan(auc[2:]).all() and ((auc[:2] >= 0) & (auc[:2] <= 1)).all() and r.summary["n_left_out"].iloc[0] == 2
    assert np.isnan(r.by_group["tnr"].iloc[2]) and np.isnan(r.by_group["tpr"].iloc[3])
    assert (r.by_group[["tn", "fp", "fn", "tp"]] >= 0).all(axis=None)


def test_a_small_weight_beside_large_ones():
    w = np.r_[np.full(1000, 1e12), 1, 1, 1, 1]
    y, s = np.r_[np.tile([0, 1], 500), 0, 1, 1, 0], np.r_[np.random.default_rng(0).random(1000), .1, .2, .15, .18]
    got = score(y, s, ["big"]*1000 + ["small"]*4, sample_weight=w).by_group
    assert got.loc[("sensitive", "small"), ["auc", "acc", "tpr", "tnr"]].tolist() == pytest.approx([.75, .5, 0, 1])


@pytest.mark.parametrize("w", **by(("tiny", [1e-320]*8), ("huge", [1e308]*8), ("both", [1e-300, 1e300]*4), ("1e-200", [1e-200]*8),
                                   ("1e200", [1e200]*8)))
def test_weights_of_any_scale(w):
    "A weight is relative: the scale changes nothing, or the case is refused."
    try: r = score(sample_weight=w)
    except InputError: return
    if len(set(w)) == 1: assert [r.overall["auc"], r.summary["auc-gap"].iloc[0]] == pytest.approx([score().overall["auc"], GAP])
    assert not any("with one label only" in x for x in r.warnings)


# ---------------------------------------------------------------- no option is ignored

def test_drop_labels_is_never_ignored():
    refuses(fm.evaluate, Y, S, G, drop_labels=[0, 1])
    r = score(drop_labels=[0])
    assert r.metadata["n_dropped"] == 4 and not finite(r), "dropping a class leaves one label"
    assert any("7" in w for w in hear(fm.evaluate, Y, S, G, drop_labels=[7])[1]), "a label to drop that never occurs may be a typo"


def test_pos_label_of_findings():
    y = np.where(np.array([[1, 1], [0, 1], [1, 0], [0, 0], [1, 1], [0, 1], [1, 0], [0, 0]]), "yes", "no")
    assert score(y, np.c_[S, S], pos_label="yes").targets == ["finding 0", "finding 1"]
    refuses(fm.evaluate, y, np.c_[S, S], G, says="pos_label")
    refuses(fm.evaluate, y == "yes", np.c_[S, S], G, score_column=1)


@pytest.mark.parametrize("kw", **by(("labels", {"labels": [0, 1]}), ("multi_label", {"multi_label": True}),
                                    ("one_vs_rest", {"one_vs_rest": True}), ("score_column", {"score_column": 0})))
def test_an_option_without_a_meaning_here_is_refused(kw): refuses(fm.evaluate, Y, S, G, **kw, says=next(iter(kw)))


def test_one_hot_labels_as_text():
    "What a table read as text holds. The right classes or a refusal, but not two findings."
    for make in (lambda h: h.astype(str), lambda h: h.astype(str).astype(object), lambda h: h.astype(bool), lambda h: h.astype(object),
                 lambda h: pd.DataFrame(h, columns=["0", "1"]), lambda h: pd.DataFrame(h, columns=["0", "1"]).astype("Int64")):
        try: r = score(make(np.eye(2, dtype=int)[Y]), np.c_[1 - s_, s_])
        except InputError: continue
        assert r.targets == [] and r.summary["auc-gap"].iloc[0] == GAP


def test_structures_of_different_lengths():
    refuses(fm.evaluate_segmentation, G[:4], dice={"liver": [.9, .8, .7, .6], "spleen": [.9, .8, .7]})
    for cell in ({"liver": .5}, {"liver": "high"}, {"liver": [[.5]*2]*4}, {"liver": None},
                 {}): refuses(fm.evaluate_segmentation, G[:4], dice=cell)


MASK_OPTIONS = by(("label", {"label": 1}), ("labels", {"labels": [1, 2]}), ("metrics", {"metrics": ["hd95"]}),
                  ("mask_threshold", {"mask_threshold": .7}), ("ignore_label", {"ignore_label": 255}),
                  ("empty_score", {"empty_score": 0.0}), ("spacing", {"spacing": 1}),
                  ("tolerance", {"tolerance_mm": 2}), ("resample", {"resample": True}))


@pytest.mark.parametrize("kw", **MASK_OPTIONS)
def test_options_of_masks_do_not_go_with_dice_values(kw): refuses(fm.evaluate_segmentation, G, dice=S, **kw, says=next(iter(kw)))


@pytest.mark.parametrize(
    "kw",
    **by(
        ("no metric", {"metrics": []}), ("metrics None", {"metrics": None}), ("huge label", {"label": 10**30}),
        ("label NaN", {"label": np.nan}), ("label True", {"label": True}), ("threshold NaN", {"mask_threshold": np.nan}),
        ("threshold None", {"mask_threshold": None}), ("n_jobs 0", {"n_jobs": 0}), ("n_jobs text", {"n_jobs": "2"}),
        ("spacing NaN", {"spacing": np.nan}), ("empty_score 2", {"empty_score": 2}), ("ignore 1.5", {"ignore_label": 1.5}),
        ("unknown metric", {"metrics": ["hd59"]}), ("tolerance", {"metrics": ["nsd"], "tolerance_mm": -1})))
def test_a_wrong_mask_option_is_an_input_error(kw): refuses(fm.evaluate_segmentation, G[:4], pred_masks=M, true_masks=M, **kw)


@pytest.mark.parametrize(
    "pred",
    **by(
        ("one image", M[0]), ("one image as lists", M[0].tolist()), ("fewer", M[:3]), ("none", [None]*4), ("numbers", [1, 2, 3, 4]),
        ("rows", [m.ravel() for m in M]), ("bytes", [b"abc"]*4), ("dicts", [{}]*4), ("ragged", [[[1, 0], [1]]]*4),
        ("no pixels", [m[:0] for m in M]), ("text", ["x"]*4), ("objects", [m.astype(object) for m in M]),
        ("swapped", [m[:, :5] for m in M]), ("two classes", [np.stack([m, 1 - m]) for m in M]), ("a number", 7), ("nothing", [])))
def test_predicted_masks_that_nobody_can_read(pred): refuses(fm.evaluate_segmentation, G[:4], pred_masks=pred, true_masks=M)


def test_two_different_groups_make_a_difference():
    refuses(fm.auc_difference, Y, S, sensitive_features=G, groups=("F", "F"))
    refuses(fm.auc_difference, Y, S, sensitive_features=G, groups=("F", "W"), says="'W'")
    refuses(fm.auc_difference, Y, S, sensitive_features=list("FFMMXXYY"), says="groups=")
    refuses(fm.auc_difference, Y, S, sensitive_features=["F"]*8)
    for alpha in (np.nan, -5, np.inf, "1"): refuses(fm.equity_scaled_auc, Y, S, sensitive_features=G, alpha=alpha)
    refuses(fm.equity_scaled_auc, Y, S, sensitive_features=G, variant="luo")


def test_repr_of_odd_objects_stays_short():
    for bad in (object(), type("Long", (), {"__repr__": lambda s: "x\n"*9999})(), 10**400):
        refuses(fm.evaluate, bad, S, G)
        refuses(fm.evaluate, Y, [bad]*8, G)
        refuses(fm.evaluate, Y, S, [bad]*8) if not isinstance(bad, int) else None


# ---------------------------------------------------------------- every metric, where it is not defined

@pytest.mark.parametrize("metric", list(METRICS))
@pytest.mark.parametrize("y,s,g", **UNDEFINED)
def test_no_metric_has_a_gap_without_two_groups(metric, y, s, g):
    "The published metrics compare groups with both labels, any other those that have what it needs."
    labels = {name: {v for n, v in zip(g, y) if n == name} for name in set(n for n in g if isinstance(n, str) and n not in ("", "unknown"))}
    needs = {"pos": 1, "neg": 0}
    wanted = {0, 1} if metric in PUBLISHED else {needs[n] for n in METRICS[metric].needs}
    try: value, said = hear(fm.metric_gap, metric, y, s, sensitive_features=g, threshold=.5)
    except InputError: return
    if sum(wanted <= have for have in labels.values()) < 2: assert math.isnan(value) and said
    else: assert math.isnan(value) or value >= 0


@pytest.mark.parametrize("metric", list(METRICS))
def test_a_group_without_the_label_a_metric_needs_is_nan(metric):
    needs = METRICS[metric].needs
    for label, wants in ((1, "neg"), (0, "pos")):
        r = score([0, 1, 0, 1, label, label], [.2, .9, .3, .8, .4, .6], list("aabbcc"), metrics=[metric], threshold=.5)
        if wants in needs: assert r.by_group.loc[("sensitive", "c"), [c for c in r.by_group if c.split("@")[0] == metric]].isna().all()


def test_bare_ranks_have_no_probability():
    r = score(score_type="rank", metrics=["brier", "ece01", "ce_debiased", "cal_slope", "cal_intercept"])
    assert r.by_group[["bce", "ece", "brier", "ece01", "ce_debiased", "cal_slope",
                       "cal_intercept"]].isna().all(axis=None) and r.summary["auc-gap"].iloc[0] == GAP
    assert r.by_group["acc"].isna().all() and r.by_group["acc@best_f1"].notna().all()


def test_groupings_alone():
    "The door by which groups come in, without anything else."
    assert [(g.name, g.names, g.codes.tolist()) for g in hear(groupings, {"a": [None, "x"], "b": [2, 1]})[0]] == [
        ("a", ["x"], [-1, 0]), ("b", ["1", "2"], [1, 0])]
    assert as_array([]).shape == (0,) and as_array([None, 1.5]).tolist() == [None, 1.5]
