"""Every dataset from a made-up mini release: the counts, what the table may hold, whether each image and mask can be read, splits, and the errors for a wrong value or a missing file."""
import gzip
import warnings
from pathlib import Path

import pytest
from fixtures_raw import RELEASES, make_release

from fairmedfm.core import InputError
from fairmedfm.data import chest, photos, segmentation, volumes
from fairmedfm.data.core import DatasetSpec, PrepareLog, prepare_spec
from fairmedfm.data.images import load_image, load_labels
from fairmedfm.data.segmentation import label_values, structure_mask
from fairmedfm.data.splits import make_splits

SPECS = {s.name: s for module in (chest, photos, volumes, segmentation) for s in vars(module).values() if isinstance(s, DatasetSpec)}
for package in ("openpyxl", "h5py", "scipy", "pydicom", "nibabel", "SimpleITK", "PIL"): pytest.importorskip(package)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    "A prepared dataset by name (12 ordinary people and the traps), made once; and what was expected."
    made = {}

    def get(name):
        if name not in made:
            home = tmp_path_factory.mktemp(name)
            expected = make_release(name, home / "raw", 12)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made[name] = prepare_spec(SPECS[name], home / "raw", home / "out", quiet=True), expected, home
        return made[name]
    return get


def test_there_is_a_release_for_each_row():
    assert set(SPECS) == set(RELEASES) and len(SPECS) == 19
    assert sum(s.task == "cls" for s in SPECS.values()) == 11
    names = [n.lower() for s in SPECS.values() for n in (s.name, *s.aliases)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", RELEASES)
def test_facts(name):
    spec = SPECS[name]
    assert spec.licence and spec.size and "https://" in spec.access and spec.url.startswith("https://") and spec.attributes
    if spec.task == "cls": assert spec.label.startswith("1 = ") and len(spec.class_names) == 2 and all(p.count("{}") == 1 for p in spec.prompts)
    else: assert spec.structures and label_values(spec)[1] and spec.paper_split == "none"


@pytest.mark.parametrize("name", RELEASES)
def test_counts_and_words(name, prepared):
    data, expected, _ = prepared(name)
    samples = data.samples
    assert len(samples) == expected["rows"] and samples.patient.nunique() == expected["patients"]
    if "positives" in expected: assert int((samples.label == 1).sum()) == expected["positives"] > 0 and set(samples.label) == {0, 1}
    assert ("mask" in samples) == (SPECS[name].task == "seg")
    for column in set(SPECS[name].attributes) | {"age_group", "race_binary", "language_binary"}:
        if column not in samples or column in ("age", "bmi"): continue
        words = set(samples[column].dropna().astype(str).str.lower())
        assert not words & {"unknown", "na", "nan", "none", "", "-1", "not_found_in_emr", "x"}, column
        if column != "field_strength": assert not words & {"0", "1", "2", "0.0", "1.0"}, column
    if "sex" in samples: assert set(samples.sex.dropna()) <= {"F", "M", "transgender male to female"} and {"F", "M"} <= set(samples.sex)
    if "age" in samples: assert samples.age.dropna().gt(0).all() and samples.age.dropna().lt(120).all()
    assert set(SPECS[name].paper_attributes.values()) <= set(samples) | ({"age_group"} if name == "IRCADb" else set())


@pytest.mark.parametrize("name", RELEASES)
def test_every_image_is_read(name, prepared):
    data, _, _ = prepared(name)
    assert data.spec is SPECS[name]
    for i in range(len(data)):
        image = load_image(data, i)
        assert image.dtype == "uint8" and image.shape[-1] == 3 and image.ndim == (4 if data.spec.dims == "3D" else 3), data.samples.id[i]
        assert image.min() < image.max()
    assert load_image(data, 0, "paper").dtype == "uint8"


@pytest.mark.parametrize("name", [n for n in RELEASES if SPECS[n].task == "seg"])
def test_every_mask_is_read(name, prepared):
    data, _, _ = prepared(name)
    sizes = []
    for i in range(len(data)):
        labels, image = load_labels(data, i, **{k: v for k, v in data.spec.read.items() if k == "plane"}), load_image(data, i)
        mask, absent = structure_mask(labels, data.spec)
        assert mask.shape == image.shape[:-1], data.samples.id[i]
        assert bool(absent) == (not mask.any())
        sizes.append(int(mask.sum()))
    assert sum(s > 0 for s in sizes) >= len(sizes) - 1  # TUSC has one empty frame


@pytest.mark.parametrize("name", RELEASES)
def test_prepared_once(name, prepared, monkeypatch):
    data, _, home = prepared(name)
    again = prepare_spec(SPECS[name], home / "raw", home / "out", quiet=True)
    assert again.samples.equals(data.samples) and again.facts["sha256"] == data.facts["sha256"]
    other = prepare_spec(SPECS[name], home / "raw", home / "out", quiet=True, again=True)
    assert other.facts["sha256"] == data.facts["sha256"]  # the same release gives the same bytes


@pytest.mark.parametrize("name", RELEASES)
def test_no_patient_crosses_a_split(name, prepared):
    data, _, _ = prepared(name)
    split = make_splits(data).samples
    assert split.dropna(subset=["split"]).groupby("patient").split.nunique().max() == 1 and {"train", "test"} <= set(split.split.dropna())


@pytest.mark.parametrize("name", [n for n in RELEASES if SPECS[n].task == "cls"])
def test_from_a_release_to_a_report(name, tmp_path):
    "prepare, audit and a linear probe on a descriptor without weights, as the command line does it; the test patients are nobody else's."
    pytest.importorskip("torch"); pytest.importorskip("timm")
    import json

    import pandas as pd

    from fairmedfm.bench.config import make_config
    from fairmedfm.bench.run import run_one
    from fairmedfm.data.catalog import prepare_dataset
    expected = make_release(name, tmp_path / "raw", 24 if SPECS[name].dims == "3D" else 48)
    data = prepare_dataset(name, tmp_path / "raw", tmp_path / "data" / name, quiet=True)
    page = (tmp_path / "data" / name / "audit.md").read_text(encoding="utf-8")
    assert len(data) == expected["rows"] and name in page and "patients in" not in page
    attribute = "age" if name == "OCT" else "sex"
    done = run_one(make_config(usage="lp", dataset=name, model="Radiomics", sensitive_name=attribute, data_root=str(tmp_path / "data"), exp_path=str(tmp_path / "o"), cache="none", total_epochs=8, blr=.02, batch_size=16, ci=0, html=False, quiet=True, device="cpu"))
    kept = json.loads((done.folder / "config.json").read_text())["facts"]
    assert sum(kept["rows"].values()) == expected["rows"] and kept["attribute"] == ("age_group" if name == "OCT" else "sex")
    test, valid = (pd.read_csv(done.folder / f"predictions{part}.csv", dtype={"patient": str}) for part in ("", "_valid"))
    seen = data.samples[~data.samples.id.isin([*test.id.astype(str), *valid.id.astype(str)])]
    assert len(seen) == kept["rows"]["train"] and not set(test.patient) & set(valid.patient) and not (set(test.patient) | set(valid.patient)) & set(seen.patient)
    found = done.summary[kept["attribute"]]
    assert found["n"] + test[kept["attribute"]].isna().sum() == len(test) == kept["rows"]["test"] and found["n_groups"] == 2 and found["overall-auc"] > .8  # the fixture's positives are brighter


WRONG = [  # dataset, file, text in it, another text, what the error has to name
    ("CXP", "train.csv", ",Male,", ",divers,", "divers"), ("CXP", "train.csv", ",Lateral,", ",Oblique,", "Oblique"),
    ("MIMIC_CXR", "admissions.csv.gz", "WHITE", "MARTIAN", "MARTIAN"), ("MIMIC_CXR", "patients.csv.gz", ",F,", ",X,", "X"),
    ("HAM10000", "HAM10000_metadata", ",nv,", ",xyz,", "xyz"), ("HAM10000", "HAM10000_metadata", ",male,", ",m?,", "m?"),
    ("FairVLMed10k", "data_summary.csv", ",white,", ",beige,", "beige"), ("GF3300", "data_summary.csv", "other languages", "klingon", "klingon"),
    ("BRSET", "labels.csv", ",NA,", ",about 50,", "about 50"), ("COVID_CT_MD", "Clinical-data.csv", ",CAP,", ",flu,", "flu"), ("COVID_CT_MD", "Clinical-data.csv", "101Y", "old", "old"),
    ("ADNI", "ADNI1_Screening_1.5T_2_20_2024.csv", ",MCI,", ",SMC,", "SMC"), ("OL3I", "ol3i_metadata.csv", "unknown", "ninety", "ninety"),
    ("HAM10000-Seg", "HAM10000_metadata.tab", "\tmale\t", "\tdivers\t", "divers"), ("TUSC", "metadata.csv", ",Female,", ",?,", "?"), ("FairSeg", "data_summary.csv", ",0,", ",7,", "7"),
    ("Montgomery", "MCUCXR_9001_0.txt", "Sex: O", "Sex: Q", "Q"), ("KiTS23", "kits23.json", '"male"', '"divers"', "divers"), ("CANDI", "HC_Basic_Demographics.csv", "male", "divers", "divers"),
    ("SPIDER", "overview.csv", ",M,", ",W,", "w")]


@pytest.mark.parametrize("name,file,old,new,says", WRONG, ids=[f"{w[0]}-{w[4]}" for w in WRONG])
def test_an_unmapped_value_is_an_error(name, file, old, new, says, tmp_path):
    make_release(name, tmp_path / "raw", 8)
    path = next(p for p in (tmp_path / "raw").rglob(file))
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_bytes().decode("utf-8-sig")
    assert old in text
    data = text.replace(old, new).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    with pytest.raises(InputError) as error: SPECS[name].prepare(tmp_path / "raw", PrepareLog(tmp_path / "out"))
    assert says in str(error.value) and "\n" not in str(error.value)


MISSING = [  # dataset, what is taken away, what the error has to name
    ("CXP", "train.csv", "train.csv"), ("MIMIC_CXR", "mimic-cxr-2.0.0-metadata.csv.gz", "-metadata.csv"), ("MIMIC_CXR", "mimic-cxr-2.0.0-chexpert.csv.gz", "-chexpert.csv"), ("MIMIC_CXR", "patients.csv.gz", "patients.csv"),
    ("MIMIC_CXR", "admissions.csv.gz", "admissions.csv"), ("HAM10000", "HAM10000_metadata", "HAM10000_metadata"), ("FairVLMed10k", "data_summary.csv", "data_summary.csv"), ("GF3300", "data_summary.csv", "data_summary.csv"),
    ("PAPILA", "patient_data_os.xlsx", "patient_data_os"), ("PAPILA", "FundusImages", "FundusImages"), ("BRSET", "labels.csv", "labels.csv"), ("OCT", "*.mat", ".mat"), ("COVID_CT_MD", "Clinical-data.csv", "Clinical-data.csv"),
    ("ADNI", "ADNI1_Screening*.csv", "ADNI1_Screening_1.5T"), ("OL3I", "l3_slices.h5", "l3_slices.h5"), ("OL3I", "ol3i_metadata.csv", "anon_id"), ("HAM10000-Seg", "HAM10000_metadata.tab", "HAM10000_metadata"),
    ("TUSC", "dataset.hdf5", "dataset.hdf5"), ("TUSC", "metadata.csv", "metadata.csv"), ("FairSeg", "*.npz", "data_NNNNN.npz"), ("FairSeg", "data_summary.csv", "data_summary.csv"), ("Montgomery", "CXR_png", "CXR_png"),
    ("Montgomery", "rightMask", "rightMask"), ("KiTS23", "kits23.json", "kits23.json"), ("CANDI", "*Demographics.csv", "Demographics"), ("IRCADb", "3Dircadb1.*", "3Dircadb1."), ("SPIDER", "overview.csv", "overview.csv"), ("SPIDER", "masks", "masks")]


@pytest.mark.parametrize("name,file,says", MISSING, ids=[f"{n}-{f}" for n, f, _ in MISSING])
def test_a_missing_file_is_named_with_where_to_get_it(name, file, says, tmp_path):
    make_release(name, tmp_path / "raw", 4)
    for k, path in enumerate(list((tmp_path / "raw").rglob(file))): path.rename(tmp_path / f"gone{k}")
    with pytest.raises(InputError) as error: SPECS[name].prepare(tmp_path / "raw", PrepareLog(tmp_path / "out"))
    said = str(error.value).replace(str(tmp_path), "")
    assert says in said and "https://" in said and "\n" not in said


IMAGES = ("*.jpg", "*.png", "*.dcm", "*.nii", "*_procimg.nii.gz", "imaging.nii.gz")


@pytest.mark.parametrize("name", ["CXP", "MIMIC_CXR", "HAM10000", "BRSET", "COVID_CT_MD", "ADNI", "KiTS23", "CANDI", "Montgomery"])
def test_no_image_at_all_is_an_error(name, tmp_path):
    make_release(name, tmp_path / "raw", 4)
    for pattern in IMAGES:
        for path in list((tmp_path / "raw").rglob(pattern)): path.unlink()
    with pytest.raises(InputError): SPECS[name].prepare(tmp_path / "raw", PrepareLog(tmp_path / "out"))


@pytest.mark.parametrize("name", RELEASES)
def test_an_empty_folder_is_a_sentence(name, tmp_path):
    with pytest.raises(InputError) as error: SPECS[name].prepare(tmp_path, PrepareLog(tmp_path / "out"))
    assert "https://" in str(error.value)
    with pytest.raises(InputError): SPECS[name].prepare(tmp_path / "nowhere", PrepareLog(tmp_path / "out"))


def test_paths_stay_inside(prepared):
    for name in RELEASES:
        samples = prepared(name)[0].samples
        for column in {"image", "mask"} & set(samples):
            assert not any(Path(p).is_absolute() or ".." in Path(p).parts for p in samples[column])
