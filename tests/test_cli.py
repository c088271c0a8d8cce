"""The command line as people meet it: real processes for what a process does (formats, standard input, exit codes, pipes, imports), and `main` in
this process for what the options mean."""
import gzip
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fairmedfm as fm
from fairmedfm.cli import OUTPUTS, SCORE_OPTIONS, main

ROOT = Path(__file__).resolve().parents[1]
needs = lambda module: pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs {module}")
pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.FairnessWarning")
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX processes")


def process(*args, cwd, stdin=None, command=(sys.executable, "-m", "fairmedfm"), **env):
    "The command in a process of its own."
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run([*command, *map(str, args)], cwd=cwd, capture_output=True, env={**os.environ, "PYTHONUTF8": "1", **env}, timeout=120, **given)


def valid(text):
    "JSON without NaN or Infinity."
    def refuse(word): raise AssertionError(f"{word} in JSON")
    return json.loads(text, parse_constant=refuse)


def one_line(done, code=2):
    "What is said on stderr by a command that failed; nothing but that."
    said = done.stderr.decode()
    assert done.returncode == code and done.stdout == b"" and "Traceback" not in said and len(said.splitlines()) == 1, (done.returncode, said)
    return said


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    n = 120
    y = rng.integers(0, 2, n)
    return pd.DataFrame({"image_id": [f"img_{i:03d}" for i in range(n)], "Geschlecht": rng.choice(["männlich", "weiblich"], n), "age": rng.integers(20, 90, n),
                         "y_true": y, "y_score": np.round(1/(1 + np.exp(-rng.normal(2*y - 1))), 4)})


@pytest.fixture(scope="module")
def expected(people):
    return json.loads(fm.evaluate(people.y_true, people.y_score, people[["Geschlecht", "age"]], bins={"age": [40, 60]}).to_json())


@pytest.fixture
def here(tmp_path, people, monkeypatch):
    people.to_csv(tmp_path/"p.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


WANTED = ("--sensitive", "Geschlecht", "age", "--bins", "age=40,60")


# -- every format ------------------------------------------------------------------------------------------------------------------------

def zipped(frame, path):
    with zipfile.ZipFile(path, "w") as z: z.writestr("p.csv", frame.to_csv(index=False))

FORMATS = {
    "p.csv": lambda f, p: f.to_csv(p, index=False), "p.tsv": lambda f, p: f.to_csv(p, index=False, sep="\t"),
    "german.csv": lambda f, p: f.to_csv(p, index=False, sep=";", decimal=","),
    "bom.csv": lambda f, p: f.to_csv(p, encoding="utf-8-sig"), "utf16.csv": lambda f, p: f.to_csv(p, index=False, encoding="utf-16"),
    "latin1.csv": lambda f, p: f.to_csv(p, index=False, encoding="latin-1"), "p.csv.gz": lambda f, p: f.to_csv(p, index=False),
    "p.zip": zipped, "p.json": lambda f, p: f.to_json(p, orient="records"), "p.jsonl": lambda f, p: f.to_json(p, orient="records", lines=True),
    "p.parquet": lambda f, p: f.to_parquet(p), "p.feather": lambda f, p: f.to_feather(p), "p.xlsx": lambda f, p: f.to_excel(p, index=False),
}
NEEDS = {"p.parquet": "pyarrow", "p.feather": "pyarrow", "p.xlsx": "openpyxl"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[needs(NEEDS[n])] if n in NEEDS else []) for n in FORMATS])
def test_every_format_gives_the_same_report(name, people, expected, tmp_path):
    FORMATS[name](people, tmp_path/name)
    done = process("score", name, *WANTED, "--no-ci", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    got = valid(done.stdout)
    assert got["summary"] == expected["summary"] and got["by_group"] == expected["by_group"] and list(got["by_group"]["Geschlecht"]) == ["männlich", "weiblich"]


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input(packed, people, expected, tmp_path):
    data = people.to_csv(index=False).encode()
    done = process("score", "-", *WANTED, cwd=tmp_path, stdin=gzip.compress(data) if packed else data)
    assert done.returncode == 0 and valid(done.stdout)["by_group"] == expected["by_group"]
    assert valid(done.stdout)["metadata"]["source"] == {"predictions": "standard input"}


# -- mistakes ----------------------------------------------------------------------------------------------------------------------------

GOOD = "y_true,y_score,sex\n0,0.1,F\n1,0.9,F\n0,0.2,M\n1,0.7,M\n"
MISTAKES = {  # name: (file name, content, arguments, words of the message)
    "missing file": (None, "", ["predictons.csv", "--sensitive", "sex"], ["there is no file predictons.csv"]),
    "near miss": ("predictions.csv", GOOD, ["predictons.csv"], ["did you mean 'predictions.csv'"]),
    "folder": (None, "", [".", "--sensitive", "sex"], ["is a folder"]),
    "empty": ("a.csv", "", ["a.csv"], ["a.csv is empty"]),
    "header only": ("a.csv", "y_true,y_score,sex\n", ["a.csv"], ["header but no rows"]),
    "duplicate columns": ("a.csv", "y_true,y_score,sex,sex\n0,0.1,F,F\n", ["a.csv"], ["2 columns called 'sex'"]),
    "unknown column": ("a.csv", GOOD, ["a.csv", "--sensitive", "sexe"], ["no column 'sexe'", "did you mean 'sex'"]),
    "repeated id": ("a.csv", "image_id,y_true,y_score,sex\na,0,0.1,F\na,1,0.9,M\n", ["a.csv"], ["'a' occurs 2 times"]),
    "no attribute": ("a.csv", "y_true,y_score\n0,0.1\n", ["a.csv"], ["--sensitive"]),
    "words for scores": ("a.csv", "y_true,y_score,sex\n0,low,F\n1,high,M\n", ["a.csv"], ["'low'", "'y_score'"]),
    "which is positive": ("a.csv", GOOD.replace("\n0", "\nbenign").replace("\n1", "\nmalignant"), ["a.csv"], ["--pos-label", "'benign'"]),
    "infinite": ("a.csv", GOOD.replace("0.9", "inf"), ["a.csv"], ["infinite in 1 row (row 2)"]),
    "docx": ("a.csv", GOOD, ["a.csv", "--output", "report.docx"], ["report.docx", ".json"]),
    "output is a folder": ("a.csv", GOOD, ["a.csv", "--output", "."], ["is a folder"]),
    "output in no folder": ("a.csv", GOOD, ["a.csv", "--output", "no/where.json"], ["does not exist"]),
    "output over input": ("a.csv", GOOD, ["a.csv", "--output", "a.csv"], ["is the table that is read"]),
    "no option": ("a.csv", GOOD, ["a.csv", "--sensitve", "sex"], ["did you mean --sensitive"]),
    "no value": ("a.csv", GOOD, ["a.csv", "--on"], ["--on", "expected"]),
    "no choice": ("a.csv", GOOD, ["a.csv", "--format", "html"], ["--format", "'html'", "markdown"]),
    "binary": ("a.csv", bytes(range(256)), ["a.csv"], ["not text"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_code_2(name, tmp_path):
    file, content, args, words = MISTAKES[name]
    if file: (tmp_path/file).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    said = one_line(process("score", *args, cwd=tmp_path))
    assert said.startswith("fairmedfm: error: ") and all(w in said for w in words), said
    assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir()}


@pytest.mark.parametrize("args, word", [([], "score, demo"), (["scor", "p.csv"], "did you mean 'score'"), (["score"], "give the table"), (["--verison"], "--verison"), (["demo", "p.csv"], "too many")])
def test_no_command_is_one_line_and_code_2(args, word, here, capsys):
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and word in err


@posix
def test_a_folder_without_permission(tmp_path):
    (tmp_path/"a.csv").write_text(GOOD)
    (tmp_path/"shut").mkdir(mode=0o500)
    if os.access(tmp_path/"shut", os.W_OK): pytest.skip("this user may write everywhere")
    assert "cannot write" in one_line(process("score", "a.csv", "--output", "shut/a.json", cwd=tmp_path))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(tmp_path):
    (tmp_path/"a.csv").write_text(GOOD)
    with open("/dev/full", "wb") as full: done = subprocess.run([sys.executable, "-m", "fairmedfm", "score", "a.csv", "-q"], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and b"cannot write to standard output" in done.stderr


def test_nothing_to_compare_is_code_3(tmp_path):
    (tmp_path/"a.csv").write_text("y_true,y_score,sex\n0,0.1,F\n1,0.9,F\n1,0.9,M\n")
    done = process("score", "a.csv", cwd=tmp_path)
    got, said = valid(done.stdout), done.stderr.decode()
    assert done.returncode == 3 and got["summary"]["sex"]["auc-gap"] is None and got["by_group"]["sex"]["M"]["acc"] == 1
    assert "Traceback" not in said and "nothing could be compared" in said.splitlines()[-1]


def test_a_bug_is_one_line_and_code_1(monkeypatch, here, capsys):
    monkeypatch.delenv("FAIRMEDFM_TRACEBACK", raising=False)
    import fairmedfm.report
    def broken(*args, **kwargs): raise ZeroDivisionError("by\nzero")
    monkeypatch.setattr(fairmedfm.report, "evaluate", broken)
    assert main(["score", "p.csv", *WANTED]) == 1
    assert "ZeroDivisionError: by zero" in capsys.readouterr().err
    monkeypatch.setenv("FAIRMEDFM_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError): main(["score", "p.csv", *WANTED])


# -- a process among processes -----------------------------------------------------------------------------------------------------------

def child(*args):
    "A running command that says `ready` when everything is imported that runs before it."
    program = "import sys; from fairmedfm.cli import main; print('ready', flush=True); sys.exit(main(sys.argv[1:]))"
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    running = subprocess.Popen([sys.executable, "-c", program, *args], **pipes)
    assert running.stdout.readline() == b"ready\n"
    return running


@posix
def test_a_pipe_that_closes_leaves_quietly(here):
    with child("score", "-", *WANTED, "--quiet") as running:
        running.stdout.close()
        running.stdin.write((here/"p.csv").read_bytes())
        running.stdin.close()
        assert running.wait(60) == 141 and running.stderr.read() == b""


@posix
def test_an_interrupt_leaves_quietly(here):
    with child("score", "-", *WANTED) as running:
        time.sleep(0.3)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130 and running.stdout.read() == running.stderr.read() == b""


def modules(*args, cwd):
    "What is loaded at the end of a command."
    program = "import sys; from fairmedfm.cli import main; code = main(sys.argv[1:]); print(*sys.modules, sep='\\n', file=sys.stderr); sys.exit(code)"
    done = process(*args, cwd=cwd, command=(sys.executable, "-c", program))
    assert done.returncode == 0, done.stderr
    return set(done.stderr.decode().split())


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_loads_not_even_numpy(flag, tmp_path):
    loaded = modules(flag, cwd=tmp_path)
    assert "fairmedfm.cli" in loaded and not {"numpy", "pandas", "fairmedfm.tables"} & loaded


def test_score_loads_nothing_that_it_does_not_need(people, tmp_path):
    pd.concat([people.assign(image_id=people.image_id + f"_{i}") for i in range(4)]).head(400).to_csv(tmp_path/"p.csv", index=False)
    loaded = modules("score", "p.csv", *WANTED, "--no-ci", cwd=tmp_path)
    bare = process(cwd=tmp_path, command=(sys.executable, "-c", "import sys, pandas; pandas.read_csv('p.csv'); print(*sys.modules, sep='\\n')")).stdout.decode().split()
    heavy = {m.split(".")[0] for m in loaded - set(bare)} & {"sklearn", "scipy", "matplotlib", "torch", "pyarrow", "PIL", "openpyxl", "joblib", "nibabel", "polars"}
    assert "fairmedfm.report" in loaded and heavy == set()


def test_the_script_and_the_module_are_the_same(here):
    script = shutil.which("fairmedfm", path=str(Path(sys.executable).parent)) or shutil.which("fairmedfm")
    if not script: pytest.skip("no installed command")
    a, b = process("score", "p.csv", *WANTED, cwd=here), process("score", "p.csv", *WANTED, cwd=here, command=(script,))
    assert (a.returncode, a.stdout, a.stderr) == (b.returncode, b.stdout, b.stderr) and a.returncode == 0
    version = process("--version", cwd=here, command=(script,))
    assert version.stdout.decode().split() == ["fairmedfm", fm.__version__] and version.returncode == 0


def test_no_terminal_encoding_is_too_poor(here):
    done = process("score", "p.csv", *WANTED, cwd=here, PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "männlich" in valid(done.stdout)["by_group"]["Geschlecht"]
    assert process("score", "p.csv", *WANTED, "--format", "table", cwd=here, PYTHONUTF8="0", PYTHONIOENCODING="ascii").returncode == 0


# -- what is printed and written ---------------------------------------------------------------------------------------------------------

class Terminal(io.StringIO):
    def isatty(self): return True


def call(*args, tty=False):
    "`(code, stdout, lines of stderr)` of `main` in this process."
    from contextlib import redirect_stderr, redirect_stdout
    with redirect_stdout(Terminal() if tty else io.StringIO()) as out, redirect_stderr(io.StringIO()) as err: code = main(list(map(str, args)))
    return code, out.getvalue(), err.getvalue().splitlines()


def scored(*args):
    "The report of a command that went well, and what it said."
    code, out, err = call("score", *args)
    assert code == 0, err
    return valid(out), err


def test_warnings_are_one_line_each_and_never_twice(here):
    (here/"a.csv").write_text(GOOD.replace("0.1", "0.9").replace("M\n", "unknown\n", 1) + "1,0.9,M\n0,0.3,M\n,0.4,M\n")
    report, said = scored("a.csv", "--no-ci")
    lines = [l.removeprefix("fairmedfm: warning: ") for l in said if "warning" in l]
    assert lines == report["warnings"] and len(set(lines)) == len(lines) == 2 and len(said) == len(lines) + 1
    assert {**scored("a.csv", "--no-ci", "--quiet")[0], "metadata": 0} == {**report, "metadata": 0} and scored("a.csv", "--quiet")[1] == []
    code, out, said = call("score", "a.csv", tty=True)
    assert out.count("without a usable label") == 1 and not any("warning" in l for l in said)


def test_what_was_found_by_name_is_said(here):
    report, said = scored("p.csv", "--bins", "age=40")
    assert said[0] == "fairmedfm: columns found by name: label 'y_true', score 'y_score', sensitive 'age'"
    assert report["metadata"]["columns"] == {"label": "y_true", "score": "y_score", "sensitive": ["age"]} and report["metadata"]["found_by_name"] == ["label", "score", "sensitive"]
    report, said = scored("p.csv", *WANTED, "--label", "y_true", "--score", "y_score")
    assert not any("found by name" in l for l in said) and report["metadata"]["found_by_name"] == []


def test_every_ending_is_written_and_a_table_is_shown_on_a_terminal(here, expected):
    code, out, _ = call("score", "p.csv", *WANTED, *(a for e in OUTPUTS for a in ("--output", f"r{e}")), tty=True)
    assert code == 0 and out.startswith("Fairness of a classification model") and "männlich" in out
    assert valid((here/"r.json").read_text("utf-8"))["by_group"] == expected["by_group"]
    assert pd.read_csv(here/"r.csv").groupby("attribute").size().to_dict() == {"Geschlecht": 2, "age": 3}
    assert (here/"r.md").read_text("utf-8") == call("score", "p.csv", *WANTED, "--format", "markdown")[1]
    assert (here/"r.tex").read_text("utf-8").count("toprule") == 1 and "auc_low" in (here/"r.csv").read_text("utf-8").splitlines()[0]
    assert sorted(p.name for p in here.iterdir()) == sorted(["p.csv", *(f"r{e}" for e in OUTPUTS)])


def test_names_cannot_write_to_the_terminal(here):
    (here/"a.csv").write_text(GOOD.replace("F", "\x1b]0;F").replace("M", "M\x1b[2J"))
    assert "\x1b" not in call("score", "a.csv", "--format", "table")[1]


# -- intervals, tables, pages ------------------------------------------------------------------------------------------------------------

def test_intervals_are_there_unless_refused_or_long(here, people):
    "One default for the terminal, JSON, Markdown and the page; `--no-ci` and `--ci 0` are the published numbers alone."
    sure, _ = scored("p.csv", *WANTED)
    want = json.loads(fm.evaluate(people.y_true, people.y_score, people[["Geschlecht", "age"]], bins={"age": [40, 60]}, ci=.95).to_json())
    parts = ("intervals", "pairwise", "tests", "gaps", "by_group", "summary")
    assert all(sure[k] == want[k] for k in parts) and sure["metadata"]["ci"] == .95
    bare = scored("p.csv", *WANTED, "--no-ci")[0]
    assert not set(parts[:4]) & set(bare) and bare["summary"] == sure["summary"] and bare["by_group"] == sure["by_group"]
    other = scored("p.csv", *WANTED, "--ci", "0")[0]
    assert {k: v for k, v in other.items() if k != "metadata"} == {k: v for k, v in bare.items() if k != "metadata"}
    assert scored("p.csv", *WANTED, "--ci", "0.8")[0]["metadata"]["ci"] == .8
    text = call("score", "p.csv", *WANTED, tty=True)[1]
    assert "95 % intervals" in text and "verdict" in text and " [0." in text and "verdict" not in call("score", "p.csv", *WANTED, "--no-ci", tty=True)[1]


@pytest.mark.parametrize("args, word", [(["--no-ci", "--ci", "0.9"], "contradict"), (["--no-ci", "--tolerance", "0.1"], "--tolerance has no effect"), (["--ci", "0", "--seed", "1"], "--seed"),
                                        (["--ci", "2"], "0.95"), (["--table", "pairwise"], "--output"), (["--no-ci", "--table", "pairwise", "-o", "a.csv"], "no intervals")])
def test_intervals_that_cannot_be_are_one_line(args, word, here):
    code, out, err = call("score", "p.csv", *WANTED, *args)
    assert code == 2 and out == "" and len(err) == 1 and word in err[0], err


def test_a_long_table_has_none_by_itself_and_says_so(here, monkeypatch):
    import fairmedfm.cli
    monkeypatch.setattr(fairmedfm.cli, "QUICK", 100)
    got, said = scored("p.csv", *WANTED)
    assert "pairwise" not in got and [w for w in got["warnings"] if w.startswith("no intervals: ")] and any("--ci 0.95" in l for l in said)
    assert "pairwise" in scored("p.csv", *WANTED, "--tolerance", "0.05")[0]            # an option of the intervals asks for them
    assert "120 rows × 2 attributes" in " ".join(got["warnings"])
    call("score", "p.csv", *WANTED, "-o", "a.json", "-o", "a.html")
    assert "pairwise" in valid((here/"a.json").read_text("utf-8"))                     # a page may take longer


def test_patients_are_found_and_are_the_unit(here, people):
    several = pd.concat([people.assign(patient_id=people.image_id), people.assign(patient_id=people.image_id, image_id=people.image_id + "b", y_score=people.y_score.clip(.01, .98) + .01)])
    several.to_csv("two.csv", index=False); people.assign(patient_id=people.image_id).to_csv("one.csv", index=False)
    got, said = scored("two.csv", *WANTED)
    assert "clusters 'patient_id'" in said[0] and got["metadata"]["clustered"] and got["metadata"]["columns"]["clusters"] == "patient_id"
    assert got["intervals"] == scored("two.csv", *WANTED, "--clusters", "patient_id")[0]["intervals"]
    width = lambda r: r["intervals"][0]["high"] - r["intervals"][0]["low"]
    several.drop(columns="patient_id").to_csv("rows.csv", index=False)
    assert width(got) > 1.2 * width(scored("rows.csv", *WANTED)[0])
    alone = scored("one.csv", *WANTED)[0]                                              # a patient per row is a row
    assert not alone["metadata"]["clustered"] and "clusters" not in alone["metadata"]["columns"] and alone["intervals"] == scored("p.csv", *WANTED)[0]["intervals"]
    several.assign(patient_id=several.patient_id.where(several.index > 3)).to_csv("gaps.csv", index=False)
    got, said = scored("gaps.csv", *WANTED)
    assert not got["metadata"]["clustered"] and any("names no patient in 8 rows" in l for l in said)


def test_every_table_of_a_report_can_be_written(here):
    report = scored("p.csv", *WANTED)[0]
    for name in ("groups", "summary", "pairwise", "intervals", "tests", "gaps"):
        assert call("score", "p.csv", *WANTED, "--table", name, "-o", f"{name}.csv")[0] == 0
        frame = pd.read_csv(f"{name}.csv")
        assert len(frame) == (len(report[name]) if name in report and name != "summary" else 5 if name == "groups" else 2)
        if name not in ("groups", "summary"): assert list(frame) == list(report[name][0])
        if name != "intervals": assert call("score", "p.csv", *WANTED, "--table", name, "-o", f"{name}.tex")[0] == 0
    groups = pd.read_csv("groups.csv")
    known = {(r["attribute"], r["group"]): r for r in report["intervals"] if r["metric"] == "tpr"}
    for _, row in groups.iterrows(): assert np.isclose(row["tpr@best_f1_low"], known[row["attribute"], row["group"]]["low"]) and row["tpr@best_f1_low"] <= row["tpr@best_f1"] <= row["tpr@best_f1_high"]


@needs("matplotlib")
def test_a_page_has_curves_and_says_how_to_make_it_again(here, people):
    import hashlib
    people.assign(patient=np.arange(len(people)) // 2).to_csv("two.csv", index=False)
    for name, more in (("p.csv", ()), ("two.csv", ("--clusters", "patient", "--drop-label", "7"))):
        assert call("score", name, *WANTED, *more, "-o", "page of all.html", "-q")[0] == 0
        text = (here/"page of all.html").read_text("utf-8")
        for words in ("ROC curves by Geschlecht", "Precision and recall by age", "Calibration by age", "Scores by Geschlecht", "fingerprint of this report", "fingerprint of the file of predictions"): assert words in text, words
        assert f"fairmedfm score {name} --sensitive Geschlecht age" in text and "page of all.html&#39;" in text and hashlib.sha256((here/name).read_bytes()).hexdigest() in text
    assert "patients as the unit" in text


@needs("matplotlib")
def test_a_page_of_masks_and_of_several_structures_has_clouds(masks, here):
    assert call("score", "scan/m.csv", "--mask-labels", "organ=1", "core=1", "-o", "m.html", "-q")[0] == 0
    text = (here/"m.html").read_text("utf-8")
    assert "Dice, organ by sex" in text and "Dice, core against object size by sex" in text
    pd.DataFrame({"sex": list("FM") * 20, "liver": np.linspace(.5, 1, 40), "spleen": np.linspace(.4, .9, 40)}).to_csv("d.csv", index=False)
    assert call("score", "d.csv", "--dice", "liver", "spleen", "-o", "d.html", "-q")[0] == 0
    assert "Dice, spleen by sex" in (here/"d.html").read_text("utf-8")


# -- what the options mean ---------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("args, options", [
    (["--threshold", "0.5"], dict(threshold=0.5)), (["--threshold", "specificity=0.8"], dict(threshold="specificity=0.8")), (["--threshold", "max_f1"], dict(threshold="max_f1")),
    (["--intersectional"], dict(intersectional=True)), (["--score-type", "rank"], dict(score_type="rank")), (["--metrics", "ppv", "brier"], dict(metrics=["ppv", "brier"])),
    (["--pos-label", "0"], dict(pos_label=0)), (["--pos-label", "1.0"], dict(pos_label=1)), (["--unknown", "WEIBLICH", "x"], dict(unknown=["weiblich"])),
], ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_an_option_is_what_evaluate_calls_it(args, options, here, people):
    want = json.loads(fm.evaluate(people.y_true, people.y_score, people[["Geschlecht", "age"]], bins={"age": [40, 60]}, **options).to_json())
    got, _ = scored("p.csv", *WANTED, *args)
    assert (got["summary"], got["by_group"], got["overall"]) == (want["summary"], want["by_group"], want["overall"])


@pytest.mark.parametrize("option", [o for o in SCORE_OPTIONS if o.metavar is not None], ids=lambda o: o.flag)
def test_no_option_takes_nonsense_silently(option, here):
    "A value that means nothing is an error (or, for free text, a column or file that is not there)."
    code, out, err = call("score", "p.csv", option.flag, "\0nonsense")
    assert code == 2 and len(err) == 1 and out == "", (code, err)


def test_quantile_bins_weights_and_names_with_commas(here, people):
    people.assign(w=np.arange(len(people)) % 3 + 1.0).to_csv("w.csv", index=False)
    got, _ = scored("w.csv", "--sensitive", "Geschlecht,age", "--bins", "age=q3", "--weight", "w")
    want = fm.evaluate(people.y_true, people.y_score, people[["Geschlecht", "age"]], bins={"age": 3}, sample_weight=np.arange(len(people)) % 3 + 1.0)
    assert got["by_group"] == json.loads(want.to_json())["by_group"] and len(got["by_group"]["age"]) == 3


def test_the_table_may_stand_last(here, expected):
    assert scored("--bins", "age=40,60", "--quiet", "--sensitive", "Geschlecht", "age", "p.csv")[0]["by_group"] == expected["by_group"]
    assert scored("--format", "json", "p.csv", *WANTED)[0]["by_group"] == expected["by_group"]


def test_group_columns_are_text_and_numbers_keep_their_order(here):
    pd.DataFrame({"y_true": [0, 1]*6, "y_score": np.linspace(0, 1, 12), "site": ["01", "01", "1", "1", "10", "10", "9", "9", "NA", "NA", "", "unknown"], "code": [10, 10, 9, 9, 10, 9]*2}).to_csv("a.csv", index=False)
    got, said = scored("a.csv", "--sensitive", "site", "code")
    assert list(got["by_group"]["site"]) == ["01", "1", "10", "9", "NA"] and list(got["by_group"]["code"]) == ["9", "10"]
    assert got["unknown"] == [{"attribute": "site", "value": "(missing)", "n": 1}, {"attribute": "site", "value": "unknown", "n": 1}]


def test_a_measurement_asks_for_bins(here):
    assert "--bins age=40,60" in call("score", "p.csv", "--sensitive", "age")[2][0]
    code, out, err = call("score", "p.csv", "--sensitive", "Geschlecht", "--bins", "age=40")
    assert code == 2 and "--sensitive" in err[0]
    pd.read_csv("p.csv").assign(sex="F").to_csv("a.csv", index=False)
    assert any("'age' looks continuous" in l and "left out" in l for l in call("score", "a.csv")[2])


def test_rows_without_a_score_or_label(here, people):
    people.assign(y_score=people.y_score.where(people.index > 4), y_true=people.y_true.where(people.index < 100)).to_csv("a.csv", index=False)
    got, said = scored("a.csv", *WANTED)
    kept = people.iloc[5:100]
    want = json.loads(fm.evaluate(kept.y_true, kept.y_score, kept[["Geschlecht", "age"]], bins={"age": [40, 60]}).to_json())
    assert got["by_group"] == want["by_group"] and any("5 rows without a score" in l for l in said)
    code, _, err = call("score", "a.csv", *WANTED, "--missing", "raise")
    assert code == 2 and "y_score" in err[0]


def test_metadata_is_joined_by_id_in_any_order(here, people, expected):
    people[["image_id", "y_true", "y_score"]].to_csv("s.csv", index=False)
    people[["image_id", "Geschlecht", "age"]].rename(columns={"image_id": "Bild"}).assign(split=range(len(people))).sample(frac=1, random_state=0).to_csv("m.csv", index=False)
    got, _ = scored("s.csv", "--metadata", "m.csv", "--on", "image_id=Bild", *WANTED)
    assert got["by_group"] == expected["by_group"] and got["metadata"]["source"] == {"predictions": "s.csv", "metadata": "m.csv"}
    pd.read_csv("m.csv").rename(columns={"Bild": "Image ID"}).iloc[3:].to_csv("m.csv", index=False)
    got, said = scored("s.csv", "--metadata", "m.csv", *WANTED)
    assert any("3 predictions of 120 without a row" in l for l in said) and sum(u["n"] for u in got["unknown"] if u["attribute"] == "age") == 3
    code, _, err = call("score", "s.csv", "--metadata", "m.csv", "--on", "bild", *WANTED)
    assert code == 2 and len(err) == 1 and "bild" in err[0]
    assert call("score", "-", "--metadata", "-", *WANTED)[0] == 2


def classes(order=("mel", "nv", "bcc"), n=90):
    rng = np.random.default_rng(1)
    dx = rng.choice(["mel", "nv", "bcc"], n)
    p = pd.DataFrame(rng.dirichlet([1, 1, 1], n), columns=["mel", "nv", "bcc"])*.6
    for c in p: p[c] += .4*(dx == c)
    return dx, p, p[list(order)].add_prefix("prob_").assign(dx=dx, sex=rng.choice(["F", "M"], n))


@pytest.mark.parametrize("order", [("mel", "nv", "bcc"), ("bcc", "mel", "nv")])
def test_class_columns_are_matched_by_whole_name(order, here):
    dx, p, table = classes(order)
    table.rename(columns={"prob_mel": "prob_MEL"}).assign(prob_mel2=.5).to_csv("a.csv", index=False)
    named = [f"prob_{c}".replace("prob_mel", "prob_MEL") for c in order]
    want = json.loads(fm.evaluate(dx, p, table.sex).to_json())["by_group"]
    assert scored("a.csv", "--label", "dx", "--score", *named)[0]["by_group"] == {k: {"sex": v["sensitive"] if "sensitive" in v else v["sex"]} for k, v in want.items()}
    one, _ = scored("a.csv", "--label", "dx", "--score", *named, "--pos-label", "mel")
    assert one["by_group"]["sex"]["F"]["auc"] == pytest.approx(want["mel"]["sex"]["F"]["auc"])
    assert scored("a.csv", "--label", "dx", "--score", "prob_MEL", "--pos-label", "mel", "--one-vs-rest")[0]["overall"]["auc"] == pytest.approx(one["overall"]["auc"])
    code, _, err = call("score", "a.csv", "--label", "dx", "--score", "prob_MEL", "prob_nv")
    assert code == 2 and "'bcc'" in err[0]


def test_classes_by_another_name_are_never_guessed(here):
    rng = np.random.default_rng(2)
    y, p = rng.integers(0, 2, 60), rng.random(60)
    pd.DataFrame({"y": y, "prob_benign": 1 - p, "prob_malignant": p, "sex": ["F", "M"]*30}).to_csv("a.csv", index=False)
    assert call("score", "a.csv", "--label", "y")[0] == 2
    want = fm.evaluate(y, p, ["F", "M"]*30).overall["auc"]
    for more in (["--score", "prob_benign", "prob_malignant"], ["--classes", "0", "1"], ["--score-column", "1", "--score", "prob_benign", "prob_malignant"], ["--score-column", "prob_malignant"]):
        got, said = scored("a.csv", "--label", "y", *more)
        assert got["overall"]["auc"] == pytest.approx(want) and (any("sorted order" in l for l in said) == (more == ["--score", "prob_benign", "prob_malignant"]))
    assert scored("a.csv", "--label", "y", "--classes", "1", "0")[0]["overall"]["auc"] == pytest.approx(1 - want)


def test_several_findings_in_one_report(here):
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"label_a": rng.choice([0, 1, -1], 80), "score_a": rng.random(80), "label_b": rng.integers(0, 2, 80), "score_b": rng.random(80), "label_none": 0, "sex": ["F", "M"]*40})
    table.to_csv("a.csv", index=False)
    assert "--drop-label -1" in call("score", "a.csv")[2][0]
    got, said = scored("a.csv", "--drop-label", "-1")
    known = table.label_a >= 0
    assert got["overall"]["a"]["auc"] == fm.evaluate(table.label_a[known], table.score_a[known], table.sex[known]).overall["auc"] and list(got["summary"]) == ["a", "b"]
    assert any("label_none" in l and "left out" in l for l in said)
    table.assign(label=table.label_b).to_csv("a.csv", index=False)
    assert list(scored("a.csv", "--multi-label", "--drop-label", "-1")[0]["summary"]) == ["a", "b"]
    assert list(scored("a.csv", "--label", "label_b", "label_none", "--score", "score_b", "score_a")[0]["summary"]) == ["b", "none"]
    assert call("score", "a.csv", "--multi-label", "--pos-label", "1")[0] == 2


def test_a_column_called_logit_holds_logits(here):
    pd.DataFrame({"label": [0, 1, 0, 1], "logit": [.1, .9, .2, .3], "sex": list("FFMM")}).to_csv("a.csv", index=False)
    assert scored("a.csv")[0]["metadata"]["score_type"].startswith("logit") and scored("a.csv", "--score-type", "probability")[0]["metadata"]["score_type"].startswith("probability")


# -- segmentation ------------------------------------------------------------------------------------------------------------------------

@pytest.fixture
def masks(here):
    (here/"scan").mkdir()
    truth = np.zeros((16, 16), np.uint8); truth[4:12, 4:12] = 1; truth[6:9, 6:9] = 2
    rows = []
    for i in range(6):
        np.save(here/"scan"/f"t{i}.npy", truth); np.save(here/"scan"/f"p{i}.npy", np.roll(truth, i, 0))
        rows.append((f"p{i}.npy", f"t{i}.npy", "FM"[i % 2]))
    pd.DataFrame(rows, columns=["pred_mask", "gt_mask", "sex"]).to_csv("scan/m.csv", index=False)
    return truth


def test_masks_are_relative_to_the_table(masks, here):
    pred, true, sex = [np.roll(masks, i, 0) for i in range(6)], [masks]*6, list("FMFMFM")
    for args, options in (([], {}), (["--mask-label", "2"], dict(label=2)), (["--mask-labels", "organ=1,2", "core=2", "--metrics", "dice", "iou"], dict(labels={"organ": (1, 2), "core": 2}, metrics=["dice", "iou"])),
                          (["--metrics", "nsd", "--spacing", "2", "2", "--tolerance-mm", "2"], dict(metrics=["nsd"], spacing=(2, 2), tolerance_mm=2)), (["--ignore-label", "2", "--empty-score", "0", "--jobs", "2"], dict(ignore_label=2, empty_score=0))):
        if "nsd" in args and importlib.util.find_spec("scipy") is None: continue
        want = json.loads(fm.evaluate_segmentation({"sex": sex}, pred_masks=pred, true_masks=true, **options).to_json())
        got, _ = scored("scan/m.csv", *args)
        assert got["by_group"] == want["by_group"] and got["summary"] == want["summary"] and got["task"] == "seg"


def test_mask_paths_stay_in_the_folder_of_the_table(masks, here):
    text = (here/"scan/m.csv").read_text()
    (here/"scan/m.csv").write_text(text.replace("p0.npy", "../p0.npy")); (here/"scan/p0.npy").rename(here/"p0.npy")
    code, _, err = call("score", "scan/m.csv")
    assert code == 2 and len(err) == 1 and "--allow-outside" in err[0] and "row 1" in err[0]
    assert call("score", "scan/m.csv", "--allow-outside")[0] == 0
    (here/"scan/m.csv").write_text(text.replace("p1.npy", "p9.npy").replace("p0.npy", "../p0.npy"))
    code, _, err = call("score", "scan/m.csv", "--allow-outside")
    assert code == 2 and "p9.npy" in err[0] and len(err) == 1


def test_dice_columns_and_what_has_no_meaning_there(here):
    pd.DataFrame({"sex": list("FFMM"), "dice": [.9, .8, .7, .9], "dice_b": [.5, .6, .7, .8]}).to_csv("d.csv", index=False)
    assert scored("d.csv", "--task", "seg")[0]["summary"]["sex"]["delta_dice"] == pytest.approx(.05)
    assert list(scored("d.csv", "--dice", "dice", "dice_b")[0]["summary"]) == ["dice", "dice_b"]
    for args in (["--threshold", "0.5"], ["--sheet", "1"], ["--on", "sex"], ["--jobs", "2"], ["--dice", "dice", "--mask-label", "1"], ["--task", "cls"], ["--dice", "dice", "--metrics", "iou"]):
        code, _, err = call("score", "d.csv", *args)
        assert code == 2 and len(err) == 1, args
    pd.read_csv("d.csv").assign(label=[0, 1, 0, 1], score=[.1, .9, .2, .8]).to_csv("d.csv", index=False)
    assert "--task" in call("score", "d.csv")[2][0] and scored("d.csv", "--task", "cls")[0]["task"] == "cls"


# -- real tables -------------------------------------------------------------------------------------------------------------------------

def test_the_demonstration_works_anywhere(tmp_path):
    done = process("demo", "--output", "d.json", "--save", "nhefs.csv", cwd=tmp_path)
    lines = done.stdout.decode().split("What it shows")[1].strip().splitlines()
    assert done.returncode == 0 and [l[:2] for l in lines[:5]] == ["1.", "2.", "3.", "4.", "5."] and all(l.startswith(b"fairmedfm: warning: ") for l in done.stderr.splitlines())
    report = valid((tmp_path/"d.json").read_text())
    assert f"AUC {report['overall']['auc']:.3f}" in lines[0] and f"{report['summary']['age']['auc-gap']:.3f}" in lines[1]
    again = process("score", "nhefs.csv", "--sensitive", "sex", "race", "age", "--bins", "age=40,60", cwd=tmp_path)
    assert valid(again.stdout)["by_group"] == report["by_group"]


@needs("causaldata")
def test_the_demonstration_table_is_what_its_script_makes():
    sys.path.insert(0, str(ROOT/"tools"))
    import make_nhefs
    made, kept = make_nhefs.table(), pd.read_csv(ROOT/"fairmedfm"/"data"/"nhefs.csv")
    assert make_nhefs.same(made, kept) and len(kept) == 1629
    assert not make_nhefs.same(made, kept.assign(sex=kept.sex[::-1].to_numpy())) and not make_nhefs.same(made, kept.assign(y_score=kept.y_score + 1e-5))


def test_fourteen_published_aucs(shared):
    got, said = scored(shared/"nih_scores"/"scores.csv", "--bins", "age=60")
    published = pd.read_csv(shared/"nih_scores"/"published_auc.csv", index_col=0)["auc_published"]
    assert len(published) == 14 and list(got["summary"]) == list(published.index)
    for finding, auc in published.items(): assert got["overall"][finding]["auc"] == pytest.approx(auc, abs=1e-9)
    known = {("cardiomegaly", "sex"): {"M": .9027, "F": .9155}, ("effusion", "sex"): {"M": .8773, "F": .8892}, ("hernia", "sex"): {"M": .8226, "F": .9502},
             ("atelectasis", "age"): {"<60": .8270, ">=60": .7801}, ("cardiomegaly", "age"): {"<60": .9199, ">=60": .8625}}
    for (finding, attribute), groups in known.items():
        for group, auc in groups.items(): assert got["by_group"][finding][attribute][group]["auc"] == pytest.approx(auc, abs=6e-5)
    assert any("label_no_finding" in l for l in said)


def test_a_hospital_cohort(shared):
    file = shared/"support2"/"scores.csv"
    got, said = scored(file, "--label", "label_death_60d", "--score", "score_model_60d", "--sensitive", "race", "sex")
    assert got["overall"]["auc"] == pytest.approx(.8131, abs=6e-5)
    for group, auc in dict(white=.8069, black=.8365, hispanic=.8131, asian=.8454, other=.8033).items(): assert got["by_group"]["race"][group]["auc"] == pytest.approx(auc, abs=6e-5)
    assert got["unknown"] == [{"attribute": "race", "value": "(missing)", "n": 42}]
    doctors, said = scored(file, "--label", "label_death_60d", "--score", "score_physician_60d", "--sensitive", "race")
    assert doctors["overall"]["auc"] == pytest.approx(.8043, abs=6e-5) and any("1,649 rows without a score" in l for l in said)
    code, _, err = call("score", file)
    assert code == 2 and "--label" in err[0] and "label_death_180d" in err[0]


# -- what there is -------------------------------------------------------------------------------------------------------------------------

def test_datasets_and_models_are_listed_in_the_width_of_a_terminal(monkeypatch, capsys):
    "Every row with all that the issue asks for, no line longer than the terminal but for an address; a name shows that one with more."
    pytest.importorskip("torch"); pytest.importorskip("timm"); pytest.importorskip("open_clip")
    from fairmedfm.data.catalog import DATASETS
    from fairmedfm.models.catalog import MODELS, SEGMENTERS
    monkeypatch.setenv("COLUMNS", "88"); monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = {}
    for command in ("datasets", "models"):
        assert main([command]) == 0
        out = said[command] = capsys.readouterr().out
        assert all(len(l) <= 88 or "https://" in l for l in out.splitlines())
    plain = {k: " ".join(v.split()) for k, v in said.items()}
    for s in DATASETS.values():
        for fact in (f"{s.name} · {s.task} · {s.modality} · {s.dims} · {s.size}", ", ".join(s.attributes), s.label, s.licence, s.access): assert " ".join(fact.split()) in plain["datasets"], fact
    for s in (*MODELS.values(), *SEGMENTERS.values()):
        assert f"{s.name} · {s.kind} · {s.domain}" in plain["models"] and s.licence in plain["models"]
        if s.gated: assert f"accept its terms at https://huggingface.co/{s.hub}" in plain["models"]
    assert f"{len(MODELS) + len(SEGMENTERS)} models" in plain["models"]
    assert main(["datasets", "--task", "seg"]) == 0 and "CXP" not in (out := capsys.readouterr().out) and out.startswith("HAM10000-Seg")
    assert main(["datasets", "brest"]) == 0 and "also called BREST" in " ".join(capsys.readouterr().out.split())
    assert main(["models", "timm:test_resnet"]) == 0 and "timm:test_resnet" in capsys.readouterr().out
    for line, word in (("datasets CPX", "CXP"), ("datasets brest --task seg", "--task"), ("datasets CXP X", "'X' is one argument too many"), ("models CLIPP", "CLIP"), ("download", "PAPILA (589 MB)"), ("prepare", "fairmedfm datasets lists them"), ("download nope", "'pretrained'")):
        assert main(line.split()) == 2
        err = capsys.readouterr().err
        assert word in err and len(err.splitlines()) == 1 and "one table is scored" not in err


def test_the_help_of_run_says_what_can_be_chosen_and_its_examples_can_be_run(monkeypatch, capsys):
    pytest.importorskip("torch"); pytest.importorskip("timm"); pytest.importorskip("open_clip")
    import shlex

    from fairmedfm.bench.config import ALL_METHODS, OPTIONS, USAGES, check_options, decide, expand, explained, parse_run
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["run", "--help"]) == 0
    said = capsys.readouterr().out
    plain = " ".join(said.split())
    for name in (*USAGES, *ALL_METHODS, *(f"--{o}" for o in OPTIONS)): assert name in plain, name
    for o in OPTIONS.values():
        if isinstance(o.default, (int, float)) and not isinstance(o.default, bool) and "default" not in o.help: assert f"{o.help}" in plain and explained(o).endswith(f"default: {o.default}"), o.name
    examples = [l.strip() for l in said.split("examples:")[1].splitlines() if l.strip()]
    assert len(examples) == 6
    for line in examples:
        if "--config" in line: parse_run(shlex.split(line)[2:]); continue
        configs = expand(parse_run(shlex.split(line)[2:]))
        check_options(configs)
        for c in configs: decide(c)
