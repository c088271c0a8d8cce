"""The feature cache in several processes, after a SIGKILL, and against everything that must not match."""
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.data.core import read_samples  # noqa: E402
from fairmedfm.data.phantoms import Group, Phantom, make_phantom  # noqa: E402
from fairmedfm.models.core import Encoder, ModelSpec, Preprocess, Tower  # noqa: E402
from fairmedfm.train.batches import Reader, batches, reader_for  # noqa: E402
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


# -- the next batch is read in a thread ------------------------------------------------------------------------------------------------------

def readers(): return [t.name for t in threading.enumerate() if t.name.startswith("fairmedfm-read")]


class Sleepy(Reader):
    "Takes 0.05 s for a row, and notes in which thread it was read and how many at once."
    seen, inside, most = [], 0, 0
    def __call__(self, data, row, change=None):
        Sleepy.inside += 1; Sleepy.most = max(Sleepy.most, Sleepy.inside)
        time.sleep(.05); Sleepy.seen.append((row, threading.current_thread().name)); Sleepy.inside -= 1
        return super().__call__(data, row, change)


@pytest.fixture()
def sleepy(folder):
    space = {"PAUSE": 0}; exec(ENCODER, space)
    data, Sleepy.seen, Sleepy.most = read_samples(folder), [], 0
    encoder = Encoder(space["Slow"](), precision="fp32")
    return data, encoder, Sleepy(encoder.transform, "picture"), space["Slow"]


def test_the_next_batch_is_read_while_one_is_encoded_and_nothing_else_changes(sleepy, monkeypatch):
    data, encoder, reader, tower = sleepy
    plain = torch.cat([encoder.encode(b.images) for b in batches(data, reader, np.arange(24).reshape(6, 4))])
    assert {name for _, name in Sleepy.seen} == {"MainThread"}
    forward, Sleepy.seen, tower.seen = tower.forward, [], 0
    monkeypatch.setattr(tower, "forward", lambda self, x: (time.sleep(.2), forward(self, x))[1])
    start = time.perf_counter()
    f = FeatureCache(None).features(data, encoder, reader, rows=range(24), batch_size=4)
    taken = time.perf_counter() - start
    assert torch.equal(f.values, plain) and [r for r, _ in Sleepy.seen] == list(range(24)) and Sleepy.most == 1 and tower.seen == 24
    assert all(name.startswith("fairmedfm-read") for _, name in Sleepy.seen) and not readers()
    assert taken < 2.1, f"{taken:.2f} s: 1.2 s of reading and 1.2 s of encoding were one after the other"


@pytest.mark.parametrize("what", ["a broken file", "a failure of the reader", "an encoder that fails"])
def test_what_fails_in_the_thread_fails_in_the_caller_and_no_thread_stays(sleepy, monkeypatch, tmp_path, what):
    data, encoder, reader, tower = sleepy
    def fails(*args): raise {"a broken file": InputError("row 3: broken"), "a failure of the reader": ZeroDivisionError("not a mistake of the user")}[what]
    def dies(self, x): raise KeyboardInterrupt
    if what == "an encoder that fails": monkeypatch.setattr(tower, "forward", dies)
    else: monkeypatch.setattr(Reader, "__call__", lambda self, data, row, change=None: fails() if row == 2 else torch.zeros(1, 3, 64, 64))
    error = {"a broken file": (InputError, r"^1 image cannot be read: row 3: broken; mend or remove the rows"), "a failure of the reader": (ZeroDivisionError, "not a mistake"), "an encoder that fails": (KeyboardInterrupt, None)}[what]
    with pytest.raises(error[0], match=error[1]): FeatureCache(tmp_path/"c", chunk=8).features(data, encoder, reader, rows=range(24), batch_size=4)
    assert not readers() and not list((tmp_path/"c").rglob("*.claim"))


@pytest.mark.skipif(os.name != "posix", reason="needs an interval timer")
def test_ctrl_c_while_the_thread_reads_ends_it_at_once(sleepy, tmp_path):
    data, encoder, reader, _ = sleepy
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, .3)
        start = time.perf_counter()
        with pytest.raises(KeyboardInterrupt): FeatureCache(tmp_path/"c", chunk=48).features(data, encoder, reader, batch_size=48)
        assert time.perf_counter() - start < 1.5                 # the batch alone takes 2.4 s
    finally: signal.setitimer(signal.ITIMER_REAL, 0); signal.signal(signal.SIGALRM, old)
    assert not readers() and len(Sleepy.seen) < 20 and not list((tmp_path/"c").rglob("*.claim"))
