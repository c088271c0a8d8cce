"""Scores of real models on real patients: what their authors published comes out, and what is known about their groups.

Needs the folder of real data beside the repository (or FAIRMEDFM_SHARED_DATA); skipped without it."""
import warnings

import numpy as np
import pandas as pd
import pytest

import fairmedfm as fm
from fairmedfm.core import FairnessWarning, InputError
from fairmedfm.tables import find_columns, read_table

pytestmark = pytest.mark.filterwarnings("error", "ignore::fairmedfm.core.FairnessWarning")


def said(f, *args, **kw):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", FairnessWarning)
        return f(*args, **kw), [str(w.message) for w in heard]


@pytest.fixture(scope="module")
def nih(shared):
    frame = read_table(shared/"nih_scores"/"scores.csv", text=["image_id", "patient_id", "sex", "view"])
    return frame, pd.read_csv(shared/"nih_scores"/"published_auc.csv", index_col="finding")["auc_published"]


@pytest.fixture(scope="module")
def chest(nih):
    "One report on fourteen findings by sex, age and view."
    frame, published = nih
    roles = find_columns(frame)
    assert set(roles.findings) == set(published.index) and "label_no_finding" in roles.unused
    labels, scores = (frame[[pair[i] for pair in roles.findings.values()]].set_axis(list(roles.findings), axis=1) for i in (0, 1))
    return fm.evaluate(labels, scores, frame[["sex", "age", "view"]], bins={"age": [60]}, metrics=["ap", "brier"])


@pytest.fixture(scope="module")
def cohort(shared): return read_table(shared/"support2"/"scores.csv", text=["sex", "race"])


def test_every_published_auc(nih, chest):
    assert len(nih[1]) == 14
    for finding, auc in nih[1].items():
        assert chest.overall[finding]["auc"] == pytest.approx(auc, abs=1e-9)
        for attribute in ("sex", "age", "view"):
            assert chest.summary.loc[(finding, attribute), "overall-auc"] == pytest.approx(auc, abs=1e-9)


@pytest.mark.parametrize(
    "finding,attribute,group,auc",
    [
        ("cardiomegaly", "sex", "M", .9027), ("cardiomegaly", "sex", "F", .9155), ("effusion", "sex", "M", .8773),
        ("effusion", "sex", "F", .8892), ("hernia", "sex", "M", .8226), ("hernia", "sex", "F", .9502), ("atelectasis", "age", "<60", .8270),
        ("atelectasis", "age", ">=60", .7801), ("cardiomegaly", "age", "<60", .9199), ("cardiomegaly", "age", ">=60", .8625)])
def test_known_aucs_of_groups(chest, finding, attribute, group, auc):
    assert chest.by_group.loc[(finding, attribute, group), "auc"] == pytest.approx(auc, abs=6e-5)


def test_group_sizes(chest):
    n = chest.by_group["n"]
    assert (n[("hernia", "sex", "M")], n[("hernia", "sex", "F")]) == (12631, 9802) and n["mass"].loc["view"].sum() == 22433
    assert [chest.by_group.loc[("hernia", "sex", s), ["tp", "fn"]].sum() for s in "MF"] == [11, 31], "positives"


def test_against_scikit_learn(nih, chest):
    from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score
    frame = nih[0]
    for finding in ("mass", "pneumonia"):
        for sex in "FM":
            y, s = (frame.loc[frame.sex == sex, f"{kind}_{finding}"] for kind in ("label", "score"))
            row = chest.by_group.loc[(finding, "sex", sex)]
            assert [row["auc"], row["ap"], row["brier"]] == pytest.approx(
                [roc_auc_score(y, s), average_precision_score(y, s), brier_score_loss(y, s)], rel=1e-9)


def test_one_finding_alone_says_the_same(nih, chest):
    frame = nih[0]
    for finding in ("hernia", "edema"):
        alone = fm.evaluate(frame[f"label_{finding}"], frame[f"score_{finding}"], frame[["sex"]], metrics=["ap", "brier"])
        pd.testing.assert_series_equal(alone.summary.loc["sex"], chest.summary.loc[(finding, "sex")], check_names=False, rtol=1e-12)
        assert fm.auc_gap(frame[f"label_{finding}"], frame[f"score_{finding}"],
                          sensitive_features=frame["sex"]) == pytest.approx(chest.summary.loc[(finding, "sex"), "auc-gap"])


def test_rows_in_another_order_and_from_another_library(nih, chest):
    pl = pytest.importorskip("polars")
    frame = nih[0].set_index("image_id")
    turned = frame.sample(frac=1, random_state=0)
    want = chest.summary.loc[("mass", "sex"), "auc-gap"]
    assert fm.auc_gap(frame["label_mass"], turned["score_mass"],
                      sensitive_features=turned["sex"].sample(frac=1, random_state=1)) == pytest.approx(want, rel=1e-12)
    table = pl.from_pandas(nih[0])
    assert fm.auc_gap(table["label_mass"], table["score_mass"], sensitive_features=table["sex"]) == pytest.approx(want, rel=1e-12)


def test_known_aucs_of_a_hospital_cohort(cohort):
    report, heard = said(fm.evaluate, cohort["label_death_60d"], cohort["score_model_60d"], cohort[["race", "sex"]], missing="drop")
    assert round(report.overall["auc"], 4) == .8131
    assert {g: round(report.by_group.loc[("race", g), "auc"], 4)
            for g in report.by_group.loc["race"].index} == {"asian": .8454, "black": .8365, "hispanic": .8131, "other": .8033,
                                                            "white": .8069}
    assert any(w.startswith("race: 42 samples of unknown group") for w in heard) and report.unknown["n"].tolist() == [42]


def test_missing_scores_are_named_or_dropped_on_request(cohort):
    lost = int(cohort["score_physician_60d"].isna().sum())
    assert lost == 1649
    with pytest.raises(InputError, match="1,649 rows"): fm.evaluate(cohort["label_death_60d"], cohort["score_physician_60d"], cohort["sex"])
    report, heard = said(fm.evaluate, cohort["label_death_60d"], cohort["score_physician_60d"], cohort["sex"], missing="drop")
    assert round(report.overall["auc"], 4) == .8043 and report.summary.loc["sex", "n"] == len(cohort) - lost
    assert any("1,649 rows without a score" in w for w in heard) and report.metadata["n_dropped"] == lost


def test_round_numbers_of_physicians(cohort):
    "Physicians say 0.1, 0.5, 0.9. Where several stand on the threshold, the report says so and what that costs; where one does, nothing."
    for days, tied in ((60, False), (180, True)):
        label, score = cohort[f"label_death_{days}d"], cohort[f"score_physician_{days}d"]
        report, heard = said(fm.evaluate, label, score, cohort["sex"], missing="drop")
        on = int((score == report.metadata["threshold"]["value"]).sum())
        assert (on > 1) == tied == any(f"{on} samples stand on the best-F1 threshold" in w
                                       for w in heard) == ("acc@max_f1" in report.by_group)


def test_lung_masks_of_real_patients(shared):
    "The truth against itself, and against itself moved by one pixel: both sexes, JPEG-free masks of 512 pixels."
    image = pytest.importorskip("PIL.Image")
    frame = read_table(shared/"lung_seg"/"metadata.csv", text=["sex", "patient_id"]).iloc[:20]
    paths = [shared/"lung_seg"/p for p in frame["mask_path"]]
    same = fm.evaluate_segmentation(frame["sex"], pred_masks=paths, true_masks=paths)
    assert same.summary.loc["sex", "mean_dice"] == 1 and same.summary.loc["sex", "delta_dice"] == 0
    moved = [np.roll(np.asarray(image.open(p)), 1, axis=1) for p in paths]
    report = fm.evaluate_segmentation(frame["sex"], pred_masks=moved, true_masks=paths)
    want = [2*((a > 0) & (b > 0)).sum()/((a > 0).sum() + (b > 0).sum()) for a, b in zip(moved, (np.asarray(image.open(p)) for p in paths))]
    assert report.samples["dice"].tolist() == pytest.approx(want, rel=1e-12)
    share = [(np.asarray(image.open(p)) > 0).mean() for p in paths]
    assert share == pytest.approx(frame["mask_fraction"].tolist(), abs=1e-3)
