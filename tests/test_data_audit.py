"""The audit finds what was put in, and stays silent where nothing is."""
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmedfm.data.audit import associations, audit, cramers_v, group_counts, twins
from fairmedfm.data.core import Dataset, from_table
from fairmedfm.data.splits import make_splits

pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")


def table(n, seed=0, link=0.0):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n)
    same = rng.random(n) < link
    return pd.DataFrame({"id": [f"i{k}" for k in range(n)], "patient": [f"p{k}" for k in range(n)], "split": rng.choice(["train", "test"],
            n), "image": [f"i{k}.png" for k in range(n)], "label": label,
                         "sex": np.where(same, np.where(label == 1, "F", "M"), rng.choice(["F", "M"], n)).astype(object)})


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 200), min_size=2, max_size=5), min_size=2, max_size=6).filter(lambda t: len({len(r)
        for r in t}) == 1))
def test_chi_square_as_scipy(counts):
    from scipy.stats import chi2_contingency
    t = np.array(counts)
    v, p = cramers_v(t)
    t = t[t.sum(1) > 0][:, t.sum(0) > 0] if t.sum() else t
    if t.sum() < 2 or min(t.shape) < 2: assert np.isnan(v)
    else: assert np.isclose(p, chi2_contingency(t, correction=False).pvalue) and (np.isnan(v) or 0 <= v <= 1 + 1e-9)


def test_a_linked_attribute_is_found_and_an_unlinked_one_is_not():
    false_alarms = sum(any("predicts" in p for p in audit(Dataset(table(400, s)), ["sex"]).problems) for s in range(60))
    found = sum(any("sex predicts the label" in p for p in audit(Dataset(table(400, s, link=.6)), ["sex"]).problems) for s in range(20))
    assert false_alarms == 0 and found == 20


def test_counts_add_up_and_lose_nobody():
    t = table(300); t.loc[::7, "sex"] = None; t.loc[::11, "split"] = None
    counts = group_counts(t, ["sex"])
    assert counts.rows.sum() == 300 and counts[["label 0", "label 1"]].to_numpy().sum() == 300
    assert "(no group)" in set(counts.group) and "(no split)" in set(counts.split)
    assert audit(Dataset(t), []).counts.empty


def test_several_classes_and_no_label():
    t = table(300).assign(label=np.array(["a", "b", "c"], object)[np.arange(300) % 3])
    assert np.isnan(associations(t, ["sex"]).auc[0]) and audit(Dataset(t), smallest=5).ok
    assert audit(Dataset(t.drop(columns="label").assign(mask=t.image))).associations.empty


def test_twins_in_files_folders_and_containers(tmp_path):
    t = table(6)
    for i in range(4): (tmp_path/f"i{i}.png").write_bytes(bytes([i % 2])*70_000 + bytes([i == 3]))
    for i, content in ((4, b"x"), (5, b"x")):
        (tmp_path/f"s{i}").mkdir()
        (tmp_path/f"s{i}"/f"{i}.dcm").write_bytes(content*100)
    t["image"] = ["i0.png", "i1.png", "i2.png", "i3.png", "s4", "s5"]
    t["split"] = ["train", "train", "test", "test", "train", "train"]
    data = Dataset(t, (tmp_path,))
    assert twins(data).id.tolist() == ["i0", "i2", "i4", "i5"]
    assert any("1 set of the same bytes in different splits" in p for p in audit(data, ["sex"], files=True).problems)


def test_real_images(shared):
    data = make_splits(from_table(shared/"isic2017"/"metadata.csv"))
    found = audit(data, files=True)
    assert found.leaks.empty and found.twins.empty and set(found.counts.attribute) == {"sex", "age_group"}
    text = found.to_markdown()
    assert "age_group" in text and found.to_dict()["problems"] == found.problems
