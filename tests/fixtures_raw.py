"""Made-up mini releases in the layout of the originals: files, columns, codings and traps, no real row. One function per dataset:
`RELEASES[name](root, n)` writes the release with `n` ordinary people (both sexes, both labels, both age groups in turn) and the trap
rows into the folder `root`, and returns what has to come out: `rows`, `patients`, and for a classifier `positives` (rows with label 1)."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

FINDINGS = ["Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema", "Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture", "Support Devices"]
MIMIC_FINDINGS = ["Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Enlarged Cardiomediastinum", "Fracture", "Lung Lesion", "Lung Opacity", "No Finding", "Pleural Effusion", "Pleural Other", "Pneumonia", "Pneumothorax", "Support Devices"]
BRSET_COLUMNS = ("image_id patient_id camera patient_age comorbidities diabetes_time_y insuline patient_sex exam_eye diabetes nationality optic_disc vessels macula DR_SDRG DR_ICDR focus iluminaton image_field artifacts "
                 "diabetic_retinopathy macular_edema scar nevus amd vascular_occlusion hypertensive_retinopathy drusens hemorrhage retinal_detachment myopic_fundus increased_cup_disc other quality").split()


def people(n:int):
    "(number, sex, label, age) of `n` ordinary people: sex alternates, label every two, age group every four."
    return [(i, "FM"[i % 2], i // 2 % 2, (45 if i // 4 % 2 == 0 else 66) + i % 5) for i in range(1, n + 1)]


def official(i:int, n:int, words=("train", "train", "valid", "test")) -> str:
    "The release's own split of person `i` of `n`: one after the other when they are few, else in blocks of four, so that a split holds all kinds."
    return words[(i if n < 16 else i // 4) % 4]


def pixels(i:int, bright:int=0, shape=(24, 32)) -> np.ndarray:
    "Noise with a bright square when `bright`; another for each `i`."
    image = np.random.default_rng(i).integers(40, 120, shape).astype(np.uint8)
    if bright: image[..., 6:14, 8:18] = 220
    return image


def picture(path, i:int=0, bright:int=0, colour:bool=False):
    from PIL import Image
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    array = pixels(i, bright)
    Image.fromarray(np.dstack([array, array // 2, array // 3]) if colour else array).save(path)


def mask_picture(path, *boxes, shape=(24, 32)):
    from PIL import Image
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.zeros(shape, np.uint8)
    for box in boxes: array[box] = 255
    Image.fromarray(array).save(path)


def table(path, rows, columns, **options):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=columns).to_csv(path, index=False, **options)


def nifti(path, array, spacing=(1, 1, 1)):
    import nibabel as nib
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, np.diag([*spacing, 1.0])), path)


def dicom(path, stored, z, placed=True, **tags):
    import pydicom
    from pydicom.dataset import FileDataset, FileMetaDataset
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = pydicom.uid.ExplicitVRLittleEndian, pydicom.uid.CTImageStorage
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid(entropy_srcs=[str(path)])
    ds = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    ds.Rows, ds.Columns, ds.SamplesPerPixel, ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = *stored.shape, 1, 16, 16, 15, 0
    ds.PhotometricInterpretation, ds.PixelSpacing, ds.SliceThickness, ds.SeriesInstanceUID, ds.SliceLocation = "MONOCHROME2", [0.7, 0.7], 2.0, "1.2.3", float(z)
    ds.RescaleSlope, ds.RescaleIntercept = 1, 0
    if placed: ds.ImageOrientationPatient, ds.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, float(z)]
    for k, v in tags.items(): setattr(ds, k, v)
    ds.PixelData = stored.astype("<u2").tobytes()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    ds.save_as(path, enforce_file_format=True)


def cxp(root, n:int=8):
    "CheXpert: a lateral view per second patient; then an unknown sex, an age of 0, no demographics, a refused race, an uncertain No Finding, a patient who turns 60 between two studies (the demographics know one age), a lost image."
    home, races = Path(root) / "CheXpert-v1.0-small", ("White", "Asian, non-Hispanic", "White, Hispanic", "Black or African American")
    rows, demo = [], []
    for i, sex, label, age in people(n):
        word = {"F": "Female", "M": "Male"}[sex]
        rows.append((f"patient{i:05d}/study1/view1_frontal.jpg", word, age, "Frontal", "AP", 1.0 if label else None))
        if i % 2: rows.append((f"patient{i:05d}/study1/view2_lateral.jpg", word, age, "Lateral", None, 1.0 if label else None))
        demo.append((f"patient{i:05d}", word, age, races[i % 4], "Not Hispanic"))
    traps = [("patient90001/study1/view1_frontal.jpg", "Unknown", 50, "Frontal", "LL", 1.0), ("patient90002/study1/view1_frontal.jpg", "Female", 0, "Frontal", "PA", None),
             ("patient90003/study7/view1_frontal.jpg", "Male", 90, "Frontal", "RL", 1.0), ("patient90004/study1/view1_frontal.jpg", "Male", 33, "Frontal", "AP", -1.0),
             ("patient90006/study1/view1_frontal.jpg", "Female", 59, "Frontal", "AP", None), ("patient90006/study2/view1_frontal.jpg", "Female", 61, "Frontal", "PA", None)]
    demo += [("patient90006", "Female", 59, "Asian", "Not Hispanic")]
    demo += [("patient90001", None, 50, "Unknown", None), ("patient90002", "Female", 0, "Patient Refused", None), ("patient90004", "Male", 33, None, None)]
    for k, (path, *_, label) in enumerate(rows + traps): picture(home / "train" / path, k, label == 1)
    lost = [("patient90005/study1/view1_frontal.jpg", "Male", 61, "Frontal", "AP", None)]
    columns = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", "No Finding", *FINDINGS]
    table(home / "train.csv", [(f"CheXpert-v1.0-small/train/{p}", *r, None, 1.0, -1.0, *[None] * 10) for p, *r in rows + traps + lost], columns)
    table(home / "valid.csv", [("CheXpert-v1.0-small/valid/patient64541/study1/view1_frontal.jpg", "Male", 73, "Frontal", "AP", 0.0, *[0.0] * 13)], columns)
    pd.DataFrame(demo, columns=["PATIENT", "GENDER", "AGE_AT_CXR", "PRIMARY_RACE", "ETHNICITY"]).to_excel(Path(root) / "CHEXPERT DEMO.xlsx", sheet_name="CheXpert Demo 11-13", index=False)
    return dict(rows=len(rows) + 6, patients=n + 5, positives=sum(r[-1] == 1 for r in rows) + 2)


def mimic_cxr(root, n:int=8, version:int=2):
    "MIMIC-CXR-JPG and MIMIC-IV (1 or 2): two images per second study; then a study without labels, a subject not in MIMIC-IV, one with two races, one who ages past 60, one over 89."
    jpg, iv = Path(root) / "physionet.org/files/mimic-cxr-jpg/2.0.0", Path(root) / "physionet.org/files/mimiciv" / ("2.2/hosp" if version == 2 else "1.0/core")
    images, labels, patients, stays = [], [], [], []
    words = ("WHITE", "BLACK/AFRICAN AMERICAN", "ASIAN" if version == 1 else "ASIAN - CHINESE", "HISPANIC/LATINO" if version == 1 else "HISPANIC/LATINO - DOMINICAN")
    for i, sex, label, age in people(n):
        p, s = 10000000 + i, 50000000 + i
        images += [(f"{i:08x}-a", p, s, "PA", 21800101)] + ([(f"{i:08x}-b", p, s, "LATERAL", 21800101)] if i % 2 else [])
        labels.append((p, s, 1.0 if label else None)); patients.append((p, sex, age, 2180)); stays += [(p, words[i % 4]), (p, "UNKNOWN")]
    traps = [(19000001, 59000001, 21800101), (19000002, 59000002, 21800101), (19000003, 59000003, 21800101), (19000004, 59000004, 21900615), (19000005, 59000005, 21830101)]
    images += [(f"trap-{p}", p, s, "AP" if p % 2 else "", d) for p, s, d in traps]
    labels += [(p, s, {19000002: 1.0, 19000003: -1.0, 19000004: 0.0, 19000005: 1.0}[p]) for p, s, _ in traps if p != 19000001]
    patients += [(19000001, "M", 40, 2180), (19000003, "F", 50, 2180), (19000004, "M", 55, 2180), (19000005, "F", 91, 2180), (19999999, "F", 20, 2180)]
    stays += [(19000003, "WHITE"), (19000003, "ASIAN"), (19000004, "UNABLE TO OBTAIN"), (19999999, "A WORD OF A PATIENT WITHOUT IMAGES")]
    healthy = {s for _, s, label in labels if label == 1}
    for k, (d, p, s, *_) in enumerate(images): picture(jpg / f"files/p{str(p)[:2]}/p{p}/s{s}/{d}.jpg", k, s in healthy)
    meta = ["dicom_id", "subject_id", "study_id", "PerformedProcedureStepDescription", "ViewPosition", "Rows", "Columns", "StudyDate", "StudyTime", "ProcedureCodeSequence_CodeMeaning", "ViewCodeSequence_CodeMeaning", "PatientOrientationCodeSequence_CodeMeaning"]
    table(jpg / "mimic-cxr-2.0.0-metadata.csv.gz", [(d, p, s, "CHEST (PA AND LAT)", v, 24, 32, date, 213014.5, "CHEST", "", "Erect") for d, p, s, v, date in images], meta)
    table(jpg / "mimic-cxr-2.0.0-chexpert.csv.gz", [(p, s, *[label if f == "No Finding" else None for f in MIMIC_FINDINGS]) for p, s, label in labels], ["subject_id", "study_id", *MIMIC_FINDINGS])
    table(jpg / "mimic-cxr-2.0.0-split.csv", [(d, s, p, official(p - 10000000, n, ("train", "train", "validate", "test"))) for d, p, s, *_ in images], ["dicom_id", "study_id", "subject_id", "split"])
    table(iv / ("patients.csv.gz" if version == 2 else "patients.csv"), [(*r, "2017 - 2019", None) for r in patients], ["subject_id", "gender", "anchor_age", "anchor_year", "anchor_year_group", "dod"])
    table(iv / "admissions.csv.gz", [(p, 2e7 + k, "Medicare", "ENGLISH", "SINGLE", r) for k, (p, r) in enumerate(stays)], ["subject_id", "hadm_id", "insurance", "language", "marital_status", "race" if version == 2 else "ethnicity"])
    return dict(rows=len(images) - 1, patients=n + 4, positives=sum(s in healthy for _, _, s, *_ in images))


def _ham_rows(n):
    rows = [(f"HAM_{i:07d}", f"ISIC_{i:07d}", ("mel" if i % 4 else "akiec") if label else ("nv", "bkl", "bcc", "df", "vasc")[i % 5], "histo", f"{5 * (age // 5)}.0", {"F": "female", "M": "male"}[sex], "back", "vidir_modern") for i, sex, label, age in people(n)]
    rows += [(rows[0][0], "ISIC_8000001", *rows[0][2:])]  # a second image of the first lesion
    return rows + [("HAM_9000001", "ISIC_9000001", "bcc", "histo", "", "unknown", "unknown", "rosendahl"), ("HAM_9000002", "ISIC_9000002", "mel", "consensus", "0.0", "female", "face", "vienna_dias"), ("HAM_9000003", "ISIC_9000003", "nv", "follow_up", "45.0", "unknown", "trunk", "vidir_molemax")]


HAM_COLUMNS = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization", "dataset"]


def ham10000(root, n:int=8, ending:str=""):
    "HAM10000 (`ending` as downloaded: none, .csv, .tab): two image folders, one lesion twice, unknown sexes, a blank age, an age of 0, a malignant lesion that counts as benign, a lost image."
    rows = _ham_rows(n)
    table(Path(root) / f"HAM10000_metadata{ending}", rows + [("HAM_9000004", "ISIC_9000004", "nv", "histo", "50.0", "male", "back", "rosendahl")], HAM_COLUMNS, sep="\t" if ending == ".tab" else ",")
    for k, r in enumerate(rows): picture(Path(root) / f"HAM10000_images_part_{1 + k % 2}" / f"{r[1]}.jpg", k, r[2] in ("mel", "akiec"), colour=True)
    return dict(rows=n + 4, patients=n + 3, positives=sum(r[2] in ("mel", "akiec") for r in rows))


def _harvard_rows(n):
    words = {"race": ("asian", "black", "white"), "language": ("english", "english", "spanish"), "maritalstatus": ("marriage or partnered", "single", "legally separated")}
    rows = [(i, age + 0.5, {"F": "female", "M": "male"}[sex], words["race"][i % 3], "non-hispanic", words["language"][i % 3], words["maritalstatus"][i % 3], "yes" if label else "no", official(i, n, ("training", "training", "validation", "test"))) for i, sex, label, age in people(n)]
    return rows + [(9001, 61.0, "female", "white", "unknown", "unknown", "unknown", "yes", "training"), (9002, 59.99, "male", "white", "hispanic", "{other}", "single", "no", "test")]


def _harvard(root, n, digits, key, other, array, extra=()):
    rows = [tuple(v.format(other=other) if isinstance(v, str) else v for v in r) for r in _harvard_rows(n)]
    lost = (9003, 50.0, "female", "asian", "non-hispanic", "english", "single", "no", "training")
    for r in rows:
        folder = Path(root) / r[-1].capitalize()
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / f"data_{r[0]:0{digits}d}.npz", **{key: array(r[0], r[7] == "yes")}, md=-3.2, tds=np.zeros(52), age=r[1], **{"gender" if key == "slo_fundus" else "male": int(r[2] == "male")}, race=2, glaucoma=int(r[7] == "yes"))
    if key == "slo_fundus":  # as the benchmark draws them
        (Path(root) / "Test" / f"data_{9002:0{digits}d}.npz").unlink()
        picture(Path(root) / "Test" / f"slo_fundus_{9002:0{digits}d}.jpg", 9002)
    columns = ["filename", "age", "gender", "race", "ethnicity", "language", "maritalstatus", *extra, "glaucoma", "use"]
    table(Path(root) / "ReadMe" / "data_summary.csv", [(f"data_{r[0]:0{digits}d}.npz", *r[1:7], *["a, note"] * len(extra), *r[7:]) for r in [*rows, lost]], columns)
    return dict(rows=n + 2, patients=n + 2, positives=sum(r[7] == "yes" for r in rows))


def fairvlmed10k(root, n:int=8):
    "FairVLMed10k: official folders, words in the table and numbers in the arrays, an unknown language, an age just under 60, a picture in place of an array, a lost array."
    return _harvard(root, n, 5, "slo_fundus", "other", lambda i, bright: pixels(i, bright), ("note", "gpt4_summary"))


def gf3300(root, n:int=8):
    "GF3300: thickness maps from -2 to 350, the column `male` in the arrays, the words `other languages`."
    return _harvard(root, n, 4, "rnflt", "other languages", lambda i, bright: pixels(i, bright).astype(float) * 352 / 255 - 2)


def papila(root, n:int=8):
    "PAPILA: two workbooks with a header of three rows, 0 = man, 1 = woman, suspects, a patient with two diagnoses."
    home = Path(root) / "PapilaDB-PAPILA-0123abcd"
    head = [["", "Age", "Gender", "Diagnosis", "Refractive_Defect", "", "", "Phakic/Pseudophakic", "IOP", "", "Pachymetry", "Axial_Length", "VF_MD"], ["ID"] + [""] * 12,
            [""] * 4 + ["dioptre_1", "dioptre_2", "astigmatism", "", "Pneumatic", "Perkins", "", "", ""]]
    eyes = {"od": [], "os": []}
    for i, sex, label, age in people(n):
        for eye in eyes: eyes[eye].append((i, age, float(sex == "F"), float(label)))
    eyes["od"] += [(901, 50, 1.0, 2.0), (902, 71, 0.0, 1.0)]
    eyes["os"] += [(901, 50, 1.0, 0.0), (902, 71, 0.0, 0.0)]
    for eye, rows in eyes.items():
        path = home / "ClinicalData" / f"patient_data_{eye}.xlsx"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(head + [[f"#{i:03d}", age, sex, d, 0.75, -1.5, 90.0, 0.0, 16.0, None, 530.0, 23.5, None] for i, age, sex, d in rows]).to_excel(path, header=False, index=False)
        for i, *_, d in rows: picture(home / "FundusImages" / f"RET{i:03d}{eye.upper()}.jpg", 2 * i + (eye == "os"), d == 1, colour=True)
    return dict(rows=2 * n + 3, patients=n + 2, positives=sum(2 * label for *_, label, _ in people(n)) + 1)


def brset(root, n:int=8):
    "BRSET: byte-order mark, 34 columns, 1 = male and 2 = female, ages NA and blank, a patient_id with both sexes, one with two ages on both sides of 60, a stray code elsewhere, labels that disagree."
    home = Path(root) / "physionet.org/files/brazilian-ophthalmological/1.0.0"
    rows = [(f"img{i:05d}", i // 2 if i > 2 else i, "Canon CR" if i % 3 else "NIKON NF5050", str(age), {"M": 1, "F": 2}[sex], 1 + i % 2, (i % 4 or 1) if label else 0, label, "1") for i, sex, label, age in people(n)]
    rows = [(r[0], f"{i}", *r[2:]) for i, r in enumerate(rows, 1)]
    rows += [("img90001", "1", rows[0][2], rows[0][3], rows[0][4], 2, rows[0][6], rows[0][7], "1"),  # the other eye of the first patient
             ("img90002", "901", "Canon CR", "NA", 1, 1, 0, 0, "1"), ("img90003", "901", "Canon CR", "NA", 2, 2, 1, 0, "bv"), ("img90004", "902", "NIKON NF5050", "", 2, 1, 4, 1, "2"),
             ("img90005", "903", "Canon CR", "58", 1, 1, 0, 0, "1"), ("img90006", "903", "Canon CR", "63", 1, 2, 0, 0, "1")]
    fill = dict(comorbidities="", diabetes_time_y="", insuline="", diabetes="no", nationality="Brazil", quality="Adequate")
    frame = pd.DataFrame([{c: fill.get(c, 1) for c in BRSET_COLUMNS} | dict(image_id=i, patient_id=p, camera=c, patient_age=a, patient_sex=s, exam_eye=e, DR_ICDR=g, DR_SDRG=g, diabetic_retinopathy=d, optic_disc=o) for i, p, c, a, s, e, g, d, o in rows])
    home.mkdir(parents=True)
    (home / "labels.csv").write_bytes(("\ufeff" + frame[BRSET_COLUMNS].to_csv(index=False)).encode("utf-8"))
    for k, r in enumerate(rows): picture(home / "fundus_photos" / f"{r[0]}.jpg", k, r[6] > 0, colour=True)
    return dict(rows=n + 6, patients=n + 3, positives=sum(r[6] > 0 for r in rows))


def oct(root, n:int=8):  # noqa: A001
    "Duke OCT: the same subject numbers in both classes, an age of exactly 70, a file without an age; one file is MATLAB 7.3 (HDF5)."
    import h5py
    from scipy.io import savemat
    rows, seen = [], {"AMD": 1000, "Control": 1000}
    for _, _, label, age in people(n):
        kind = "Control" if label else "AMD"
        seen[kind] += 1
        rows.append((kind, seen[kind], age + 10))
    rows += [("AMD", 1900, 70), ("Control", 1900, None)]
    for k, (kind, number, age) in enumerate(rows):
        path = Path(root) / ("269AMD" if kind == "AMD" else kind) / f"Farsiu_Ophthalmology_2013_{kind}_Subject_{number}.mat"
        path.parent.mkdir(parents=True, exist_ok=True)
        volume = np.stack([pixels(10 * k + z, kind == "Control") for z in range(4)], axis=-1)
        if k == 0:
            with h5py.File(path, "w", userblock_size=512) as f: f["images"], f["Age"] = volume.T, np.array([[float(age)]])
            with open(path, "r+b") as f: f.write(b"MATLAB 7.3 MAT-file".ljust(116) + b"\0" * 8 + b"\x00\x02IM")
        else: savemat(path, {"images": volume, "layerMaps": np.zeros((4, 32, 3))} | ({} if age is None else {"Age": age}))
    return dict(rows=n + 2, patients=n + 2, positives=sum(kind == "Control" for kind, *_ in rows))


def covid_ct_md(root, n:int=8, word:str="subjects"):
    "COVID-CT-MD (folders `… subjects` as its authors name them, or `… Cases`): DICOM series with arbitrary file names, three classes, DICOM ages (one of 101 years, one blank), slices that only SliceLocation orders, slice labels whose index leaves out a number, a subject without a folder."
    kinds, rows = {"COVID-19": (f"COVID-19 {word}", "P"), "CAP": (f"Cap {word}", "cap"), "Normal": (f"Normal {word}", "normal")}, []
    for i, sex, label, age in people(n): rows.append((("COVID-19" if i % 3 else "CAP") if label else "Normal", i, sex, f"{age:03d}Y"))
    rows += [("COVID-19", 901, "F", "101Y"), ("CAP", 902, "M", ""), ("Normal", 903, "F", "008M")]
    lost = ("Normal", 904, "M", "050Y")
    name = lambda kind, i: f"{kinds[kind][1]}{i:03d}"
    for kind, i, *_ in rows:
        for z in range(5): dicom(Path(root) / kinds[kind][0] / name(kind, i) / f"{(7 * z + i) % 11:03d}.dcm", pixels(5 * i + z, kind != "Normal").astype(np.uint16) + 900, 2 * z, placed=kind != "CAP", RescaleIntercept=-1024)
    table(Path(root) / "Clinical-data.csv", [(k, kind, name(kind, i), s, a, "70 Kg", "", "", "", "") for k, (kind, i, s, a) in enumerate([*rows, lost])],
          ["clinical_data", "Diagnosis", "Folder", "Patient Gender", "Patient Age", "Weight", "Clinical characteristics", "Surgery", "Follow-up", "PCR"])
    marked = [(kind, i) for kind, i, *_ in rows if kind != "Normal"]
    numbers = [k if k < 1 else k + 1 for k in range(len(marked))]  # the label index leaves out 1
    table(Path(root) / "Index.csv", [(m, kind, f"{kinds[kind][0]}/{name(kind, i)}", name(kind, i)) for m, (kind, i) in zip(numbers, marked)], ["Label Index", "Diagnosis", "Relative Path", "Folder/ID"])
    np.save(Path(root) / "Slice-level-labels-updated-1.npy", np.array([[1] * (k + 1) + [0] * (199 - k) for k in range(len(marked))]))
    np.save(Path(root) / "Slice-level-labels.npy", np.zeros((len(marked), 200)))
    return dict(rows=n + 3, patients=n + 3, positives=sum(kind != "Normal" for kind, *_ in rows), marked=[name(*m) for m in marked])


def adni(root, n:int=8):
    "ADNI: an export of LONI, NIfTI files in nested folders, a subject with two scans, MCI, a later visit, a scan that was not downloaded."
    rows = [(f"I{1000 + i}", f"{i:03d}_S_{1000 + i}", "AD" if label else "CN", sex, age + 10, "sc") for i, sex, label, age in people(n)]
    rows += [("I1900", rows[0][1], *rows[0][2:]), ("I1901", "901_S_0001", "MCI", "M", 70, "sc"), ("I1902", rows[1][1], *rows[1][2:5], "m12")]
    lost = [("I1903", "903_S_0001", "CN", "F", 75, "sc")]
    table(Path(root) / "ADNI1_Screening_1.5T_2_20_2024.csv", [(*r, "MRI", "MPR; GradWarp; B1 Correction", "Processed", "1/02/2006", "NiFTI", "2/20/2024") for r in rows + lost],
          ["Image Data ID", "Subject", "Group", "Sex", "Age", "Visit", "Modality", "Description", "Type", "Acq Date", "Format", "Downloaded"])
    for k, (image, subject, group, *_) in enumerate(rows):
        volume = np.stack([pixels(10 * k + z, group == "AD") for z in range(6)], axis=-1).astype(np.int16) * 4
        nifti(Path(root) / f"ADNI/{subject}/MPR__GradWarp__B1_Correction/2006-01-02_10_11_12.0/{image}/ADNI_{subject}_MR_MPR__GradWarp_Br_20070101_S1_{image}.nii", volume, (1, 1, 1.2))
    return dict(rows=n + 1, patients=n, positives=sum(r[2] == "AD" for r in rows[:n + 1]))


def ol3i(root, n:int=8):
    "OL3I: slices by anon_id in HDF5, a split column, a lower-bound age, a blank sex, an unknown age, a patient without follow-up, a slice that is not there."
    import h5py
    rows = [(f"A{i:04d}", {"F": "female", "M": "male"}[sex], str(age), label, label, official(i, n, ("train", "train", "val", "test"))) for i, sex, label, age in people(n)]
    rows += [("A9001", "female", "90+", 1, 1, "train"), ("A9002", "", "50", 0, "", "test"), ("A9003", "male", "unknown", 0, 1, "val"), ("A9004", "male", "61", "", "", "train"), ("A9005", "male", "61", 0, 0, "train")]
    table(Path(root) / "ol3i_metadata.csv", rows, ["anon_id", "sex", "age", "label_1y", "label_5y", "set"])
    with h5py.File(Path(root) / "l3_slices.h5", "w") as f:
        for k, r in enumerate(rows[:-1]):
            f[r[0]] = (pixels(k, r[3] == 1).astype(np.int16) - 100)[..., None]
            f[r[0]].attrs["pixel_spacing"], f[r[0]].attrs["slice_thickness"] = (0.7, 0.7), 1.25
    return dict(rows=n + 3, patients=n + 3, positives=sum(r[3] == 1 for r in rows))


def ham10000_seg(root, n:int=8):
    "HAM10000 with masks; also a mask of an image that is not in the table, and an image without a mask."
    rows = _ham_rows(n)
    table(Path(root) / "HAM10000_metadata.tab", rows, HAM_COLUMNS, sep="\t")
    for k, r in enumerate(rows):
        picture(Path(root) / "HAM10000_images_part_1" / f"{r[1]}.jpg", k, 1, colour=True)
        if r[1] != "ISIC_9000003": mask_picture(Path(root) / "HAM10000_segmentations_lesion_tschandl" / f"{r[1]}_segmentation.png", np.s_[6:14, 8:18])
    mask_picture(Path(root) / "HAM10000_segmentations_lesion_tschandl" / "ISIC_0000000_segmentation.png", np.s_[1:2, 1:2])
    return dict(rows=n + 3, patients=n + 2)


def tusc(root, n:int=8):
    "TUSC: two frames per clip in one HDF5 file, an empty mask, a blank TI-RADS level, a clip without a row, a frame with three channels is stored apart in the original."
    import h5py
    clips = [(f"{i}_", age, {"F": "Female", "M": "Male"}[sex]) for i, sex, _, age in people(n)]
    table(Path(root) / "metadata.csv", [(c, a, s, "left", 1.2, 1.1, 0.9, 3, "" if c == "2_" else 4, 0) for c, a, s in clips], ["annot_id", "age", "sex", "location", "size_x", "size_y", "size_z", "ti-rads_composition", "ti-rads_level", "histopath_diagnosis"])
    ids = [c.encode() for c, *_ in clips for _ in range(2)] + [b"999_"]
    masks = np.zeros((len(ids), 24, 32), np.uint8)
    masks[:, 6:14, 8:18] = 255
    masks[1] = 0
    with h5py.File(Path(root) / "dataset.hdf5", "w") as f:
        f["annot_id"], f["frame_num"], f["mask"] = np.array(ids), np.arange(len(ids)) % 2, masks
        f["image"] = np.stack([pixels(k, 1) for k in range(len(ids))])
    return dict(rows=2 * n, patients=n)


def fairseg(root, n:int=8, layout:str="public"):
    "FairSeg in its `public` layout (5 digits, slo_fundus, disc_cup_mask, coded table) or the `benchmark`'s (6 digits, fundus, disc_cup_borders, metatabel.csv with words, its rows in another order); the last array is lost."
    public, n = layout == "public", n + 1
    disc = np.zeros((24, 32), np.int16)
    disc[6:14, 8:18], disc[8:11, 11:15] = -1, -2
    frame = pd.DataFrame([dict(age=age + 0.5, race=i % 3, gender=int(sex == "M"), ethnicity=(0, 1, -1)[i % 3], language=(0, 2, -1)[i % 3], maritalstatus=(1, 4, -1)[i % 3]) for i, sex, _, age in people(n)])
    for i, row in frame.iloc[:-1].iterrows():
        own = {k: row[k] for k in frame} if public else {}
        Path(root).mkdir(parents=True, exist_ok=True)
        np.savez(Path(root) / f"data_{i + 1:0{5 if public else 6}d}.npz", **{"slo_fundus" if public else "fundus": pixels(i, 1), "disc_cup_mask" if public else "disc_cup_borders": disc}, **own)
    if public:
        (Path(root) / "ReadMe").mkdir()
        frame.assign(filename=[f"data_{i + 1:05d}.npz" for i in frame.index]).to_csv(Path(root) / "ReadMe" / "data_summary.csv", index=False)
    else:
        words = {"race": ("Asian", "Black", "White"), "gender": ("Female", "Male"), "ethnicity": ("Non-Hispanic", "Hispanic", "Unknown"), "language": ("English", "Spanish", "Other", "Unknown"), "maritalstatus": ("Marriage or Partnered", "Single", "Divorced", "Widowed", "Legally Separated", "Unknown")}
        frame.assign(**{c: [w[int(v)] for v in frame[c]] for c, w in words.items()}).iloc[::-1].to_csv(Path(root) / "metatabel.csv")
    return dict(rows=n - 1, patients=n - 1)


def montgomery(root, n:int=8):
    "Montgomery: two lung masks, readings with lines in another order and spaces, a sex of O, an age in months, a second image of a patient, a reading that is not there, one lung mask missing."
    home = Path(root) / "MontgomerySet"
    texts = {f"MCUCXR_{i:04d}_{label}": f"Patient's Sex: {sex} \r\nPatient's Age: {age:03d}Y\r\n{'TB' if label else 'normal'}" for i, sex, label, age in people(n)}
    first = next(iter(texts))
    texts |= {"MCUCXR_9001_0": "Patient's Sex: O\nPatient's Age: 005Y\nnormal", "MCUCXR_9002_1": f"Patient's Age: 046Y\nPatient's Sex: F\nNO REPORT (same pt as {first})", "MCUCXR_9003_0": "Patient's Sex: M\nPatient's Age: 018M\nnormal", "MCUCXR_9004_0": None, "MCUCXR_9005_1": "Patient's Sex: M\nPatient's Age: 060Y\n"}
    (home / "ClinicalReadings").mkdir(parents=True)
    for k, (name, text) in enumerate(texts.items()):
        if text is not None: (home / "ClinicalReadings" / f"{name}.txt").write_text(text, newline="")
        picture(home / "CXR_png" / f"{name}.png", k)
        mask_picture(home / "ManualMask/leftMask" / f"{name}.png", np.s_[4:20, 2:12])
        if name != "MCUCXR_9005_1": mask_picture(home / "ManualMask/rightMask" / f"{name}.png", np.s_[4:20, 18:30])
    return dict(rows=n + 4, patients=n + 3)


def kits23(root, n:int=8):
    "KiTS23: case numbers jump from 299 to 400 while the list does not, a third gender, an age of 0, no body mass index, words for unknown, a case without a tumour, one whose scan was not downloaded."
    rows = [(f"case_{(i if i < n else 400):05d}", {"F": "female", "M": "male"}[sex], age, 20.0 + 3 * (i % 4), "never_smoked" if i % 2 else "current_smoker", bool(label)) for i, sex, label, age in people(n)]
    rows += [("case_00401", "transgender_male_to_female", 44, None, "not_found_in_emr", None), ("case_00402", "female", 0, 18.4, "x", False), ("case_00403", "male", 61, 30.0, "na", True)]
    keys = ["case_id", "gender", "age_at_nephrectomy", "bmi", "smoking_history", "malignant"]
    home = Path(root) / "dataset"
    home.mkdir(parents=True)
    (home / "kits23.json").write_text(json.dumps([dict(zip(keys, r)) | {"comorbidities": {"copd": False}, "last_preop_egfr": {"value": 90, "days_before_nephrectomy": 1}} for r in reversed(rows)], indent=1))
    for k, (case, *_) in enumerate(rows):
        labels = np.zeros((16, 12, 6), np.uint8)
        labels[4:12, 3:9, 1:5] = 1
        if k: labels[6:8, 5:7, 2:4] = 2
        if k % 2: labels[9:11, 5:7, 2:4] = 3
        nifti(home / case / "segmentation.nii.gz", labels, (0.8, 0.8, 5))
        if case != "case_00403": nifti(home / case / "imaging.nii.gz", np.where(labels, 120.0, -80.0) + k, (0.8, 0.8, 5))
    return dict(rows=n + 2, patients=n + 2)


def candi(root, n:int=8):
    "CANDI: four groups, a folder spelled otherwise than its subjects, a table per group, files of another registration beside the right ones, a blank handedness, a subject without files."
    home, groups = Path(root) / "SchizBull_2008", (("HC", "HC"), ("BPDwithoutPsy", "BPDwoPsy"), ("BPDwithPsy", "BPDwPsy"), ("SS", "SS"))
    tables = {folder: [] for folder, _ in groups}
    for i, sex, _, age in people(n):
        folder, prefix = groups[i % 4]
        subject = f"{prefix}_{i:03d}"
        tables[folder].append((subject, {"F": "female", "M": "male"}[sex], 5 + (age + 3 * i) % 12, "R" if i % 3 else ""))
        labels = np.zeros((12, 6, 10), np.int16)
        labels[2:5, 2:4, 3:6], labels[8:11, 2:4, 3:6], labels[5:8, 2:5, 1:3] = 17, 53, 16
        nifti(home / folder / subject / f"{subject}_procimg.nii.gz", labels + 30, (1, 1.5, 1))
        nifti(home / folder / subject / f"{subject}_seg.nii.gz", labels, (1, 1.5, 1))
        nifti(home / folder / subject / "MNI152_2mm_Linear" / f"{subject}_linear_SEG.nii.gz", labels * 0)
    tables["SS"].append(("SS_999", "male", "", "R"))
    for folder, rows in tables.items(): table(home / f"{folder}_Basic_Demographics.csv", rows, ["Subject", "Gender", "Age", "Handedness"])
    return dict(rows=n, patients=n)


def ircadb(root, n:int=8, slices:int=12):
    "IRCADb: DICOM without endings in folders or in zip files, structures spelled in several ways and different per patient, an unknown structure, a patient without masks, a blank sex."
    home = Path(root) / "3Dircadb1"
    for i, sex, label, _ in people(n):
        case = home / f"3Dircadb1.{i}"
        boxes = {"liver": np.s_[3:15, 2:14], ("livertumor", "livertumor01", "livertumors")[i % 3]: np.s_[6:9, 5:8], ("liverkyst", "livercyst")[i % 2]: np.s_[10:12, 5:8], "skin": np.s_[1:23, 0:30]}
        if label: boxes |= {"leftkidney": np.s_[16:19, 3:6], "rightkidney": np.s_[16:19, 10:13], "uterus": np.s_[20:22, 3:6]}
        for k in range(slices):
            dicom(case / "PATIENT_DICOM" / f"image_{k}", pixels(20 * i + k).astype(np.uint16) + 100 * k, -2 * k, PatientSex="" if i == n else sex, PatientID="liver")
            for name, box in boxes.items():
                mask = np.zeros((24, 32), int)
                if k in (9, 10): mask[box] = 255
                dicom(case / "MASKS_DICOM" / name / f"image_{k}", mask, 0, placed=False)
        if i % 2 == 0: _zip(case, "PATIENT_DICOM"), _zip(case, "MASKS_DICOM")
    (home / f"3Dircadb1.{n + 1}").mkdir()
    return dict(rows=n, patients=n)


def _zip(case, name):
    with zipfile.ZipFile(case / f"{name}.zip", "w") as z:
        for p in sorted((case / name).rglob("image_*")):
            z.write(p, p.relative_to(case).as_posix())
            p.unlink()
    for p in sorted((case / name).rglob("*"), reverse=True): p.rmdir()
    (case / name).rmdir()


def spider(root, n:int=8):
    "SPIDER: up to three series per patient, blank sexes and ages, partly visible vertebrae, sagittal slices, a series without a file."
    import SimpleITK as sitk
    rows = []
    for i, sex, _, age in people(n):
        for s in ("t1", "t2", "t2_SPACE")[:1 + i % 3]: rows.append((f"{i}_{s}", "training" if i % 4 else "validation", 7, 7, "" if i == 3 else sex, "" if i == 3 else age, "SIEMENS" if i % 2 else "Philips Medical Systems", 1.5))
    lost = ("901_t1", "training", 7, 7, "F", 50, "SIEMENS", 3.0)
    table(Path(root) / "overview.csv", [*rows, lost], ["new_file_name", "subset", "num_vertebrae", "num_discs", "sex", "age", "Manufacturer", "MagneticFieldStrength"])
    for k, (name, *_) in enumerate(rows):
        labels = np.zeros((20, 14, 5), np.uint16)  # z, y, x: x is the sagittal axis with thick slices
        for level in range(3): labels[2 + 5 * level:5 + 5 * level, 4:9, 1:4], labels[5 + 5 * level:7 + 5 * level, 4:9, 1:4] = level + 1, 201 + level
        labels[17:19, 4:9, 1:4], labels[:, 10:12, 2] = 104, 100
        for kind, array in (("masks", labels), ("images", labels.astype(np.int16) + k)):
            (Path(root) / kind).mkdir(exist_ok=True)
            image = sitk.GetImageFromArray(array)
            image.SetSpacing((4.0, 0.6, 0.6))
            sitk.WriteImage(image, str(Path(root) / kind / f"{name}.mha"))
    return dict(rows=len(rows), patients=n)


RELEASES = {"CXP": cxp, "MIMIC_CXR": mimic_cxr, "HAM10000": ham10000, "FairVLMed10k": fairvlmed10k, "GF3300": gf3300, "PAPILA": papila, "BRSET": brset, "OCT": oct, "COVID_CT_MD": covid_ct_md, "ADNI": adni, "OL3I": ol3i,
            "HAM10000-Seg": ham10000_seg, "TUSC": tusc, "FairSeg": fairseg, "Montgomery": montgomery, "KiTS23": kits23, "CANDI": candi, "IRCADb": ircadb, "SPIDER": spider}


def make_release(name:str, root, n:int=8, **options) -> dict:
    "Write the mini release `name` into the folder `root` (made if needed); returns what has to come out of `prepare`."
    Path(root).mkdir(parents=True, exist_ok=True)
    return RELEASES[name](Path(root), n, **options)
