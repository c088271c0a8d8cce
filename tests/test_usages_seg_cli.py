"""`fairmedfm run --task seg` as people type it: the published line, every usage and prompt, mini releases, real lungs, fine-tuning, and what is refused."""
import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")
for package in ("PIL", "scipy", "safetensors", "nibabel", "segment_anything"): pytest.importorskip(package)

from fixtures_raw import make_release  # noqa: E402
from PIL import Image  # noqa: E402

from fairmedfm.cli import main  # noqa: E402
from fairmedfm.data.catalog import prepare_dataset  # noqa: E402
from fairmedfm.data.phantoms import PhantomSeg, SegGroup, make_phantom  # noqa: E402
from fairmedfm.tables import find_columns  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    "A folder as a user has it: ./data with pictures and volumes."
    root = tmp_path_factory.mktemp("user")
    make_phantom(PhantomSeg("Flat", (SegGroup("F", patients=10, contrast=32, radius=8), SegGroup("M", patients=10, radius=11)), per_patient=1), root/"data"/"Flat")
    make_phantom(PhantomSeg("Solid", (SegGroup("F", patients=3, contrast=60, radius=9), SegGroup("M", patients=3, contrast=60, radius=12)), shape=(9, 40, 36), spacing=(4.5, 1.2, .8), per_patient=1), root/"data"/"Solid")
    return root


@pytest.fixture(autouse=True)
def there(home, monkeypatch): monkeypatch.chdir(home)


def run(line, out, capsys=None):
    "The folder of the run, its predictions and its report."
    code = main(["run", "--task", "seg", *line.split(), "--exp_path", str(out), "--quiet", "--html", "False", "--device", "cpu"])
    assert code == 0, line
    folder = next(out.rglob("done.json")).parent
    return folder, pd.read_csv(folder/"predictions.csv"), json.loads((folder/"report.json").read_text())


def test_the_published_line(home, tmp_path, monkeypatch, capsys):
    "As it stands, in a folder with ./data and ./weights: a shallow SAM of 1024 pixels with the real names of tensors."
    from test_models_seg_2d import sam_file
    monkeypatch.chdir(tmp_path)
    make_release("TUSC", tmp_path/"raw", 2)
    prepare_dataset("TUSC", tmp_path/"raw", tmp_path/"data"/"TUSC", quiet=True)
    (tmp_path/"weights").mkdir()
    sam_file(tmp_path/"weights", 1024, name="SAM.pth", whole=())
    line = "run --task seg --usage seg2d --dataset TUSC --sensitive_name Sex --method erm --pos_class 255 --model SAM --sam_ckpt_path ./weights/SAM.pth --img_size 1024 --prompt center"
    assert main([*line.split(), "--batch_size", "1"]) == 0
    folder = tmp_path/"output/seg/seg2d-center/erm/TUSC/SAM/sex/seed0"
    names = {p.name for p in folder.iterdir()}
    assert {"predictions.csv", "details.csv", "report.json", "report.html", "config.json", "environment.json", "done.json", "log.txt", "worst-nodule_center-sex.png"} <= names
    one = pd.read_csv(folder/"predictions.csv")
    assert len(one) == 4 and one.dice.notna().sum() == 3 and set(one.sex) == {"F", "M"}
    capsys.readouterr()
    assert main([*line.split(), "--batch_size", "1"]) == 0 and "was finished" in capsys.readouterr().out
    assert main([*line.split(), "--batch_size", "3", "--exp_path", "larger", "--cache", "none", "--quiet", "--worst", "0", "--html", "False"]) == 0
    several = pd.read_csv(tmp_path/"larger/seg/seg2d-center/erm/TUSC/SAM/sex/seed0/predictions.csv")
    numbers = ["dice", "iou", "predicted_iou", "volume"]
    assert np.allclose(one[numbers], several[numbers], atol=2e-3, equal_nan=True)


@pytest.mark.parametrize("prompt", ["rand", "rands", "center", "bbox"])
def test_a_usage_with_a_prompt_in_its_name_is_that_prompt(prompt, tmp_path):
    a = run(f"--usage seg2d-{prompt} --dataset data/Flat --model TinySegmenter --cache none --worst 0", tmp_path/"a")[1]
    b = run(f"--usage seg2d --prompt {prompt} --dataset data/Flat --model TinySegmenter --cache none --worst 0 --batch_size 4", tmp_path/"b")[1]
    assert np.allclose(a.dice, b.dice, atol=1e-3) and a.dice.mean() > .5 and find_columns(a.columns).dice == "dice"


def test_lungs_from_their_table(shared, tmp_path):
    "Dice and IoU of the box over all images equal a computation from the files; the intervals take patients as clusters."
    folder, table, report = run(f"--usage seg2d-bbox --dataset {shared/'lung_seg/metadata.csv'} --model Box --sensitive_name Sex --metrics dice iou --worst 0", tmp_path)
    raw = pd.read_csv(shared/"lung_seg/metadata.csv")
    expected = []
    for path in raw.mask_path:
        mask = np.array(Image.open(shared/"lung_seg"/path)) > 127
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        area, inside = (rows[-1] - rows[0] + 1)*(columns[-1] - columns[0] + 1), int(mask.sum())
        expected.append((2*inside/(area + inside), inside/area))
    assert np.allclose(table[["dice", "iou"]], expected, atol=1e-12) and len(table) == 77 and table.patient.nunique() == 43
    by_sex = {g: np.mean([d for (d, _), s in zip(expected, raw.sex) if s == g]) for g in "FM"}
    own = report["summary"]["sex"]
    assert own["delta_dice"] == pytest.approx(abs(by_sex["F"] - by_sex["M"]), abs=1e-12) and report["metadata"]["clustered"]


@pytest.mark.parametrize("prompt", ["center-inside", "bbox-jitter:0.1", "rand+negatives:3", "clicks:2", "bbox+clicks:1", "bbox+center-inside", "rands:9"])
def test_every_prompt(prompt, tmp_path):
    folder, table, _ = run(f"--usage seg2d --prompt {prompt} --dataset data/Flat --model TinySegmenter --cache {tmp_path}/cache --worst 2 --overlays --random_seed 3", tmp_path/"out")
    assert table.dice.notna().all() and table.dice.mean() > .5
    details = pd.read_csv(folder/"details.csv")
    assert details["round"].max() == {"clicks:2": 2, "bbox+clicks:1": 1}.get(prompt, 0) and ("negatives" in prompt) == details.asked.str.contains(" -").all()
    pictures = [p for p in folder.glob("*.png")]
    assert sum(p.name.startswith("worst-") for p in pictures) == 1 and len(pictures) == 5


def test_several_prompts_and_attributes_share_one_encoding(home, tmp_path, capsys):
    line = f"run --task seg --usage seg2d --prompt center,bbox --dataset data/Flat --model TinySegmenter --sensitive_name Sex Age --exp_path {tmp_path}/o --cache {tmp_path}/c --html False --worst 0 --device cpu"
    assert main(line.split()) == 0
    said = capsys.readouterr().out
    assert "object · center" in said and "object · bbox" in said and "age" in said
    assert len(list((tmp_path/"c"/"embeddings").iterdir())) == 1 and len(list((tmp_path/"c"/"scores").iterdir())) == 1


def test_volumes_whole_and_by_slices(tmp_path):
    whole = run("--usage seg3d --prompt bbox --dataset data/Solid --model Box --cache none --worst 1", tmp_path/"a")
    sliced = run("--usage seg2d --prompt bbox --dataset data/Solid --model Box --cache none --worst 1 --is_3d --plane sagittal", tmp_path/"b")
    assert len(whole[1]) == len(sliced[1]) == 6 and (whole[1].dice < sliced[1].dice).all() and not (whole[0]/"slices.csv").exists()
    slices = pd.read_csv(sliced[0]/"slices.csv")
    assert len(slices) > 20 and set(slices.id) == set(sliced[1].id)


def test_fine_tuning_and_its_weights(tmp_path):
    line = "--usage seg2d-ft --method febs --method_options gamma=2 --prompt bbox --dataset data/Flat --model TinySegmenter --total_epochs 2 --warmup_epochs 0 --batch_size 4 --val_strategy worst_dice --cache none --worst 0"
    folder, table, report = run(line, tmp_path)
    curve, held = pd.read_csv(folder/"curve.csv"), json.loads((folder/"config.json").read_text())
    assert len(curve) == 2 and held["decided"]["how"]["select"] == "worst_dice" and not (folder/"checkpoint.pt").exists() and report["metadata"]["method"] == "febs"
    assert 0 < len(table) < 20 and set(table.split) == {"test"}
    before = table.dice.tolist()
    assert run(f"{line} --test_mode", tmp_path)[1].dice.tolist() == before


REFUSED = {
    "--usage seg2d --dataset data/Flat --model Box": "needs --prompt", "--usage seg2d --dataset data/Flat --model Box --prompt middle": "prompt", "--usage seg2d --dataset data/Flat --model Box --prompt text": "takes point and box prompts",
    "--usage seg2d-bbox --prompt center --dataset data/Flat --model Box": "prompts with bbox", "--usage seg2d --prompt bbox --dataset data/Flat --model Box --pos_class kidney": "no structure", "--usage seg2d --prompt bbox --dataset data/Flat --model CLIP": "vectors, not masks",
    "--usage seg2d --prompt bbox --dataset data/Flat --model SAM": "SAM", "--usage seg2d --prompt bbox --dataset data/Flat --model SAM --sam_ckpt_path nothing.pth": "no file or folder", "--usage seg2d --prompt bbox --dataset data/Flat --model Box --img_size 512": "512",
    "--usage seg2d --prompt bbox --dataset data/Flat --model Box --method group-dro": "trains nothing", "--usage seg2d-ft --prompt bbox --dataset data/Flat --model Box": "nothing to train", "--usage seg2d-ft --prompt bbox --dataset data/Flat --model TinySegmenter --method laftr": "not for task seg",
    "--usage seg3d --prompt bbox --dataset data/Flat --model Box": "is a picture", "--usage lp --dataset data/Flat --model Box": "of task cls", "--usage seg2d --prompt bbox --dataset data/Flat --model Box --metrics dicee": "did you mean", "--usage seg2d --prompt bbox --dataset data/Flat --model Box --sensitive_name race": "race",
    "--usage seg2d --prompt bbox --dataset nowhere.csv --model Box": "nowhere", "--usage seg2d --prompt clicks --per component --dataset data/Flat --model Box": "corrective clicks", "--usage seg2d --prompt bbox --dataset data/Flat --model Box --blr 0.1": "trains nothing",
    "--usage seg2d --prompt bbox --dataset data/Flat --model Box --sam2_model_cfg x.yaml": "configuration", "--usage seg2d --prompt bbox-jitter:2 --dataset data/Flat --model Box": "share between 0 and 1", "--usage seg2d --prompt bbox --dataset data/Flat --model Box --test_mode": "trains nothing"}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(line, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["run", "--task", "seg", *line.split(), "--exp_path", str(tmp_path), "--cache", "none", "--device", "cpu"]) == 2
    said = [l for l in capsys.readouterr().err.splitlines() if "error:" in l]
    assert len(said) == 1 and REFUSED[line] in said[0], said
