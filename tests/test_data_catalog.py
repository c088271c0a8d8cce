"""The catalogue and the downloads, against a local server that breaks, changes its file, knows no ranges, is busy, or is not there."""
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pandas as pd
import pytest

from fairmedfm.core import InputError
from fairmedfm.data.catalog import BUNDLES, DATASETS, Bundle, datasets_table, download, fetch, load_dataset, prepare_dataset, unpack
from fairmedfm.data.core import read_samples

pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")
BODY = np.random.default_rng(0).bytes(3_000_000)


class Server:
    "A local server; `cut`: bytes sent before the connection is closed, one entry per request; `status`: answers before the first good one."
    def __init__(self, body=BODY, ranges=True, tag='"a"', cut=(), status=(), slow=0.0):
        self.body, self.ranges, self.tag, self.slow = body, ranges, tag, slow
        self.cut, self.status, self.asked = list(cut), list(status), []

    def __enter__(self):
        me = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args): pass

            def do_GET(self):
                me.asked.append(self.headers.get("Range"))
                if me.status: return self.send_error(me.status.pop(0))
                start = 0
                if me.ranges and self.headers.get("Range") and self.headers.get("If-Range") == me.tag:
                    start = int(self.headers["Range"][6:-1])
                self.send_response(206 if start else 200)
                if me.tag: self.send_header("ETag", me.tag)
                self.send_header("Content-Length", str(len(me.body) - start))
                if start: self.send_header("Content-Range", f"bytes {start}-{len(me.body) - 1}/{len(me.body)}")
                self.end_headers()
                rest = me.body[start:start + me.cut.pop(0)] if me.cut else me.body[start:]
                try:
                    for i in range(0, len(rest), 100_000): self.wfile.write(rest[i:i + 100_000]); time.sleep(me.slow)
                except OSError: pass
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/b.zip"
        return self

    def __exit__(self, *args): self.http.shutdown(); self.http.server_close()


def test_every_row_is_complete():
    table = datasets_table()
    assert len(table) == len(DATASETS) == 23 and table.name.is_unique
    assert table.drop(columns="access").apply(lambda c: c.str.len().between(1, 200)).all(axis=None)
    published = ["CXP", "MIMIC_CXR", "HAM10000", "FairVLMed10k", "GF3300", "PAPILA", "BREST", "COVID_CT_MD", "ADNI", "TUSC",
                 "HAM10000-Seg", "FairSeg", "montgomery"]
    assert all(n in DATASETS for n in published)
    for s in DATASETS.values():
        assert s.task in ("cls", "seg") and s.dims in ("2D", "3D") and callable(s.prepare) and s.prompts and all("{}" in p
                for p in s.prompts), s.name
        if s.task == "seg": assert s.paper_split == "none" and (s.pos_class in s.structures or s.pos_class in s.structures.values()), s.name
        else: assert len(s.class_names) == 2 and s.label.startswith("1 = "), s.name


def test_published_prompts_and_normalisations():
    "Values of the published configuration."
    want = {"CXP": ("a chest X-ray of a {}", ("diseased", "normal"), .5056), "HAM10000": ("a photo of a {}",
            ("benign lesion", "malignant lesion"), .48145466), "GF3300": ("a photo of a {}", ("normal", "glaucoma"), .2756),
            "FairVLMed10k": ("a scanning laser ophthalmoscope fundus image of a {}", ("normal", "glaucoma"), .48145466),
            "PAPILA": ("a fundus image of a {}", ("normal", "glaucoma"), .48145466),
            "BRSET": ("a fundus image of a {}", ("normal", "retinopathy"), .48145466), "COVID_CT_MD": ("a computed tomography of a {}",
                    ("normal", "pneumonia"), .5056), "ADNI": ("a brain MRI of {}", ("normal", "Alzheimer's disease"), .5056),
            "MIMIC_CXR": ("a chest X-ray of a {}", ("diseased", "normal"), .5056)}
    for name, (prompt, classes, mean) in want.items():
        s = DATASETS[name]
        assert (s.prompts[0], s.class_names, s.paper_norm[0][0]) == (prompt, classes, mean), name


@pytest.mark.parametrize("name", [n for n, s in DATASETS.items() if not n.startswith("Phantom")])
def test_an_empty_folder_is_refused_with_what_is_missing(tmp_path, name):
    (tmp_path/"raw").mkdir()
    with pytest.raises(InputError) as e: prepare_dataset(name, tmp_path/"raw", tmp_path/"out", quiet=True)
    assert "\n" not in str(e.value) and len(str(e.value)) > 40 and not (tmp_path/"out"/"samples.csv").exists()


def test_a_download_in_pieces(tmp_path):
    with Server(cut=[1_000_000, 700_000, 0, 500_000]) as s:
        file = fetch(s.url, tmp_path/"x"/"b.zip", hashlib.sha256(BODY).hexdigest(), quiet=True, wait=0)
        assert file.read_bytes() == BODY and s.asked == [None, "bytes=1000000-", "bytes=1700000-", "bytes=1700000-", "bytes=2200000-"]
        n = len(s.asked)
        fetch(s.url, file, quiet=True)
        assert len(s.asked) == n and sorted(p.name for p in file.parent.iterdir()) == ["b.zip"]


@pytest.mark.parametrize("options", [{"ranges": False}, {"tag": None}, {"tag": 'W/"weak"'}])
def test_a_server_that_cannot_go_on_begins_anew(tmp_path, options):
    with Server(cut=[1_000_000], **options) as s: assert fetch(s.url, tmp_path/"b", quiet=True, wait=0).read_bytes() == BODY


def test_a_file_that_changed_is_not_mixed(tmp_path):
    with Server(cut=[1_000_000, 0, 0, 0]) as s:
        with pytest.raises(InputError, match="1,000,000 bytes are kept"): fetch(s.url, tmp_path/"b", quiet=True, wait=0, tries=3)
        s.body, s.tag = BODY[::-1], '"b"'
        assert fetch(s.url, tmp_path/"b", quiet=True, wait=0).read_bytes() == BODY[::-1]


def test_busy_and_broken_servers(tmp_path):
    with Server(status=[503, 429]) as s: assert fetch(s.url, tmp_path/"b", quiet=True, wait=0).read_bytes() == BODY
    with Server(status=[404]) as s:
        with pytest.raises(InputError, match="404"): fetch(s.url, tmp_path/"c", quiet=True, wait=0)
        gone = s.url
    with pytest.raises(InputError, match="could not be fetched"): fetch(gone, tmp_path/"d", quiet=True, wait=0, tries=2, timeout=2)
    with Server() as s:
        with pytest.raises(InputError, match="SHA-256"): fetch(s.url, tmp_path/"e", "0"*64, quiet=True)
        (tmp_path/"mine").write_bytes(b"precious")
        with pytest.raises(InputError, match="another SHA-256"): fetch(s.url, tmp_path/"mine", "0"*64, quiet=True)
    assert (tmp_path/"mine").read_bytes() == b"precious" and not (tmp_path/"e").exists()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_and_started_again(tmp_path):
    with Server(slow=.03) as s:
        code = f"from fairmedfm.data.catalog import fetch; fetch({s.url!r}, {str(tmp_path/'b')!r}, quiet=True)"
        p = subprocess.Popen([sys.executable, "-c", code])
        deadline = time.time() + 60
        while time.time() < deadline and not ((tmp_path/"b.part").exists() and (tmp_path/"b.part").stat().st_size > 500_000):
            time.sleep(.02)
        p.send_signal(signal.SIGKILL); p.wait()
        kept = (tmp_path/"b.part").stat().st_size
        assert 500_000 < kept < len(BODY) and not (tmp_path/"b").exists()
        s.slow = 0
        assert fetch(s.url, tmp_path/"b", quiet=True).read_bytes() == BODY and s.asked[-1] == f"bytes={kept}-"


def zipped(path, members):
    with zipfile.ZipFile(path, "w") as z:
        for n, data in members.items(): z.writestr(n, data)
    return path.read_bytes()


def test_archives_stay_in_their_folder(tmp_path):
    for name in ("../x", "/x", "a/../../x", "C:\\x"):
        zipped(tmp_path/"z.zip", {"ok.txt": "1", name: "2"})
        with pytest.raises(InputError, match="leaves its folder"): unpack(tmp_path/"z.zip", tmp_path/"out", quiet=True)
    assert not (tmp_path/"x").exists() and not (tmp_path/"out").exists()
    damaged = bytearray(zipped(tmp_path/"z.zip", {"a/b.txt": "hello"*100}))
    damaged[60] ^= 255
    (tmp_path/"z.zip").write_bytes(damaged)
    with pytest.raises(InputError, match="damaged"): unpack(tmp_path/"z.zip", tmp_path/"out", quiet=True)
    assert not list((tmp_path/"out").rglob("*.txt"))


def test_download_tries_the_addresses_in_turn_and_is_done_once(tmp_path, monkeypatch):
    monkeypatch.setattr("fairmedfm.data.catalog.time.sleep", lambda seconds: None)
    body = zipped(tmp_path/"z.zip", {"PAPILA/split/new_train.csv": "a\n", "PAPILA/data/x.txt": "1"})
    with Server(body=body) as s:
        bundle = Bundle("PAPILA", ("http://127.0.0.1:9/none.zip", s.url), "test", "none")
        home = download("PAPILA", tmp_path/"data", quiet=True, bundle=bundle)
        assert home == tmp_path/"data"/"PAPILA" == download("PAPILA", tmp_path/"data", quiet=True, bundle=bundle) and len(s.asked) == 1
    record = json.loads((tmp_path/"data"/".PAPILA.done.json").read_text())
    assert record["sha256"] == hashlib.sha256(body).hexdigest() and not (tmp_path/"data"/"PAPILA.zip").exists()
    with pytest.raises(InputError, match="no bundle"): download("CXP", tmp_path)
    assert {"HAM10000", "PAPILA", "TUSC", "pretrained"} == set(BUNDLES)


def test_own_data_by_path_or_folder(tmp_path, shared):
    a, b = load_dataset(shared/"isic2017"/"metadata.csv"), load_dataset(str(shared/"isic2017"))
    assert len(a) == len(b) == 1076 and a.spec is None
    with pytest.raises(InputError, match="no dataset 'isic'"): load_dataset("isic", tmp_path)
    with pytest.raises(InputError, match="column for --label_column"): load_dataset(shared/"isic2017", label_column="melanoma")


def test_a_prepared_table_keeps_its_release_when_edited(tmp_path):
    data = load_dataset("PhantomSeg3D", tmp_path)
    table = tmp_path/"PhantomSeg3D"/"samples.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:11]) + "\n")
    edited = load_dataset(table)
    assert len(edited) == 10 and edited.spec is data.spec and any("changed after" in n for n in edited.notes)
    assert len(load_dataset("PhantomSeg3D", tmp_path)) == 30 and len(read_samples(table)) == 30


def test_folders_are_found_by_alias_and_in_any_case(tmp_path):
    for alias, name in (("brest", "BRSET"), ("montgomery", "Montgomery"), ("MIMIC", "MIMIC_CXR")):
        (tmp_path/alias).mkdir()
        with pytest.raises(InputError, match=f"{alias}"): load_dataset(name, tmp_path)
        assert not (tmp_path/name).exists() or alias == name
    with pytest.raises(InputError, match=r"ADNI is not in .*ADNI. Apply at .*fairmedfm prepare ADNI --raw FOLDER --out"):
        load_dataset("ADNI", tmp_path)


def test_importing_the_catalogue_loads_no_torch_and_no_reader():
    code = ("import sys; import fairmedfm.data.catalog; "
            "bad = {'torch', 'sklearn', 'scipy', 'matplotlib', 'PIL', 'SimpleITK', 'nibabel', 'pydicom', 'h5py', 'tqdm'} & "
            "set(sys.modules); print(sorted(bad))")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True).stdout.strip()
    assert out == "[]", out


def test_what_is_no_sha256_is_told_before_anything_is_fetched(tmp_path):
    with pytest.raises(InputError, match="64 digits"): download("PAPILA", tmp_path, sha256="abc", quiet=True)
    assert not list(tmp_path.iterdir())


def test_prepare_says_what_was_dropped_and_unknown(tmp_path, capsys):
    "The command, twice: the second finds the table and says the same; without --raw one line and exit code 2."
    from fixtures_raw import make_release

    from fairmedfm.cli import main
    make_release("BRSET", tmp_path / "raw", 8)
    line = ["prepare", "brset", "--raw", str(tmp_path / "raw"), "--out", str(tmp_path / "out"), "--quiet"]
    assert main(line) == 0
    said = capsys.readouterr().out
    assert "14 rows, 11 patients" in said and "patient_age: 2 'NA', 1 '(empty)' → missing" in said and "both sexes" in said and "more than one age (1 in more than one age group)" in said and " 0 patient_ids" not in said
    stamp = (tmp_path / "out/samples.csv").stat().st_mtime_ns
    assert main(line) == 0 and capsys.readouterr().out == said and (tmp_path / "out/samples.csv").stat().st_mtime_ns == stamp
    assert main(line[:2]) == 2
    said = capsys.readouterr()
    assert said.out == "" and "--raw" in said.err and len(said.err.splitlines()) == 1


def test_a_prepared_table_of_a_row_outside_the_catalogue_keeps_its_row(tmp_path):
    "Read by its path it is read and asked as its row says."
    from fairmedfm.data.core import DatasetSpec, prepare_spec
    (tmp_path / "raw").mkdir(); (tmp_path / "raw/a.npy").write_bytes(b"x")
    spec = DatasetSpec("Ours", "toy", ("sex",), label="1 = ill", size="1", licence="CC0", access="none", prompts=("{} toy",), read={"axes": "YXZ", "window": (0, 9)}, structures={"a": range(3)},
                       prepare=lambda raw, log: pd.DataFrame({"id": ["a"], "image": ["a.npy"], "label": [1], "sex": ["F"]}))
    prepare_spec(spec, tmp_path / "raw", tmp_path / "out", quiet=True)
    got = load_dataset(tmp_path / "out").spec
    assert (got.prompts, got.read, got.structures) == (("{} toy",), {"axes": "YXZ", "window": (0, 9)}, {"a": (0, 1, 2)}) and got.prepare is None


WRONG = [  # the table, options, what the one line has to say
    ({"image": "where"}, "", "--image_column"), ({"label": "verdict"}, "", "--label_column"), ({"label": "verdict"}, "--label_column verdct", "did you mean 'verdict'"), ({"label": ["AD", "CN"]}, "", "--pos_label"),
    ({"label": [1, 1]}, "", "only the class '1'"), ({"label": "label_a", "sex": "label_b"}, "", "2 label columns"), ({"sex": "hair"}, "--sensitive_name sex", "there is no attribute 'sex'"), ({"sex": "hair"}, "--attributes sex", "called 'sex'"),
    ({"split": ["train", "train"]}, "", "nothing to evaluate on"), ({"split": ["train", "hold-out"]}, "", "'hold-out'"), ({"image": ["0.png", "gone.png"]}, "", "gone.png does not exist"), ({"image": ["0.png", "../1.png"]}, "", "--image_root")]


@pytest.mark.parametrize("change,options,says", WRONG, ids=[w[2] for w in WRONG])
def test_a_wrong_table_of_ones_own_is_one_line(change, options, says, tmp_path, monkeypatch, capsys):
    "Before anything is encoded, with the exit code 2; a string renames a column, a list fills it in turn."
    pytest.importorskip("torch")
    from PIL import Image

    from fairmedfm.cli import main
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame({"image": [f"{i}.png" for i in range(12)], "label": [0, 1]*6, "sex": list("FFMM")*3})
    for i in range(12): Image.new("L", (8, 8), 20*i).save(f"{i}.png")
    for column, to in change.items(): table = table.rename(columns={column: to}) if isinstance(to, str) else table.assign(**{column: (to*6 if column != "image" else [*table.image[:-1], to[1]])})
    table.to_csv("mine.csv", index=False)
    assert main(["run", "--usage", "lp", "--model", "Radiomics", "--dataset", "mine.csv", "--device", "cpu", *options.split()]) == 2
    said = capsys.readouterr()
    assert says in said.err and len(said.err.splitlines()) == 1 and said.out == "" and not (tmp_path / "output").exists()
