"""Masks against naive NumPy, MONAI and SciPy; every file format; everything that must be refused or said."""
import itertools
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("hypothesis"); pytest.importorskip("PIL")

from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import fairmedfm as fm
from fairmedfm.core import FairnessWarning, InputError, Notes
from fairmedfm.inputs import groupings
from fairmedfm.masks import (EQUITY_SCALED_DICE, MASK_METRICS, READERS, Mask, any_nonzero, axis_map, dice_summary, group_table, list_masks,
                             mask_scores, on_one_grid, overlap, read_mask, surface, surface_distances)

pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")
quick = settings(max_examples=60, deadline=None)

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("FAIRMEDFM_SHARED_DATA", ROOT.parent/"shared"/"data"))
GOLDEN = [Path(__file__).parent/"published_metrics.json", ROOT.parent/"shared"/"golden"/"published_metrics.json"]
GOLDEN = next((p for p in GOLDEN if p.exists()), None)


def scores(pred, true, **kw):
    notes = Notes()
    return mask_scores(pred, true, notes=notes, **kw), notes

def disc(shape=(24, 30), r=8, at=(12, 15)):
    return sum((g - c)**2 for g, c in zip(np.indices(shape), at)) < r*r


# ---------------------------------------------------------------- counts against a naive implementation

def naive(p, t, empty=1.0):
    p, t = np.asarray(p).astype(bool).ravel().tolist(), np.asarray(t).astype(bool).ravel().tolist()
    i, a, b = sum(x and y for x, y in zip(p, t)), sum(p), sum(t)
    return {"dice": 2*i/(a + b) if a + b else empty, "iou": i/(a + b - i) if a + b else empty, "rvd": (a - b)/b if b else np.nan}

shapes = hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=9)
two_masks = shapes.flatmap(lambda s: st.tuples(hnp.arrays(bool, s), hnp.arrays(bool, s)))
kinds = st.sampled_from([("?", 1), ("u1", 1), ("u1", 255), ("u1", 3), ("i1", 1), ("i2", 7), ("u2", 255), ("i4", 1), ("i8", 2),
                         ("f2", 1), ("f4", 1), ("f8", 5), (">i2", 1), (">f4", 1)])
layouts = st.sampled_from([lambda a: a, np.asfortranarray, lambda a: np.repeat(a, 2, axis=-1)[..., ::2], lambda a: a[::-1].copy()[::-1]])

@quick
@given(two_masks, kinds, kinds, layouts, layouts, st.sampled_from([0.0, 0.5, 1.0]))
def test_overlap_metrics_equal_the_naive_ones(masks, kp, kt, lp, lt, empty):
    p, t = masks
    pred, true = lp(p.astype(kp[0])*np.dtype(kp[0]).type(kp[1])), lt(t.astype(kt[0])*np.dtype(kt[0]).type(kt[1]))
    got, _ = scores([pred], [true], metrics=["dice", "iou", "rvd"], empty_score=empty)
    for name, value in naive(p, t, empty).items(): np.testing.assert_allclose(got[name].iloc[0], value, rtol=1e-15, err_msg=name)
    assert (got.volume_pred.iloc[0], got.volume_true.iloc[0]) == (p.sum(), t.sum())
    assert (got.empty_pred.iloc[0], got.empty_true.iloc[0]) == (not p.any(), not t.any())

@quick
@given(shapes.flatmap(lambda s: st.tuples(*(hnp.arrays(k, s, elements=st.integers(0, 3)) for k in ("u1", "i2")), hnp.arrays(bool, s))))
def test_labels_and_void_equal_the_naive_ones(masks):
    p, t, void = masks
    labels, every = {"one": 1, "two": (2,), "any": (1, 2, 3), "back": 0}, np.array([[0, 1, 2, 3]])      # `every`: no label is a typo
    got, _ = scores([p, every], [t, every], labels=labels)
    assert len(got) == 8
    for name, v in labels.items():
        row = got[got.label == name].dice.iloc[0]
        np.testing.assert_allclose(row, naive(np.isin(p, v), np.isin(t, v))["dice"])
    t2 = np.where(void, 99, t)
    got, _ = scores([p, every], [t2, every], labels={"all": (0, 1, 2, 3), "one": 1}, ignore_label=99)
    assert got.volume_pred.iloc[0] == got.volume_true.iloc[0] == (~void).sum()
    np.testing.assert_allclose(got.dice.iloc[1], naive((p == 1) & ~void, (t == 1) & ~void)["dice"])
    got, _ = scores([p], [t2], ignore_label=99)
    np.testing.assert_allclose(got.dice.iloc[0], naive((p != 0) & ~void, (t != 0) & ~void)["dice"])

def test_pieces_of_the_walk_join_up():
    rng = np.random.default_rng(0)
    for n in (2**18 - 1, 2**18, 2**18 + 7, 3*2**18 + 5):
        p, t = rng.random((2, 1, n)) > 0.6
        for k in (1, 255): assert overlap(p*np.uint8(k), t*np.uint8(k))[:3] == ((p & t).sum(), p.sum(), t.sum())
    late = np.zeros((1, 2**18 + 9), np.uint8); late[0, -1] = 2; late[0, 0] = 1
    assert overlap(late, late)[3] == ("predicted", "true")

@pytest.mark.parametrize("values", list(itertools.product((0, 1, 2, 3, 4, 127, 128, 254, 255), repeat=2)))
def test_every_pair_of_byte_values_is_counted_or_refused(values):
    a = np.array([[0, *values, values[0]]], np.uint8)
    one = np.ones_like(a)
    if 255 in values and set(values) - {0, 255}:
        with pytest.raises(InputError, match="255"): overlap(a, one)
    else: assert overlap(a, one)[:3] == (np.count_nonzero(a), np.count_nonzero(a), 4)

@quick
@given(hnp.arrays(st.sampled_from(["f4", "f8", "f2"]), (4, 5), elements=st.floats(0, 1, width=16)), st.floats(0.01, 1))
def test_dice_of_a_mask_with_itself_is_one(prob, threshold):
    got, _ = scores([prob], [prob.copy()], mask_threshold=threshold, metrics=["dice", "iou"])
    assert got.dice.iloc[0] == got.iou.iloc[0] == 1


# ---------------------------------------------------------------- surfaces against MONAI and SciPy

@pytest.fixture(scope="module")
def monai():
    return pytest.importorskip("monai.metrics"), pytest.importorskip("torch")

def blob(rng, shape):
    ndi = pytest.importorskip("scipy.ndimage")
    return ndi.gaussian_filter(rng.random(shape), 1.2) > 0.5

@pytest.mark.filterwarnings("ignore::FutureWarning")        # from inside MONAI
@pytest.mark.parametrize("shape, spacing", [((19, 23), (1.0, 1.0)), ((19, 23), (0.7, 2.5)),
                                            ((11, 12, 9), (3.0, 0.8, 0.8)), ((11, 12, 9), (0.5, 1.0, 2.0))])
def test_surface_metrics_equal_monai(monai, shape, spacing):
    metrics, torch = monai
    rng = np.random.default_rng(len(shape))
    for _ in range(6):
        p, t = blob(rng, shape), blob(rng, shape)
        tol = float(rng.uniform(0.3, 3))
        got, _ = scores([p], [t], metrics=["hd95", "asd", "nsd"], spacing=spacing, tolerance_mm=tol)
        P, T = (torch.from_numpy(m[None, None].astype("f4")) for m in (p, t))
        kw = dict(include_background=True, spacing=list(spacing))
        np.testing.assert_allclose(got.hd95.iloc[0], metrics.compute_hausdorff_distance(P, T, percentile=95, **kw).item(), rtol=1e-5)
        np.testing.assert_allclose(got.asd.iloc[0], metrics.compute_average_surface_distance(P, T, symmetric=True, **kw).item(), rtol=1e-5)
        np.testing.assert_allclose(got.nsd.iloc[0], metrics.compute_surface_dice(P, T, [tol], **kw).item(), rtol=1e-5)

@quick
@given(two_masks, st.tuples(*[st.floats(0.2, 4)]*3))
def test_surface_distances_equal_scipy(masks, spacing):
    ndi = pytest.importorskip("scipy.ndimage")
    p, t = masks
    if not (p.any() and t.any()): return
    edges = [m & ~ndi.binary_erosion(m) for m in (p, t)]
    for m, e in zip((p, t), edges): assert (surface(m) == e).all()
    got = surface_distances(p, t, spacing[:p.ndim])
    for d, a, b in ((got[0], *edges), (got[1], *edges[::-1])):
        far = ndi.distance_transform_edt(~b, sampling=spacing[:p.ndim])[a]
        np.testing.assert_allclose(np.sort(d), np.sort(far), rtol=1e-12, atol=1e-12)

def test_a_tolerance_that_is_a_multiple_of_the_spacing_counts():
    t = np.zeros((9, 20), bool); t[4, 3] = True
    got, _ = scores([np.roll(t, 3, axis=1)], [t], metrics="nsd", spacing=0.1, tolerance_mm=0.3)
    assert got.nsd.iloc[0] == 1

def test_empty_masks():
    t, none = disc(), np.zeros((24, 30), bool)
    got, notes = scores([t, none, none], [none, t, none], metrics=list(MASK_METRICS), spacing=1, tolerance_mm=1)
    assert got.dice.tolist() == [0, 0, 1] and got.iou.tolist() == [0, 0, 1]
    assert got.nsd.tolist()[:2] == [0, 0] and got[["hd95", "asd"]].isna().all().all() and np.isnan(got.nsd[2])
    assert np.isnan(got.rvd[0]) and got.rvd[1] == -1 and np.isnan(got.rvd[2])
    assert got.empty_pred.tolist() == [False, True, True] and got.empty_true.tolist() == [True, False, True]
    assert any("1 of 3 samples empty in both" in n for n in notes) and any("2 of 3 samples empty in one" in n for n in notes)
    assert scores([none, t], [none, t], empty_score=0)[0].dice.tolist() == [0, 1]
    assert np.isnan(scores([none, t], [none, t], empty_score=np.nan)[0].dice[0])


# ---------------------------------------------------------------- files

def volume(): return np.random.default_rng(3).integers(0, 3, (5, 6, 7)).astype(np.uint8)

def write(path, a, **kw):
    end = "".join(path.suffixes)
    if end == ".npy": np.save(path, a)
    elif end == ".npz": np.savez_compressed(path, mask=a, spacing=[1, 2])
    elif end in (".tif", ".tiff") and a.ndim == 3: pytest.importorskip("tifffile").imwrite(path, a, **kw)
    elif end in (".nii", ".nii.gz"): nib = pytest.importorskip("nibabel"); nib.save(nib.Nifti1Image(a, kw.get("affine", np.eye(4))), path)
    elif end in (".mha", ".mhd", ".nrrd"): sitk = pytest.importorskip("SimpleITK"); sitk.WriteImage(sitk.GetImageFromArray(a.T), str(path))
    else: Image.fromarray(a).save(path, **kw)
    return path

@pytest.mark.parametrize("end", sorted(READERS))
def test_every_format_comes_back(tmp_path, end):
    picture = (disc()*255).astype(np.uint8)
    file = write(tmp_path/f"Mask{end.upper() if end == '.png' else end}", picture)
    back = read_mask(file).array
    assert (np.squeeze(back) == picture).all(), end
    got, _ = scores([file], [picture])
    assert got.dice.tolist() == [1.0]
    if end not in (".png", ".jpg", ".jpeg", ".bmp"):
        got, _ = scores([write(tmp_path/f"volume{end}", volume())], [volume()], labels=[1, 2])
        assert got.dice.tolist() == [1.0, 1.0]

@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16", "I", "F"])
def test_picture_modes(tmp_path, mode):
    grey = Image.fromarray(disc()*np.uint8(255))
    img = Image.fromarray((disc()*1).astype(np.uint16)) if mode == "I;16" else grey.convert(mode)
    img.save(tmp_path/("m.tif" if mode in ("F", "I") else "m.png"))
    got, _ = scores([next(tmp_path.iterdir())], [disc()])
    assert got.dice.tolist() == [1.0]

def test_palette_numbers_are_labels_and_white_first_is_not(tmp_path):
    index = (disc()*1 + disc(r=4)).astype(np.uint8)
    for palette in ([0, 0, 0, 255, 0, 0, 0, 255, 0], [0, 0, 0, 128, 128, 128, 255, 255, 255]):
        img = Image.fromarray(index).convert("P"); img.putpalette(palette); img.save(tmp_path/"p.png")
        assert scores([tmp_path/"p.png"], [index], labels=[1, 2])[0].dice.tolist() == [1, 1]
    img = Image.fromarray(disc().astype(np.uint8)).convert("P"); img.putpalette([255, 255, 255, 0, 0, 0]); img.save(tmp_path/"w.png")
    assert scores([tmp_path/"w.png"], [~disc()])[0].dice.tolist() == [1.0]

def test_pictures_that_are_no_masks(tmp_path):
    rng = np.random.default_rng(0)
    for name, a, words in (("red.png", np.dstack([disc()*np.uint8(255), disc()*0, disc()*0]).astype(np.uint8), "colour picture"),
                           ("photo.jpg", rng.integers(0, 255, (24, 30), dtype=np.uint8), "JPEG"),
                           ("labels.jpg", disc()*np.uint8(2), "JPEG"),
                           ("photo.png", rng.integers(0, 255, (24, 30), dtype=np.uint8), "different whole numbers|255"),
                           ("alpha.png", np.dstack([disc()*np.uint8(0)]*3 + [disc()*np.uint8(255)]), "alpha")):
        Image.fromarray(a).save(tmp_path/name)
        with pytest.raises(InputError, match=words) as e: scores([disc(), disc()], [disc(), tmp_path/name])
        assert name in str(e.value) and "true mask 1" in str(e.value) and "\n" not in str(e.value)

def test_jpeg_is_read_and_said(tmp_path):
    for q in (95, 75, 40): Image.fromarray(disc()*np.uint8(255)).save(tmp_path/f"{q}.jpg", quality=q)
    got, notes = scores(sorted(tmp_path.iterdir()), [disc()]*3)
    assert got.dice.tolist() == [1, 1, 1] and any("JPEG" in n for n in notes)

@pytest.mark.parametrize("end", sorted(READERS))
@pytest.mark.parametrize("damage", ["empty", "noise", "half"])
def test_a_damaged_file_is_one_line_with_its_name(tmp_path, end, damage):
    file = write(tmp_path/f"scan{end}", disc((64, 80), 25, (32, 40))*np.uint8(255))
    whole = file.read_bytes()
    file.write_bytes({"empty": b"", "noise": bytes(range(256))*4, "half": whole[:len(whole)//3]}[damage])
    good = disc((64, 80), 25, (32, 40))
    with pytest.raises(InputError) as e: scores([good, file], [good, good])
    assert f"scan{end}" in str(e.value) and "predicted mask 1" in str(e.value) and "\n" not in str(e.value)

def test_a_pickle_is_not_run(tmp_path):
    np.save(tmp_path/"evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="evil.npy"): scores([tmp_path/"evil.npy"], [disc()])

@pytest.mark.parametrize("bad, words", [("gone.nii.gz", "does not exist"), (".", "is a folder"), (None, "is missing"),
                                        (float("nan"), "is missing"), (" ", "is missing")])
def test_missing_paths(tmp_path, bad, words):
    bad = tmp_path/bad if isinstance(bad, str) and bad != " " else bad
    with pytest.raises(InputError, match=f"predicted mask 1 .*{words}"): scores([disc(), bad], [disc(), disc()])

def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    import fairmedfm.core as core
    real = core.importlib.import_module
    def none(name, *a):
        if name.startswith("nibabel"): raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *a)
    file = write(tmp_path/"scan.nii.gz", disc()*np.uint8(1))
    monkeypatch.setattr(core.importlib, "import_module", none)
    with pytest.raises(core.MissingPackage, match=r'pip install "fairmedfm\[io\]"'): scores([file], [disc()])

def test_memory_is_flat_in_the_number_of_files(tmp_path):
    for i in range(12): np.save(tmp_path/f"{i}.npy", np.ones((256, 1024), np.uint8))
    files = sorted(tmp_path.iterdir())
    def peak(k):
        tracemalloc.start(); scores(files[:k], files[:k]); top = tracemalloc.get_traced_memory()[1]; tracemalloc.stop(); return top
    peak(2)
    assert peak(12) < 1.3*peak(2)


# ---------------------------------------------------------------- geometry

AXES = ["".join(p) for p in itertools.permutations(("R", "A", "S"))] + ["LPS", "LAI", "PIR", "SAL", "ILP"]

@pytest.mark.parametrize("codes", AXES)
@pytest.mark.parametrize("end", [".nii.gz", ".mha"])
def test_flips_and_permutations_are_turned_back(tmp_path, codes, end):
    nib, sitk = pytest.importorskip("nibabel"), pytest.importorskip("SimpleITK")
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    if np.linalg.det(turn) < 0: turn[:, 0] *= -1
    affine = np.eye(4); affine[:3, :3] = (np.eye(3) if end == ".nii.gz" else turn) @ np.diag([0.8, 1.2, 3.0]); affine[:3, 3] = (-80, 33, 12)
    truth = nib.Nifti1Image(volume(), affine)
    spun = truth.as_reoriented(nib.orientations.ornt_transform(nib.io_orientation(affine), nib.orientations.axcodes2ornt(codes)))
    nib.save(truth, tmp_path/"t.nii.gz")
    if end == ".nii.gz": nib.save(spun, tmp_path/"p.nii.gz")
    else:
        img = sitk.GetImageFromArray(np.ascontiguousarray(np.asarray(spun.dataobj).T))
        lps = np.diag([-1., -1, 1, 1]) @ spun.affine
        size = np.linalg.norm(lps[:3, :3], axis=0)
        img.SetSpacing(size.tolist()); img.SetDirection((lps[:3, :3]/size).ravel().tolist()); img.SetOrigin(lps[:3, 3].tolist())
        sitk.WriteImage(img, str(tmp_path/"p.mha"))
    got, notes = scores([tmp_path/f"p{end}"], [tmp_path/"t.nii.gz"], labels=[1, 2], metrics=["dice", "hd95"])
    assert got.dice.tolist() == [1, 1] and got.hd95.tolist() == [0, 0]
    assert any("turned onto its grid" in n for n in notes) == (spun is not truth and not np.allclose(spun.affine, affine))
    assert got.attrs == {"distance_unit": "mm", "volume_unit": "mm³"}
    np.testing.assert_allclose(got.volume_true[0], (volume() == 1).sum()*0.8*1.2*3, rtol=1e-5)

def test_elsewhere_is_an_error_that_shows_both_affines(tmp_path):
    there = np.diag([1., 1, 2, 1]); away = there.copy(); away[2, 3] = 50
    t, p = write(tmp_path/"t.nii", volume(), affine=there), write(tmp_path/"p.nii", volume(), affine=away)
    with pytest.raises(InputError, match=r"0 0 2 50.*0 0 2 0.*resample=True") as e: scores([p], [t])
    assert "p.nii" in str(e.value)
    got, notes = scores([p], [t], labels=1, resample=True)
    assert got.dice.tolist() == [0] and any("resampled" in n for n in notes)

@pytest.mark.parametrize("shift", [0.04, 0.4])
def test_rounding_of_headers_is_no_other_grid(tmp_path, shift):
    near = np.eye(4); near[0, 3] = shift
    t, p = write(tmp_path/"t.nii", volume(), affine=np.eye(4)), write(tmp_path/"p.nii", volume(), affine=near)
    if shift < 0.1: assert scores([p], [t], labels=1)[0].dice.tolist() == [1]
    else: pytest.raises(InputError, scores, [p], [t], labels=1)

@quick
@given(st.integers(0, 10**6))
def test_resampling_takes_the_nearest_voxel(seed):
    rng = np.random.default_rng(seed)
    a = np.eye(4); a[:3, :3] = np.diag(rng.uniform(0.5, 2, 3)) @ np.linalg.qr(rng.normal(size=(3, 3)))[0]; a[:3, 3] = rng.normal(size=3)
    pred = Mask(rng.integers(0, 4, (4, 5, 6)).astype(np.uint8), None, a)
    true = Mask(np.zeros((5, 4, 3), np.uint8), None, np.diag([1.1, 0.9, 1.3, 1]))
    got = on_one_grid(pred, true, resample=True)[0]
    at = np.linalg.inv(a) @ true.affine
    for i in np.ndindex(true.array.shape):
        x = (at @ [*i, 1])[:3]
        if (np.abs(x - np.floor(x) - 0.5) < 1e-6).any(): continue
        k = np.rint(x).astype(int)
        assert got[i] == (pred.array[tuple(k)] if ((k >= 0) & (k < pred.array.shape)).all() else 0)

def test_headers_that_know_nothing_are_not_believed(tmp_path):
    nib = pytest.importorskip("nibabel")
    img = nib.Nifti1Image(volume(), None); img.header.set_zooms((1, 1, 4)); img.header["qform_code"] = img.header["sform_code"] = 0
    nib.save(img, tmp_path/"p.nii")
    m = read_mask(tmp_path/"p.nii")
    assert m.affine is None and m.spacing == (1, 1, 4)
    got, notes = scores([tmp_path/"p.nii"], [write(tmp_path/"t.nii", volume(), affine=np.diag([2, 2, 2, 1.]))], labels=1)
    assert got.dice.tolist() == [1] and any("only one of the two masks says where it lies" in n for n in notes)

def test_the_affine_has_the_last_word_on_spacing(tmp_path):
    nib = pytest.importorskip("nibabel")
    img = nib.Nifti1Image(volume(), np.diag([0.5, 0.5, 2, 1])); nib.save(img, tmp_path/"a.nii")
    raw = bytearray((tmp_path/"a.nii").read_bytes()); raw[80:84] = np.float32(9).tobytes()      # pixdim[1]
    (tmp_path/"a.nii").write_bytes(raw)
    assert nib.load(tmp_path/"a.nii").header.get_zooms()[0] == 9
    np.testing.assert_allclose(read_mask(tmp_path/"a.nii").spacing, (0.5, 0.5, 2))

def test_units_other_than_mm(tmp_path):
    nib = pytest.importorskip("nibabel")
    img = nib.Nifti1Image(volume(), np.diag([500, 500, 2000, 1.])); img.header.set_xyzt_units("micron")
    nib.save(img, tmp_path/"micron.nii")
    np.testing.assert_allclose(read_mask(tmp_path/"micron.nii").spacing, (0.5, 0.5, 2))
    mm = write(tmp_path/"mm.nii", volume(), affine=np.diag([0.5, 0.5, 2, 1]))
    assert scores([tmp_path/"micron.nii"], [mm], labels=1)[0].dice.tolist() == [1]

def test_2d_medical_images(tmp_path):
    sitk = pytest.importorskip("SimpleITK")
    img = sitk.GetImageFromArray(disc()*np.uint8(1)); img.SetSpacing((0.5, 0.7))
    for end in (".mha", ".nrrd", ".nii.gz"): sitk.WriteImage(img, str(tmp_path/f"a{end}"))
    got, _ = scores([tmp_path/"a.mha", tmp_path/"a.nrrd"], [tmp_path/"a.nii.gz"]*2, metrics=["dice", "hd95"])
    assert got.dice.tolist() == [1, 1] and got.attrs["volume_unit"] == "mm²"
    np.testing.assert_allclose(got.volume_true, disc().sum()*0.35, rtol=1e-6)

def test_one_slice_is_an_image():
    p, t = disc(), disc(at=(12, 17))
    flat, _ = scores([p], [t], metrics=["hd95", "asd"], spacing=(1, 2))
    deep, _ = scores([p[None]], [t[None]], metrics=["hd95", "asd"], spacing=(5, 1, 2))
    pd.testing.assert_frame_equal(flat, deep)

def test_axis_map_knows_no_oblique_turn():
    a = np.eye(4); a[:2, :2] = [[0.8, -0.6], [0.6, 0.8]]
    m = Mask(volume(), None, np.eye(4))
    assert axis_map(m._replace(affine=a), m) is None and axis_map(m._replace(affine=a), m._replace(affine=a)) == ([0, 1, 2], [False]*3)


# ---------------------------------------------------------------- lists, tensors, batches, keys

def test_forms_of_the_same_masks():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    p, t = rng.random((2, 6, 7, 9)) > 0.5
    want = scores(p, t)[0]
    prob = p*0.8 + 0.1
    tp, tprob = torch.from_numpy(p), torch.from_numpy(prob)
    forms = [list(p), tuple(p), p[:, None], p.tolist(), pd.Series(list(p)), np.array([*p, None], dtype=object)[:-1], tp, list(tp),
             tprob.to(torch.bfloat16), tprob.half().requires_grad_(), [p[:4, None], p[4:, None]], [tp[:2], tp[2:]],
             iter(p), p.astype(">i4"), np.asfortranarray(p), [m.T for m in p.transpose(0, 2, 1)]]
    for form in forms: pd.testing.assert_frame_equal(scores(form, t)[0], want)

def test_batches_need_a_known_number_of_samples():
    p = np.random.default_rng(5).random((6, 7, 9)) > 0.5
    assert len(scores([p[:2], p[2:]], [p[:2], p[2:]])[0]) == 2
    assert len(scores([p[:2], p[2:]], [p[:2], p[2:]], n=6)[0]) == 6
    assert len(scores([p[:2], p[2:]], [p[:2], p[2:]], n=2)[0]) == 2
    assert fm.dice_gap(pred_masks=[p[:2], p[2:]], true_masks=[p[:2], p[2:]], sensitive_features=list("ababab")) == 0

@pytest.mark.parametrize("one", [disc(), disc().tolist(), disc().ravel(), [True, False], [], 3, None, pd.DataFrame({"a": [1]})])
def test_a_single_image_is_not_a_list(one):
    with pytest.raises(InputError): scores(one, one)

def test_a_single_path_is_one_sample(tmp_path):
    file = write(tmp_path/"a.png", disc()*np.uint8(255))
    assert scores(file, str(file))[0].dice.tolist() == [1.0]

@pytest.mark.parametrize("pred, true, words", [
    ([disc()], [disc()]*2, "1 predicted mask and 2 true masks"), ([disc()], [disc().T], "axes look swapped"),
    ([np.stack([disc()]*2)], [disc()], "classes"), ([disc()[1:]], [disc()], "shape"), ([disc()*1j], [disc()], "complex"),
    ([disc().astype(str)], [disc()], "<U5|values"), ([np.zeros((0, 3))], [np.zeros((0, 3))], "no pixels"),
    ([np.zeros((2, 2, 2, 2))], [np.zeros((2, 2, 2, 2))], None), ([np.array([[1, None]], dtype=object)], [np.array([[1, 1]])], "object"),
    ([[[1, 2], [1]]], [[[1, 2], [1, 2]]], "differ in length")])
def test_what_does_not_fit_is_refused(pred, true, words):
    if words is None: assert len(scores(pred, true)[0]) == 2           # batches
    else:
        with pytest.raises(InputError, match=words): scores(pred, true)

def test_columns_of_paths(tmp_path):
    files = [str(write(tmp_path/f"{i}.npy", disc(r=6 + i))) for i in range(3)]
    columns = [np.array(files), np.array(files, dtype=object), pd.Series(files), pd.DataFrame({"mask": files})["mask"]]
    makers = [("polars", lambda m: m.Series(files)), ("pyarrow", lambda m: m.array(files)), ("pyarrow", lambda m: m.chunked_array([files]))]
    for name, make in makers:
        try: columns.append(make(__import__(name)))
        except ImportError: pass
    for column in columns: assert scores(column, files)[0].dice.tolist() == [1, 1, 1]

def test_keys_join_and_never_by_position_when_they_disagree():
    a, b = disc(), disc(at=(10, 10))
    got, _ = scores({"x": a, "y": b}, {"y": b, "x": a})
    assert got["sample"].tolist() == ["y", "x"] and got.dice.tolist() == [1, 1]
    assert scores(pd.Series([a, b], index=["x", "y"]), pd.Series([b, a], index=["y", "x"]))[0].dice.tolist() == [1, 1]
    with pytest.raises(InputError, match="different keys"): scores({"x": a, "y": b}, {"x": a, "z": b})
    sex = pd.Series(["F", "M"], index=["x", "y"])
    masks = dict(pred_masks=pd.Series([a, a], index=["y", "x"]), true_masks=pd.Series([b, a], index=["y", "x"]))
    assert fm.worst_group_dice(**masks, sensitive_features=sex) == scores([a], [b])[0].dice[0]

def test_threads_change_nothing():
    rng = np.random.default_rng(0)
    p, t = rng.integers(0, 3, (2, 8, 12, 13))
    kw = dict(labels=[1, 2], metrics=list(MASK_METRICS), spacing=(1, 2), tolerance_mm=1)
    a, b = scores(p, t, **kw), scores(p, t, n_jobs=2, **kw)
    pd.testing.assert_frame_equal(a[0], b[0]); assert a[1] == b[1]


# ---------------------------------------------------------------- values

@pytest.mark.parametrize("value, fine", [(1.0000001, True), (1 + 5e-7, True), (-1e-9, True), (0.5, True),
                                         (1.001, False), (-0.01, False), (np.nan, False), (np.inf, False), (2.5, False)])
@pytest.mark.parametrize("side", ["pred", "true"])
def test_one_voxel_changes_nothing_or_is_refused(value, fine, side):
    soft = disc()*0.9; soft[12, 15] = value
    pair = dict(pred=disc(), true=disc()); pair[side] = soft
    if fine:
        got, notes = scores([pair["pred"]], [pair["true"]])
        assert got.dice[0] > 0.99 and any("by rounding" in n and "clipped" in n for n in notes) == (not 0 <= value <= 1)
    else:
        with pytest.raises(InputError, match=f"{'predicted' if side == 'pred' else 'true'} mask 0"): scores([pair["pred"]], [pair["true"]])

def test_void_is_not_foreground():
    t = disc().astype(np.uint8); t[:3] = 255
    p = disc().astype(np.uint8); p[0, :5] = 1
    with pytest.raises(InputError, match="ignore_label=255"): scores([p], [t])
    got, notes = scores([p, t], [t, t], ignore_label=255)
    assert got.dice.tolist() == [1, 1]
    assert scores([p], [t], labels=1, ignore_label=255, metrics=["dice", "hd95"], spacing=1)[0].hd95.tolist() == [0]
    assert any("occurs in no true mask" in n for n in scores([p], [disc()], ignore_label=255)[1])
    with pytest.raises(InputError, match="declares void"): scores([disc()*np.uint8(255)], [t], ignore_label=255)
    extra = p.copy(); extra[20, :4] = 255
    got, notes = scores([extra], [t], ignore_label=255)
    assert got.dice[0] == 1 and any("void predicted" in n and "4 pixels" in n for n in notes)

def test_typos_in_labels():
    m = (disc()*2).astype(np.uint8)
    for labels in (3, [2, 3], {"kidney": (2, 3)}, {"kidney": 2, "tumour": 33}):
        with pytest.raises(InputError, match=r"occurs in no mask.*hold 2"): scores([m], [m], labels=labels)
    got, notes = scores([m*0], [m*0], labels=3)
    assert got.dice.tolist() == [1] and any("all empty" in n for n in notes)
    _, notes = scores([(disc()*1)], [m], labels=2)
    assert any("label 2 occurs in no predicted mask" in n for n in notes)

def test_a_model_that_finds_nothing_is_not_fair():
    for pred in (disc() & False, disc()*0.4):
        _, notes = scores([pred]*2, [disc()]*2)
        assert any("foreground occurs in no predicted mask" in n for n in notes)

def test_several_labels_are_said_and_images_refused():
    m = (disc()*1 + disc(r=3)).astype(np.int16)
    assert any("several labels" in n for n in scores([m.astype(">i2")], [m.astype(">f4")])[1])
    assert any("several labels" in n for n in scores([m], [m])[1])
    with pytest.raises(InputError, match="negative label"): scores([m], [m - 1])
    with pytest.raises(InputError, match="is it the image"): any_nonzero(np.arange(400).reshape(20, 20))
    with pytest.raises(InputError, match="logits"): scores([np.random.default_rng(0).normal(size=(24, 30))], [disc()])
    one_hot = np.stack([~disc(), disc()])
    assert any("classes" in n for n in scores([one_hot], [one_hot])[1])

def test_spacing_is_never_mixed():
    kw = dict(metrics="hd95")
    assert any("in pixels" in n for n in scores([disc()], [disc()], **kw)[1])
    a, b = (scores([disc()], [disc(at=(14, 15))], spacing=s, **kw)[0].hd95[0] for s in ((1, 1), (3, 1)))
    assert a == 2 and b > a
    per_sample, _ = scores([disc()]*2, [disc(at=(14, 15))]*2, spacing=[(1, 1), (3, 1)], **kw)
    assert per_sample.hd95.tolist() == [a, b]
    for bad in ((1, 2, 3), -1, "mm", [(1, 1)]*3, np.nan):
        with pytest.raises(InputError, match="spacing"): scores([disc()]*2, [disc()]*2, spacing=bad, **kw)

def test_mm_and_pixels_are_not_mixed(tmp_path):
    file = write(tmp_path/"a.nii", (disc()*1).astype(np.uint8), affine=np.diag([2, 2, 2, 1.]))
    with pytest.raises(InputError, match="not for sample 1;"): scores([file, disc()], [file, disc()], metrics="hd95")
    assert scores([file, disc()], [file, disc()])[0].attrs["volume_unit"] == "pixel"

@pytest.mark.parametrize("kw", [dict(metrics="hd59"), dict(metrics=None), dict(mask_threshold=0), dict(mask_threshold=128),
                                dict(empty_score=2), dict(ignore_label=0), dict(ignore_label=1.5), dict(labels=1, ignore_label=1),
                                dict(metrics="nsd", tolerance_mm=-1), dict(metrics="nsd", tolerance_mm={"a": 1}), dict(labels="kidney"),
                                dict(labels=[]), dict(labels=[1, 1]), dict(n=3), dict(n_jobs=0)])
def test_settings_that_make_no_sense(kw):
    with pytest.raises(InputError): scores([disc()], [disc()], **kw)

def test_the_default_tolerance_is_said():
    assert any("tolerance 1" in n for n in scores([disc()], [disc()], metrics="nsd", spacing=1)[1])


# ---------------------------------------------------------------- fairness of Dice

@pytest.mark.skipif(GOLDEN is None, reason="the golden values are not here")
def test_published_values():
    cases = json.loads(GOLDEN.read_text())["segmentation"]
    assert len(cases) == 4
    for case in cases:
        (attribute, groups), = case["attributes"].items()
        want, bins = case["expected"][attribute], case["kwargs"].get("bins")
        group, = groupings({attribute: groups}, bins=bins)
        summary, by_group = dice_summary(np.array(case["dice"]), group)
        for name, value in want["summary"].items(): assert summary[name] == pytest.approx(value, rel=1e-12, abs=0), (case["name"], name)
        for name, value in want["mean_dice"].items(): assert by_group.mean_dice[name] == pytest.approx(value, rel=1e-12, abs=0)
        functions = dict(delta_dice=fm.dice_gap, min_dice=fm.worst_group_dice, std_dice=fm.dice_std, skewness_dice=fm.dice_skewness,
                         es_dice=fm.equity_scaled_dice)
        for name, f in functions.items():
            got = f(case["dice"], sensitive_features=pd.DataFrame({attribute: groups}), bins=bins)
            assert got == pytest.approx(want["summary"][name], rel=1e-12, abs=0), (case["name"], name)

def test_skewness_is_no_third_moment():
    assert fm.dice_skewness([0.9, 0.6], sensitive_features=["a", "b"]) == pytest.approx(4)
    with pytest.warns(FairnessWarning, match="makes no error"): assert np.isnan(fm.dice_skewness([1, 0.6], sensitive_features=["a", "b"]))

def test_variants_by_hand():
    d, g = [0.9, 0.7, 0.5, 0.6], ["a", "b", "c", "c"]
    mean, groups = np.mean(d), np.array([0.9, 0.7, 0.55])
    for v, penalty in dict(fairmedfm=groups.std(), fairseg=abs(groups - mean).sum()).items() | {("fairseg-std", groups.std(ddof=1))}:
        assert fm.equity_scaled_dice(d, sensitive_features=g, variant=v) == pytest.approx(mean/(1 + penalty), rel=1e-14)
    assert set(EQUITY_SCALED_DICE) == {"fairmedfm", "fairseg", "fairseg-std"} and all(v.source for v in EQUITY_SCALED_DICE.values())

def test_several_attributes_are_combined():
    d = [0.5, 0.6, 0.7, 0.9]
    assert fm.dice_gap(d, sensitive_features=pd.DataFrame({"s": list("aabb"), "t": list("xyxy")})) == pytest.approx(0.4)

def test_a_group_without_values_keeps_its_row():
    group, = groupings({"g": ["a", "a", "b", "b", "c", None]})
    summary, by_group = dice_summary(np.array([0.5, 0.6, np.nan, np.nan, 0.9, 0.1]), group, notes := Notes())
    assert by_group.n.tolist() == [2, 0, 1] and by_group.missing["b"] == 2 and by_group.skipped["b"]
    assert summary["n"] == 3 and summary["n_groups"] == 2 and summary["mean_dice"] == pytest.approx(2/3)
    assert any("group 'b'" in n for n in notes)

@pytest.mark.parametrize("dice", [[50.0, 60, 70, 80], [0.5, 0.6, 0.7, 1.1], [0.5, 0.6, 0.7, -0.1], ["a"]*4, [], [[0.1, 0.2]]*2,
                                  [np.inf, 0, 0, 0]])
def test_values_that_are_no_dice(dice):
    with pytest.raises(InputError): fm.dice_gap(dice, sensitive_features=list("aabb"))

@pytest.mark.parametrize("f", [fm.dice_gap, fm.worst_group_dice, fm.dice_std, fm.dice_skewness, fm.equity_scaled_dice])
def test_one_group_is_no_comparison(f):
    with pytest.warns(FairnessWarning, match="needs two"): assert np.isnan(f([0.5, 0.6], sensitive_features=["a", "a"]))

def test_one_number_functions_take_dice_or_masks():
    both = dict(pred_masks=[disc()]*2, true_masks=[disc()]*2)
    for kw in (dict(), dict(both, dice=[1, 1]), dict(pred_masks=[disc()]*2), dict(both, label=[1, 2]), dict(both, metrics="iou"),
               dict(pred_masks=disc(), true_masks=disc())):
        with pytest.raises(InputError): fm.dice_gap(sensitive_features=["a", "b"], **kw)
    assert fm.dice_gap(pred_masks=[disc(), disc(at=(9, 9))], true_masks=[disc()]*2, sensitive_features=["a", "b"], label=1) > 0.1

@quick
@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from("abcd")), min_size=2, max_size=30))
def test_group_table_equals_pandas(rows):
    values, names = np.array([v for v, _ in rows]), [g for _, g in rows]
    group, = groupings({"g": names})
    table, want = group_table(values, group), pd.Series(values).groupby(names)
    wanted = dict(n=want.size(), mean=want.mean(), std=want.std(), median=want.median(), q25=want.quantile(0.25), q75=want.quantile(0.75))
    for column, series in wanted.items():
        np.testing.assert_allclose(table[column], series, rtol=1e-9, atol=1e-12, err_msg=column)


# ---------------------------------------------------------------- real masks

@pytest.mark.skipif(not (DATA/"lung_seg").is_dir(), reason="the shared data are not here")
def test_real_lung_masks():
    meta = pd.read_csv(DATA/"lung_seg"/"metadata.csv").head(20)
    files = [DATA/"lung_seg"/p for p in meta.mask_path]
    got, _ = scores(files, files, metrics=["dice", "hd95"])
    assert (got.dice == 1).all() and (got.hd95 == 0).all()
    np.testing.assert_allclose(got.volume_true/512**2, meta.mask_fraction, atol=1e-4)
    assert fm.dice_gap(pred_masks=files, true_masks=files, sensitive_features=meta.sex) == 0
