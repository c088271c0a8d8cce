"""Samples tables: what is written is read back, raw codes never become a group by accident, half-made work is not taken for finished."""
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmedfm.core import InputError
from fairmedfm.data import core
from fairmedfm.data.core import (Dataset, DatasetSpec, PrepareLog, as_text, check_samples, from_table, is_finished, map_numbers,
                                 map_values, prepare_spec, read_raw, read_samples, there,
                                 write_samples, years)

pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")
words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).map(str.strip).filter(bool)
name = st.text("abc017_-", min_size=1, max_size=8)


@given(st.lists(st.tuples(name, words, st.one_of(st.none(), words), st.one_of(st.none(), st.integers(0, 99)), st.integers(0, 1)),
                min_size=1, max_size=12, unique_by=lambda r: r[0]))
def test_what_is_written_is_read_back(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("s")
    samples = check_samples(pd.DataFrame([{"id": i, "patient": p, "image": f"{i}.png", "label": y, "sex": None if s is None else f"w {s}",
                                           "age": np.nan if a is None else a} for i, p, s, a, y in rows]))
    write_samples(samples, folder, {"name": "x"})
    back = read_samples(folder).samples
    plain = lambda f: f.astype(object).where(f.notna(), None)  # a column without a value has no type
    pd.testing.assert_frame_equal(plain(back), plain(samples))
    assert back.id.dtype == object and back.label.dtype == "int64" and is_finished(folder)


@given(st.lists(st.sampled_from(["1", "2", "1.0", "2.0", "O", "", None, 1, 2.0]), min_size=1, max_size=20))
def test_no_code_becomes_a_group_unmapped(values):
    log = PrepareLog()
    if "O" in values:
        with pytest.raises(InputError, match="holds values that no map knows: O"): map_values(values, {1: "M", 2: "F"}, "sex", log)
        out = map_values(values, {1: "M", 2: "F", "O": None}, "sex", log)
        assert log.unknown_words["sex"]["O"] == values.count("O")
    else: out = map_values(values, {1: "M", 2: "F"}, "sex", log)
    assert out.tolist() == [None if v in ("O", "", None) else "M" if str(v)[0] == "1" else "F" for v in values]


@pytest.mark.parametrize("text, age", [("039Y", 39), ("018M", 1.5), ("61.5", 61.5), ("0", 0)])
def test_years(text, age): assert years(text) == age


@pytest.mark.parametrize("text", ["", "Y", "39 years", "-3", "nan", "039Y2"])
def test_no_age_is_an_error(text):
    with pytest.raises(ValueError): years(text)


def test_numbers_are_not_guessed():
    log = PrepareLog()
    with pytest.raises(InputError, match="'1e400'|'abc'"): map_numbers(["3", "1e400", "abc"], "x", log, high=1e9)
    assert as_text(np.int64(3)) == "3" and as_text(np.float32(0.5)) == "0.5" and as_text(np.bool_(True)) == "1" and as_text(pd.NA) is None


@pytest.mark.parametrize("content, columns", [("a\tb\n1\t2,5\n", ["a", "b"]), ("a;b\n1;2,5\n", ["a", "b"]), ("\ufeffa,b\n1,\"2,5\"\n\n",
        ["a", "b"])])
def test_raw_tables_keep_their_text(tmp_path, content, columns):
    (tmp_path/"t.tab").write_text(content, encoding="utf-8")
    table = read_raw(tmp_path/"t.tab", columns)
    assert table.to_numpy().tolist() == [["1", "2,5"]]


def test_broken_raw_tables_are_sentences(tmp_path):
    for content in (b"", b"a,b\n1,2,3\n", b"\x1f\x8b broken"):
        path = tmp_path/("t.csv.gz" if content[:1] == b"\x1f" else "t.csv")
        path.write_bytes(content)
        with pytest.raises(InputError): read_raw(path, ["a"])
    with pytest.raises(InputError, match="does not exist"): read_raw(tmp_path/"none.csv")


def spec(prepare, **more):
    return DatasetSpec("Toy", "toy", ("sex",), label="1", size="2", licence="CC0", access="none", prepare=prepare, **more)


def test_an_interrupted_preparation_goes_on(tmp_path):
    made = []

    def prepare(raw, log, stop=None):
        rows = []
        for i in range(6):
            if i == stop: raise KeyboardInterrupt
            rows.append({"id": i, "label": i % 2, "sex": "F", "image": log.make(f"files/{i}.bin", lambda p: (made.append(i),
                    p.write_bytes(b"x"*i)))})
        return pd.DataFrame(rows)

    with pytest.raises(KeyboardInterrupt): prepare_spec(spec(lambda r, log: prepare(r, log, 4)), None, tmp_path/"out")
    assert not is_finished(tmp_path/"out") and made == [0, 1, 2, 3]
    data = prepare_spec(spec(prepare), None, tmp_path/"out")
    assert made == [0, 1, 2, 3, 4, 5] and len(data) == 6 and is_finished(tmp_path/"out")


def test_half_a_pair_is_not_finished(tmp_path, monkeypatch):
    samples = check_samples(pd.DataFrame({"id": [1, 2], "image": ["a", "b"], "label": [0, 1]}))
    write_samples(samples, tmp_path)
    real = os.replace

    def stop(a, b):
        if str(b).endswith("samples.csv"): raise KeyboardInterrupt
        real(a, b)
    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt): write_samples(samples.assign(sex="F"), tmp_path)
    assert not is_finished(tmp_path) and len(read_samples(tmp_path)) == 2 and not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_another_version_or_release_is_prepared_again(tmp_path):
    calls = []

    def prepare(raw, log): calls.append(raw); return pd.DataFrame({"id": [1, 2], "image": ["a.png", "b.png"], "label": [0, 1]})
    for raw in ("r1", "r2"):
        (tmp_path/raw).mkdir()
        for n in "ab": (tmp_path/raw/f"{n}.png").touch()
    out = tmp_path/"out"
    for s, raw in ((spec(prepare), "r1"), (spec(prepare), "r1"), (spec(prepare), "r2"), (spec(prepare, version="2"), "r2"),
                   (spec(prepare, version="2"), "r2")):
        prepare_spec(s, tmp_path/raw, out)
    assert len(calls) == 3
    json_facts = json.loads((out/"samples.json").read_text())
    assert json_facts["roots"] == ["../r2"] and json_facts["version"] == "2"
    moved = tmp_path/"moved"; moved.mkdir()
    for n in ("out", "r2"): (tmp_path/n).rename(moved/n)
    assert read_samples(moved/"out", files=True).path("a.png").exists()


def test_missing_files_are_counted_and_none_at_all_is_an_error(tmp_path):
    table = pd.DataFrame({"id": range(3), "image": ["x/a.h5::1", "x/a.h5::2", "x/b.h5::1"], "label": [0, 1, 1]})
    (tmp_path/"x").mkdir()
    with pytest.raises(InputError, match="none of the 3 image files"): prepare_spec(spec(lambda r, log: table), tmp_path, tmp_path/"o")
    (tmp_path/"x"/"a.h5").touch()
    data = prepare_spec(spec(lambda r, log: table), tmp_path, tmp_path/"o")
    assert len(data) == 2 and any("1 row without its image file" in n for n in data.notes) and there(["x/a.h5::1"], [tmp_path]).all()


@pytest.mark.parametrize("ending", ["csv", "xlsx", "parquet", "json"])
def test_your_own_table_in_any_format(tmp_path, ending):
    (tmp_path/"img").mkdir()
    for n in "abc": (tmp_path/"img"/f"{n}.png").touch()
    frame = pd.DataFrame({"Image Path": [str(tmp_path/"img"/"a.png"), "img/b.png", "img/c.png"], "PatientID": ["007", "007", "8"],
                          "Gender": ["F", "n/a", "M"], "Age": ["61", "unknown", "045Y"],
                          "Diagnosis": ["benign", "malignant", "benign"], "Split": ["Train", "val", "test"]})
    for need in {"xlsx": ["openpyxl"], "parquet": ["pyarrow"]}.get(ending, ()): pytest.importorskip(need)
    write = {"csv": lambda p: frame.to_csv(p, index=False, sep=";"), "xlsx": lambda p: frame.to_excel(p, index=False),
             "parquet": frame.to_parquet, "json": lambda p: frame.to_json(p, orient="records")}
    write[ending](tmp_path/f"t.{ending}")
    data = from_table(tmp_path/f"t.{ending}")
    s = data.samples
    assert s.patient.tolist() == ["007", "007", "8"] and s.label.tolist() == [0, 1, 0] and s.split.tolist() == ["train", "valid",
            "test"] and data.class_names == ("benign", "malignant")
    assert s.image[0] == "img/a.png" and s.Gender.tolist() == ["F", None, "M"] and s.Age_group.tolist() == ["60+", None,
            "<60"] and data.attributes == ["Gender", "Age"]


def test_a_table_cannot_leave_its_folder(tmp_path):
    for cell in ("/etc/hostname", "../x.png", "a/../../x.png", "~/x.png", "C:\\x.png"):
        (tmp_path/"t.csv").write_text(f"image,label\n{cell},0\n{cell},1\n")
        with pytest.raises(InputError): from_table(tmp_path/"t.csv")


def test_real_tables(shared):
    isic = from_table(shared/"isic2017"/"metadata.csv")
    assert len(isic) == 1076 and isic.samples.label.sum() == 312 and isic.attributes == ["sex",
            "age"] and isic.samples.split.value_counts().to_dict() == {"train": 926, "valid": 150}
    assert isic.samples.sex.isna().sum() == 55 and isic.class_names == ("no melanoma", "melanoma")
    lung = from_table(shared/"lung_seg"/"metadata.csv")
    assert lung.task == "seg" and lung.samples.patient.nunique() == 43
    assert core.attribute_column(isic, "Age") == "age_group"
    with pytest.raises(InputError, match="15 label columns"):
        from_table(shared/"nih_scores"/"scores.csv", image_column="image_id", files=False)
