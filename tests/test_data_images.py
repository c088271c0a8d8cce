"""Reading images: other libraries and their own test files as oracles, all 48 orientations, damaged files as one line."""
import warnings
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmedfm.core import InputError
from fairmedfm.data.images import (grey_range, pick_slices, read_dicom, read_image, read_labels, read_picture, read_scan, read_series,
                                   read_volume, reslice, resize_depth, to_canonical, to_uint8)

Image = pytest.importorskip("PIL.Image")
nib = pytest.importorskip("nibabel")
sitk = pytest.importorskip("SimpleITK")
pydicom = pytest.importorskip("pydicom")
DICOM = Path(pydicom.__file__).parent/"data"/"test_files"
rng = np.random.default_rng(0)


@pytest.mark.parametrize("p", list(permutations(range(3))))
def test_every_orientation_of_a_nifti(tmp_path, p):
    body = rng.integers(-500, 500, (4, 5, 6)).astype(np.int16)  # z, y, x of ours
    spacing = (3.0, 2.0, 1.0)
    for signs in product((1, -1), repeat=3):
        image = sitk.GetImageFromArray(body)
        image.SetSpacing(spacing[::-1])
        code = "".join("LPS"[i] if s > 0 else "RAI"[i] for i, s in zip(p, signs))
        name = tmp_path/f"{code}.nii.gz"
        sitk.WriteImage(sitk.DICOMOrient(image, code), str(name))
        scan = read_volume(name)
        assert (scan.array == body).all() and np.allclose(scan.spacing, spacing), code


@given(st.floats(-.6, .6), st.floats(-.6, .6), st.permutations(range(3)), st.tuples(*[st.sampled_from([1, -1])]*3))
def test_an_oblique_grid_is_permuted_not_resampled(a, b, p, signs):
    def rot(t, i, j):
        m = np.eye(3)
        m[i, i], m[j, j], m[i, j], m[j, i] = np.cos(t), np.cos(t), -np.sin(t), np.sin(t)
        return m
    world = rot(a, 0, 1) @ rot(b, 1, 2)
    body = np.arange(2*3*4).reshape(2, 3, 4)
    ours = np.eye(3)[::-1] @ world.T
    stored = body.transpose(p)[tuple(slice(None, None, s) for s in signs)]
    back, mm = to_canonical(stored, np.array([3., 2., 1.])[list(p)], [ours[p[i]]*signs[i] for i in range(3)])
    assert sorted(back.shape) == [2, 3, 4] and sorted(back.ravel()) == list(range(24))
    if max(abs(a), abs(b)) < .5: assert (back == body).all() and mm == (3, 2, 1)


def dicom_files():
    for path in sorted(DICOM.rglob("*.dcm")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try: ds = pydicom.dcmread(path, stop_before_pixels=True)
            except Exception: continue
        if ds.get("Rows") and "BAD" not in path.name.upper() and ds.get("SOPClassUID") and "RT Dose" not in ds.SOPClassUID.name: yield path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", list(dicom_files()), ids=lambda p: p.name)
def test_dicom_files_of_pydicom_against_itk(path):
    "Whatever pydicom ships is read as ITK reads it, or refused in one line."
    try: scan = read_dicom(path)
    except InputError as e:
        assert "\n" not in str(e)
        return
    try: want = np.squeeze(sitk.GetArrayFromImage(sitk.ReadImage(str(path))))
    except RuntimeError: return
    got, ds = scan.array, pydicom.dcmread(path)
    if scan.is_colour:
        assert got.dtype == np.uint8 and got.shape[-1] == 3
        if want.dtype == np.uint8 and want.shape == got.shape and ds.PhotometricInterpretation == "RGB":
            assert np.abs(got.astype(int) - want).max() <= 3
    elif want.shape == got.shape and "PixelPaddingValue" not in ds and ds.BitsAllocated > 1 and ds.PhotometricInterpretation[-1] == "2":
        assert np.allclose(got, want, atol=1e-3)


def test_enough_dicom_files_were_really_read():
    read = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in dicom_files():
            try: read_dicom(path); read += 1
            except InputError: pass
    assert read >= 40


def test_jpeg_lossless_is_decoded_without_plugins():
    "COVID-CT-MD is stored so; pydicom alone cannot decode it."
    scan = read_dicom(DICOM/"SC_rgb_jpeg_gdcm.dcm")
    assert scan.is_colour and scan.array.std() > 10


def test_a_file_without_preamble_is_dicom_too(tmp_path):
    whole = (DICOM/"CT_small.dcm").read_bytes()
    (tmp_path/"image_0").write_bytes(whole[132:])
    assert (read_scan(tmp_path/"image_0").array == read_dicom(DICOM/"CT_small.dcm").array).all()


def write_series(folder, body, orientation=(1, 0, 0, 0, 1, 0), names=None, tags=None, kind="MONOCHROME2"):
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian
    folder.mkdir(exist_ok=True)
    normal = np.cross(orientation[:3], orientation[3:])
    for k, plane in enumerate(body):
        meta = FileMetaDataset()
        meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, CTImageStorage
        meta.MediaStorageSOPInstanceUID = f"1.2.{k + 1}"
        name = str(folder/(names[k] if names else f"{(k*7) % 11}.dcm"))
        ds = FileDataset(name, {}, file_meta=meta, preamble=b"\0"*128)
        ds.Rows, ds.Columns = plane.shape
        ds.SamplesPerPixel, ds.BitsAllocated, ds.BitsStored, ds.HighBit = 1, 16, 16, 15
        ds.PixelRepresentation, ds.PhotometricInterpretation = 1, kind
        ds.PixelSpacing, ds.SeriesInstanceUID, ds.RescaleSlope, ds.RescaleIntercept = [0.5, 0.6], "1.2.3", 1, 0
        ds.ImageOrientationPatient, ds.ImagePositionPatient = list(orientation), [float(v) for v in -20 + normal*2.5*k]
        for t, v in (tags or {}).items(): (delattr if v is None else setattr)(ds, t, *(() if v is None else (v(k) if callable(v) else v,)))
        ds.PixelData = plane.astype("<i2").tobytes()
        ds.save_as(name, enforce_file_format=True)


def test_series_are_sorted_by_position_and_oriented(tmp_path):
    body = rng.integers(-1000, 1000, (6, 4, 5)).astype(np.int16)
    write_series(tmp_path/"axial", body)
    scan = read_series(tmp_path/"axial")
    assert (scan.array == body).all() and scan.spacing == (2.5, 0.5, 0.6)
    want = sitk.ReadImage(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(tmp_path/"axial")))
    assert (scan.array == sitk.GetArrayFromImage(want)).all() and np.allclose(scan.spacing, want.GetSpacing()[::-1])
    write_series(tmp_path/"sagittal", body, orientation=(0, 1, 0, 0, 0, -1))
    image = sitk.ReadImage(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(tmp_path/"sagittal")))
    got, ours = read_series(tmp_path/"sagittal"), sitk.DICOMOrient(image, "LPS")
    assert (got.array == sitk.GetArrayFromImage(ours)).all() and np.allclose(got.spacing, ours.GetSpacing()[::-1])
    assert reslice(got).array.shape == (6, 4, 5)


def test_a_series_without_positions_says_how_it_was_sorted(tmp_path):
    body = np.arange(3*2*2).reshape(3, 2, 2).astype(np.int16)
    none = {"ImageOrientationPatient": None, "ImagePositionPatient": None}
    write_series(tmp_path/"loc", body, tags=none | {"SliceLocation": lambda k: 10.0 - 2*k})
    write_series(tmp_path/"num", body, tags=none | {"InstanceNumber": lambda k: 3 - k})
    write_series(tmp_path/"name", body, tags=none, names=["s10", "s9", "s1"])
    for folder, word in (("loc", "SliceLocation"), ("num", "InstanceNumber"), ("name", "file name")):
        scan = read_series(tmp_path/folder)
        assert (scan.array == body[::-1]).all() and any(word in n for n in scan.notes) and "orientation unknown" in scan.notes
    write_series(tmp_path/"twice", body, tags={"ImagePositionPatient": [0.0, 0.0, 0.0]})
    with pytest.raises(InputError, match="position of another"): read_series(tmp_path/"twice")


def test_the_largest_series_of_a_folder(tmp_path):
    write_series(tmp_path/"s", np.ones((4, 2, 2), np.int16), names=list("abcd"))
    write_series(tmp_path/"s", np.full((2, 2, 2), 9, np.int16), names=["x", "y"], tags={"SeriesInstanceUID": "9.9"})
    (tmp_path/"s"/"readme.txt").write_text("x")
    scan = read_series(tmp_path/"s")
    assert (scan.array == 1).all() and scan.array.shape[0] == 4 and any("2 series" in n for n in scan.notes)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_picture_modes(tmp_path, mode):
    base = Image.fromarray(rng.integers(0, 255, (7, 9, 3), dtype=np.uint8))
    if mode == "I;16": image = Image.fromarray(rng.integers(0, 60000, (7, 9), dtype=np.uint16))
    else: image = base.convert("L").convert(mode) if mode in ("I", "F", "LA") else base.convert(mode)
    path = tmp_path/("x.tif" if mode in ("CMYK", "YCbCr", "F", "I") else "x.png")
    image.save(path)
    out = read_image(path)
    assert out.shape == (7, 9, 3) and out.dtype == np.uint8
    if mode in ("RGB", "RGBA", "CMYK"): assert np.abs(out.astype(int) - np.asarray(Image.open(path).convert("RGB"))).max() == 0
    if mode == "L": assert (out[..., 0] == np.asarray(image)).all()


@pytest.mark.parametrize("flag", range(1, 9))
def test_exif_orientation(tmp_path, flag):
    upright = np.zeros((8, 12, 3), np.uint8)
    upright[:4, :6] = (250, 0, 0)
    undo = {1: None, 2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90", 7: "TRANSVERSE",
            8: "ROTATE_270"}[flag]
    image = Image.fromarray(upright)
    image = image.transpose(getattr(Image.Transpose, undo)) if undo else image
    exif = Image.Exif(); exif[0x0112] = flag
    image.save(tmp_path/"x.png", exif=exif)
    assert (read_picture(tmp_path/"x.png").array == upright).all()


def test_tiff_kinds(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    rgb16 = rng.integers(0, 60000, (6, 7, 3), dtype=np.uint16)
    tifffile.imwrite(tmp_path/"rgb16.tif", rgb16, photometric="rgb")
    assert read_image(tmp_path/"rgb16.tif").shape == (6, 7, 3)
    pages = [Image.fromarray(np.full((4, 4), v, np.uint8)) for v in (1, 2, 3)]
    pages[0].save(tmp_path/"pages.tif", save_all=True, append_images=pages[1:])
    scan = read_scan(tmp_path/"pages.tif")
    assert scan.axes == "ZYX" and scan.array[:, 0, 0].tolist() == [1, 2, 3]


def test_damaged_files_are_one_line(tmp_path):
    good = {"a.png": None, "a.npz": None, "a.h5": None, "a.nii.gz": None, "a.mat": None, "a.dcm": None}
    Image.fromarray(np.zeros((30, 30, 3), np.uint8)).save(tmp_path/"a.png")
    np.savez(tmp_path/"a.npz", x=np.zeros((40, 40)))
    nib.save(nib.Nifti1Image(np.zeros((9, 9, 9), np.int16), np.eye(4)), tmp_path/"a.nii.gz")
    pytest.importorskip("scipy.io").savemat(tmp_path/"a.mat", {"x": np.zeros((9, 9))})
    with pytest.importorskip("h5py").File(tmp_path/"a.h5", "w") as f: f["x"] = np.zeros((9, 9))
    (tmp_path/"a.dcm").write_bytes((DICOM/"CT_small.dcm").read_bytes())
    for name in good:
        whole = (tmp_path/name).read_bytes()
        for cut in (0, 10, len(whole)//3, len(whole)*2//3):
            (tmp_path/f"cut{cut}{name[1:]}").write_bytes(whole[:cut])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try: read_image(tmp_path/f"cut{cut}{name[1:]}")
                except InputError as e: assert "\n" not in str(e)


def test_labels_keep_numbers_and_geometry(tmp_path):
    labels = rng.integers(0, 300, (4, 5, 6)).astype(np.int16)
    image = sitk.GetImageFromArray(labels.astype(np.float32)); image.SetSpacing((1, 1, 4))
    sitk.WriteImage(sitk.DICOMOrient(image, "RAI"), str(tmp_path/"m.mha"))
    scan = read_labels(tmp_path/"m.mha")
    assert (scan.array == labels).all() and scan.spacing == (4, 1, 1) and scan.array.dtype.kind == "i"
    sitk.WriteImage(sitk.GetImageFromArray(labels.astype(np.float32)/7), str(tmp_path/"f.mha"))
    with pytest.raises(InputError, match="fractions"): read_labels(tmp_path/"f.mha")
    np.savez(tmp_path/"d.npz", slo=np.zeros((5, 5)), disc_cup_mask=-np.array([[0, 1, 2]]*3))
    assert read_labels(tmp_path/"d.npz", "disc_cup_mask").array.min() == -2


@given(st.integers(1, 60), st.integers(1, 60))
def test_slices(depth, n):
    picked = pick_slices(depth, n)
    assert len(picked) == min(n, depth) and (np.diff(picked) > 0).all() and picked[0] >= 0 and picked[-1] < depth
    ramp = np.arange(depth, dtype=float)[:, None, None]
    out = resize_depth(ramp, n)
    assert len(out) == n and out.min() >= 0 and out.max() <= depth - 1 and (np.diff(out.ravel()) >= 0).all()


def test_depth_is_resized_as_torch_does():
    torch = pytest.importorskip("torch")
    volume = rng.random((7, 3, 3)).astype(np.float32)
    shrunk = torch.nn.functional.interpolate(torch.tensor(volume)[None, None], size=(4, 3, 3), mode="trilinear", align_corners=False)
    want = shrunk[0, 0].numpy()
    assert np.allclose(resize_depth(volume, 4), want, atol=1e-6)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_to_uint8_is_monotone(values):
    array = np.array(values)
    out = to_uint8(array, percentiles=(0, 100))
    order = np.argsort(array, kind="stable")
    assert (np.diff(out[order].astype(int)) >= 0).all()
    low, high = grey_range(array, (0, 100))
    if high - low > 1e-300: assert out.min() == 0 and out.max() == 255
