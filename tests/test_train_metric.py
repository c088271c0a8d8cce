"FairnessMetric: equal to the one-shot value whatever the batches and however many processes."
import inspect
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchmetrics")

import fairmedfm as fm  # noqa: E402
from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.paired import DICE_COLUMNS, summary_column, summary_value  # noqa: E402
from fairmedfm.report import SUMMARY  # noqa: E402
from fairmedfm.train import metric  # noqa: E402
from fairmedfm.train.metric import FairnessMetric, decode_groups, encode_groups  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
rng = np.random.default_rng(0)
N = 240
Y, SEX = rng.integers(0, 2, N), rng.choice(["F", "M", "unknown"], N, p=[.5, .45, .05])
P = np.clip(rng.random(N)*.7 + .3*Y*rng.random(N), 0, 1)
DICE = rng.beta(8, 2, N)


def filled(name, parts, score=P, **kw):
    m = FairnessMetric(name, **kw)
    for i in parts: m.update(torch.as_tensor(DICE[i] if name in DICE_COLUMNS else score[i]), None if name in DICE_COLUMNS else torch.as_tensor(Y[i]), SEX[i])
    return m


def shards(seed, k=7):
    r = np.random.default_rng(seed)
    return [p for p in np.split(r.permutation(N), np.sort(r.integers(0, N, k))) if len(p)]


EVERY = [*SUMMARY, *DICE_COLUMNS, "worst-tpr", "ppv-gap", "overall-brier"]


@pytest.mark.parametrize("name", EVERY)
def test_every_number_equals_the_one_shot_value(name):
    want = summary_value(name, None if name in DICE_COLUMNS else Y, DICE if name in DICE_COLUMNS else P, SEX)
    if name in SUMMARY: assert np.isclose(want, fm.evaluate(Y, P, SEX).summary.iloc[0][name], rtol=1e-12)
    elif name in DICE_COLUMNS: assert np.isclose(want, fm.evaluate_segmentation(SEX, dice=DICE).summary.iloc[0][name], rtol=1e-12)
    for parts in ([np.arange(N)], shards(1), shards(2, 60)): assert abs(float(filled(name, parts).compute()) - want) <= 1e-12


def test_the_scale_is_decided_once_and_in_the_precision_given():
    logits = np.r_[np.full(N//2, .3), rng.normal(size=N - N//2)*4]      # the first half looks like probabilities
    want = fm.evaluate(Y, logits, SEX).summary.iloc[0]["bce-gap"]
    assert abs(float(filled("bce-gap", np.array_split(np.arange(N), 4), logits).compute()) - want) <= 1e-12
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        soft = torch.softmax(torch.as_tensor(rng.normal(size=(N, 2))), 1).to(dtype)
        m = FairnessMetric("ece-gap")
        for i in np.array_split(np.arange(N), 3): m.update(soft[i], torch.as_tensor(Y[i]), SEX[i])
        assert abs(float(m.compute()) - fm.ece_gap(Y, soft, sensitive_features=SEX)) <= 1e-12


def test_pickle_clone_reset_forward():
    m = filled("eod", shards(3))
    assert pickle.loads(pickle.dumps(m)).compute() == m.clone().compute() == m.compute() and isinstance(m, FairnessMetric)
    m.reset()
    with pytest.raises(InputError, match="nothing was added"): m.compute()
    for i in shards(3): m(torch.as_tensor(P[i]), torch.as_tensor(Y[i]), SEX[i])
    assert m.compute() == filled("eod", shards(4)).compute() and m.higher_is_better is True and FairnessMetric("auc-gap").higher_is_better is False


def test_group_names_survive_and_never_depend_on_their_order():
    words = ["F", "", "Übersee & ‹x›", "0", "a"*300, None, float("nan")]
    codes, packed = encode_groups(np.array(words, object))
    assert decode_groups(codes, packed).tolist() == [*words[:5], None, None]
    assert encode_groups(np.array(words[::-1], object))[0].tolist() == codes[::-1].tolist()
    assert decode_groups(*encode_groups(torch.tensor([1, 0, 1]))).tolist() == ["1", "0", "1"]


def test_repeated_samples_with_an_index_count_once():
    m = filled("auc-gap", [])
    for i in (np.arange(0, 130), np.arange(120, N), np.arange(0, 3)): m.update(P[i], Y[i], SEX[i], index=i)
    assert abs(float(m.compute()) - fm.auc_gap(Y, P, sensitive_features=SEX)) <= 1e-12
    m.update(P[:2], Y[:2], SEX[:2])
    with pytest.raises(InputError, match="index"): m.compute()


def test_wrong_calls_say_what_to_do():
    with pytest.raises(InputError, match="auc-gap"): FairnessMetric("auc_gap")
    with pytest.raises(InputError, match="groups"): FairnessMetric().update(P, Y)
    with pytest.raises(InputError, match="3 scores, 3 labels, 2 groups"): FairnessMetric().update(P[:3], Y[:3], SEX[:2])
    assert not isinstance(summary_column("auc-gap"), str)


def test_without_torchmetrics_the_message_says_what_to_install(monkeypatch):
    source = inspect.getsource(metric)
    assert "import torchmetrics" not in source                       # only through `require`, when a metric is made
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(ImportError, match=r"fairmedfm\[cls\]"): metric.metric_class.__wrapped__()


WORKER = """
import sys, warnings; warnings.simplefilter("ignore")
import numpy as np, torch, torch.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
from fairmedfm.train.metric import FairnessMetric
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
d = np.load(f"{folder}/data.npz"); mine, got = np.flatnonzero(d["rank"] == rank), {}
for name in d["names"].tolist():
    m = FairnessMetric(name)
    for i in np.array_split(mine, 3 + rank): m.update(torch.tensor(d["dice" if "dice" in name else "p"][i]), None if "dice" in name else torch.tensor(d["y"][i]), d["sex"][i])
    got[name] = float(m.compute())
logits, alone = FairnessMetric("auc-gap"), FairnessMetric("auc-gap")
for i in np.array_split(mine, 2): logits.update(torch.tensor(d["logits"][i]), torch.tensor(d["y"][i]), d["sex"][i])
if rank == 0: alone.update(torch.tensor(d["logits"]), torch.tensor(d["y"]), d["sex"])
np.savez(f"{folder}/{rank}.npz", logits=float(logits.compute()), alone=float(alone.compute()), **got)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available() or sys.platform == "win32", reason="needs gloo")
def test_two_processes_equal_one(tmp_path):
    "Every published number. Unequal shares, groups that only one of them meets, and a process that has seen nothing (`alone`)."
    rank = np.where(SEX == "M", 0, rng.integers(0, 2, N))
    logits = rng.normal(size=(N, 2)).astype(np.float32)
    np.savez(tmp_path/"data.npz", y=Y, p=P, dice=DICE, sex=SEX, rank=rank, logits=logits, names=EVERY)
    both = [subprocess.Popen([sys.executable, "-c", WORKER, str(r), str(tmp_path)], stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}) for r in (0, 1)]
    errors = [p.communicate(timeout=150)[1].decode()[-800:] for p in both]
    assert [p.returncode for p in both] == [0, 0], errors
    whole = fm.auc_gap(Y, logits, sensitive_features=SEX)
    for r in (0, 1):
        got = dict(np.load(tmp_path/f"{r}.npz"))
        assert got.keys() == {*EVERY, "logits", "alone"}
        for k, v in got.items():
            want = whole if k in ("logits", "alone") else summary_value(k, None if k in DICE_COLUMNS else Y, DICE if k in DICE_COLUMNS else P, SEX)
            assert abs(float(v) - want) <= 1e-12, (r, k)
