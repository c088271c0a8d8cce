"""The options of a run: all published ones, typed, each with an effect or a reason; the two published lines; the file that repeats a run."""
import json
import subprocess
import sys
from dataclasses import asdict

import pytest

pytest.importorskip("torch")

from hypothesis import given, strategies as st  # noqa: E402

from fairmedfm.bench.config import (ALL_METHODS, HAS, LOCAL, OPTIONS, PROTOCOLS, RECIPES, RULES, USAGES, WITHOUT, check_options, config_json, decide, expand, local_facts,  # noqa: E402
                                    make_config, parse_run, read_bool, read_config, same_numbers, with_config)
from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.train.methods import METHODS  # noqa: E402
from fairmedfm.usages.decoder import SEG_METHODS  # noqa: E402

PUBLISHED = {   # the published command line: option → a value that is not its default
    "task": "seg", "usage": "lp", "method": "group-dro", "dataset": "PAPILA", "sensitive_name": "Age", "is_3d": True, "augment": True, "experiment_name": "one", "wandb_name": "x", "if_wandb": "True", "resume_path": "runs/1",
    "random_seed": 3, "batch_size": 64, "optimizer": "sgd", "blr": 1e-3, "min_lr": 1e-6, "fixed_lr": True, "weight_decay": .1, "lr_decay_rate": .5, "lr_decay_period": 5, "total_epochs": 7, "early_stopping": 0, "test_mode": "True",
    "warmup_epochs": 2, "no_cuda": True, "no_cls_balance": True, "model": "CLIP", "context_length": 256, "hash_id": "abc", "val_strategy": "worst_auc", "log_freq": 10, "exp_path": "elsewhere", "pos_class": "255", "img_size": 1024,
    "sam_ckpt_path": "SAM.pth", "sam2_model_cfg": "cfg.yaml", "prompt": "center"}
# where the effect of an option that `decide` does not see is tested: file and what to look for
ELSEWHERE = {"usage": "test_bench_run", "method": "test_bench_run", "dataset": "test_bench_run", "model": "test_bench_run", "sensitive_name": "test_bench_run", "is_3d": "test_bench_run", "experiment_name": "test_bench_run",
             "resume_path": "test_bench_run", "test_mode": "test_bench_run", "no_cuda": "test_bench_run", "exp_path": "test_bench_run", "if_wandb": "test_bench_run", "augment": "test_bench_run"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_option_has_an_effect_or_is_refused_with_a_reason(name, root):
    value, base = PUBLISHED[name], {} if name == "usage" else {"usage": "lp"}
    plain = decide(make_config(**base))
    try:
        config = make_config(**base, **{name: value})
        check_options([config])
        changed = asdict(decide(config)) != asdict(plain)
    except InputError as e:
        assert "--" in str(e) and len(str(e).split()) > 3, "a refusal says which option and why"
        return
    if not changed: assert name in ELSEWHERE and f"--{name}" in (root/"tests"/f"{ELSEWHERE[name]}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_stands_in_the_help_and_has_a_default_of_its_kind(name):
    o = OPTIONS[name]
    assert o.help and (o.default is None or isinstance(o.default, (o.kind, tuple) if o.many else o.kind))
    assert not o.only or o.only in HAS
    if o.choices and o.default is not None: assert o.default in o.choices
    assert getattr(make_config(), name) == o.default


@pytest.mark.parametrize("words", ["true false yes no 1 0 on off".split()])
def test_words_for_true_and_false(words):
    for w in words:
        for v in (w, w.upper(), f" {w} "): assert read_bool(v) == (w in ("true", "yes", "1", "on"))
        assert make_config(**{k: v for k, v in parse_run(["--if_wandb", w]).items()}).if_wandb == (w in ("true", "yes", "1", "on"))
    assert make_config(**parse_run(["--fixed_lr"])).fixed_lr and not make_config(**parse_run(["--fixed_lr", "False"])).fixed_lr
    with pytest.raises(InputError): make_config(**parse_run(["--test_mode", "maybe"]))


def test_the_published_line_is_read_as_it_stands():
    line = "--task cls --usage lp --dataset CXP --model CLIP --sensitive_name Sex --method erm --total_epochs 100 --warmup_epochs 5 --blr 2.5e-4 --batch_size 128 --optimizer adamw --min_lr 1e-5 --weight_decay 0.05"
    (config,) = expand(parse_run(line.split()))
    check_options([config])
    how = decide(config).how
    assert (config.dataset, config.model, config.sensitive_name) == ("CXP", "CLIP", "sex")
    assert (how.total_epochs, how.warmup_epochs, how.blr, how.batch_size, how.optimizer, how.min_lr, how.weight_decay) == (100, 5, 2.5e-4, 128, "adamw", 1e-5, .05)


@pytest.mark.parametrize("more", ["--model SAM --sam_ckpt_path ./weights/SAM.pth --img_size 1024 --prompt center", "--model SAM3 --img_size 1024 --prompt center", "--model MedicalSAM3 --sam_ckpt_path checkpoint_2D.pt --prompt bbox"])
def test_the_published_lines_of_segmentation_are_read_as_they_stand(more):
    (config,) = expand(parse_run(f"--task seg --usage seg2d --dataset TUSC --sensitive_name Sex --method erm --batch_size 1 --pos_class 255 {more}".split()))
    check_options([config]); decide(config)
    assert (config.task, config.dataset, config.sensitive_name, config.pos_class, config.batch_size) == ("seg", "TUSC", "sex", ("255",), 1) and config.prompt == (more.split()[-1],)


def test_each_rule_refuses_something():
    "No dead rule: for each there is a config that it and no earlier rule refuses."
    seg = dict(task="seg", usage="seg2d")
    refusing = [dict(hash_id="x"), dict(task="seg"), dict(model="MedSAM"), dict(method="febs"), dict(seg, usage="seg2d-ft", method="cfair"), dict(seg, usage="seg2d-ft", val_strategy="auc"), dict(val_strategy="worst_dice"), dict(seg, batch_size=2, encode_batch=2),
                dict(seg, sam_ckpt_path="a.pth", checkpoint="b.pth"), dict(usage="clip-zs", method="laftr"), dict(protocol="paper", method="group-thresholds"), dict(protocol="paper", val_strategy="loss"), dict(protocol="paper", early_stopping=3),
                dict(method="swad", val_strategy="auc"), dict(fixed_lr=True, lr_decay_rate=.2), dict(fixed_lr=True, min_lr=1e-6), dict(warmup_epochs=101), dict(min_lr=1.), dict(no_cuda=True, device="cuda"), dict(wandb_name="w"),
                dict(usage="clip-zs", trackers=["wandb"]), dict(usage="clip-zs", slices="attention"), dict(test_mode=True, overwrite=True), dict(experiment_name="a", resume_path="b")]
    hit = set()
    for options in refusing:
        c = make_config(**({"usage": "lp"} | options))
        u, m, p = USAGES[c.usage], ALL_METHODS[c.method], PROTOCOLS[c.protocol]
        hit.add(next(i for i, r in enumerate(RULES) if r.when(c, u, m, p)))
        with pytest.raises(InputError): decide(c)
    assert hit == set(range(len(RULES)))


def test_sensible_combinations_are_not_refused():
    for usage in USAGES:
        task = USAGES[usage].task
        for method in SEG_METHODS if task == "seg" else METHODS:
            if not USAGES[usage].trains and not ALL_METHODS[method].after and method != "erm": continue
            decide(make_config(task=task, usage=usage, method=method))
    for recipe in RECIPES.values(): check_options([make_config(**recipe)]); decide(make_config(**recipe))


def test_protocols_differ_in_every_row_and_what_differs_is_written_down():
    sound, paper = map(asdict, PROTOCOLS.values())
    assert all(sound[k] != paper[k] for k in sound)
    held = json.loads(config_json(make_config(usage="lp", protocol="paper")))
    assert held["decided"]["protocol"] == paper and held["decided"]["how"]["optimizer"] == "sgd" and held["decided"]["notes"]


def test_an_option_is_refused_only_when_no_run_of_the_call_takes_it():
    with pytest.raises(InputError, match="clip-zs trains nothing"): check_options(expand(parse_run("--usage clip-zs --blr 1e-3".split())))
    check_options(expand(parse_run("--usage clip-zs clip-adapt --blr 1e-3".split())))
    for need in WITHOUT: assert WITHOUT[need]


@given(st.dictionaries(st.sampled_from(sorted(n for n, o in OPTIONS.items() if o.kind in (int, float) and not o.many)), st.floats(0, 1e6, allow_nan=False) | st.integers(0, 10**6), max_size=5))
def test_a_config_survives_its_file(tmp_path_factory, values):
    try: c = make_config(usage="lp", **values); text = config_json(c)
    except InputError: return
    path = tmp_path_factory.mktemp("c")/"config.json"
    path.write_text(text)
    again = make_config(**read_config(str(path)))
    assert again == c and decide(again) == decide(c) and same_numbers(json.loads(text)["options"], again) == []


def test_flags_go_before_the_config_and_the_local_file_before_the_recipe(tmp_path):
    (tmp_path/"linear-probe.json").write_text(json.dumps({"usage": "lp", "blr": .25, "batch_size": 16}))
    got = with_config(parse_run(["--config", "linear-probe", "--config_root", str(tmp_path), "--blr", "0.5"]))
    assert float(got["blr"]) == .5 and got["batch_size"] == 16 and "total_epochs" not in got
    assert with_config({"config": "linear-probe"})["total_epochs"] == 100


def test_local_facts(tmp_path):
    for kind, name, text in (("datasets", "CXP", {"text_template": "an X-ray of {}", "test_race_meta_path": "r.csv", "train_meta_path": "t.csv"}), ("models", "RAD-DINO", {"pretrained_path": "w.pth", "lora_targets": ["query"]})):
        (tmp_path/kind).mkdir(); (tmp_path/kind/f"{name}.json").write_text(json.dumps(text))
    assert local_facts("datasets", "CXP", tmp_path, "race_binary") == {"prompts": ["an X-ray of {}"], "test": "r.csv", "train": "t.csv"}
    assert local_facts("datasets", "CXP", tmp_path, "sex") == {"prompts": ["an X-ray of {}"], "train": "t.csv"}
    assert local_facts("models", "RAD-DINO", tmp_path) == {"checkpoint": "w.pth", "lora": ["query"]}
    assert all(LOCAL[k] for k in LOCAL)


def test_an_unknown_flag_is_one_line():
    for line in ("--modell CLIP", "--usage", "extra", "--blr=fast", "--random_seed one", "--n_slices 0"):
        with pytest.raises(InputError) as e: check_options(expand(parse_run(line.split())))
        assert "\n" not in str(e.value)
