"""Malformed tables, arrays and masks, many of them, through the doors that people use.

    nice -n 19 python benchmarks/fuzz.py --n 100000        # everything
    python benchmarks/fuzz.py --only masks --seconds 20    # one kind, for a while
    python benchmarks/fuzz.py --case cells 123             # one input again, with its traceback

Checked for every input: the library raises nothing but `InputError`, of one line, and warns of nothing but `FairnessWarning`; the command
line returns 0, 2 or 3, with one line on stderr where it refuses, and never a traceback; JSON holds no NaN; no number is finite that the
data do not define, and none leaves its range; no input takes more than half a minute of CPU. Where the truth is known (`cells`, `plain`),
the AUC of every group is what counting pairs gives. Input i of a kind depends on the seed, the kind and i alone."""
import argparse
import bz2
import collections
import contextlib
import datetime
import decimal
import gzip
import io
import json
import logging
import lzma
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zipfile
import zlib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd

from fairmedfm.cli import main as command_line
from fairmedfm.core import FairnessWarning, InputError
from fairmedfm.masks import READERS, read_mask
from fairmedfm.report import evaluate, evaluate_segmentation
from fairmedfm.tables import WRITERS, read_table

os.environ["FAIRMEDFM_TRACEBACK"] = "1"          # `main` raises what it would report as a bug


class Wrong(AssertionError):
    "A number, a sentence or an exit code that should not be."


class Slow(BaseException):
    "An input that takes too long; no reader may catch it."


PATIENCE = 30          # seconds of CPU time for one input


@contextlib.contextmanager
def patience(seconds):
    "Raise `Slow` when the block takes longer (where the system has alarms)."
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread(): yield; return
    def ring(*_): raise Slow(f"more than {seconds} s")
    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try: yield
    finally: signal.setitimer(signal.ITIMER_PROF, 0); signal.signal(signal.SIGPROF, before)


def check(ok, *what):
    if not ok: raise Wrong(" ".join(map(str, what))[:600])


def pick(rng, *options): return options[rng.integers(len(options))]


# ---------------------------------------------------------------- what a report may hold

UNIT = ("auc", "acc", "tpr", "tnr", "ece", "ppv", "npv", "ap", "f1", "brier", "fpr", "fnr", "selection_rate")


def number(v): return v is not None and v == v


def sound_cls(report:dict):
    "A report on labels and scores, as a dict: nothing is finite that is not defined."
    many = "target" in str(report["metadata"].get("targets", "")) or any(
        isinstance(v, dict) and any(isinstance(w, dict) for w in v.values()) for v in report["summary"].values())
    for summary, groups in ([(report["summary"][t], report["by_group"].get(t, {})) for t in report["summary"]]
                            if many else [(report["summary"], report["by_group"])]):
        for attribute, row in summary.items():
            rows = groups.get(attribute, {})
            both = [r for r in rows.values() if r["tp"] is not None and r["tp"] + r["fn"] > 0 and r["tn"] + r["fp"] > 0 or r["tp"] is None
                    and number(r["auc"])]
            for name, r in rows.items():
                check(not number(r["auc"]) or r in both, "AUC", r["auc"], "of a group with one label", attribute, name, r)
                for k, v in r.items():
                    if k.split("@")[0] in UNIT: check(not number(v) or -1e-12 <= v <= 1 + 1e-12, k, v, "is not in [0, 1]", name)
            for gap in ("auc-gap", "acc-gap", "ece-gap", "bce-gap", "eo", "eod",
                        "worst-auc"): check(not number(row[gap]) or len(both) > 1, gap, row[gap], "of", attribute, "with", len(both),
                                            "groups")
            check(row["n_groups"] <= len(rows) and (row["n_groups"] < 2 or number(row["auc-gap"])), "groups", row)


def sound_seg(report:dict):
    def rows(x): yield from ((k, v) for k, v in x.items() if not isinstance(next(iter(v.values()), None), dict))
    nested = any(isinstance(w, dict) for v in report["summary"].values() for w in v.values())
    for summary, groups in ([(report["summary"][t], report["by_group"].get(t, {})) for t in report["summary"]]
                            if nested else [(report["summary"], report["by_group"])]):
        for attribute, row in rows(summary):
            have = [r for r in groups.get(attribute, {}).values() if r.get("n", 0) > 0]
            for r in groups.get(attribute, {}).values():
                if "mean_dice" in r: check((r["n"] > 0) == number(r["mean_dice"]) and (not r["n"] or -1e-12 <= r["mean_dice"] <= 1 + 1e-12),
                                           "mean Dice", r)
            if "delta_dice" in row: check(number(row["delta_dice"]) == (len(have) > 1), "delta_dice", row["delta_dice"], "with", len(have),
                                          "groups")


def strict_json(text):
    def refuse(word): raise Wrong(f"{word} in JSON")
    return json.loads(text, parse_constant=refuse)


def sound_intervals(report):
    "Intervals belong to numbers that the data define, and verdicts to differences."
    for f, value in ((report.intervals, "value"), (report.pairwise, "difference")):
        if f is None or not len(f): continue
        low, high, value = (f[k].astype(float).to_numpy() for k in ("low", "high", value))
        given = ~np.isnan(low) | ~np.isnan(high)
        check((low[given] <= high[given]).all(), "interval", low, high)
        check(not (given & np.isnan(value)).any(), "an interval without a number", f[given & np.isnan(value)].iloc[:1].to_dict("records"))
        for p in ("p_value", "p_adjusted"):
            if p in f: check(f[p].dropna().between(0, 1).all(), p, f[p])
        if "verdict" in f: check(not (f["verdict"].isin(["different", "alike"]) & ~given).any(), "a verdict without an interval")


def sound(report):
    "A `FairnessReport`: every rendering can be written, and its numbers are sound."
    sound_intervals(report)
    data = strict_json(report.to_json())
    (sound_cls if report.task == "cls" else sound_seg)(data)
    for text in (repr(report), report.to_markdown(), report.to_csv(), report._repr_html_(), report.to_latex()): text.encode("utf-8")
    check(report.by_group.index.is_unique and report.summary.index.is_unique, "rows of one name")
    return data


def pairs_auc(y, s):
    a, b = s[y == 1], s[y == 0]
    return ((a[:, None] > b).sum() + (a[:, None] == b).sum()/2)/(len(a)*len(b)) if len(a) and len(b) else None


def truth(y, s, g):
    "Group -> AUC by counting pairs, `None` where it is not defined; from lists with missing values."
    rows = [(a, b, c) for a, b, c in zip(y, s, g) if not (pd.isna(a) or pd.isna(b) or pd.isna(c))]
    names = sorted({c for c in g if not pd.isna(c)})
    return {n: pairs_auc(np.array([a for a, _, c in rows if c == n]), np.array([b for _, b, c in rows if c == n], float)) for n in names}


def agrees(groups:dict, want:dict):
    "AUCs of a report against the truth."
    for name, auc in want.items():
        got = groups.get(name, {}).get("auc")
        check(number(got) == (auc is not None) and (auc is None or abs(got - auc) < 1e-9), "the AUC of", name, "is", got, "and not", auc)


# ---------------------------------------------------------------- tables

def people(rng, n=None):
    "A small table with what a table of predictions has."
    n = int(n or rng.integers(1, 40))
    y = rng.integers(0, 2, n)
    return pd.DataFrame({"image_id": [f"img_{i:03d}" for i in range(n)], "sex": rng.choice(["F", "M"], n), "age": rng.integers(18, 95, n),
                         "site": rng.choice(["Köln", "NA", "01", "unknown"], n),
                         "y_true": y, "y_score": np.round(np.clip(rng.normal(.3 + .4*y, .25), 0, 1), int(rng.integers(1, 7)))})


def json_bytes(frame, rng):
    rows = [{k: (v.item() if isinstance(v, np.generic) else v) for k, v in r.items()} for r in frame.to_dict("records")]
    columns = {k: [r[k] for r in rows] for k in frame}
    return json.dumps(pick(rng, rows, columns, {"data": rows}, {"columns": list(frame), "data": [list(r.values()) for r in rows]},
                           {k: {str(i): v for i, v in enumerate(c)} for k, c in columns.items()}),
                      ensure_ascii=bool(rng.integers(2))).encode()


def written(frame, ending):
    with tempfile.TemporaryDirectory() as d:
        path = Path(d)/f"t{ending}"
        if ending == ".feather": frame.to_feather(path)
        else: WRITERS[ending](frame, path)
        return path.read_bytes()


def csv_bytes(frame, rng):
    text = frame.to_csv(
        index=bool(rng.integers(2)), sep=pick(rng, ",", ";", "|", "\t"), lineterminator=pick(rng, "\n", "\r\n", "\r"),
        decimal=pick(rng, ".", ".", ","), quoting=pick(rng, 0, 1, 2))
    return text.encode(pick(rng, "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-32"))


FORMATS = {
    ".csv": csv_bytes,
    ".tsv": lambda f, rng: f.to_csv(index=False, sep="\t").encode(),
    ".txt": lambda f, rng: f.to_csv(index=False, sep=pick(rng, " ", "\t", ",")).encode(),
    ".json": json_bytes,
    ".jsonl": lambda f, rng: f.to_json(orient="records", lines=True).encode(),
    **{ending: lambda f, rng, ending=ending: written(f, ending) for ending in (".parquet", ".feather", ".xlsx")},
}
SHARE = (".csv",)*8 + (".tsv", ".json", ".json", ".jsonl", ".jsonl", ".parquet", ".feather", ".txt", ".xlsx")
TOKENS = (b"nan", b"inf", b"-inf", b"1e999", b"-0", b"0x1", b"1_000", b"1,5", b"45.3%", b"\xd9\xa1", b"\xe2\x88\x9e", b"NA", b"None", b"",
          b" ", b'"', b'""', b"'", b"\0", b"\xff", b"\xef\xbb\xbf", b"true", b"=1+1", b"<b>", b"[1]", b"{}", b"null", b"1e-400", b"9"*400,
          b"#", b"\\",
          b"\r", b"\n\n", b",", b";", b"\t", b"unknown", b"2", b"-1", b"0.5", b"y_true", b"sex", b"1.0000001")


def mutate(data:bytes, rng) -> bytes:
    "A few accidents that happen to files."
    for _ in range(int(rng.choice([1, 1, 1, 2, 2, 3, 4]))):
        n = len(data)
        i, j = sorted(rng.integers(0, n + 1, 2).tolist())
        how = int(rng.integers(14))
        if how == 0 and n: b = bytearray(data); b[i % n] ^= 1 << int(rng.integers(8)); data = bytes(b)
        elif how == 1: data = data[:i] + data[min(j, i + int(rng.integers(1, 30))):]
        elif how == 2: data = data[:i] + rng.bytes(int(rng.integers(1, 9))) + data[i:]
        elif how == 3: data = data[:i] + data[i:min(j, i + 200)]*2 + data[min(j, i + 200):]
        elif how == 4: data = data[:j]
        elif how in (5, 6, 12, 13): data = data[:i] + pick(rng, *TOKENS) + data[i:]
        elif how == 7: lines = data.split(b"\n"); rng.shuffle(lines); data = b"\n".join(lines)
        elif how == 8: data = data.replace(pick(rng, b",", b";", b"\n", b'"', b".", b"0", b"1", b"F"), pick(rng, *TOKENS),
                                           int(rng.integers(1, 50)))
        elif how == 9: data = data[i:]
        elif how == 10: cells = data.split(b","); cells[int(rng.integers(len(cells)))] = pick(rng, *TOKENS); data = b",".join(cells)
        else: data = pick(rng, b"", b"\n", data*2, data[::-1], b"[" * 3000, b'{"a":' * 3000, rng.bytes(200), data + b"\0"*50)
    return data


def scribble(data:bytes, rng) -> bytes:
    "Other words in a few cells of a delimited text or JSON; its shape stays."
    cells = re.split(rb"([,;\t|:\r\n\]\[}{]+)", data)
    inner = range(2*10, len(cells), 2)                       # not the names
    odd = rng.random() < .3
    for i in rng.choice(inner, int(rng.integers(1, 6))).tolist() if len(inner) else (): cells[i] = pick(rng, *TOKENS) if odd else pick(
        rng, b"0.25", b"1", b"0", b"M", b"", b"NA", b"1e-300", b" F", b"unknown", b"0.5000", b"1.0000001", b"NaN")
    return b"".join(cells)


WORDS = (
    "sex", "age", "site", "y_true", "y_score", "image_id", "nope", "", "sex,age", "=", "age=", "age=40,60", "age=q4", "age=60,40,40",
    "sex=40", "age=nan", "age=1e999", "nope=3", "best_f1", "max_f1", "youden", "specificity=0.8", "specificity=8", "0.5", "nan", "1", "0",
    "F", "brier", "ppv", "tpr_at_tnr=0.9", "logit", "rank", "probability", "auto", "json", "table", "markdown", "-1", "tab", ";", ",",
    "utf-8", "utf-16", "latin-1", "no-such-code", "drop", "raise", "é", "cls", "seg")
FLAGS = ("--sensitive", "--bins", "--intersectional", "--unknown", "--label", "--score", "--pos-label", "--score-type", "--score-column",
         "--classes", "--threshold", "--drop-label", "--one-vs-rest", "--missing", "--weight", "--metrics", "--format", "--quiet",
         "--delimiter", "--encoding", "--decimal", "--sheet",
         "--task", "--dice", "--multi-label", "--on", "--nonsense", "-x")
GOOD = ([], ["--sensitive", "sex"], ["--sensitive", "sex", "age", "--bins", "age=40,60"], ["--sensitive", "site"],
        ["--sensitive", "sex", "site", "--intersectional"], ["--bins", "age=q3"], ["--label", "y_true", "--score", "y_score"],
        ["--threshold", "max_f1"])


def arguments(rng):
    out = list(GOOD[rng.integers(len(GOOD))])
    for _ in range(int(rng.choice([0, 0, 0, 0, 0, 0, 1, 2]))): out += [
        pick(rng, *FLAGS), *[pick(rng, *WORDS) for _ in range(int(rng.integers(0, 3)))]]
    return out + quick(rng)


def quick(rng): return ["--no-ci"] if rng.random() < .7 else []                  # intervals take most of the time: a third of the inputs has them


def run_command(args, stdin=b""):
    "`(exit code, stdout, stderr)` of the command line, in this process."
    out, err, real = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err): code = command_line(args)
    finally: sys.stdin = real
    return code, out.getvalue(), err.getvalue()


def judged(code, out, err, args):
    "What the command line said, if it is sound: `refused`, `nothing to compare`, `scored`."
    check(code in (0, 2, 3), "exit code", code, err[-300:])
    check("Traceback" not in out + err, "a traceback")
    if code == 2:
        check(out == "" and len(err.splitlines()) == 1 and err.startswith("fairmedfm: error: ") and len(err) < 4000,
              "stderr of exit code 2:", repr(err[:300]), repr(out[:100]))
        return "refused"
    check("nothing could be compared" in err if code == 3 else "--quiet" in args or "nothing could be compared" not in err, "exit code",
          code, err[-200:])
    if out.lstrip()[:1] == "{":
        data = strict_json(out)
        (sound_cls if data["task"] == "cls" else sound_seg)(data)
    return "scored" if code == 0 else "nothing to compare"


def packed(data, name, rng):
    how = int(rng.integers(12))
    if how == 0: return gzip.compress(data, 1, mtime=0), name + ".gz"
    if how == 1: return bz2.compress(data, 1), name + ".bz2"
    if how == 2: return lzma.compress(data, preset=0), name + ".xz"
    if how == 3:
        box = io.BytesIO()
        with zipfile.ZipFile(box, "w") as z: z.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)
        return box.getvalue(), name + ".zip"
    return data, name


def fuzz_bytes(rng, folder):
    "A table with accidents in its bytes, scored by the command line."
    ending = pick(rng, *SHARE)
    data = FORMATS[ending](people(rng), rng)
    name = "p" + (ending if rng.random() < .9 else pick(rng, *FORMATS))
    if rng.random() < .95: data = (mutate if rng.random() < .5 else scribble)(data, rng)
    data, name = packed(data, name, rng)
    if rng.random() < .1: data = mutate(data, rng)
    (folder/name).write_bytes(data)
    args = arguments(rng)
    where = ["-"] if rng.random() < .1 else [str(folder/name)]
    try: return judged(*run_command(["score", *where, *args], data), args)
    finally: (folder/name).unlink()


def fuzz_cells(rng, folder):
    "A table of which the answer is known, with missing cells, in some format: the right AUCs, or a refusal where a cell holds no number."
    frame = people(rng, rng.integers(4, 60)).astype(object)
    frame["site"] = rng.choice(["Köln", "NA", "01"], len(frame))
    lose = {c: rng.random(len(frame)) < rng.choice([0, 0, .1, .5]) for c in ("sex", "site", "y_true", "y_score")}
    for c, rows in lose.items(): frame.loc[rows, c] = None
    whole = np.flatnonzero(~lose["y_true"] & ~lose["y_score"])
    bad = len(whole) > 0 and rng.random() < .15
    if bad: frame.loc[int(rng.choice(whole)), pick(rng, "y_true", "y_score")] = pick(rng, "high", "0.5.1", "--", "2020-01-01", "1 2", "é")
    ending = pick(rng, *[e for e in SHARE if e not in (".xlsx", ".txt")], ".xlsx")
    path = folder/f"p{ending}"
    try:
        typed = frame.astype({"y_true": str, "y_score": str}) if bad and ending in (".parquet", ".feather") else frame.infer_objects()
        path.write_bytes(FORMATS[ending](typed.where(typed.notna(), None) if ending == ".json" else typed, np.random.default_rng(0)))
        code, out, err = run_command(["score", str(path), "--sensitive", "sex", "site", "--format", "json", "--label", "y_true", "--score",
                                      "y_score", *quick(rng)])
        kind = judged(code, out, err, [])
        if bad: check(code == 2, "a cell that is no number was scored", err[:200])
        elif code != 2:
            data = strict_json(out)
            for a in ("sex", "site"): agrees(
                data["by_group"].get(a, {}), truth(frame["y_true"].tolist(), frame["y_score"].tolist(), frame[a].tolist()))
        else: check(min((~lose[c]).sum() for c in lose) == 0 or not frame[["y_true", "y_score"]].notna().all(axis=1).any(), "refused:", err)
        return kind
    finally: path.unlink(missing_ok=True)


def fuzz_reading(rng, folder):
    "The reader of tables by itself, with all of its options."
    ending = pick(rng, *SHARE)
    path = folder/f"r{ending}"
    path.write_bytes((mutate if rng.random() < .5 else scribble)(FORMATS[ending](people(rng), rng), rng))
    try:
        frame = read_table(path, text=pick(rng, (), "sex", ["sex", "site"], ["nope"]),
                           usecols=pick(rng, None, None, ["y_true", "y_score"], ["nope"]), delimiter=pick(rng, None, None, ",", ";", "ab"),
                           encoding=pick(rng, None, None, "latin-1", "x"), decimal=pick(rng, None, None, ",", "x"))
        check(len(frame) > 0 and len(set(frame.columns)) == frame.shape[1], "a frame of", frame.shape)
        return "read"
    finally: path.unlink()


# ---------------------------------------------------------------- arrays

ODD = (None, np.nan, np.inf, -np.inf, "", " ", "x", "nan", "0.5", b"1", 1j, 10**400, -1, 2, 1e308, -1e308, 5e-324, np.nextafter(1, 2), 1.5,
       True, decimal.Decimal("0.5"), datetime.date(2020, 1, 1), pd.NA, pd.NaT, (1,), [1], {}, {1}, object, "unknown", "\0", "\ud800",
       "F & M", np.float32(.5), np.int64(3))
LABELS = ((0, 1), (0, 1), (0, 1), (False, True), ("0", "1"), ("a", "b"), (0, 1, 2), (-1, 0, 1), (1,), (0,), (1, 2), (0.0, 1.0),
          ("yes", "no", "maybe"), (0, 1, None), (0, 1, np.nan))
GROUPS = (("F", "M"), ("F", "M"), ("F", "M", None), ("F", "M", "unknown"), ("F",), (0, 1), (True, False), ("a & b", "c", " & "),
          tuple("abcdefgh"), (None,), ("unknown",), (1.5, 2.5, np.nan), ("01", "1", 1), (b"F", b"M"), ("", "F", "F "))


def sprinkle(values, rng):
    "Odd things at a few places of a list."
    if rng.random() < .2:
        for _ in range(int(rng.integers(1, 4))):
            if len(values): values[int(rng.integers(len(values)))] = pick(rng, *ODD)
    return values


def index(n, rng): return pick(rng, None, None, rng.permutation(n), [f"p{i}" for i in range(n)],
                               rng.permutation([f"p{i}" for i in range(n)]), rng.integers(0, 3, n))


def container(values, rng):
    "The values in something that people use."
    n = len(values)
    if n and rng.random() < .05: values = values[:int(rng.integers(n))]
    how = int(rng.integers(16))
    obj = np.empty(len(values), object); obj[:] = values
    try:
        if how < 4: return values
        if how == 4: return np.array(values)
        if how == 5: return obj
        if how < 9: return pd.Series(values, index=index(len(values), rng), name=pick(rng, None, "sex", 3))
        if how == 9: return tuple(values)
        if how == 10: return pd.Categorical(values)
        if how == 11: return np.ma.array(obj if rng.random() < .5 else np.array(values), mask=rng.random(len(values)) < .1)
        if how == 12: return np.array(values, pick(rng, "f2", "f4", ">f8", "i1", "u1", "?", "U3", "S2", "g", "M8[D]"))
        if how == 13: import pyarrow as pa; return pa.array(values)
        if how == 14: import polars as pl; return pl.Series("x", values)
        if rng.random() < .3: return pick(rng, set, iter, dict.fromkeys, len, repr)(values)
        return [np.array(values[:3]), np.array(values[3:])]
    except Exception: return obj            # not ours: the value does not fit into the container


def options(rng):
    out = {}
    pools = {
        "threshold": ("max_f1", "youden", .5, "specificity=0.8", "sensitivity=1", np.nan, "x", None, {}, 10**400),
        "score_type": ("logit", "rank", "probability", "x", None), "pos_label": (1, 0, "a", True, "x", np.nan, [1]),
        "drop_labels": ([-1], -1, [0, 1], "x", [np.nan], None), "one_vs_rest": (True,), "multi_label": (True, False),
        "intersectional": (True, [("a", "b")], [("a", "a")], "a", 3),
        "bins": ({"a": [40]}, {"a": 4}, {"a": []}, [40], 3, {"b": 2}, "x", {"a": True}), "missing": ("drop", "drop", "x"),
        "unknown": ("F", ["F", 0], None, 3, []),
        "metrics": (["brier", "ap"], "ppv", ["nope"], 3, None, ["cal_slope", "ce_debiased", "tpr_at_tnr=0.5"]),
        "score_column": (0, 1, -1, 7, "x", .5), "labels": ([0, 1], [1, 0], ["a", "b"], [1, 1], [0, 1, 2])}
    for _ in range(int(rng.choice([0, 0, 1, 1, 2]))): k = pick(rng, *pools); out[k] = pick(rng, *pools[k])
    return out


def uncertain(rng, n):
    "Settings of intervals, some of them wrong."
    out = {"ci": pick(rng, .95, .95, .95, .5, 2, "x"), "n_resamples": pick(rng, 99, 99, 99, 99, 0, -1, "x")}
    pools = {"clusters": (rng.integers(0, 3, n), np.arange(n), np.zeros(n), ["a"]*n, [None]*n, [1], "x"), "tolerance": (.05, {"auc": .1}, 0, -1, "x"),
             "min_group_size": (0, 1, 5, 1000, -1, "x"), "correction": ("bh", "none", "x"), "random_state": (7, None, "x")}
    for _ in range(int(rng.integers(0, 3))): k = pick(rng, *pools); out[k] = pick(rng, *pools[k])
    return out


def fuzz_arrays(rng, folder):
    "`evaluate` on labels, scores and groups with odd values in odd containers, with odd options."
    n = int(rng.choice([0, 1, 2, 3, 8, 30]))
    k = int(rng.choice([1, 1, 1, 1, 2, 3]))
    labels, groups = pick(rng, *LABELS), pick(rng, *GROUPS)
    y = sprinkle([labels[i] for i in rng.integers(0, len(labels), n)], rng)
    s = sprinkle((np.round(rng.random(n), int(rng.integers(1, 9)))*pick(rng, 1, 1, 1, 100, 1e308)).tolist(), rng)
    g = sprinkle([groups[i] for i in rng.integers(0, len(groups), n)], rng)
    if k > 1:
        s = np.round(rng.dirichlet(np.ones(k), n), 3) if n else np.zeros((0, k))
        s = pick(rng, s, pd.DataFrame(s), pd.DataFrame(s, columns=list("abcdef")[:k]), s.tolist(), s*50 - 20)
        if rng.random() < .3: y = rng.integers(0, 2, (n, k))
    else: s = container(s, rng)
    y, g = y if isinstance(y, np.ndarray) else container(y, rng), container(g, rng)
    if rng.random() < .3: g = {"a": g, "b": container([groups[i] for i in rng.integers(0, len(groups), n)], rng)}
    elif rng.random() < .1 and n: g = {"a": rng.integers(18, 90, n).astype(pick(rng, float, int, object))}
    kw = options(rng)
    if rng.random() < .15: kw["sample_weight"] = container(
        sprinkle(pick(rng, rng.random(n), rng.integers(0, 3, n), np.zeros(n), np.full(n, 1e308), rng.random(n)*1e-300).tolist(), rng), rng)
    if rng.random() < .3: kw |= uncertain(rng, n)
    sound(evaluate(y, s, g, **kw))
    return "scored"


def fuzz_plain(rng, folder):
    "`evaluate` on data of which the answer is known: ties, extremes, missing values, tiny groups, one label, one group."
    n = int(rng.integers(1, 30))
    s = pick(rng, lambda: rng.random(n), lambda: rng.integers(0, 4, n)/3, lambda: rng.integers(0, 2, n)*1.0,
             lambda: 10.0**-rng.integers(0, 320, n), lambda: 1 - 10.0**-rng.integers(0, 17, n), lambda: rng.normal(0, 50, n),
             lambda: rng.choice([-1e308, 1e308, 0, 5e-324, -5e-324], n), lambda: np.full(n, .5),
             lambda: .5 + np.spacing(.5)*rng.integers(0, 3, n), lambda: rng.integers(0, 101, n)*1.0)()
    y = (rng.random(n) < pick(rng, 0, .05, .5, .95, 1)).astype(int).astype(object)
    g = rng.choice(list("abcdefgh")[:int(rng.integers(1, 9))], n).astype(object)
    score = s.astype(object)
    for a in (y, g, score): a[rng.random(n) < pick(rng, 0, 0, .2)] = None
    w = pick(rng, None, None, np.round(rng.random(n), 2) + .01, rng.integers(1, 4, n))
    shuffled = rng.permutation(n)
    form = pick(rng, lambda a: a.tolist(), lambda a: a, lambda a: pd.Series(a, [f"p{i}" for i in range(n)]))
    args = [form(a) for a in (y, score, g)]
    if isinstance(args[1], pd.Series): args[1] = args[1].iloc[shuffled]
    report = sound(evaluate(args[0], args[1], {"g": args[2]}, missing="drop", sample_weight=w, score_type=pick(rng, "auto", "rank"),
                            **(uncertain(rng, n) if rng.random() < .1 else {})))
    if w is None: agrees(report["by_group"].get("g", {}), truth(y.tolist(), score.tolist(), g.tolist()))
    else:
        want = truth(y.tolist(), score.tolist(), g.tolist())
        for name, auc in want.items(): check(number(report["by_group"].get("g", {}).get(name, {}).get("auc")) == (auc is not None),
                                             "the weighted AUC of", name, "where", auc)
    return "scored"


# ---------------------------------------------------------------- masks

@np.errstate(all="ignore")
def a_mask(rng, shape):
    m = rng.random(shape) < pick(rng, 0, .1, .5, 1)
    values = pick(rng, 1, 1, 1, 255, 2, 3.0, .7) if rng.random() < .85 else pick(
        rng, 1.0000001, 1.5, -1, np.nan, np.inf, 1j, 300, 1e308, 5e-324)
    try: out = m*values
    except Exception: out = m
    if rng.random() < .3: out = out.astype(pick(rng, "?", "u1", "i1", "i8", "f2", "f4", ">i2", ">f4", "g", "O", "U3"),
                                           copy=True) if np.isfinite(np.abs(values)) and not isinstance(values, complex) else out
    if rng.random() < .1 and out.size and out.dtype.kind in "biuf": out = out + rng.integers(0, 3, shape)
    return pick(rng, lambda: out, lambda: out, lambda: np.asfortranarray(out), lambda: out[::-1], lambda: out.tolist(),
                lambda: np.ma.array(out, mask=m), lambda: pd.DataFrame(out) if out.ndim == 2 else out)()


def fuzz_masks(rng, folder):
    "`evaluate_segmentation` on arrays of masks or on Dice values."
    n = int(rng.choice([0, 1, 2, 3, 4, 5, 6]))
    g = [pick(rng, "F", "M", "F", "M", None) for _ in range(n)]
    if rng.random() < .3: g = container(g, rng)
    kw = {}
    pools = {"label": (1, 2, 255, 7, 1.5, "x", None), "labels": ([1, 2], {"a": (1, 2)}, [], [1, 1], 3),
             "metrics": (["dice", "iou"], ["hd95"], ["nsd", "asd"], ["rvd"], [], ["x"], None), "mask_threshold": (.7, 0, 2, np.nan, "x"),
             "ignore_label": (255, 1, 0, 1.5), "empty_score": (0, .5, 2, np.nan), "spacing": (1, (1, 2), [(1, 2)]*3, 0, "x"),
             "tolerance_mm": (1, -1, {"a": 1}), "bins": ({"a": 2},), "intersectional": (True,), "resample": (True,), "n_jobs": (2, 0, "x")}
    for _ in range(int(rng.choice([0, 0, 0, 1, 2]))): k = pick(rng, *pools); kw[k] = pick(rng, *pools[k])
    if rng.random() < .3: kw["dice"] = container(sprinkle(np.round(rng.random(n)*pick(rng, 1, 1, 1, 100), 3).tolist(), rng), rng)
    else:
        shape = tuple(int(v) for v in rng.integers(0 if rng.random() < .05 else 1, 6, int(rng.choice([1, 2, 2, 2, 2, 2, 3, 3, 3, 4]))))
        for side in ("pred_masks", "true_masks"):
            items = [a_mask(rng, shape if rng.random() < .97 else shape[::-1]) for _ in range(n)]
            kw[side] = pick(rng, *[items]*9, tuple(items), dict(enumerate(items)), pd.Series(items, dtype=object),
                            items[0] if items else items, iter(items))
    if rng.random() < .3: kw |= uncertain(rng, n)
    sound(evaluate_segmentation(g, **kw))
    return "scored"


def mask_bytes(ending, rng):
    "A small mask file."
    m = (rng.random((6, 5) if ending in (".png", ".jpg", ".jpeg", ".bmp") else (6, 5, 4)) < .4).astype(np.uint8)
    with tempfile.TemporaryDirectory() as d:
        path = Path(d)/f"m{ending}"
        if ending == ".npy": np.save(path, m)
        elif ending == ".npz": np.savez(path, mask=m)
        elif ending in (".nii", ".nii.gz"): import nibabel; nibabel.save(nibabel.Nifti1Image(m, np.diag([1, 2, 3, 1])), path)
        elif ending in (".mha", ".nrrd", ".mhd"): import SimpleITK as sitk; sitk.WriteImage(sitk.GetImageFromArray(m), str(path))
        elif ending in (".tif", ".tiff"): import tifffile; tifffile.imwrite(path, m)
        else: from PIL import Image; Image.fromarray(m*255).save(path)
        return path.read_bytes()


_MASK_FILES = {}


def fuzz_files(rng, folder):
    "A mask file with accidents in its bytes."
    ending = pick(rng, *READERS)
    if ending not in _MASK_FILES: _MASK_FILES[ending] = mask_bytes(ending, np.random.default_rng(0))
    data = _MASK_FILES[ending]
    if ending == ".nii.gz" and rng.random() < .8: data = gzip.compress(mutate(gzip.decompress(data), rng), 1, mtime=0)
    else: data = mutate(data, rng)
    path = folder/f"m{ending if rng.random() < .95 else pick(rng, *READERS)}"
    path.write_bytes(data)
    itk = path.suffix in (".mha", ".mhd", ".nrrd")            # a C++ library that writes to stderr by itself
    try:
        with silence() as said, warnings.catch_warnings():
            warnings.simplefilter("ignore")                  # what the readers of the formats warn of
            try:
                mask = read_mask(path)
                check(mask.spacing is None or all(0 < v < np.inf for v in mask.spacing), "spacing", mask.spacing)
                report = evaluate_segmentation(["F", "M"], pred_masks=[path]*2, true_masks=[path]*2)
                check(report.summary.loc["sensitive", "mean_dice"] == 1, "Dice of a mask with itself",
                      report.summary.loc["sensitive", "mean_dice"])
            finally: text = said()
        check(not text or itk, "on stderr:", text)
        return "read"
    except InputError:
        check(not text or itk, "on stderr:", text)
        raise
    finally: path.unlink()


@contextlib.contextmanager
def silence():
    "What is written to stderr meanwhile, by Python or by a C library, as a function that returns it."
    sys.stderr.flush()
    with tempfile.TemporaryFile() as f:
        kept, real, handler = os.dup(2), sys.stderr, logging.lastResort
        os.dup2(f.fileno(), 2)
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="replace")
        def said(): sys.stderr.flush(); f.seek(0); return f.read().decode("utf-8", "replace")[:300]
        try: yield said
        finally:
            sys.stderr.close(); sys.stderr, logging.lastResort = real, handler
            os.dup2(kept, 2); os.close(kept)


# ---------------------------------------------------------------- the run

KINDS = {"bytes": (fuzz_bytes, 38), "cells": (fuzz_cells, 10), "reading": (fuzz_reading, 7), "arrays": (fuzz_arrays, 20),
         "plain": (fuzz_plain, 10), "masks": (fuzz_masks, 8), "files": (fuzz_files, 7)}      # share in percent


def one(kind, i, seed, folder):
    "Outcome of input `i` of a kind; raises what is wrong."
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode()), i])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FairnessWarning)
        if kind in ("bytes", "cells", "reading"): warnings.simplefilter("ignore")
        for ours in ("Pandas4Warning", ".*deprecated.*", ".*timezone-aware.*"): warnings.filterwarnings("ignore", message=ours)
        try:
            with patience(PATIENCE): return KINDS[kind][0](rng, folder)
        except InputError as e:
            check(str(e) and "\n" not in str(e) and len(str(e)) < 2000, "an error of", len(str(e)), "letters:", repr(str(e)[:300]))
            return "refused"


def place(e):
    "Where an exception was raised, within the package if it came from there."
    frames = traceback.extract_tb(e.__traceback__)
    ours = [f for f in frames if "fairmedfm" in f.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].name}"


def run(n=100_000, seed=0, seconds=None, only=None, tell=lambda *a: None, share=(0, 1)):
    "`(outcomes by kind, failures)`: failures map what went wrong to the first input that shows it and how often."
    kinds = [k for k in KINDS if only is None or k in only]
    total = sum(KINDS[k][1] for k in kinds)
    plan = {k: -(-n*KINDS[k][1]//total) for k in kinds}
    outcomes, failures = {k: collections.Counter() for k in kinds}, {}
    start, done = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as d:
        folder = Path(d)
        for i in range(max(plan.values(), default=0)):
            for kind in kinds:
                step = plan[kind]
                if i >= step or i % share[1] != share[0] or seconds is not None and time.monotonic() - start > seconds: continue
                try: outcomes[kind][one(kind, i, seed, folder)] += 1
                except (Exception, Slow) as e:
                    outcomes[kind]["WRONG"] += 1
                    key = (kind, type(e).__name__, place(e), str(e)[:40] if isinstance(e, Wrong) else "")
                    failures.setdefault(key, [i, 0, " ".join(str(e).split())[:300]])[1] += 1
                done += 1
                if not done % 10_000: tell(f"{done:,} inputs, {len(failures)} kinds of failure, {time.monotonic() - start:.0f} s")
            if seconds is not None and time.monotonic() - start > seconds: break
        left = sorted(p.name for p in folder.iterdir())
    if left: failures[("run", "Wrong", "files left behind", "")] = [0, len(left), str(left[:5])]
    return outcomes, failures


def limited():
    "A damaged header may ask for any amount of memory."
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))


def a_share(k, jobs, n, seed, seconds, only):
    limited()
    return *run(n, seed, seconds, only, lambda text: print(f"{k + 1}/{jobs}: {text}", flush=True), (k, jobs)), time.process_time()


def shares(jobs, *args):
    "`run` by several processes, and their CPU seconds: input i is the same whoever makes it."
    if jobs == 1: return a_share(0, 1, *args)
    outcomes, failures, cpu = {}, {}, 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for found, wrong, spent in pool.map(a_share, range(jobs), *([a]*jobs for a in (jobs, *args))):
            for kind, c in found.items(): outcomes.setdefault(kind, collections.Counter()).update(c)
            for key, (i, many, text) in wrong.items(): failures.setdefault(key, [i, 0, text])[1] += many
            cpu += spent
    return outcomes, failures, cpu


def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--n", type=int, default=100_000, help="inputs in all (default: 100,000)")
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--seconds", type=float, help="stop after so long")
    cli.add_argument("--only", nargs="+", choices=KINDS)
    cli.add_argument("--jobs", type=int, default=1, help="processes")
    cli.add_argument("--case", nargs=2, metavar=("KIND", "I"), help="one input again; its exception goes through")
    args = cli.parse_args()
    limited()
    if args.case:
        with tempfile.TemporaryDirectory() as d: print(one(args.case[0], int(args.case[1]), args.seed, Path(d)))
        return 0
    start = time.monotonic()
    outcomes, failures, cpu = shares(args.jobs, args.n, args.seed, args.seconds, args.only)
    done, took = sum(sum(c.values()) for c in outcomes.values()), time.monotonic() - start
    print(f"\n{done:,} inputs in {took:.0f} s ({cpu:.0f} s of CPU), seed {args.seed}")
    for kind, c in outcomes.items():
        print(f"  {kind:8} {sum(c.values()):8,}  " + ", ".join(f"{k} {v:,}" for k, v in c.most_common()))
    print(f"{len(failures)} kinds of failure" + ("" if failures else ": nothing but one-line errors and sound numbers"))
    for (kind, name, where, _), (i, n, text) in sorted(failures.items(), key=lambda f: -f[1][1]):
        print(f"  {n:6,} × {name} in {where}: {text}")
        print(f"           again: python benchmarks/fuzz.py --seed {args.seed} --case {kind} {i}")
    return 1 if failures else 0


if __name__ == "__main__": sys.exit(main())
