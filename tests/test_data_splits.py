"""Splits: no patient crosses, whatever the table; groups balanced, rows' order irrelevant; the published rule is the published rule."""
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from fairmedfm.core import InputError, Notes
from fairmedfm.data.core import Dataset, DatasetSpec
from fairmedfm.data.splits import (balanced_rows, complete_split, every_kth, leaks, lots, make_splits, published_split,
                                   split_by_patient, split_from_files)

pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")


def cohort(seed, n=120, groups=("F", "M", None), words=False):
    rng = np.random.default_rng(seed)
    patient = rng.integers(0, max(5, n//2), n)
    sex = rng.choice(np.array(groups, object), n//2 + 5, p=rng.dirichlet(np.ones(len(groups))))
    label = rng.integers(0, 2, n)
    return pd.DataFrame({"id": [f"i{i}" for i in range(n)], "patient": [f"p{p}" for p in patient], "split": None, "image": [f"i{i}.png"
            for i in range(n)],
                         "label": np.array(["a", "b", "c"], object)[rng.integers(0, 3, n)] if words else label, "sex": sex[patient]})


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(20, 200), st.floats(.1, .4), st.floats(0, .3), st.booleans(), st.sampled_from([None, "sex"]))
def test_no_patient_crosses(seed, n, test, valid, words, balance):
    table = cohort(seed, n, words=words)
    part = split_by_patient(table, balance, test, valid, seed)
    assert leaks(table.assign(split=part)).empty and part.notna().all() and {"train", "test"} <= set(part)
    shuffled = table.sample(frac=1, random_state=seed % 1000)
    assert (split_by_patient(shuffled, balance, test, valid, seed).sort_index() == part).all()


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_test_groups_are_balanced_and_stratified(seed):
    table = cohort(seed, 600)
    part = split_by_patient(table, "sex", .2, .1, seed)
    people = table.assign(part=part).groupby("patient").agg(sex=("sex", "first"), label=("label", "max"), part=("part", "first"))
    sizes = people.sex.value_counts()
    taking = [g for g in sizes.index if int(.2*sizes[g]) >= 5]
    if len(taking) == 2: assert people[people.part == "test"].sex.value_counts()[taking].nunique() == 1
    assert abs((people.part == "valid").mean() - .1) < .01
    for g in taking:
        inside = people[people.sex == g]
        assert abs(inside[inside.part == "test"].label.mean() - inside.label.mean()) < 1.5/(inside.part == "test").sum() + 1e-9


@given(st.integers(1, 500), st.data())
def test_every_kth(size, data):
    n = data.draw(st.integers(0, size))
    picks = np.flatnonzero(every_kth(size, n))
    assert len(picks) == n and (n < 2 or np.ptp(np.diff(picks)) <= 1)


def test_lots_do_not_depend_on_company():
    assert lots(["a", "b"])[0] == lots(["a"])[0] and lots(["a"], 1)[0] != lots(["a"], 2)[0]


@given(st.integers(0, 10**6))
def test_the_published_rule(seed):
    table = cohort(seed, 200, groups=("F", "M"))
    sizes = table.sex.value_counts()
    if len(sizes) < 2 or sizes.min() < 5: return
    n = min(int(.2*s) for s in sizes)
    part = published_split(table)
    for g in ("F", "M"):
        ids = np.array(table.id[table.sex == g].tolist(), object)
        assert set(table.id[(part == "test") & (table.sex == g)]) == set(train_test_split(ids, test_size=n, random_state=0)[1])
    assert (part == "test").sum() == 2*n


@given(st.integers(0, 10**6), st.integers(0, 5))
def test_balanced_rows(seed, state):
    table = cohort(seed, 100)
    keep = balanced_rows(table, "sex", state)
    counts = table.sex[keep].value_counts()
    assert counts.nunique() <= 1 and not table.sex[keep].isna().any()
    assert set(table.id[keep]) == set((s := table.sample(frac=1, random_state=1)).id[balanced_rows(s, "sex", state)])


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.lists(st.sampled_from(["train", "valid", "test", None]), min_size=30, max_size=30))
def test_any_official_split_becomes_sound(seed, words):
    table = cohort(seed, 30).assign(split=words)
    if not {"train", "test"} & set(words): return
    if not {"valid", "test"} & set(words):
        with pytest.raises(InputError, match="nothing to evaluate on"): complete_split(table)
        return
    notes = Notes()
    part = complete_split(table, notes=notes)
    assert leaks(table.assign(split=part)).empty
    official = pd.Series(words, dtype=object).replace({"valid": "test"} if "test" not in words else {})
    assert (part[official == "test"] == "test").all() and not (part[official.isna()].notna()).any()


def test_rules_in_their_order(tmp_path):
    table = cohort(3, 200, groups=("F", "M"))
    spec = DatasetSpec("Toy", "toy", ("sex",), label="1", size="1", licence="x", access="x")
    rule = lambda t, protocol="sound", s=None, files=None, facts=None: make_splits(Dataset(t, facts=facts or {}, spec=s), protocol,
            files).facts["split"]["rule"]
    official = table.assign(split=np.where(np.arange(200) < 150, "train", "test"))
    assert rule(table) == "by patient" and rule(table,
                                                "paper") == "published, by image" and rule(official) == "official column" == rule(official,
                                                        "paper")
    assert rule(official, "paper", spec) == "published, by image" and rule(official, "sound", spec) == "official column"
    for n, rows in (("train", table[:100]), ("test", table[100:])): rows[["id"]].to_csv(tmp_path/f"{n}.csv", index=False)
    files = {n: str(tmp_path/f"{n}.csv") for n in ("train", "test")}
    assert rule(table, files=files) == "split files" and rule(table, "paper", spec,
                                                              facts={"split_files": files}) == "split files" and rule(table, "sound", spec,
                                                                      facts={"split_files": files}) == "by patient"
    with pytest.raises(InputError, match="no column holds ids"):
        split_from_files(table.assign(id=table.id + "x", image="z/x" + table.image), files)


def test_a_split_with_valid_but_no_test_is_evaluated_on_valid(shared):
    from fairmedfm.data.core import from_table
    data = make_splits(from_table(shared/"isic2017"/"metadata.csv"))
    assert data.facts["split"]["rows"] == {"train": 833, "valid": 93, "test": 150} and any("evaluation set" in n for n in data.notes)
