"""The training loop: against PyTorch and scikit-learn, restarted at any epoch with any method, and in two processes."""
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fairmedfm.train.loop import (Classifier, Method, Part, Pictures, Training, class_weights, fit, learning_rate, load_checkpoint, make_optimizer,  # noqa: E402
                                  measure, predict, train_epoch)
from fairmedfm.train.methods import METHODS, make_method  # noqa: E402


def cohort(n, seed, k=2, classes=2):
    rng = np.random.default_rng(seed)
    y, g, x = rng.integers(0, classes, n), rng.integers(0, k, n), rng.normal(size=(n, 6))
    x[:, 0] += 1.2*y; x[:, 1] += .8*y*(g > 0)
    return Part(torch.tensor(x, dtype=torch.float32), torch.tensor(y), torch.tensor(g))


def model_for(method, seed=0, hidden=5, classes=2):
    method.k = 2
    torch.manual_seed(seed)
    return Classifier(nn.Sequential(nn.Linear(6, hidden), nn.ReLU()), nn.Linear(hidden, method.outputs(classes)), hidden)


TRAIN, VALID = cohort(300, 0), cohort(150, 1)
IN_TRAINING = [n for n, r in METHODS.items() if not r.after]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_one_full_batch_step_is_pytorchs(name):
    how = Training(optimizer=name, blr=.05, warmup_epochs=0, batch_size=10**6, weight_decay=.1, total_epochs=2, schedule="constant")
    method = Method(); ours = model_for(method); theirs = model_for(method)
    train_epoch(ours, method, TRAIN, how, 1, make_optimizer([ours, method], how), class_weights(TRAIN.y, 2))
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    opt = kinds[name]([{"params": [p for p in theirs.parameters() if p.ndim > 1], "weight_decay": .1}, {"params": [p for p in theirs.parameters() if p.ndim == 1], "weight_decay": 0}], lr=.05)
    nn.CrossEntropyLoss(weight=class_weights(TRAIN.y, 2))(theirs(TRAIN.x)[1], TRAIN.y).backward(); opt.step()
    for a, b in zip(ours.parameters(), theirs.parameters()): assert torch.allclose(a, b, atol=1e-6)


def test_the_published_schedule_for_many_settings():
    for total, warm in ((100, 5), (10, 0), (7, 7), (1, 0), (50, 49)):
        rates = [learning_rate(Training(total_epochs=total, warmup_epochs=warm, blr=.1, min_lr=.01), e) for e in range(1, total + 1)]
        assert all(0 < r <= .1 for r in rates) and max(rates) <= .1
        if warm < total: assert np.isclose(rates[-1], .01) and (not warm or np.isclose(rates[warm - 1], .1))
        else: assert np.isclose(rates[-1], .1)


def test_it_finds_what_logistic_regression_finds():
    from sklearn.linear_model import LogisticRegression
    oracle = LogisticRegression(C=1e8, max_iter=5000, class_weight="balanced").fit(TRAIN.x, TRAIN.y)
    model = Classifier(nn.Identity(), nn.Linear(6, 2), 6)
    fit(model, Method(), TRAIN, None, Training(total_epochs=300, blr=.05, min_lr=1e-4, batch_size=10**6, weight_decay=0, select="last", optimizer="adam"))
    found = (model.head.weight[1] - model.head.weight[0]).detach().numpy()
    assert np.allclose(found, oracle.coef_[0], atol=.02)


@pytest.mark.parametrize("name", IN_TRAINING)
@pytest.mark.parametrize("at", [1, 4, 7])
def test_a_restart_changes_no_digit(name, at, tmp_path):
    "Stopped after any epoch, with checkpoints every two: parameters, curve and the method's own state end the same."
    how = Training(total_epochs=8, blr=.01, batch_size=64, save_epochs=2, select="loss", patience=0, seed=3)
    def stop(row):
        if row["epoch"] == at: raise KeyboardInterrupt
    whole_method, again_method = make_method(name), make_method(name)
    whole, again = model_for(whole_method), model_for(again_method)
    curve = fit(whole, whole_method, TRAIN, VALID, how)
    killed = make_method(name)
    with pytest.raises(KeyboardInterrupt): fit(model_for(killed), killed, TRAIN, VALID, how, checkpoint=tmp_path/"c.pt", key="k", track=stop)
    said = []
    again_curve = fit(again, again_method, TRAIN, VALID, how, checkpoint=tmp_path/"c.pt", key="k", say=said.append)
    assert any("going on" in s for s in said) == (at >= 2)
    assert curve.equals(again_curve)
    for (n, a), (_, b) in zip(whole.state_dict().items(), again.state_dict().items()): assert torch.equal(a, b), n
    for (n, a), (_, b) in zip(whole_method.state_dict().items(), again_method.state_dict().items()): assert torch.equal(a, b), n


@pytest.mark.parametrize("name", IN_TRAINING)
def test_no_method_is_a_no_op(name):
    how = Training(total_epochs=4, blr=.01, batch_size=64, select="last", seed=1)
    plain, method = Method(), make_method(name)
    a, b = model_for(plain), model_for(method)
    fit(a, plain, TRAIN, VALID, how); fit(b, method, TRAIN, VALID, how)
    differ = not torch.allclose(predict(a, plain, VALID).softmax(1), predict(b, method, VALID).softmax(1), atol=1e-4)
    assert differ == (name != "erm")


@pytest.mark.parametrize("name", IN_TRAINING)
def test_the_callers_chance_is_left_alone_and_seeds_matter(name):
    how = Training(total_epochs=2, blr=.01, batch_size=64, select="last")
    def run(seed, noise):
        method = make_method(name); model = model_for(method)
        torch.manual_seed(noise); before = torch.rand(1)
        torch.manual_seed(noise); fit(model, method, TRAIN, VALID, replace(how, seed=seed))
        assert torch.equal(before, torch.rand(1))
        return predict(model, method, VALID)
    assert torch.equal(run(0, 5), run(0, 6)) and not torch.equal(run(0, 5), run(1, 5))


def test_samples_of_no_group_are_left_out_where_the_method_needs_groups():
    part = replace(TRAIN, g=torch.where(torch.arange(300) < 100, -1, TRAIN.g))
    less = part.where(part.g >= 0)
    for name, alike in (("group-dro", True), ("resampling", True), ("erm", False), ("swad", False)):
        out = []
        for p in (part, less):
            method = make_method(name); model = model_for(method)
            fit(model, method, p, VALID, Training(total_epochs=2, blr=.01, batch_size=64, patience=0)); out.append(predict(model, method, VALID))
        assert torch.equal(*out) == alike


def test_selection_takes_the_best_epoch_and_its_parameters():
    how = Training(total_epochs=12, blr=.05, batch_size=32, patience=0, warmup_epochs=1)
    for select in ("loss", "auc", "worst_auc"):
        model = model_for(Method())
        curve = fit(model, Method(), TRAIN, VALID, replace(how, select=select))
        column, best = curve[f"valid_{select}"], curve[curve.chosen].iloc[0]
        assert best[f"valid_{select}"] == (column.min() if select == "loss" else column.max())
        got = measure(predict(model, Method(), VALID), VALID, class_weights(TRAIN.y, 2))
        assert np.isclose(got[select], best[f"valid_{select}"])
    last = fit(model_for(Method()), Method(), TRAIN, None, replace(how, select="last"))
    assert last.chosen.tolist() == [False]*11 + [True]


def test_early_stopping_counts_after_the_warm_up():
    curve = fit(model_for(Method()), Method(), TRAIN, VALID, Training(total_epochs=60, blr=.3, batch_size=16, patience=4, warmup_epochs=8))
    best = int(curve.epoch[curve.chosen].iloc[0])
    assert len(curve) == max(best, 8) + 4 < 60


@pytest.mark.parametrize("name", IN_TRAINING)
def test_a_last_batch_of_one_and_a_batch_of_one_kind_are_no_trouble(name):
    part = replace(TRAIN.where(torch.arange(300) < 97), y=torch.tensor([0]*50 + [1]*47), g=torch.tensor([0]*50 + [1]*46 + [0]))
    for size in (32, 96, 5):
        method = make_method(name); model = model_for(method)
        fit(model, method, part, VALID, Training(total_epochs=2, blr=.01, batch_size=size, select="last"))
        assert all(torch.isfinite(p).all() for p in model.parameters())


def test_three_classes():
    train, test = cohort(600, 0, classes=3), cohort(600, 1, classes=3)
    for name in ("erm", "group-dro", "domain-ind", "cfair"):
        method = make_method(name); model = model_for(method, classes=3)
        fit(model, method, train, test, Training(total_epochs=20, blr=.02, batch_size=64), classes=3)
        logits = predict(model, method, test)
        assert logits.shape == (600, 3) and measure(logits, test, torch.ones(3))["auc"] > .7


def test_a_checkpoint_of_anything_else_is_not_used(tmp_path):
    how = Training(total_epochs=4, save_epochs=2, blr=.01)
    fit(model_for(Method()), Method(), TRAIN, VALID, how, checkpoint=tmp_path/"c.pt", key="a")
    assert load_checkpoint(tmp_path/"c.pt", "a")["epoch"] == 4 and load_checkpoint(tmp_path/"c.pt", "b") is None
    body = (tmp_path/"c.pt").read_bytes()
    for harm in (b"", body[:300], b"not a checkpoint at all"):
        (tmp_path/"c.pt").write_bytes(harm)
        assert load_checkpoint(tmp_path/"c.pt", "a") is None
    evil = type("Evil", (), {"__reduce__": lambda self: (os.system, (f"touch {tmp_path}/ran",))})()
    torch.save({"key": "a", "x": evil}, tmp_path/"c.pt")
    assert load_checkpoint(tmp_path/"c.pt", "a") is None and not (tmp_path/"ran").exists()


TWO = """
import sys, torch
from torch import nn
from accelerate import Accelerator
from fairmedfm.train.loop import *
from fairmedfm.train.methods import make_method
import numpy as np
rng = np.random.default_rng(0)
n = 203
y, g, x = rng.integers(0, 2, n), rng.integers(0, 2, n), rng.normal(size=(n, 6)); x[:, 0] += y
part = Part(torch.tensor(x, dtype=torch.float32), torch.tensor(y), torch.tensor(g))
accelerator = Accelerator(cpu=True) if sys.argv[1] == "two" else None
for name in ("erm", "group-dro", "laftr", "cfair", "domain-ind", "swad"):
    method = make_method(name); method.k = 2
    torch.manual_seed(0)
    model = Classifier(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, method.outputs(2)), 8)
    fit(model, method, part, part, Training(total_epochs=3, blr=.01, batch_size=50, select="last"), team=Team(accelerator))
    if accelerator is None or accelerator.is_main_process: print(name, *[f"{v:.5f}" for v in torch.cat([p.detach().ravel() for p in model.parameters()]).tolist()])
"""


@pytest.mark.skipif(not os.environ.get("FAIRMEDFM_SLOW"), reason="starts three processes; FAIRMEDFM_SLOW=1 runs it")
def test_two_processes_train_the_same_model_as_one(tmp_path):
    pytest.importorskip("accelerate")
    (tmp_path/"two.py").write_text(TWO)
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    one = subprocess.run([sys.executable, tmp_path/"two.py", "one"], capture_output=True, text=True, env=env, check=True).stdout
    both = subprocess.run([sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", str(tmp_path/"two.py"), "two"],
                          capture_output=True, text=True, env=env)
    assert both.returncode == 0, both.stderr[-3000:]
    for a, b in zip(one.splitlines(), [l for l in both.stdout.splitlines() if l.split()[0] in METHODS]):
        assert a.split()[0] == b.split()[0]
        assert np.allclose(np.array(a.split()[1:], float), np.array(b.split()[1:], float), atol=2e-4), a.split()[0]
