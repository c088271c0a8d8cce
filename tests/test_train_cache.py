"""The feature cache in several processes, after a SIGKILL, and against everything that must not match."""
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

from fairmedfm.data.phantoms import Group, Phantom, make_phantom  # noqa: E402
from fairmedfm.models.core import Encoder, ModelSpec, Preprocess, Tower  # noqa: E402
from fairmedfm.train.batches import reader_for  # noqa: E402
from fairmedfm.train.cache import Claim, FeatureCache, Hashes, read_chunk  # noqa: E402

ENCODER = """
import sys, time
import torch
from fairmedfm.data.core import read_samples
from fairmedfm.models.core import Encoder, ModelSpec, Preprocess, Tower
from fairmedfm.train.batches import reader_for
from fairmedfm.train.cache import FeatureCache

class Slow(Tower):
    seen = 0
    def __init__(self):
        super().__init__(ModelSpec("Slow", None, "vision", "nothing", 64, None, "", preprocess=Preprocess(64, norm=None)), 64)
        self.gain = torch.nn.Parameter(torch.ones(1))
    def forward(self, x):
        Slow.seen += len(x); time.sleep(PAUSE)
        return torch.nn.functional.adaptive_avg_pool2d(x[:, 0], 8).flatten(1)*self.gain

def features(folder, cache, chunk=8):
    data, encoder = read_samples(folder), Encoder(Slow(), precision="fp32")
    return FeatureCache(cache, chunk=chunk).features(data, encoder, reader_for(data, encoder.spec), batch_size=4)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("toy")
    make_phantom(Phantom("Toy", (Group("F", patients=24), Group("M", patients=24)), per_patient=1), out)
    return out


def here(folder, cache, pause=0.0):
    space = {"PAUSE": pause}
    exec(ENCODER, space)
    return space["features"](folder, cache), space["Slow"].seen


def process(folder, cache, pause):
    code = ENCODER.replace("PAUSE", str(pause)) + textwrap.dedent(f"""
        f = features({str(folder)!r}, {str(cache)!r})
        print(Slow.seen, f.values.double().sum().item())
        """)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_two_processes_share_the_work_and_one_may_be_killed(folder, tmp_path):
    "Two encode together, a third is killed on the way; all images are encoded, hardly any twice, and the features are those of one process."
    truth, alone = here(folder, tmp_path/"alone")
    assert alone == 48
    workers = [process(folder, tmp_path/"shared", .15) for _ in range(3)]
    deadline = time.time() + 60
    while not list((tmp_path/"shared").rglob("*.npz")) and time.time() < deadline: time.sleep(.05)
    workers[0].send_signal(signal.SIGKILL); workers[0].wait()
    seen = 0
    for w in workers[1:]:
        out, err = w.communicate(timeout=120)
        assert w.returncode == 0, err
        count, total = out.split()
        assert float(total) == truth.values.double().sum().item()
        seen += int(count)
    assert 48 - 3*8 <= seen <= 48 + 8                                              # what the killed one did is missing, one chunk may be done twice
    again, new = here(folder, tmp_path/"shared")
    assert new == 0 and torch.equal(again.values, truth.values)
    assert not list((tmp_path/"shared").rglob("*.claim")) and not list((tmp_path/"shared").rglob(".*"))


def test_the_claim_of_a_dead_process_is_taken_over(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", "pass"]); dead.wait()
    import socket
    (tmp_path/"x.claim").write_text(f"{socket.gethostname()} {dead.pid}")
    assert Claim(tmp_path/"x.claim").take()
    (tmp_path/"y.claim").write_text(f"another-host {dead.pid}")
    assert not Claim(tmp_path/"y.claim").take()
    os.utime(tmp_path/"y.claim", (1, 1))
    assert Claim(tmp_path/"y.claim").take()


@pytest.mark.parametrize("harm", ["cut", "flipped", "empty", "foreign"])
def test_a_chunk_that_is_not_whole_or_not_ours_is_never_used(folder, tmp_path, harm):
    truth, _ = here(folder, tmp_path)
    chunks = sorted(tmp_path.rglob("*.npz"))
    body = chunks[0].read_bytes()
    with np.load(chunks[0]) as f: held = dict(f)
    if harm == "cut": chunks[0].write_bytes(body[:len(body)//2])
    elif harm == "flipped": chunks[0].write_bytes(body[:-700] + bytes([body[-700] ^ 1]) + body[-699:])
    elif harm == "empty": chunks[0].write_bytes(b"")
    else: np.savez(chunks[0], **held | {"facts": np.array("f"*64), "values": held["values"] + 1})
    again, new = here(folder, tmp_path)
    assert new == 8 and torch.equal(again.values, truth.values)


def test_every_flipped_byte_is_noticed_or_harmless(folder, tmp_path):
    here(folder, tmp_path)
    chunk = sorted(tmp_path.rglob("*.npz"))[0]
    digest, body = json.loads((chunk.parent/"index.json").read_text())["digest"], chunk.read_bytes()
    truth = read_chunk(chunk, digest)
    for at in np.random.default_rng(0).choice(len(body), 150, replace=False):
        chunk.write_bytes(body[:at] + bytes([body[at] ^ 4]) + body[at + 1:])
        got = read_chunk(chunk, digest)
        assert got is None or (got[0] == truth[0] and np.array_equal(got[1], truth[1]) and np.array_equal(got[2], truth[2])), at


def test_a_replaced_file_with_its_old_date_is_noticed(tmp_path):
    file = tmp_path/"a.png"
    file.write_bytes(b"one"); os.utime(file, (1, 1))
    time.sleep(2.1)
    memory = Hashes(tmp_path/"h.json"); first = memory.file(file); memory.save()
    known = json.loads((tmp_path/"h.json").read_text())
    assert len(known) == 1 and Hashes(tmp_path/"h.json").file(file) == first
    file.write_bytes(b"two"); os.utime(file, (1, 1))
    assert file.stat().st_mtime == 1 and Hashes(tmp_path/"h.json").file(file) != first
    (tmp_path/"h.json").write_text("{broken")
    assert Hashes(tmp_path/"h.json").file(file) != first


def test_volumes_series_and_containers_have_keys_of_their_own(tmp_path):
    for name in ("s1", "s2"):
        (tmp_path/name).mkdir()
        for i in range(3): (tmp_path/name/f"{i}.dcm").write_bytes(bytes([i]))
    (tmp_path/"s2"/"2.dcm").write_bytes(b"other")
    (tmp_path/"c.h5").write_bytes(b"container")
    h = Hashes()
    keys = [h.of(tmp_path/"s1"), h.of(tmp_path/"s2"), h.of(tmp_path/"c.h5", "a"), h.of(tmp_path/"c.h5", "b"), h.of(tmp_path/"c.h5")]
    assert len(set(keys)) == 5


def test_rows_in_another_order_and_duplicates(tmp_path):
    data = make_phantom(Phantom("Toy", (Group("F", patients=5), Group("M", patients=5))), tmp_path/"d")
    (tmp_path/"d"/data.samples.image[3]).write_bytes((tmp_path/"d"/data.samples.image[0]).read_bytes())
    space = {"PAUSE": 0}; exec(ENCODER, space)
    encoder = Encoder(space["Slow"](), precision="fp32")
    cache, reader = FeatureCache(tmp_path/"c", chunk=4), reader_for(data, encoder.spec)
    f = cache.features(data, encoder, reader)
    assert space["Slow"].seen == 19 and torch.equal(f.of([3]), f.of([0]))
    g = cache.features(data, encoder, reader, rows=[9, 0, 4])
    assert space["Slow"].seen == 19 and torch.equal(g.of([0, 4, 9]), f.of([0, 4, 9]))


def test_missing_files_are_named_before_anything_is_encoded(tmp_path):
    data = make_phantom(Phantom("Toy", (Group("F", patients=5), Group("M", patients=5))), tmp_path/"d")
    (tmp_path/"d"/data.samples.image[7]).unlink()
    space = {"PAUSE": 0}; exec(ENCODER, space)
    encoder = Encoder(space["Slow"](), precision="fp32")
    with pytest.raises(ValueError, match=r"row 8 \(id 'P0003_1'\)"): FeatureCache(None).features(data, encoder, reader_for(data, encoder.spec))
    assert space["Slow"].seen == 0
    assert len(FeatureCache(None).features(data, encoder, reader_for(data, encoder.spec), bad="drop").rows) == 19
