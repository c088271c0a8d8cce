"""The documented traps of the segmentation releases, one by one; masks against arrays computed here."""
import json

import numpy as np
import pytest
from fixtures_raw import make_release, people

from fairmedfm.core import InputError
from fairmedfm.data import segmentation as seg
from fairmedfm.data.core import Dataset, PrepareLog, check_samples
from fairmedfm.data.images import load_labels, read_series

for package in ("h5py", "pydicom", "nibabel", "SimpleITK", "PIL"): pytest.importorskip(package)
pytestmark = pytest.mark.filterwarnings("ignore")


def prepared(spec, root, n=8, **options):
    make_release(spec.name, root / "raw", n, **options)
    log = PrepareLog(root / "out")
    roots = (root / "out", root / "raw")
    samples = check_samples(spec.prepare(root / "raw", log), spec.name, roots)
    data = Dataset(samples, roots, spec=spec)
    sizes = lambda name, i=0: int(seg.structure_mask(load_labels(data, i), spec, name)[0].sum())
    return samples.set_index("id"), log, data, sizes


def test_ham_seg(tmp_path):
    frame, log, _, size = prepared(seg.HAM10000_SEG, tmp_path)
    assert "ISIC_9000003" not in frame.index and log.steps[-1]["dropped"] == 1 and any("1 mask of images that are not in the table" in n for n in log.notes)
    assert frame.sex["ISIC_9000001"] is None and frame.patient["ISIC_8000001"] == frame.patient["ISIC_0000001"] and size(None) == size("lesion") == size("255") == 80
    with pytest.raises(InputError, match="there are: 'lesion'"): size(1)


def test_tusc(tmp_path):
    frame, log, data, size = prepared(seg.TUSC, tmp_path)
    assert frame.patient.value_counts().eq(2).all() and log.steps[-1]["dropped"] == 1 and frame.index[:2].tolist() == ["1_0", "1_1"]
    assert frame.image["2_0"] == "dataset.hdf5::image[2]" and frame["mask"]["2_0"] == "dataset.hdf5::mask[2]" and frame.tirads_level["2_0"] is None
    assert size(None) == 80 and seg.structure_mask(load_labels(data, 1), seg.TUSC)[1] == "nodule is absent from this case (the mask is empty)"
    import h5py
    with h5py.File(tmp_path / "raw/dataset.hdf5", "a") as f:
        del f["frame_num"]
        f["frame_num"] = np.arange(3)
    with pytest.raises(InputError, match="different lengths"): seg.prepare_tusc(tmp_path / "raw", PrepareLog())


@pytest.mark.parametrize("layout", ("public", "benchmark"))
def test_fairseg(layout, tmp_path):
    frame, log, _, size = prepared(seg.FAIRSEG, tmp_path, layout=layout)
    frame = frame.sort_index()
    assert frame.sex.tolist() == [sex for _, sex, _, _ in people(8)] and frame.age.tolist() == [age + 0.5 for *_, age in people(8)] and log.steps[-1]["dropped"] == 1
    assert frame.race.tolist() == [("Asian", "Black", "White")[i % 3] for i in range(1, 9)] and frame.language.isna().sum() == 3
    assert (size("disc"), size("cup"), size("rim"), size(-2)) == (80, 12, 68, 12)


def test_fairseg_of_other_people(tmp_path):
    make_release("FairSeg", tmp_path)
    path = tmp_path / "ReadMe/data_summary.csv"
    lines = path.read_text().splitlines()
    names = [row.rpartition(",")[2] for row in lines[1:]]
    path.write_text("\n".join([lines[0], *(f"{row.rpartition(',')[0]},{name}" for row, name in zip(lines[1:], names[1:] + names[:1]))]))  # every row gets its neighbour's array
    with pytest.raises(InputError, match="do not belong together"): seg.prepare_fairseg(tmp_path, PrepareLog())


def test_montgomery(tmp_path):
    frame, log, _, size = prepared(seg.MONTGOMERY, tmp_path)
    assert frame.sex["MCUCXR_9001_0"] is None and frame.sex_raw["MCUCXR_9001_0"] == "O" and frame.age["MCUCXR_9001_0"] == 5
    assert frame.patient["MCUCXR_9002_1"] == frame.index[0] and frame.sex["MCUCXR_9002_1"] == "F" and frame.age["MCUCXR_9002_1"] == 46
    assert frame.age["MCUCXR_9003_0"] == 1.5 and frame.loc["MCUCXR_9004_0"].isna()[["sex", "age"]].all() and "MCUCXR_9005_1" not in frame.index
    assert (size("left lung"), size("right lung"), size(None), size(255)) == (160, 192, 352, 192) and frame.tuberculosis["MCUCXR_9002_1"] == "yes"
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out/masks").iterdir()}
    seg.prepare_montgomery(tmp_path / "raw", PrepareLog(tmp_path / "out"))
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "out/masks").iterdir()}  # a restart does not make them again
    with pytest.raises(InputError, match="folder"): seg.prepare_montgomery(tmp_path / "raw", PrepareLog())


def test_kits(tmp_path):
    frame, log, data, size = prepared(seg.KITS23, tmp_path)
    assert frame.sex["case_00401"] == "transgender male to female" and np.isnan(frame.age["case_00402"]) and frame.loc["case_00401"].isna()[["bmi", "bmi_group", "smoking_history", "malignant"]].all()
    assert frame.bmi_group["case_00402"] == "underweight" and frame.sex["case_00400"] == people(8)[7][1] and "case_00403" not in frame.index
    assert frame.image["case_00400"] == "dataset/case_00400/imaging.nii.gz" and frame.malignant["case_00002"] == "yes"  # joined by case_id: the list is in another order
    order = list(data.samples.id)
    first, second = order.index("case_00001"), order.index("case_00002")
    assert (size("kidney", first), size("tumor", first), size("kidney and mass", first)) == (192, 0, 192) and size("tumor", second) == 8 and size("mass", second) == 16 and size(3, second) == 8
    assert load_labels(data, first).spacing == pytest.approx((5, 0.8, 0.8)) and "tumor is absent" in seg.structure_mask(load_labels(data, first), seg.KITS23, "tumor")[1]
    path = tmp_path / "raw/dataset/kits23.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:1] * 2))
    with pytest.raises(InputError, match="repeats the case_id"): seg.prepare_kits23(tmp_path / "raw", PrepareLog())
    path.write_text("[{")
    with pytest.raises(InputError, match="no JSON"): seg.prepare_kits23(tmp_path / "raw", PrepareLog())


def test_candi(tmp_path):
    frame, log, data, size = prepared(seg.CANDI, tmp_path)
    assert set(frame.diagnosis) == set(seg.CANDI_GROUPS.values()) and frame.age.max() < 20 and frame.age_group.nunique() == 3 and "SS_999" not in frame.index
    assert frame.image["BPDwoPsy_001"] == "SchizBull_2008/BPDwithoutPsy/BPDwoPsy_001/BPDwoPsy_001_procimg.nii.gz" and not frame.image.str.contains("MNI152").any()
    assert frame.handedness.isna().sum() == 2 and (size("left hippocampus"), size("right hippocampus"), size("hippocampus"), size(None), size(17)) == (18, 18, 36, 18, 18)
    assert len({v for v in seg.FREESURFER.values() if isinstance(v, int)}) == 34


def test_ircadb(tmp_path):
    frame, log, data, size = prepared(seg.IRCADB, tmp_path)
    assert frame.index.tolist() == [f"3Dircadb1.{i}" for i in range(1, 9)] and log.steps[-1]["dropped"] == 1 and any("'uterus'" in n for n in log.notes)
    for i, (number, sex, label, _) in enumerate(people(8)):
        assert frame.sex.iloc[i] == (None if number == 8 else sex)
        assert (size("liver", i), size("liver tumor", i), size("liver cyst", i), size("kidneys", i)) == (288, 18, 12, 36 if label else 0), number
        assert frame.structures.iloc[i].startswith("liver, liver tumor, liver cyst") and frame.image.iloc[i].startswith("dicom/" if number % 2 == 0 else "3Dircadb1/")
        scan, labels = read_series(data.path(frame.image.iloc[i])), load_labels(data, i)
        liver, tumour = (seg.structure_mask(labels, seg.IRCADB, s)[0] for s in ("liver", "liver tumor"))
        assert scan.array.shape == labels.array.shape and (liver & tumour).sum() == tumour.sum()  # overlapping structures lose nothing
        assert np.flatnonzero(liver.any((1, 2))).tolist() == [1, 2]  # image_10 and image_9, counted from the feet
        assert scan.array[1].min() >= 1000 > scan.array[2].min()  # the same slices of the scan
    assert "kidneys is absent from this case" in seg.structure_mask(load_labels(data, 0), seg.IRCADB, "kidneys")[1]
    made = {p: p.stat().st_mtime_ns for p in (tmp_path / "out/masks").iterdir()}
    seg.prepare_ircadb(tmp_path / "raw", PrepareLog(tmp_path / "out"))
    assert made == {p: p.stat().st_mtime_ns for p in (tmp_path / "out/masks").iterdir()}


def test_ircadb_unpacks_nothing_outside(tmp_path):
    import zipfile
    case = tmp_path / "raw/3Dircadb1.1"
    case.mkdir(parents=True)
    with zipfile.ZipFile(case / "PATIENT_DICOM.zip", "w") as z: z.writestr("../../../evil", "x"); z.writestr("PATIENT_DICOM/image_0", "x")
    found = seg.dicom_folder(case, "PATIENT_DICOM", PrepareLog(tmp_path / "out"))
    assert found.name == "PATIENT_DICOM" and not [p for p in tmp_path.rglob("evil") if tmp_path / "out/dicom" not in p.parents] and not (tmp_path.parent / "evil").exists()


def test_spider(tmp_path):
    frame, log, data, size = prepared(seg.SPIDER, tmp_path)
    assert frame.groupby("patient").size().max() == 3 and set(frame.sequence) == {"T1", "T2", "T2 SPACE"} and frame.groupby("patient").split.nunique().max() == 1
    assert frame.loc["3_t1"].isna()[["sex", "age"]].all() and "901_t1" not in frame.index and set(frame.split) == {"train", "valid"}
    labels = load_labels(data, 0)
    assert labels.array.shape == (5, 20, 14) and labels.spacing == pytest.approx((4.0, 0.6, 0.6))  # slices across the thick axis: sagittal
    assert {k: size(k) for k in seg.SPIDER.structures} == {"vertebrae": 165, "complete vertebrae": 135, "partial vertebrae": 30, "spinal canal": 40, "discs": 90} and size(104) == 30 and size(1) == 45


def test_structures_never_guess():
    labels = np.array([[0, 1, 2], [3, 255, -1]])
    assert seg.structure_mask(labels)[0].sum() == 5 and seg.structure_mask(labels, None, "255")[0].sum() == 1 and seg.structure_mask(labels, None, 7)[1] == "label 7 is absent from this case"
    with pytest.raises(InputError): seg.structure_mask(labels, None, "liver")
    for spec in (v for v in vars(seg).values() if isinstance(v, seg.DatasetSpec)):
        for name, value in spec.structures.items(): assert seg.label_values(spec, name.upper())[0] == name
        with pytest.raises(InputError): seg.label_values(spec, "no such structure")
