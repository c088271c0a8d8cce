"""Segmentation runs against independent computations: real lungs, every mini release, volumes in mm, phantoms whose Dice is known, caches that change nothing."""
import shutil
import subprocess
import sys
import textwrap
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

nib = pytest.importorskip("nibabel")
torch = pytest.importorskip("torch")
for package in ("PIL", "nibabel", "SimpleITK", "pydicom", "h5py", "scipy", "safetensors", "cv2"): pytest.importorskip(package)

from fixtures_raw import make_release  # noqa: E402
from PIL import Image  # noqa: E402

from fairmedfm.cli import main  # noqa: E402
from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.data.catalog import DATASETS, audit_of, load_dataset, prepare_dataset  # noqa: E402
from fairmedfm.data.core import Dataset, from_table  # noqa: E402
from fairmedfm.data.phantoms import PhantomSeg, SegGroup, draw_object, expected_dice, make_phantom, phi  # noqa: E402
from fairmedfm.models.promptable import BOX, GRABCUT, REGION_GROWING, RULE_ROWS, TINY, Picture, SegSpec, TinyNet, load_segmenter  # noqa: E402
from fairmedfm.usages.prompts import ask, correction, join, read_plan  # noqa: E402
from fairmedfm.usages.decoder import run_segmentation  # noqa: E402
from fairmedfm.usages.segment import METRICS, SegCache, gap_by_size, group_scores, read_case, save_worst, seg_run, segment, wanted  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)
BOXES, CUT, GROW = (load_segmenter(s) for s in (BOX, GRABCUT, REGION_GROWING))
SEG = ["HAM10000-Seg", "TUSC", "FairSeg", "Montgomery", "KiTS23", "CANDI", "IRCADb", "SPIDER"]


@pytest.fixture(scope="module")
def net(): return load_segmenter(TINY, precision="fp32")


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    return make_phantom(PhantomSeg("Flat", (SegGroup("F", patients=5, contrast=32, radius=8), SegGroup("M", patients=5, radius=11))), tmp_path_factory.mktemp("flat"))


@pytest.fixture(scope="module")
def solid(tmp_path_factory):
    "Volumes with thick slices, oblong pixels, and a structure in two parts."
    home = tmp_path_factory.mktemp("solid")
    phantom = PhantomSeg("Solid", (SegGroup("F", patients=3, contrast=60, radius=9), SegGroup("M", patients=3, contrast=60, radius=12)), shape=(9, 40, 36), spacing=(4.5, 1.2, .8), per_patient=1)
    return make_phantom(phantom, home)


def overlap(pred, true): return 2*(pred & true).sum()/(pred.sum() + true.sum()), (pred & true).sum()/(pred | true).sum()


def box_of(mask):
    out = np.zeros_like(mask)
    if mask.any():
        at = np.argwhere(mask)
        out[tuple(slice(a, b + 1) for a, b in zip(at.min(0), at.max(0)))] = True
    return out


def rim(mask):
    "Surface pixels by brute force: those with a face neighbour outside."
    padded, out = np.pad(mask, 1), np.zeros_like(mask)
    for axis in range(mask.ndim):
        for step in (-1, 1): out |= mask & ~np.roll(padded, step, axis)[(slice(1, -1),)*mask.ndim]
    return np.argwhere(out)


def distances_mm(pred, true, spacing):
    a, b = rim(pred)*np.array(spacing), rim(true)*np.array(spacing)
    far = np.sqrt(((a[:, None] - b[None])**2).sum(-1))
    return far.min(1), far.min(0)


def surface_scores(pred, true, spacing, tolerance):
    there, back = distances_mm(pred, true, spacing)
    return max(np.percentile(there, 95), np.percentile(back, 95)), (np.r_[there, back] <= tolerance*(1 + 1e-6)).mean()


# -- real lungs --------------------------------------------------------------------------------------------------------------------------

def test_lungs_by_hand(shared):
    "Dice and IoU of the box over all 77 images equal a computation from the PNG files; groups and patients come from the table."
    data = load_dataset(shared/"lung_seg/metadata.csv")
    result = segment(data, BOXES, seg_run(data, BOXES, "bbox", metrics=("dice", "iou")))
    table = pd.read_csv(shared/"lung_seg/metadata.csv")
    by_hand = [overlap(box_of(m), m) for m in (np.array(Image.open(shared/"lung_seg"/p)) > 127 for p in table.mask_path)]
    assert np.allclose(result.table[["dice", "iou"]], by_hand, atol=1e-12) and len(result.table) == 77
    assert result.table.patient.tolist() == table.patient_id.tolist() and result.table.patient.nunique() == 43
    groups = result.report("sex").by_group
    assert groups.n.tolist() == [26, 51] and np.allclose(groups.mean_dice, [np.mean([d for (d, _), s in zip(by_hand, table.sex) if s == g]) for g in "FM"])


def test_lungs_with_a_network_and_grabcut(shared, net, tmp_path):
    data, rows = load_dataset(shared/"lung_seg/metadata.csv"), [0, 5, 11, 23, 40, 60]
    cache = SegCache(tmp_path)
    found = segment(data, net, seg_run(data, net, "bbox,center-inside,clicks:2", metrics=("dice",)), rows, cache).table
    dice = found.groupby(["prompt", "round"]).dice.mean()
    assert found.dice.between(0, 1).all() and dice["bbox", 0] > .2 and dice["clicks:2", 2] > dice["clicks:2", 0] + .1
    cut = segment(data, CUT, seg_run(data, CUT, "bbox", metrics=("dice",)), rows[:1]).table
    assert cut.dice.between(0, 1).all()
    each = segment(data, net, seg_run(data, net, "bbox", per="component", metrics=("dice",)), rows, cache).table
    assert (each.pieces == 2).all() and each.asked.str.count("box").eq(2).all() and each.dice.mean() > dice["bbox", 0]        # a box for each lung says more


# -- every mini release ------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", SEG)
def test_mini_release(name, tmp_path):
    "From the release's own layout through prepare and audit to scores by group; whatever has the structure has a score."
    make_release(name, tmp_path/"raw", 8)
    data = prepare_dataset(name, tmp_path/"raw", tmp_path/"data"/name, quiet=True)
    assert "sex" in audit_of(data).to_markdown()
    three = data.spec.dims == "3D"
    for model in (BOXES, GROW) if not three else (BOXES,):
        result = segment(data, model, seg_run(data, model, "bbox,center", usage="seg2d"), cache=SegCache(tmp_path/"cache", piece=5))
        assert len(result.table) == 2*len(data) and set(result.table.id) == set(data.samples.id)
        scored = result.table.dropna(subset="dice")
        assert len(scored) and scored.dice.between(0, 1).all() and (result.table.dice.isna() == result.table.get("skipped", pd.Series(index=result.table.index)).notna()).all()
        assert {"F", "M"} <= set(result.report("sex").by_group.reset_index().group)
    boxes = segment(data, BOXES, seg_run(data, BOXES, "bbox", usage="seg2d"))
    case = read_case(data, 0, wanted(data.spec), {})
    truth = next(iter(case.truths.values()))
    if three:
        assert len(boxes.slices) > len(data) and (boxes.table.unit == "mm").all()
        whole = segment(data, BOXES, seg_run(data, BOXES, "bbox", usage="seg3d"), [0]).table.iloc[0]
        assert np.isclose(whole.dice, overlap(box_of(truth), truth)[0]) and np.isclose(whole.volume, truth.sum()*np.prod(case.spacing))
    else: assert np.isclose(boxes.table.dice[0], overlap(box_of(truth), truth)[0])
    line = f"run --task seg --usage seg2d-bbox --dataset {name} --model Box --sensitive_name Sex --data_root {tmp_path/'data'} --exp_path {tmp_path/'output'} --cache none --worst 0 --html False --quiet --metrics {' '.join(METRICS)}"
    assert main(line.split()) == 0
    typed = pd.read_csv(next((tmp_path/"output").rglob("predictions.csv")))
    assert np.allclose(typed.dice, boxes.predictions().dice, equal_nan=True) and typed.id.tolist() == data.samples.id.tolist()


@pytest.mark.parametrize("model,prompt", [("SAM", "center"), ("SAM3", "center"), ("SAM3", "text:lung"), ("MedicalSAM3", "bbox")])
def test_the_published_lines(model, prompt, tmp_path, tmp_path_factory):
    "TUSC by sex with --pos_class 255: small checkpoints of the three models in place of the large ones, a frame without a nodule among the rest."
    for package in ("segment_anything", "transformers"): pytest.importorskip(package)
    make_release("TUSC", tmp_path/"raw", 5)
    data = prepare_dataset("TUSC", tmp_path/"raw", tmp_path/"out", quiet=True)
    if model == "SAM":
        from fairmedfm.models.sam import SAM_ROWS, SamNet, build_vit
        row = replace(next(r for r in SAM_ROWS if r.name == "SAM"), preprocess=Picture(128), kwargs={"trained": 128})
        vit = build_vit(dict(img_size=128, patch_size=16, embed_dim=32, depth=2, num_heads=2, mlp_ratio=4.0, out_chans=256, window_size=4, global_attn_indexes=(1,)))
        torch.save(SamNet(row, vit).state_dict(), tmp_path/"SAM.pth")
        net = load_segmenter(row, tmp_path/"SAM.pth", precision="fp32")
    else:
        import test_sam3
        made = test_sam3.folder.__wrapped__(tmp_path_factory) if hasattr(test_sam3.folder, "__wrapped__") else test_sam3.folder._get_wrapped_function()(tmp_path_factory)
        net = (test_sam3.sam3 if model == "SAM3" else test_sam3.medical)(made)
    done = run_segmentation(data, net, usage="seg2d", method="erm", batch_size=1, prompts=prompt, pos_class="255", attributes=["Sex"], out=tmp_path/"run", worst=2)
    table = done.result.table
    words = prompt.startswith("text")
    assert len(table) == len(data) and table.dice.isna().sum() == (0 if words else 1) and table.dice.dropna().between(0, 1).all()
    assert ("absent" in str(table.skipped.dropna().tolist())) if not words else (table.dice[table.volume == 0].isin([0, 1])).all()
    assert set(done.report.by_group.reset_index().group) == {"F", "M"} and (tmp_path/"run"/"predictions.csv").is_file()


def test_structures_of_a_scheme(tmp_path):
    "Several structures in one run; one that a patient does not have is said and has no score."
    make_release("KiTS23", tmp_path/"raw", 6)
    data = prepare_dataset("KiTS23", tmp_path/"raw", tmp_path/"out", quiet=True)
    result = segment(data, BOXES, seg_run(data, BOXES, "bbox", ["kidney", "tumor", "mass"], metrics="dice"))
    lost = result.table[result.table.dice.isna()]
    assert set(result.table.structure) == {"kidney", "tumor", "mass"} and set(lost.structure) == {"tumor", "mass"} and lost.skipped.str.contains("absent").all()
    assert any("tumor: 1 case of" in n for n in result.notes) and list(result.predictions().filter(like="dice_")) == ["dice_kidney_bbox", "dice_tumor_bbox", "dice_mass_bbox"]
    assert result.report("sex").targets == ["kidney · bbox", "tumor · bbox", "mass · bbox"]
    line = f"run --task seg --usage seg2d-bbox --dataset {tmp_path/'out'} --model Box --exp_path {tmp_path/'runs'} --cache none --worst 0 --html False --quiet --metrics dice --pos_class"
    assert main([*line.split(), "all"]) == 0 and main([*line.split(), "spleen"]) == 2
    assert {"dice_kidney_bbox", "dice_cyst_bbox", "dice_kidney-and-mass_bbox"} <= set(pd.read_csv(next((tmp_path/"runs").rglob("predictions.csv"))))


# -- volumes in mm -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("plane", ["axial", "sagittal"])
def test_a_volume_by_slices_in_mm(solid, net, plane):
    "A network of pictures, slice by slice: the volume's scores from its slices' masks, put together and measured here by brute force."
    rows, tolerance = [0, 4], 2.0
    run = seg_run(solid, net, "bbox", tolerance=tolerance, plane=plane)
    result = segment(solid, net, run, rows, batch_size=3)
    for n, row in enumerate(rows):
        case = read_case(solid, row, wanted(solid.spec), {})
        truth, scan, mm = case.truths["object"], case.scan.array, case.spacing
        if plane == "sagittal": truth, scan, mm = truth.transpose(2, 0, 1)[:, ::-1], scan.transpose(2, 0, 1)[:, ::-1], (mm[2], mm[0], mm[1])
        low, high = 0, 255                                                           # the phantom's window
        grey, pred = np.rint(np.clip((scan - low)/(high - low)*255, 0, 255)).astype(np.uint8), np.zeros_like(truth)
        for k in np.flatnonzero(truth.any((1, 2))):
            size = [max(1, round(m*s/min(mm[1:]))) for m, s in zip(grey[k].shape, mm[1:])]
            wide = np.array(Image.fromarray(grey[k]).convert("RGB").resize(size[::-1], Image.BILINEAR))        # square pixels
            e = net.set_image(wide)
            e = replace(e, frame=replace(e.frame, grid=grey[k].shape, scale=tuple(a*b/c for a, b, c in zip(e.frame.scale, size, grey[k].shape))))
            pred[k] = net.predict(e, **ask(read_plan("bbox"), truth[k], "x")[0]).mask
        line = result.table.iloc[n]
        assert np.allclose([line.dice, line.iou], overlap(pred, truth)) and np.allclose([line.hd95, line.nsd], surface_scores(pred, truth, mm, tolerance))
        assert np.isclose(line.rvd, pred.sum()/truth.sum() - 1) and np.isclose(line.volume, truth.sum()*np.prod(mm)) and line.slices == truth.any((1, 2)).sum()
        slices = result.slices[result.slices.id == line.id]
        assert np.allclose(slices.dice, [overlap(pred[k], truth[k])[0] for k in slices.slice]) and np.allclose(slices.volume, [truth[k].sum()*np.prod(mm[1:]) for k in slices.slice])


@pytest.mark.parametrize("name", [s.name for s in RULE_ROWS if s.name != "GrabCut"])
def test_a_volume_as_a_whole_in_mm(solid, name):
    model = {"Box": BOXES, "RegionGrowing": GROW}[name]
    result = segment(solid, model, seg_run(solid, model, "bbox,center-inside", usage="seg3d", tolerance=2), [1])
    case = read_case(solid, 1, wanted(solid.spec), {})
    truth, e = case.truths["object"], model.set_image(case.scan.array, case.spacing)
    for line in result.table.itertuples():
        pred = model.predict(e, **ask(read_plan(line.prompt), truth, case.id, 0, case.spacing)[0]).mask
        assert np.allclose([line.dice, line.iou], overlap(pred, truth)) and np.allclose([line.hd95, line.nsd], surface_scores(pred, truth, case.spacing, 2))


@pytest.mark.parametrize("name,key", [("SAM-Med3D", "med3d"), ("FastSAM3D", "fast3d")])
def test_a_model_of_volumes_in_mm(solid, tmp_path, name, key):
    "The 3D contract from the command's side: a small checkpoint, clicks in space, patches that are kept, scores by brute force."
    pytest.importorskip("segment_anything")
    import seg_oracles as oracles
    from fairmedfm.models.sam3d import SAM3D_ROWS, Blocks
    row = next(r for r in SAM3D_ROWS if r.name == name)
    torch.save({"model_state_dict": oracles.state(oracles.load()[key]["shapes"])}, tmp_path/row.files[0])
    model = load_segmenter(replace(row, preprocess=Blocks(size=(64, 64, 64))), tmp_path, precision="fp32")
    cache, encoded = SegCache(tmp_path/"cache"), []
    handle = model.module.image_encoder.register_forward_hook(lambda *a: encoded.append(1))
    run = seg_run(solid, model, "center-inside,rand,clicks:1", usage="seg3d", tolerance=2)
    result = segment(solid, model, run, [2, 5], cache)
    first = len(encoded)
    again = segment(solid, model, replace(run, tolerance=3.0), [2, 5], cache)          # other scores, the same patches
    assert 2 <= first == len(encoded) and again.table.dice.equals(result.table.dice)
    handle.remove()
    for line in result.table[result.table.id == solid.samples.id[5]].itertuples():
        case = read_case(solid, 5, wanted(solid.spec), {})
        truth, e = case.truths["object"], model.set_image(case.scan.array, case.spacing)
        answer = model.predict(e, **ask(read_plan("rand" if line.prompt == "rand" else "center-inside"), truth, case.id, 0, case.spacing)[0])
        if line.round:
            click = join([ask(read_plan("center-inside"), truth, case.id, 0, case.spacing)[0], correction(truth, answer.mask, case.spacing)])
            answer = model.predict(e, **click, mask=answer.logits)
        assert np.allclose([line.dice, line.iou], overlap(answer.mask, truth))
        if answer.mask.any(): assert np.allclose([line.hd95, line.nsd], surface_scores(answer.mask, truth, case.spacing, 2))
    one = segment(solid, model, seg_run(solid, model, "rand", usage="seg3d"), [5]).table.drop(columns=["split"])
    turned = turned_round(solid, 5, tmp_path, (2, 0, 1), (1, 0, 1))
    pd.testing.assert_frame_equal(segment(turned, model, seg_run(turned, model, "rand", usage="seg3d")).table.drop(columns=["split"]), one)      # stored otherwise: the same numbers
    with pytest.raises(InputError, match="is a model of volumes"): seg_run(solid, model, "rand")
    with pytest.raises(InputError, match="takes point prompts"): seg_run(solid, model, "bbox", usage="seg3d")


def test_segvol_is_asked_with_boxes_points_and_words(solid, tmp_path):
    for package in ("segment_anything", "monai", "einops", "transformers"): pytest.importorskip(package)
    import seg_oracles as oracles
    from test_models_seg_3d import segvol
    model = segvol(oracles.load(), tmp_path)
    with torch.no_grad(): model.module.mask_decoder.output_hypernetworks_mlps[0].layers[-1].bias.add_(3)        # an answer that finds something
    model.module.words = lambda text, device: torch.full((1, 768), .1*len(text))
    result = segment(solid, model, seg_run(solid, model, "bbox,center-inside,text:liver", usage="seg3d", tolerance=2), [1])
    case = read_case(solid, 1, wanted(solid.spec), {})
    truth, e = case.truths["object"], model.set_image(case.scan.array, case.spacing)
    for line in result.table.itertuples():
        answer = model.predict(e, **ask(read_plan(line.prompt), truth, case.id, 0, case.spacing)[0]).mask
        assert np.allclose([line.dice, line.iou], overlap(answer, truth)) and np.isclose(line.predicted_volume, answer.sum()*np.prod(case.spacing))
        if answer.any(): assert np.allclose([line.hd95, line.nsd], surface_scores(answer, truth, case.spacing, 2))
    assert len(result.table) == 3
    turned = turned_round(solid, 1, tmp_path, (1, 2, 0), (0, 1, 1))
    other = segment(turned, model, seg_run(turned, model, [p.name for p in result.run.plans], usage="seg3d", tolerance=2)).table
    pd.testing.assert_frame_equal(other.drop(columns="split"), result.table.drop(columns="split"))              # stored otherwise: the same numbers


def stored_otherwise(path, out, order, flips):
    "The same NIfTI with its axes in another order and turned round, the affine telling."
    image = nib.load(path)
    array, affine = np.asarray(image.dataobj), image.affine.copy()
    for axis, flip in enumerate(flips):
        if flip:
            array = np.flip(array, axis)
            affine[:3, 3] += affine[:3, axis]*(array.shape[axis] - 1)
            affine[:3, axis] *= -1
    nib.save(nib.Nifti1Image(np.ascontiguousarray(array.transpose(order)), affine[:, [*order, 3]]), out)


def turned_round(data, row, folder, order, flips):
    "The row of a dataset with its files stored in other axes."
    cell = data.samples.iloc[[row]]
    for column in ("image", "mask"): stored_otherwise(data.path(cell[column].iloc[0]), folder/f"{column}.nii.gz", order, flips)
    return replace(data, samples=cell.assign(image="image.nii.gz", mask="mask.nii.gz").reset_index(drop=True), roots=(folder,))


def test_storage_changes_nothing(solid, net, tmp_path):
    "Flipped and permuted files of the same anatomy: every number is the same, by slices and as a whole, random prompts too."
    plain = segment(solid, net, seg_run(solid, net, "bbox,rand,center-inside"), range(4))
    whole = segment(solid, GROW, seg_run(solid, GROW, "rand", usage="seg3d"), range(4))
    samples = solid.samples.iloc[:4]
    for k, (order, flips) in enumerate((((1, 2, 0), (1, 0, 1)), ((2, 0, 1), (0, 1, 1)), ((0, 1, 2), (1, 1, 1)), ((2, 1, 0), (0, 0, 0)))):
        for column in ("image", "mask"): stored_otherwise(solid.path(samples[column].iloc[k]), tmp_path/f"{column}{k}.nii.gz", order, flips)
    other = replace(solid, samples=samples.assign(image=[f"image{k}.nii.gz" for k in range(4)], mask=[f"mask{k}.nii.gz" for k in range(4)]), roots=(tmp_path,))
    pd.testing.assert_frame_equal(segment(other, net, seg_run(other, net, "bbox,rand,center-inside")).table, plain.table)
    pd.testing.assert_frame_equal(segment(other, GROW, seg_run(other, GROW, "rand", usage="seg3d")).table, whole.table)


# -- phantoms whose Dice is known --------------------------------------------------------------------------------------------------------

def test_the_gap_of_a_phantom_is_the_expected_one(tmp_path):
    "Group F has the lower contrast. One threshold for everybody is the model; its mean Dice per image is known in closed form, and so is the gap."
    groups = {"F": SegGroup("F", patients=60, contrast=30, boundary=.02), "M": SegGroup("M", patients=60, contrast=45, boundary=.02)}
    data = make_phantom(phantom := PhantomSeg("Faint", tuple(groups.values())), tmp_path)
    rule = replace(BOX, name="Threshold", kwargs=dict(rule=lambda image, grid, prompt, spacing: image[..., 0] > 92))
    done = segment(data, load_segmenter(rule), seg_run(data, load_segmenter(rule), "center", metrics="dice"))
    result, expected = done.table, []
    for i, row in enumerate(data.samples.itertuples()):
        g = groups[row.sex]
        _, solid_, mask = draw_object(phantom, g, np.random.default_rng([phantom.random_state, 1, i]))
        expected.append(expected_dice(mask, solid_, phi((70 - 92.5)/g.noise), phi((92.5 - 70 - g.contrast)/g.noise)))
    by_patient = result.assign(off=result.dice - expected, expected=expected).groupby(["sex", "patient"])[["dice", "off", "expected"]].mean()
    f, m = by_patient.loc["F"], by_patient.loc["M"]
    gap, se = m.dice.mean() - f.dice.mean(), np.sqrt(m.dice.var()/60 + f.dice.var()/60)
    true_gap = m.expected.mean() - f.expected.mean()
    assert true_gap > .05 and abs(gap - true_gap) < 2*se, "within the interval for patients"
    exact = np.sqrt(m.off.var()/60 + f.off.var()/60)                          # the noise alone, image for image
    assert abs(m.off.mean() - f.off.mean()) < 3*exact and exact < se
    told = done.report("sex", ci=.95)
    pair = told.pairwise.iloc[0]
    assert (pair.group_a, pair.group_b) == ("F", "M") and pair.low < -true_gap < pair.high < 0 and pair.verdict == "different" and told.metadata["clustered"]
    assert np.isclose(told.summary.delta_dice.iloc[0], abs(result[result.sex == "M"].dice.mean() - result[result.sex == "F"].dice.mean()))


def test_a_trained_network_sees_the_faint_group_worse(net, tmp_path):
    "The packaged network, by box: lower contrast costs Dice; larger objects gain; sizes alone do not explain the contrast."
    data = make_phantom(PhantomSeg("Faint", (SegGroup("F", patients=16, contrast=12), SegGroup("M", patients=16, contrast=45)), per_patient=1), tmp_path)
    table = segment(data, net, seg_run(data, net, "bbox", metrics="dice"), batch_size=8).table
    parts = gap_by_size(table, "sex", ("F", "M"), 3)
    assert parts.difference["all"] < -.01 and parts.difference["at equal size"] < -.01 and table.dice[table.sex == "M"].mean() > .85


# -- caches change nothing ---------------------------------------------------------------------------------------------------------------

def counted(net, seen):
    return net.module.image_encoder.register_forward_hook(lambda m, i, o: seen.append(len(i[0])))


def test_one_encoding_serves_all(flat, net, tmp_path):
    seen, cache = [], SegCache(tmp_path/"cache", piece=7)
    handle = counted(net, seen)
    kinds = "center,rand,rands,bbox"
    first = segment(flat, net, seg_run(flat, net, kinds), cache=cache)
    assert sum(seen) == len(flat)
    again = segment(flat, net, seg_run(flat, net, kinds), cache=SegCache(tmp_path/"cache", piece=3))
    other = segment(flat, net, seg_run(flat, net, "clicks:1", seed=3), cache=SegCache(tmp_path/"cache", piece=4))
    assert sum(seen) == len(flat), "a second run and other prompts encode nothing"
    pd.testing.assert_frame_equal(first.table, again.table)
    batched = segment(flat, net, seg_run(flat, net, kinds), batch_size=6, workers=2)
    assert sum(seen) == 2*len(flat) and max(seen) == 6
    numbers = [*METRICS, "predicted_iou"]
    assert np.allclose(batched.table[numbers], first.table[numbers], rtol=1e-3, atol=1e-3) and batched.table.drop(columns=[*numbers, "predicted_volume"]).equals(first.table.drop(columns=[*numbers, "predicted_volume"]))
    changed = flat.path(flat.samples.image[0])
    kept = changed.read_bytes()
    Image.fromarray(255 - np.array(Image.open(changed))).save(changed)
    segment(flat, net, seg_run(flat, net, kinds), cache=SegCache(tmp_path/"cache"))
    assert sum(seen) == 2*len(flat) + 1, "one changed file, one encoding"
    changed.write_bytes(kept)
    assert segment(flat, net, seg_run(flat, net, kinds, tolerance=2), cache=SegCache(tmp_path/"cache")).table.nsd.mean() > first.table.nsd.mean()
    handle.remove()


def test_half_precision_is_the_same_from_disk(flat, net, tmp_path):
    run = seg_run(flat, net, "bbox")
    first = segment(flat, net, run, range(6), SegCache(tmp_path, half=True))
    shutil.rmtree(tmp_path/"scores")
    pd.testing.assert_frame_equal(segment(flat, net, run, range(6), SegCache(tmp_path, half=True)).table, first.table)
    exact = segment(flat, net, run, range(6))
    assert np.allclose(exact.table.dice, first.table.dice, atol=.02)
    size = sum(p.stat().st_size for p in tmp_path.rglob("*.safetensors"))
    full = SegCache(tmp_path/"full"); segment(flat, net, run, range(6), full)
    assert size < .55*sum(p.stat().st_size for p in (tmp_path/"full").rglob("*.safetensors"))


def test_killed_and_restarted(flat, net, tmp_path):
    "A run that dies at the 12th image: what was finished is not done again, and the numbers are those of a run that lived."
    seen = []
    def dies(m, i, o):
        seen.append(1)
        if len(seen) == 12: raise KeyboardInterrupt
    handle = net.module.image_encoder.register_forward_hook(dies)
    run = seg_run(flat, net, "bbox,rand")
    with pytest.raises(KeyboardInterrupt): segment(flat, net, run, cache=SegCache(tmp_path, piece=4))
    handle.remove(); seen.clear()
    assert not list(tmp_path.rglob("*.claim")) and len(list((tmp_path/"scores").rglob("*.json"))) == 3
    handle = counted(net, seen)
    resumed = segment(flat, net, run, cache=SegCache(tmp_path, piece=4))
    handle.remove()
    assert sum(seen) == len(flat) - 11 and resumed.table.equals(segment(flat, net, run).table)


def test_a_damaged_cache_is_made_again(flat, net, tmp_path):
    run, said = seg_run(flat, net, "bbox"), []
    first = segment(flat, net, run, cache=SegCache(tmp_path, piece=4))
    for path in tmp_path.rglob("*.safetensors"):
        data = bytearray(path.read_bytes()); data[len(data)//2:len(data)//2 + 64] = b"\xff"*64; path.write_bytes(data)
    for path in list((tmp_path/"scores").rglob("*.json")): path.write_text(path.read_text()[:-20])
    again = segment(flat, net, run, cache=SegCache(tmp_path, piece=4, say=said.append))
    assert again.table.equals(first.table) and any("damaged" in s for s in said)


def test_two_processes_share_the_work(flat, tmp_path):
    program = textwrap.dedent(f"""
        import sys, warnings; warnings.simplefilter("ignore")
        import torch; torch.set_num_threads(1)
        from fairmedfm.data.core import read_samples
        from fairmedfm.models.promptable import TINY, load_segmenter
        from fairmedfm.usages.segment import SegCache, seg_run, segment
        data = read_samples({str(flat.roots[0])!r})
        net, seen = load_segmenter(TINY, precision="fp32"), []
        net.module.image_encoder.register_forward_hook(lambda m, i, o: seen.append(len(i[0])))
        table = segment(data, net, seg_run(data, net, sys.argv[1]), cache=SegCache({str(tmp_path)!r}, piece=2)).table
        print(sum(seen), float(table.dice.sum()))""")
    both = [subprocess.Popen([sys.executable, "-c", program, prompt], stdout=subprocess.PIPE, text=True) for prompt in ("bbox", "center")]
    out = [p.communicate(timeout=300)[0].split() for p in both]
    assert sum(int(o[0]) for o in out) == len(flat), "every image is encoded once, by one of the two"


# -- what is written and refused ---------------------------------------------------------------------------------------------------------

def test_published_protocol(flat, tmp_path):
    "Prompts and Dice on the published square: image bilinear, mask nearest, coordinates of the square."
    spec = SegSpec("Dark", lambda spec, path: TinyNet(spec), "promptable", "", None, None, "", preprocess=Picture(96), weights=False, prompts=("box",), untrained=("point",), choice="single")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = load_segmenter(spec, protocol="paper", precision="fp32")
        torch.manual_seed(1)
        sound = load_segmenter(spec, precision="fp32")
    run = seg_run(flat, model, "center,bbox")
    result = segment(flat, model, run, [0, 3])
    truth = read_case(flat, 0, wanted(flat.spec), {}).truths["object"]
    at = (np.arange(96)*64/96).astype(int)                                     # nearest as OpenCV and PyTorch do it
    square = truth[np.ix_(at, at)]
    y, x = np.argwhere(square).min(0) + np.argwhere(square).max(0)
    assert result.table.asked[0] == f"point {x//2} {y//2} +" and result.table.volume[0] == square.sum() and run.size == 96
    with pytest.raises(InputError, match="takes box prompts"): seg_run(flat, sound, "center")
    assert seg_run(flat, load_segmenter(BOX, protocol="paper"), "bbox", size=256).size == 256


def test_worst_pictures_and_groups(flat, tmp_path):
    result = segment(flat, BOXES, seg_run(flat, BOXES, "bbox,rand"))
    files = save_worst(flat, BOXES, result, "sex", tmp_path, 3, overlays=True)
    assert len(files) == 2*(1 + 6) and all(Image.open(p).size[0] > 100 for p in files)
    scores = group_scores(result, "sex")
    assert np.isclose(scores.loc[("object", "bbox", 0, "F"), "dice"], result.table.query("prompt == 'bbox' and sex == 'F'").dice.mean())


def test_words_can_be_asked_without_an_object(tmp_path):
    "A model that reads: where nothing is there and nothing is found, Dice is empty_score; a false find is 0."
    class Reader(TinyNet):
        def decode(self, features, points=None, labels=None, boxes=None, text=None, mask=None):
            bright = features["fine"].new_full((1, 1, 64, 64), 5. if text == "lung" else -5.)
            return bright, torch.full((1, 1), .9)
    spec = replace(TINY, name="Reader", prompts=("text", "box"), packaged="", weights=False, loader=lambda s, p: Reader(s))
    model = load_segmenter(spec, precision="fp32")
    for k in range(2):
        Image.fromarray(np.full((20, 30), 90, np.uint8)).save(tmp_path/f"i{k}.png")
        Image.fromarray(np.full((20, 30), 255*k, np.uint8)).save(tmp_path/f"m{k}.png")
    pd.DataFrame({"image": ["i0.png", "i1.png"], "mask": ["m0.png", "m1.png"], "sex": ["F", "M"]}).to_csv(tmp_path/"t.csv", index=False)
    data = from_table(tmp_path/"t.csv")
    found = segment(data, model, seg_run(data, model, "text:lung,text:liver,bbox", metrics="dice")).table.set_index(["prompt", "id"]).dice.unstack()
    assert found.loc["text:lung"].tolist() == [0, 1] and found.loc["text:liver"].tolist() == [1, 0] and np.isnan(found.loc["bbox"].iloc[0])


def test_what_is_refused(flat, solid, tmp_path):
    for bad, words in ((lambda: segment(flat, BOXES, seg_run(flat, BOXES, "bbox", usage="seg3d")), "is a picture"), (lambda: seg_run(flat, BOXES, None), "needs --prompt"), (lambda: seg_run(flat, BOXES, "bbox", window="liver", depth=3), "no reading option"),
                       (lambda: seg_run(flat, BOXES, "bbox", metrics="dicee"), "did you mean"), (lambda: seg_run(solid, BOXES, "bbox", "kidney"), "there is no structure")):
        with pytest.raises(InputError, match=words): bad()
    Image.fromarray(np.zeros((5, 5), np.uint8)).save(tmp_path/"small.png")
    other = replace(flat, samples=flat.samples.assign(mask=["small.png", *flat.samples["mask"].iloc[1:]]), roots=(*flat.roots, tmp_path))
    with pytest.raises(InputError, match="row 1 .*the mask is 5 × 5, its image 64 × 64"): segment(other, BOXES, seg_run(other, BOXES, "bbox"))


def test_memory_does_not_grow_with_the_images(net, flat, tmp_path):
    "Peak of what NumPy and Python hold while 20 and 80 images are segmented, with everything kept on disk."
    def peak(n):
        samples = pd.concat([flat.samples]*(n//len(flat) + 1), ignore_index=True).iloc[:n]
        samples = samples.assign(id=[f"s{i}" for i in range(n)])
        data = Dataset(samples, flat.roots, flat.facts, flat.spec)
        run = seg_run(data, net, "bbox", metrics="dice")
        tracemalloc.start()
        segment(data, net, run, cache=SegCache(tmp_path/str(n), megabytes=2, piece=4), batch_size=2)
        top = tracemalloc.get_traced_memory()[1]; tracemalloc.stop()
        return top
    peak(8)
    few, many = peak(20), peak(80)
    assert many < few*1.25 + 2**20
    assert set(DATASETS) >= set(SEG)
