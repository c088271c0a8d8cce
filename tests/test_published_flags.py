"""Every flag of the published command line, typed into `fairmedfm run` for both tasks: it moves what it says, or it is refused in one line that says why."""
import json
import os

import pandas as pd
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
for package in ("PIL", "scipy", "safetensors", "open_clip", "peft"): pytest.importorskip(package)

from fairmedfm.cli import main  # noqa: E402
from fairmedfm.data.phantoms import Group, Phantom, PhantomSeg, SegGroup, make_phantom  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)

LINES = {  # a line of each usage
    "lp": "--task cls --usage lp --dataset Flat --model Radiomics --total_epochs 6 --blr .01 --batch_size 16", "lp 3D": "--task cls --usage lp --dataset Solid --model Radiomics --total_epochs 2 --batch_size 16",
    "zs": "--task cls --usage clip-zs --dataset Flat --model TinyCLIP", "adapt": "--task cls --usage clip-adapt --dataset Flat --model TinyCLIP --total_epochs 3 --blr .01 --batch_size 16",
    "lora": "--task cls --usage lora --dataset Few --model TinyCLIP --total_epochs 1 --warmup_epochs 0 --blr .01 --batch_size 16", "seg": "--task seg --usage seg2d --dataset Spots --model TinySegmenter --prompt bbox",
    "ft": "--task seg --usage seg2d-ft --dataset Spots --model TinySegmenter --prompt bbox --total_epochs 2 --warmup_epochs 1 --blr .01 --batch_size 4"}
SEG = ("--metrics", "dice", "--worst", "0")

MOVES = [  # usage, what is typed, what differs then: the files, or `log`, `folder` or `config`
    *[("lp", f, "predictions curve") for f in ("--method resampling", "--method group-dro", "--method laftr", "--random_seed 3", "--batch_size 8", "--optimizer sgd", "--optimizer adam", "--blr .1", "--weight_decay .9", "--warmup_epochs 1", "--no_cls_balance")],
    *[("lp", f, "curve") for f in ("--total_epochs 9", "--min_lr 5e-3", "--fixed_lr", "--lr_decay_rate .5", "--lr_decay_period 2", "--early_stopping 2 --total_epochs 60 --blr .5")], ("lp", "--val_strategy worst_auc", "curve"), ("lp", "--log_freq 1", "log"),
    ("lp", "--sensitive_name Age", "folder"), ("lp", "--experiment_name mine", "folder"), ("lp", "--resume_path there", "folder"), ("lp", "--no_cuda", "config"), ("lp", "--if_wandb False", "config"), ("lp", "--test_mode False", "config"), ("lp", "--dataset Few", "predictions folder"), ("lp", "--model HOG", "predictions folder"),
    ("lp 3D", "--is_3d", "config"), ("lora", "--augment", "predictions"), ("adapt", "--context_length 77", "config"), ("zs", "--model TinyCLIP --random_seed 2", "folder"),
    *[("seg", f"--prompt {p}", "predictions folder") for p in ("center", "rand", "rands")], *[("seg", f, "predictions") for f in ("--img_size 64", "--prompt rand --random_seed 5")], ("seg", "--batch_size 3", "config"), ("seg", "--pos_class 255", "config"), ("seg", "--sensitive_name Age", "folder"), ("seg", "--no_cuda", "config"),
    *[("ft", f, "predictions curve") for f in ("--optimizer sgd", "--blr .1", "--weight_decay .9", "--batch_size 2", "--method resampling", "--method group-dro", "--random_seed 3", "--min_lr 9e-3", "--fixed_lr", "--lr_decay_rate .9", "--warmup_epochs 0", "--val_strategy worst_dice")],
    ("ft", "--total_epochs 3", "curve"), ("ft", "--log_freq 1", "log")]

REFUSED = [  # usage, what is typed, a word of the reason
    ("lp", "--augment", "only lora"), ("lp", "--is_3d", "single pictures"), ("lp", "--sensitive_name Race", "no attribute"), ("lp", "--wandb_name n", "--if_wandb True"), ("lp", "--hash_id x", "named by their settings"), ("lp", "--test_mode True", "finished run"), ("lp", "--context_length 77", "no templates"),
    ("lp", "--optimizer rmsprop", "sgd, adam, adamw"), ("lp", "--fixed_lr --min_lr 1e-6", "does not decay"), ("lp", "--usage seg2d", "of task seg"), ("lp", "--model SAM", "--task seg"), ("lp", "--dataset TUSC", "fairmedfm prepare"), *[("lp", f, "--task seg") for f in ("--pos_class 255", "--img_size 64", "--sam_ckpt_path x", "--sam2_model_cfg x", "--prompt center")],
    ("adapt", "--context_length 32", "learned positions"), *[("zs", f, "trains no") for f in ("--blr .1", "--min_lr .1", "--fixed_lr", "--optimizer sgd", "--weight_decay .1", "--batch_size 4", "--total_epochs 3", "--warmup_epochs 3", "--lr_decay_rate .1", "--lr_decay_period 3", "--early_stopping 1", "--val_strategy loss", "--log_freq 3", "--no_cls_balance", "--method laftr", "--if_wandb True", "--test_mode True")],
    *[("seg", f, "trains no") for f in ("--blr .1", "--min_lr .1", "--fixed_lr", "--optimizer sgd", "--weight_decay .1", "--total_epochs 3", "--warmup_epochs 3", "--lr_decay_rate .1", "--early_stopping 1", "--val_strategy loss", "--log_freq 3", "--no_cls_balance", "--method resampling", "--test_mode True")],
    ("seg", "--method laftr", "not for task seg"), ("seg", "--augment", "only lora"), ("seg", "--context_length 77", "no templates"), ("seg", "--is_3d", "single pictures"), ("seg", "--pos_class 7", "no structure"), ("seg", "--sam_ckpt_path nowhere.pth", "nowhere.pth"), ("seg", "--sam2_model_cfg x", "--sam2_model_cfg"), ("seg", "--prompt corner", "corner"), ("seg", "--img_size 33", "33"),
    ("seg", "--usage seg2d-bbox --prompt center", "seg2d-bbox"), ("seg", "--model CLIP", "not masks"), ("ft", "--val_strategy worst_auc", "not for task seg"), ("ft", "--no_cls_balance", "no classes")]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("flags")
    make_phantom(Phantom("Flat", (Group("F", patients=30, contrast=10, prevalence=.3), Group("M", patients=30, contrast=20, prevalence=.4)), per_patient=1), root/"data"/"Flat")
    make_phantom(Phantom("Few", (Group("F", patients=12), Group("M", patients=12)), per_patient=1), root/"data"/"Few")
    make_phantom(Phantom("Solid", (Group("F", patients=10), Group("M", patients=10)), shape=(4, 24, 24), spacing=(4, 1, 1), per_patient=1), root/"data"/"Solid")
    make_phantom(PhantomSeg("Spots", (SegGroup("F", patients=8, contrast=25), SegGroup("M", patients=8, radius=10)), per_patient=1), root/"data"/"Spots")
    return root


@pytest.fixture(scope="module")
def call(home):
    "`call(usage, extra, out)` → (exit code, what was said, the files of the run)."
    def run(usage, extra, out, capsys):
        line, where = LINES[usage].split() + extra.split(), os.getcwd()
        line[line.index("--dataset") + 1] = f"data/{line[line.index('--dataset') + 1]}"
        if "--dataset" in extra and "TUSC" not in extra: line[-1] = f"data/{line[-1]}"
        os.chdir(home)
        try: code = main(["run", *line, *(SEG if "seg" in line[:2] else ()), "--exp_path", out, "--cache", "cache", "--ci", "0", "--html", "False", "--quiet", "True"])
        finally: os.chdir(where)
        folder = [p.parent for p in (home/out).rglob("done.json")] + [p.parent for p in home.glob("there/done.json") if "there" in extra]
        return code, capsys.readouterr().err.strip(), folder[0] if folder else None
    return run


@pytest.fixture(scope="module")
def plain(): return {}


def seen(folder, home, out):
    "What a run left, under the words of MOVES."
    read = lambda n: (folder/n).read_bytes() if (folder/n).exists() else b""
    steps = sum(" step " in l for l in (folder/"log.txt").read_text().splitlines())
    held = json.loads(read("config.json"))
    return {"predictions": read("predictions.csv"), "curve": read("curve.csv"), "log": steps, "folder": str(folder.relative_to(home)).removeprefix(out), "config": [sorted(held["given"]), {k: v for k, v in held["options"].items() if k != "exp_path"}]}


@pytest.mark.parametrize("usage,extra,what", MOVES, ids=[f"{u} {e}" for u, e, _ in MOVES])
def test_it_moves_what_it_says(usage, extra, what, home, call, plain, capsys):
    if usage not in plain:
        code, said, folder = call(usage, "", f"plain-{usage}".replace(" ", ""), capsys)
        assert (code, said) == (0, "")
        plain[usage] = seen(folder, home, f"plain-{usage}".replace(" ", ""))
    out = "o" + "".join(c for c in usage + extra if c.isalnum())
    code, said, folder = call(usage, extra, out, capsys)
    assert (code, said) == (0, ""), said
    now = seen(folder, home, out)
    for word in what.split(): assert now[word] != plain[usage][word], f"{word} did not move"
    if what == "config": assert now["predictions"] == plain[usage]["predictions"]  # a spelling of what holds anyway


@pytest.mark.parametrize("usage,extra,why", REFUSED, ids=[f"{u} {e}" for u, e, _ in REFUSED])
def test_it_is_refused_with_a_reason(usage, extra, why, call, capsys):
    code, said, folder = call(usage, extra, "refused", capsys)
    assert code == 2 and folder is None and said.count("\n") == 0 and said.startswith("fairmedfm: error: ") and why in said, said


def test_no_published_flag_is_left_out():
    "The list of facts: each flag is tried for the classification and, where it is another story there, for segmentation."
    from test_bench_config import PUBLISHED
    typed = " ".join([*LINES.values(), *(e for _, e, _ in MOVES + REFUSED), "--exp_path"]).split()
    assert {f"--{n}" for n in PUBLISHED} - set(typed) == set()


def test_two_spellings_of_a_prompt_are_one_run(home, call, capsys):
    "`--usage seg2d-center` is `--usage seg2d --prompt center`."
    tables = []
    for k, extra in enumerate(("--prompt center", "--usage seg2d-center --prompt center")):
        code, said, folder = call("seg", extra, f"spelling{k}", capsys)
        assert code == 0, said
        tables.append(pd.read_csv(folder/"predictions.csv"))
    pd.testing.assert_frame_equal(*tables)
