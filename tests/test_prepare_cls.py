"""The documented traps of the classification releases, one by one."""
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures_raw import make_release, people, picture, pixels, table

from fairmedfm.core import InputError
from fairmedfm.data import chest, photos, volumes
from fairmedfm.data.core import Dataset, PrepareLog, attribute_column, check_samples, read_raw
from fairmedfm.data.images import load_image, read_image, read_series

for package in ("openpyxl", "h5py", "scipy", "pydicom", "nibabel", "PIL"): pytest.importorskip(package)
pytestmark = pytest.mark.filterwarnings("ignore")


def prepared(spec, root, n=8, **options):
    make_release(spec.name, root, n, **options)
    log = PrepareLog()
    return check_samples(spec.prepare(root, log), spec.name, (root,)).set_index("id"), log


def test_chexpert(tmp_path):
    frame, log = prepared(chest.CXP, tmp_path)
    at = lambda i: frame.loc[f"train/patient{i}/study1/view1_frontal"]
    assert at("90001").isna()[["sex", "race"]].all() and at("90001").label == 1 and at("90001").race_binary == "Non-White"  # published: unknown is Non-White
    assert np.isnan(at("90002").age) and at("90002").age_group is None and at("90002").race is None and at("90002").race_raw == "Patient Refused"
    assert frame.loc["train/patient90003/study7/view1_frontal"].isna()[["race", "race_raw", "race_binary"]].all()  # no demographics: missing, not Non-White
    assert at("90004").label == 0 and at("90004").race_binary is None
    assert frame[frame.view == "lateral"].patient.isin(frame[frame.view == "frontal"].patient).all() and not frame.index.str.startswith("valid").any()
    assert set(frame.race.dropna()) == {"White", "Asian", "Black"} and frame[frame.race_raw == "White, Hispanic"].race_binary.eq("White").all()
    turned = frame[frame.patient == "patient90006"]
    assert turned.age.tolist() == [59, 61] and turned.age_group.tolist() == ["<60", "60+"] and turned.race.eq("Asian").all()  # the age at the study, not the demographics' one
    assert log.unknown_words["Sex"] == {"Unknown": 1} and log.unknown_words["Age"] == {"0 (suspect)": 1} and log.steps[-1]["dropped"] == 1
    assert any("1 uncertain (-1)" in n for n in log.notes)


def test_chexpert_in_its_other_folder(tmp_path):
    make_release("CXP", tmp_path / "a")
    (tmp_path / "a/CheXpert-v1.0-small").rename(tmp_path / "a/CheXpert-v1.0")  # the paths in the table still say -small
    for root in (tmp_path / "a", tmp_path / "a/CheXpert-v1.0"):
        frame = chest.prepare_cxp(root, PrepareLog())
        assert len(frame) == 18 and all((root / p).is_file() for p in frame.image)
    assert frame.race.isna().all()  # the table of demographics is not below the inner folder


def test_chexpert_with_a_race_nobody_knows(tmp_path):
    make_release("CXP", tmp_path)
    demo = read_raw(tmp_path / "CHEXPERT DEMO.xlsx").replace({"Unknown": "Klingon"})
    demo.to_excel(tmp_path / "CHEXPERT DEMO.xlsx", index=False)
    with pytest.raises(InputError, match="Klingon"): chest.prepare_cxp(tmp_path, PrepareLog())


@pytest.mark.parametrize("version", (1, 2))
def test_mimic(version, tmp_path):
    frame, log = prepared(chest.MIMIC_CXR, tmp_path, version=version)
    at = lambda p: frame.loc[f"trap-{p}"]
    assert "trap-19000001" not in frame.index and log.steps[1]["dropped"] == 1  # its study is not in the label table
    assert at(19000002).isna()[["sex", "age", "race", "race_binary"]].all() and at(19000002).label == 1  # not in MIMIC-IV
    assert at(19000003).race is None and at(19000003).race_binary == "White" and at(19000003).label == 0  # two races; published: the first
    assert (at(19000004).age, at(19000004).age_group, at(19000004).anchor_age_group) == (65, "60+", "<60") and at(19000004).race is None and at(19000004).race_binary == "Non-White"
    assert at(19000005).age == 94 and set(frame.split) == {"train", "valid", "test"}
    assert set(frame.race.dropna()) == {"White", "Black", "Asian", "Hispanic"} and frame.patient.str.fullmatch(r"\d{8}").all()
    data = Dataset(frame.reset_index(), spec=chest.MIMIC_CXR)
    assert attribute_column(data, "Age") == "age_group" and attribute_column(data, "Age", "paper") == "anchor_age_group" and attribute_column(data, "Race", "paper") == "race_binary"


def test_mimic_as_dicom_and_without_splits(tmp_path):
    make_release("MIMIC_CXR", tmp_path)
    for p in list(tmp_path.rglob("*.jpg")): p.rename(p.with_suffix(".dcm"))
    next(tmp_path.rglob("mimic-cxr-2.0.0-split.csv")).unlink()
    log = PrepareLog()
    frame = chest.prepare_mimic_cxr(tmp_path, log)
    assert frame.image.str.endswith(".dcm").all() and frame.split.isna().all() and any("split" in n for n in log.notes)


@pytest.mark.parametrize("ending", ("", ".csv", ".tab"))
def test_ham(ending, tmp_path):
    frame, log = prepared(photos.HAM10000, tmp_path, ending=ending)
    assert frame.loc["ISIC_9000001"].isna()[["sex", "age", "age_group", "localization"]].all() and frame.loc["ISIC_9000001"].label == 0  # bcc is benign, as published
    assert np.isnan(frame.age["ISIC_9000002"]) and frame.sex["ISIC_9000003"] is None and frame.label["ISIC_9000002"] == 1
    assert frame.patient["ISIC_8000001"] == frame.patient["ISIC_0000001"] and log.unknown_words["sex"] == {"unknown": 2}
    assert frame.image.str.contains("part_1").any() and frame.image.str.contains("part_2").any() and frame[frame.dx.isin(["mel", "akiec"])].label.all()


def test_ham_copy_without_the_last_column(tmp_path):
    make_release("HAM10000", tmp_path)
    read_raw(tmp_path / "HAM10000_metadata").drop(columns="dataset").to_csv(tmp_path / "HAM10000_metadata.csv", index=False)
    (tmp_path / "HAM10000_metadata").unlink()
    assert len(photos.prepare_ham10000(tmp_path, PrepareLog())) == 12


def test_harvard(tmp_path):
    vlm, log = prepared(photos.FAIRVLMED10K, tmp_path / "vlm")
    gf, _ = prepared(photos.GF3300, tmp_path / "gf")
    assert vlm.loc["data_09001"].isna()[["ethnicity", "language", "marital_status"]].all() and vlm.language_binary["data_09001"] == "Non-English" and vlm.age_group["data_09002"] == "<60"
    assert gf.language["data_9002"] == vlm.language["data_09002"] == "Other" and log.steps[-1]["dropped"] == 1
    assert vlm.split.value_counts().to_dict() == gf.split.value_counts().to_dict() and vlm.image["data_00003"].startswith("Test/")
    assert vlm.image["data_09002"] == "Test/slo_fundus_09002.jpg" and vlm.image["data_00003"].endswith(".npz::slo_fundus")  # the array where there is one
    assert set(vlm.marital_status.dropna()) == {"married or partnered", "single", "separated"}
    for i, sex, label, _ in people(8): assert vlm.sex[f"data_{i:05d}"] == sex and vlm.label[f"data_{i:05d}"] == label
    folder, cell = tmp_path / "gf", gf.image["data_0001"]
    assert read_image(folder / cell.split("::")[0], "rnflt", **photos.GF3300.read)[..., 0].max() == pytest.approx(119, abs=1)  # (v + 2)/352·255, the published map


def test_papila(tmp_path):
    frame, log = prepared(photos.PAPILA, tmp_path)
    assert frame.loc["RET902OD"].label == 1 and frame.loc["RET902OS"].label == 0 and frame.loc[["RET902OD", "RET902OS"]].patient.nunique() == 1
    assert "RET901OD" not in frame.index and frame.label["RET901OS"] == 0 and log.steps[1] == {"step": "diagnosis suspect", "rows": 19, "dropped": 1}
    for i, sex, label, age in people(8): assert frame.sex[f"RET{i:03d}OD"] == sex and frame.label[f"RET{i:03d}OS"] == label and frame.age[f"RET{i:03d}OD"] == age


def test_papila_from_tables_made_by_hand(tmp_path):
    for eye in ("od", "os"):
        table(tmp_path / f"ClinicalData/patient_data_{eye}.csv", [("#002", 47, 0, 2), ("#004", 58, 1, 1)], ["ID", "Age", "Gender", "Diagnosis"])
        for i in ("002", "004"): picture(tmp_path / f"FundusImages/RET{i}{eye.upper()}.jpg")
    frame = photos.prepare_papila(tmp_path, PrepareLog())
    assert frame.id.tolist() == ["RET004OD", "RET004OS"] and frame.sex.tolist() == ["F", "F"]
    table(tmp_path / "ClinicalData/patient_data_od.csv", [(47, 0)], ["Age", "Gender"])
    with pytest.raises(InputError, match="patient_data_od.csv has no cell"): photos.prepare_papila(tmp_path, PrepareLog())


def test_brset(tmp_path):
    frame, log = prepared(photos.BRSET, tmp_path)
    for i, sex, label, _ in people(8): assert frame.sex[f"img{i:05d}"] == sex and frame.label[f"img{i:05d}"] == label  # 1 = male, 2 = female
    assert log.unknown_words["patient_age"] == {"NA": 2, "(empty)": 1} and frame.age.isna().sum() == 3 and frame.age_group.isna().sum() == 3
    two = frame[frame.patient == "903"]
    assert two.age.tolist() == [58, 63] and two.age_group.tolist() == ["<60", "60+"] and any(n.startswith("1 patient_id with more than one age (1 in more than one age group)") for n in log.notes)
    assert any(n.startswith("1 patient_id with both sexes") and "one split" in n for n in log.notes) and frame.sex["img90002"] == "M" and frame.sex["img90003"] == "F"
    assert any("1 image where DR_ICDR and diabetic_retinopathy disagree" in n for n in log.notes) and frame.label["img90003"] == 1
    assert set(frame.camera) == {"Canon CR", "NIKON NF5050"} and frame.patient["img90001"] == frame.patient["img00001"]


def test_oct(tmp_path):
    frame, log = prepared(photos.OCT, tmp_path)
    assert frame.age_group["AMD-1900"] == "70+" and np.isnan(frame.age["Control-1900"]) and frame.label["AMD-1001"] == 0 and frame.label["Control-1001"] == 1
    assert frame.age["AMD-1001"] == people(8)[0][3] + 10  # the MATLAB 7.3 file
    data = Dataset(frame.reset_index(), (tmp_path,), spec=photos.OCT)
    old, new = (load_image(data, list(frame.index).index(i)) for i in ("AMD-1002", "AMD-1001"))
    assert old.shape == new.shape == (4, 24, 32, 3)
    (tmp_path / "notes_1.mat").write_bytes(b"x")
    with pytest.raises(InputError, match="notes_1.mat"): photos.prepare_oct(tmp_path, log)


@pytest.mark.parametrize("word", ("subjects", "Cases"))
def test_covid(word, tmp_path):
    expected = make_release("COVID_CT_MD", tmp_path, word=word)
    frame = check_samples(volumes.prepare_covid_ct_md(tmp_path, PrepareLog()), roots=(tmp_path,)).set_index("id")
    marked = frame.loc[expected["marked"]]
    assert marked.infected_slices.tolist() == list(range(1, len(marked) + 1))  # by row, although the label index leaves a number out
    assert marked.slice_labels.tolist() == [f"Slice-level-labels-updated-1.npy::{k}" for k in range(len(marked))] and frame[frame.diagnosis == "normal"].slice_labels.isna().all()
    assert frame.age["P901"] == 101 and np.isnan(frame.age["cap902"]) and frame.age["normal903"] == pytest.approx(8 / 12) and "normal904" not in frame.index
    assert set(frame[frame.label == 1].diagnosis) == {"COVID-19", "CAP"} and frame.image["cap902"] == f"Cap {word}/cap902" and len(frame) == expected["rows"]
    scan = read_series(tmp_path / frame.image["P901"])
    assert scan.array.shape == (5, 24, 32) and scan.spacing == (2, 0.7, 0.7) and -1024 < scan.array.min() < 0
    by_name = read_series(tmp_path / frame.image["cap902"])  # no position in the files: SliceLocation orders them, and their names would not
    bottom = [pixels(5 * 902 + z, 1).astype(int) + 900 - 1024 for z in range(5)]
    assert all((by_name.array[z] == bottom[z]).all() for z in range(5)) and any("SliceLocation" in n for n in by_name.notes)


def test_covid_without_slice_labels(tmp_path):
    make_release("COVID_CT_MD", tmp_path)
    (tmp_path / "Index.csv").unlink()
    log = PrepareLog()
    assert volumes.prepare_covid_ct_md(tmp_path, log).slice_labels.isna().all() and any("no slice labels" in n for n in log.notes)
    (tmp_path / "Index.csv").write_text("Label Index,Diagnosis,Relative Path,Folder/ID\n0,CAP,x,cap003\n")
    with pytest.raises(InputError, match="row by row"): volumes.prepare_covid_ct_md(tmp_path, PrepareLog())


def test_adni(tmp_path):
    frame, log = prepared(volumes.ADNI, tmp_path)
    assert [s["dropped"] for s in log.steps] == [0, 1, 1, 0, 1] and frame.patient["I1900"] == frame.patient["I1001"] and not frame.group.eq("MCI").any()
    assert any("under 60" in n for n in log.notes) and frame.image["I1900"].endswith("/I1900/ADNI_001_S_1001_MR_MPR__GradWarp_Br_20070101_S1_I1900.nii")
    (tmp_path / "ADNI1_Screening_1.5T_9_09_2026.csv").touch()
    with pytest.raises(InputError, match="2 exports"): volumes.prepare_adni(tmp_path, log)


def test_ol3i(tmp_path):
    frame, log = prepared(volumes.OL3I, tmp_path)
    assert frame.age["A9001"] == 90 and frame.sex["A9002"] is None and np.isnan(frame.age["A9003"]) and not {"A9004", "A9005"} & set(frame.index)
    assert [s["dropped"] for s in log.steps] == [0, 1, 1] and set(frame.split) == {"train", "valid", "test"} and frame.label_5y["A9001"] == "yes"
    pd.DataFrame({"anon_id": ["Z1"], "sex": ["male"], "age": [50], "label_1y": [0]}).to_csv(tmp_path / "ol3i_metadata.csv", index=False)
    with pytest.raises(InputError, match="do not belong together"): volumes.prepare_ol3i(tmp_path, PrepareLog())


def test_a_partial_download_is_counted_and_noted(tmp_path):
    make_release("CXP", tmp_path)
    for p in list(Path(tmp_path).rglob("*_lateral.jpg")): p.unlink()
    log = PrepareLog()
    frame = chest.prepare_cxp(tmp_path, log)
    assert log.steps[-1] == {"step": "no file for the image", "rows": 14, "dropped": 5} and len(frame) == 14 and any("5 rows of 19 left out" in n for n in log.notes)
