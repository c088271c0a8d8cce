"""Messy tables: what no cell can show. Every malformed file is one line of InputError, and whatever is written reads back equal."""
import gzip
import io
import json
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairmedfm.core import FairnessWarning, InputError, MissingPackage, Notes
from fairmedfm.tables import (FORMATS, MISSING, WRITERS, find_columns, join_tables, open_table, read_table, resolve_paths, check_repeats,
                              write_table)

SHARED = Path(os.environ.get("FAIRMEDFM_SHARED_DATA", Path(__file__).parents[1].parent/"shared"/"data"))
needs_arrow = pytest.mark.skipif(not __import__("importlib").util.find_spec("pyarrow"), reason="pyarrow is not installed")
needs_excel = pytest.mark.skipif(not __import__("importlib").util.find_spec("openpyxl"), reason="openpyxl is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")
quick = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))

def make(tmp, name, content):
    path = tmp/name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path

def fails(f, *args, **kwargs) -> str:
    with pytest.raises(InputError) as e: f(*args, **kwargs)
    message = str(e.value)
    assert message and "\n" not in message
    return message

# ---------------------------------------------------------------- malformed files: one line that says what, where, and what to do
BAD = {
    "empty.csv": ("", "is empty"), "blank.csv": (" \n\n", "is empty"), "header.csv": ("id,sex\n", "a header but no rows"),
    "only_empty_rows.csv": ("id,sex\n,\n,\n", "a header but no rows"),
    "short.csv": ("id,sex,y\n1,F,0\n2,M\n3,F,1\n", "line 3: 2 fields where the header has 3"),
    "long.csv": ("id,sex,y\n1,F,0\n2,M,1,9\n", "line 3: 4 fields where the header has 3"),
    "compensated.csv": ("id,sex,y\n1,F\n2,M,1,9\n", "line 2: 2 fields where the header has 3"),
    "quoted_comma_short.csv": ('id,sex,y\n"1,5",F\n2,M,1\n', "line 2: 2 fields"), "cut.csv": ("id,sex,y\n1,F,0\n2,M", "line 3: 2 fields"),
    "open_quote.csv": ('id,sex\n1,"F\n2,M\n', "the quotes do not add up"),
    "stray_quote.csv": ('id,sex,y\n1,"F,0\n2,"M",1\n', "line 3: the quotes do not add up"),
    "twice.csv": ("id,sex,sex\n1,F,M\n", "2 columns called 'sex'"),
    "every_row_long.csv": ("id,name,y\n1,Smith, J,0\n2,Doe, A,1\n", "line 2: 4 fields where the header has 3"),
    "no_header.csv": ("7,0,0\n8,1,1\n", "lack a header line"),
    "nul.csv": (b"id,sex\n1,F\0\n", "binary data"), "png.csv": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary data"),
    "junk.csv": (bytes(range(1, 32)) * 9, "binary"),
    "xlsx.csv": (b"PK\x03\x04....", "holds Excel data"), "parquet.csv": (b"PAR1....", "holds Parquet data"),
    "a.pkl": ("x", "these can: .csv"),
    "a.csv.gz": (gzip.compress(b"id\n1\n" * 999, mtime=0)[:-9], "cannot be unpacked"),
    "plain.csv.gz": ("id\n1\n", "no .gz file although its name says so"),
    "a.csv.bz2": (b"BZh91AY&SY...", "cannot be unpacked"), "a.csv.xz": (b"\xfd7zXZ\x00...", "cannot be unpacked"),
    "a.zip": (b"PK\x03\x04...", "cannot be unpacked"),
    "a.json": ("[1, 2]", "record 1 is no object"), "text.json": ("hello", "line 1 is no JSON"),
    "deep.json": ("[" * 200_000, "nested too deeply"),
    "uneven.json": ('{"a": [1], "b": [1, 2]}', "not equally long"), "twice.json": ('[{"a": 1, "a": 2}]', "'a' occurs twice"),
    "digits.json": ('{"a": [' + "9" * 5000 + "]}", "cannot be read as JSON"),
    "lines.jsonl": ('{"a": 1}\n{"a": \n', "line 2 is no JSON object"),
    "nested.json": ('[{"a": 1, "b": [1]}]', "column 'b': it holds lists"), "scalar.json": ("3", "holds no table"),
    "nothing.json": ("[]", "no column with a name"),
    "unnamed.csv": ("Unnamed: 0,\n0,1\n", "no column with a name"),
}

@pytest.mark.parametrize("name", BAD)
def test_malformed_files_are_one_clear_line(tmp_path, name):
    content, says = BAD[name]
    path = make(tmp_path, name, content)
    message = fails(read_table, path)
    assert says in message and (str(path) in message or name in message)

@needs_arrow
@pytest.mark.parametrize("name", ["a.parquet", "a.feather"])
def test_damaged_arrow_files(tmp_path, name):
    pd.DataFrame({"a": range(500)}).pipe(lambda d: d.to_parquet(tmp_path/name) if "parquet" in name else d.to_feather(tmp_path/name))
    whole = (tmp_path/name).read_bytes()
    assert read_table(tmp_path/name).a.sum() == 500 * 499 // 2
    for content in (whole[:-20], whole[:100], b"x", whole[:len(whole)//2] + bytes(50)):
        assert "damaged or something else" in fails(read_table, make(tmp_path, name, content))

@needs_arrow
@pytest.mark.parametrize("wrong", [66, 2**31 - 1])
def test_arrow_files_with_offsets_that_lead_astray(tmp_path, wrong):
    "Reading text at a wrong offset is garbage or a dead process, which only another process can survive."
    pd.DataFrame({"sex": ["female", "man", "x?"], "s": [0.1, 0.2, 0.3]}).to_feather(tmp_path/"a.feather", compression="uncompressed")
    whole, hits = (tmp_path/"a.feather").read_bytes(), 0
    for width in (np.int32, np.int64):
        good, bad = (np.array(offsets, width).tobytes() for offsets in ([0, 6, 9, 11], [0, 6, wrong, 11]))
        hits, whole = hits + whole.count(good), whole.replace(good, bad)
    assert hits == 1, "the offsets of the only text column"
    path = make(tmp_path, "b.feather", whole)
    code = f"""from fairmedfm.tables import InputError, read_table
try: print(read_table({str(path)!r}, text="sex"))
except InputError as e: print("refused:", e)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("refused:") and "damaged" in done.stdout

@needs_excel
def test_damaged_and_empty_workbooks(tmp_path):
    pd.DataFrame({"a": [1]}).to_excel(tmp_path/"a.xlsx", index=False)
    whole = (tmp_path/"a.xlsx").read_bytes()
    for content in (whole[:-200], whole[:300], b"PK\x03\x04"): assert "damaged" in fails(read_table, make(tmp_path, "b.xlsx", content))
    pd.DataFrame().to_excel(tmp_path/"c.xlsx", index=False)
    assert "is empty" in fails(read_table, tmp_path/"c.xlsx")
    pd.DataFrame({"a": []}).to_excel(tmp_path/"d.xlsx", index=False)
    assert "a header but no rows" in fails(read_table, tmp_path/"d.xlsx")
    pd.DataFrame([["x", "x"], [1, 2]]).to_excel(tmp_path/"e.xlsx", index=False, header=False)
    assert "2 columns called 'x'" in fails(read_table, tmp_path/"e.xlsx")

def test_names_that_lead_nowhere(tmp_path):
    make(tmp_path, "predictions.csv", "a\n1\n")
    assert "did you mean 'predictions.csv'" in fails(read_table, tmp_path/"prediction.csv")
    assert "such as 'predictions.csv'" in fails(read_table, tmp_path)
    assert "does not exist" in fails(read_table, tmp_path/"no"/"a.csv")
    assert "web address" in fails(read_table, "https://x.org/a.csv")
    assert "cannot read" in fails(read_table, "a\0b.csv") and "cannot read" in fails(read_table, "a" * 5000 + ".csv")

def test_options_that_make_no_sense(tmp_path):
    path = make(tmp_path, "a.csv", "sex,y\nF,1\n")
    assert "one character" in fails(read_table, path, delimiter="::")
    assert "no text encoding" in fails(read_table, path, encoding="latin-l")
    assert "no text encoding" in fails(read_table, path, encoding="base64")
    assert "decimal sign" in fails(read_table, path, decimal=";")
    assert "did you mean 'sex'" in fails(read_table, path, text=["sexe"]) and "did you mean 'sex'" in fails(read_table, path,
        usecols=["Sex"])

def test_packages_that_are_missing_are_named(tmp_path, monkeypatch):
    for name, package in (("a.parquet", "pyarrow"), ("a.xlsx", "openpyxl"), ("a.xls", "xlrd")):
        monkeypatch.setitem(sys.modules, package, None)
        for m in [m for m in sys.modules if m.startswith(package + ".")]: monkeypatch.setitem(sys.modules, m, None)
        with pytest.raises(MissingPackage, match="pip install"): read_table(make(tmp_path, name, "x"))

# ---------------------------------------------------------------- what can be read is read right
SAME = {
    "bom": b"\xef\xbb\xbfid,sex,s\n01,F,0.5\n1,NA,0.25\n", "semicolon": "id;sex;s\n01;F;0,5\n1;NA;0,25\n",
    "tab": "id\tsex\ts\n01\tF\t0.5\n1\tNA\t0.25\n",
    "pipe": "id|sex|s\n01|F|0.5\n1|NA|0.25\n", "spaces": "id, sex, s\n01, F, 0.5\n1, NA , 0.25 \n", "cr": "id,sex,s\r01,F,0.5\r1,NA,0.25",
    "mixed": "id,sex,s\r\n01,F,0.5\n1,NA,0.25\r", "quoted": '"id","sex","s"\n"01","F","0.5"\n"1","NA","0.25"\n',
    "blank lines": "\n\nid,sex,s\n\n01,F,0.5\n   \n1,NA,0.25\n\n\n",
    "trailing rows": "id,sex,s\n01,F,0.5\n1,NA,0.25\n,,\n,,\n", "trailing comma": "id,sex,s,\n01,F,0.5,\n1,NA,0.25,\n",
    "extra comma": "id,sex,s\n01,F,0.5,\n1,NA,0.25,\n",
    "index": ",id,sex,s\n0,01,F,0.5\n1,1,NA,0.25\n", "named index": "Unnamed: 0,id,sex,s\n0,01,F,0.5\n5,1,NA,0.25\n",
    "percent": "id,sex,s\n01,F,50%\n1,NA,25 %\n",
    "utf-16": "id,sex,s\n01,F,0.5\n1,NA,0.25\n".encode("utf-16"), "sep": "sep=;\r\nid;sex;s\r\n01;F;0,5\r\n1;NA;0,25\r\n",
    "R": '"id" "sex" "s"\n"1" "01" "F" 0.5\n"2" "1" "NA" 0.25\n',
    "european percent": "id;sex;s\n01;F;50,0%\n1;NA;25,00 %\n", "percent exponent": "id,sex,s\n01,F,5e1%\n1,NA,2.5E+1%\n",
}

@pytest.mark.parametrize("kind", SAME)
def test_one_table_in_many_dresses(tmp_path, kind):
    frame = read_table(make(tmp_path, "a.csv", SAME[kind]), text=["id", "sex"])
    assert list(frame) == ["id", "sex", "s"] and frame.id.tolist() == ["01", "1"] and frame.sex.tolist() == ["F",
        "NA"] and frame.s.tolist() == [0.5, 0.25]

def test_conversions_are_said(tmp_path):
    says = {"a.csv": ("y,s\n1,45.3%\n", "divided by 100"), "b.csv": ("y;s\n1;0,5\n", "decimal commas"),
            "c.csv": ("y,s\n1,a \n", "spaces around 1 value"),
            "d.csv": ("y,s\n1,2\n,\n", "1 empty row"), "e.csv": ("y,s,\n1,2,x\n", "column 3 has no name"),
            "f.csv": ("y,s\n1,ä\n".encode("latin-1"), "not UTF-8"),
            "g.csv": ('y,s\n1,"1,234"\n', "thousands"), "h.csv": ("y,s\n1,50%\n1,0.5\n", "some have none"),
            "i.csv": ('y,s\n1,"0,5"\n1,0.5\n', "some a decimal comma")}
    for name, (content, said) in says.items():
        notes = Notes()
        with pytest.warns(FairnessWarning, match=said): read_table(make(tmp_path, name, content), notes=notes)
        assert len(notes) == 1 and said in notes[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_table(make(tmp_path, "quiet.csv", ",id,s,\n0,a,0.5,\n1,b,NA,\n"))

def test_text_stays_text_and_numbers_keep_their_missing_words(tmp_path):
    words = ["01", "1", "1.0", "NA", "None", "nan", "null", "True", "1e5", "inf", "-", "007", "99999999999999999999999"]
    path = make(tmp_path, "a.csv", "g,x\n" + "".join(f"{w},{m or '.'}\n" for w, m in zip(words + [""], MISSING)))
    frame = read_table(path, text="g")
    assert frame.g[:-1].tolist() == words and frame.g.isna().tolist() == [False] * len(words) + [True] and frame.x.isna().all()
    for odd in (["True", "False"], ["1", "2"], ["nan", "1"], ["True", ""], ["9" * 30, ""]):
        frame = read_table(make(tmp_path, "b.csv", "g,x\n" + "".join(f"{w},1\n" for w in odd)), text="g")
        assert frame.g.fillna("").tolist() == odd

def test_floats_are_those_that_were_written(tmp_path):
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.random(2000), rng.normal(size=2000) * 10.0 ** rng.integers(-300, 300, 2000)])
    path = make(tmp_path, "a.csv", "s\n" + "\n".join(map(repr, values.tolist())))
    assert (read_table(path).s.to_numpy() == values).all()
    path = make(tmp_path, "b.csv", "y;s\n" + "\n".join("1;" + repr(v).replace(".", ",") for v in values.tolist()))
    assert (read_table(path).s.to_numpy() == values).all()

def test_a_bad_byte_late_in_a_long_file(tmp_path):
    text = "id,name,s\n" + "".join(f"{i},Müller,{i}\n" for i in range(20_000))
    assert read_table(make(tmp_path, "a.csv", text), text="name").name.unique().tolist() == ["Müller"]
    notes = Notes()
    late = ("id,name,s\n" + "".join(f"{i},Muller,{i}\n" for i in range(20_000)) + "7,Gödel,1\n").encode("latin-1")
    assert read_table(make(tmp_path, "b.csv", late), text="name", notes=notes).name.iloc[-1] == "Gödel"
    assert "line 20002 is not UTF-8" in notes[0]
    assert "line 20002 cannot be read" in fails(read_table, tmp_path/"b.csv", encoding="utf-8")
    assert "line 20003: 2 fields" in fails(read_table, make(tmp_path, "c.csv", late + b"8,x\n"))

def test_long_columns_are_understood_as_a_whole(tmp_path):
    "pandas reads long files in pieces and guesses a type for each; what a piece looks like must not matter."
    n = 150_000
    columns = {"number": ["1"] * n, "late_word": ["1"] * (n - 1) + ["x"], "late_float": ["1"] * (n - 1) + ["0.5"],
               "late_truth": ["True"] * (n - 1) + ["x"],
               "group": ["01"] * (n - 1) + ["a"], "early_gap": [""] * (n - 1) + ["F"], "code": ["007"] * n, "late_percent": ["1%"] * n}
    path = make(tmp_path, "a.csv", ",".join(columns) + "\n" + "\n".join(map(",".join, zip(*columns.values()))) + "\n")
    frame = read_table(path, text=["group", "early_gap", "code"])
    for name in ("late_word", "late_truth", "group", "code"): assert frame[name].tolist() == columns[name]
    assert frame.early_gap.isna().sum() == n - 1 and frame.early_gap.iloc[-1] == "F"
    assert frame.number.dtype.kind == "i" and frame.late_float.sum() == n - 0.5 and (frame.late_percent == 0.01).all()

def test_a_very_wide_header(tmp_path):
    names = [f"feature_{i:05d}" for i in range(9000)]
    frame = read_table(make(tmp_path, "a.csv", ",".join(names) + "\n" + ",".join("1" * 9000) + "\n"), usecols=[names[8999], names[3]])
    assert list(frame) == [names[8999], names[3]]

def test_order_of_columns_is_the_one_asked_for(tmp_path):
    path = make(tmp_path, "a.csv", "a,b,c\n1,2,3\n")
    assert list(read_table(path, usecols=["c", "a", "c"])) == ["c", "a"] and list(read_table(path, usecols="b")) == ["b"]

def test_commas_that_need_a_word(tmp_path):
    path = make(tmp_path, "a.tsv", "y\ts\n1\t1,234\n")
    assert read_table(path).s.tolist() == ["1,234"] and read_table(path, decimal=",").s.tolist() == [1.234] and read_table(path,
        decimal=".").s.tolist() == ["1,234"]

def test_the_quick_way_and_the_careful_way_agree(tmp_path):
    "Decimal commas that pandas reads again give what reading word by word gives, notes included."
    content = "y;a;b;c;d;e\n1;0,5;1;0,5;1,5%;0,5\n2;1e-3;NA;0.5;2,5%;x\n3;;2,25;1;3%;1\n4; 7,0 ;.;2;4%;2\n"
    notes = Notes()
    frame = read_table(make(tmp_path, "a.csv", content), notes=notes)
    assert frame.a.fillna(-1).tolist() == [0.5, 0.001, -1, 7] and frame.b.fillna(-1).tolist() == [1, -1, 2.25, -1]
    assert frame.c.tolist() == ["0,5", "0.5", "1", "2"] and frame.d.tolist() == [0.015, 0.025, 0.03, 0.04] and frame.e.tolist() == ["0,5", "x", "1", "2"]
    assert [n.split(": ", 1)[1] for n in notes] == ["decimal commas such as '0,5' read as decimal points", "decimal commas such as '2,25' read as decimal points",
        "some values have a decimal point and some a decimal comma", "decimal commas such as '1,5%' read as decimal points", "percentages such as '1,5%' divided by 100"]
    assert read_table(tmp_path/"a.csv", decimal=".").a.tolist()[0] == "0,5"

@needs_excel
def test_workbooks(tmp_path):
    with pd.ExcelWriter(tmp_path/"a.xlsx") as book:
        pd.DataFrame({"id": ["007", 7], "n": [1, None], "s": ["0.5", "NA"], "when": [pd.Timestamp("2026-01-02")] * 2}).to_excel(book,
            sheet_name="one", startrow=2)
        pd.DataFrame({"x": [3]}).to_excel(book, sheet_name="two", index=False)
    notes = Notes()
    frame = read_table(tmp_path/"a.xlsx", text=["id", "n", "when"], notes=notes)
    assert frame.id.tolist() == ["007", "7"] and frame.n.fillna("").tolist() == ["1", ""] and frame.s.fillna(-1).tolist() == [0.5, -1]
    assert frame.when.tolist() == ["2026-01-02"] * 2 and "sheet 'one' was read" in notes[0]
    assert read_table(tmp_path/"a.xlsx", sheet="two").x.tolist() == read_table(tmp_path/"a.xlsx", sheet="1").x.tolist() == [3]

@needs_arrow
def test_arrow_files_keep_ids_and_indexes(tmp_path):
    frame = pd.DataFrame({"k": pd.array([1, None], dtype="Int64"), "c": pd.Categorical(["x", None]), "s": [0.5, None],
                          "big": [2**60 + 1, 1]}, index=pd.Index(["a", "b"], name="id"))
    frame.to_parquet(tmp_path/"a.parquet")
    got = read_table(tmp_path/"a.parquet", text=["id", "k", "c"])
    assert got.id.tolist() == ["a", "b"] and got.k.fillna("").tolist() == ["1", ""] and got.c.fillna("").tolist() == ["x",
        ""] and got.big[0] == 2**60 + 1
    frame.reset_index(drop=True)[lambda d: d.index >= 0].iloc[::-1].to_parquet(tmp_path/"b.parquet")
    assert "__index_level_0__" not in open_table(tmp_path/"b.parquet").columns
    pd.DataFrame({"a.b": [1], "l": [[1, 2]]}).to_parquet(tmp_path/"c.parquet")
    assert read_table(tmp_path/"c.parquet", usecols="a.b")["a.b"].tolist() == [1]
    assert "column 'l': it holds lists" in fails(read_table, tmp_path/"c.parquet")

@pytest.mark.parametrize("orient", ["records", "columns", "split", "table", "index"])
def test_json_orients(tmp_path, orient):
    frame = pd.DataFrame({"id": ["01", "1"], "s": [0.5, None]})
    frame.to_json(tmp_path/"a.json", orient=orient)
    got = read_table(tmp_path/"a.json", text="id", usecols=["id", "s"])
    assert got.id.tolist() == ["01", "1"] and got.s[0] == 0.5 and np.isnan(got.s[1])

def test_json_lines_by_any_name(tmp_path):
    lines = '{"id": "01", "s": 0.5}\n{"s": 1, "id": 1, "more": true}\n'
    for name in ("a.json", "a.jsonl", "a.ndjson.gz"):
        got = read_table(make(tmp_path, name, gzip.compress(lines.encode()) if name.endswith("gz") else lines), text="id")
        assert got.id.tolist() == ["01", "1"] and got.s.tolist() == [0.5, 1.0]

def test_archives(tmp_path):
    with zipfile.ZipFile(tmp_path/"a.zip", "w") as z: z.writestr("inner/scores.tsv", "id\ts\n1\t2\n"); z.writestr("__MACOSX/x", "x")
    assert read_table(tmp_path/"a.zip").s.tolist() == [2]
    with zipfile.ZipFile(tmp_path/"b.zip", "w") as z: z.writestr("a.csv", "x"); z.writestr("b.csv", "y")
    assert "holds 2 files" in fails(read_table, tmp_path/"b.zip")

@pytest.mark.parametrize("content", [b"id,s\n01,0.5\n", gzip.compress(b"id;s\n01;0,5\n", mtime=0), b'[{"id": "01", "s": 0.5}]',
                                     b'{"id": "01", "s": 0.5}\n', "id\ts\n01\t0.5".encode("utf-16")])
def test_standard_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert read_table("-", text="id").values.tolist() == [["01", 0.5]]

@pytest.mark.skipif(os.name == "nt", reason="named pipes")
def test_a_named_pipe(tmp_path):
    os.mkfifo(tmp_path/"pipe")
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(tmp_path/'pipe')!r}, 'w').write('id,s\\n01,0.5\\n')"])
    assert read_table(tmp_path/"pipe", text="id").id.tolist() == ["01"] and writer.wait() == 0

def test_light_imports(tmp_path):
    path = make(tmp_path, "a.csv", "id,y_true,y_score,sex\n" + "".join(f"{i},{i % 2},0.{i},F\n" for i in range(1, 400)))
    heavy = ["sklearn", "scipy", "torch", "matplotlib", "openpyxl", "pyarrow.parquet", "pyarrow.csv"]
    code = f"import sys, fairmedfm.tables as t; t.read_table({str(path)!r}, text='sex'); print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"

# ---------------------------------------------------------------- properties
letters = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp", "Cf"))
latin = st.characters(codec="cp1252", exclude_categories=("Cc", "Zs", "Cf"))
word = lambda alphabet: st.text(st.one_of(alphabet, st.sampled_from(',;|"\' .%\n\r\t')), min_size=1, max_size=6).map(str.strip).filter(bool)
number = st.floats(allow_nan=False, allow_infinity=False)

def frames(alphabet):
    row = st.tuples(st.one_of(st.none(), word(alphabet), st.sampled_from(["01", "1", "NA", "1.0", "True"])), st.one_of(st.none(), number),
                    st.integers(-2**53, 2**53), st.just("end"))
    return st.lists(row, min_size=1, max_size=12).map(lambda rows: pd.DataFrame(rows, columns=["group", "score", "n", "last"]))

def alike(got, frame):
    assert list(got) == list(frame) and len(got) == len(frame)
    assert [None if v != v or v is None else v for v in got.group] == [None if v is None or v != v else v for v in frame.group]
    a, b = got.score.astype(float).to_numpy(), frame.score.astype(float).to_numpy()
    assert ((a == b) | np.isnan(a) & np.isnan(b)).all() and got.n.tolist() == frame.n.tolist()

@quick
@given(data=st.data(), delimiter=st.sampled_from(",;\t|"), code=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
       end=st.sampled_from(["\n", "\r\n"]),
       index=st.booleans(), order=st.permutations(["group", "score", "n", "last"]), packed=st.booleans())
def test_any_delimited_text_reads_back(tmp_path_factory, data, delimiter, code, end, index, order, packed):
    frame = data.draw(frames(latin if code == "cp1252" else letters))[order]
    text = frame.to_csv(None, sep=delimiter, index=index, lineterminator=end, quoting=1)
    path = make(tmp_path_factory.mktemp("t"), "a.csv" + ".gz" * packed, gzip.compress(text.encode(code)) if packed else text.encode(code))
    alike(read_table(path, text=["group", "last"], encoding=code if code == "cp1252" else None), frame)
    alike(read_table(path, text=["group", "last"], encoding=code if code == "cp1252" else None, usecols=["score", "group", "n"]),
          frame[["score", "group", "n"]])

@quick
@given(frame=frames(letters), ending=st.sampled_from([".csv", ".tsv", ".json", ".jsonl", ".parquet"]))
def test_what_is_written_reads_back(tmp_path_factory, frame, ending):
    if ending == ".parquet": pytest.importorskip("pyarrow")
    path = write_table(frame, tmp_path_factory.mktemp("t")/("a" + ending))
    alike(read_table(path, text=["group", "last"]), frame)

@needs_excel
@pytest.mark.filterwarnings("ignore:overflow")
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(frame=frames(st.characters(codec="utf-8", exclude_categories=("C", "Z"))))
def test_workbooks_read_back(tmp_path_factory, frame):
    frame = frame.assign(group=[g.replace("\r", "").strip() or None if isinstance(g, str) else None for g in frame.group],
                         score=frame.score.astype(float).round(6).clip(-1e9, 1e9), n=frame.n // 2**20)   # Excel keeps 15 digits
    alike(read_table(write_table(frame, tmp_path_factory.mktemp("t")/"a.xlsx"), text=["group", "last"]), frame)

@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.one_of(st.binary(max_size=300), st.text('ab1,;\t|"\r\n .%{}[]:-\x00é', max_size=120).map(str.encode)),
       ending=st.sampled_from([e for f in FORMATS for e in f.endings if e not in (".xls", ".xlsm")] + [".csv.gz", ".zip", ""]),
       magic=st.sampled_from([b"", b"", b"PAR1", b"ARROW1\0\0", b"PK\x03\x04", b"\xff\xfe", b"\xef\xbb\xbf", b"sep=;\n", b"[{",
                              b"\x1f\x8b"]))
def test_random_bytes_never_raise_anything_else(tmp_path_factory, content, ending, magic):
    path = make(tmp_path_factory.getbasetemp(), "fuzz" + ending, magic + content)
    try: table = open_table(path)
    except InputError as e: assert str(e) and "\n" not in str(e); return
    for text in ((), table.columns):
        try: frame = table.read(text=text)
        except InputError as e: assert "\n" not in str(e); continue
        assert len(frame) > 0 and list(frame) == list(table.columns)

@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(st.lists(st.sampled_from(["1", "0.5", "F", "", '"a,b"', '"x"', '"a\nb"', ' "q"', '"']), min_size=1, max_size=5),
                     min_size=1, max_size=6))
def test_no_row_is_lost_or_shifted(tmp_path_factory, rows):
    "Whatever the quotes: a table that is read has the rows and fields that Python's strict reader sees."
    import csv
    text = "a,b,c\n" + "\n".join(map(",".join, rows)) + "\n"
    path = make(tmp_path_factory.getbasetemp(), "rows.csv", text)
    try: got = read_table(path, text=["a", "b", "c"], usecols=["a", "b"])
    except InputError: return
    want = [r for r in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True) if len(r) > 1][1:]
    while not "".join(want[-1]).strip(): want.pop()
    assert all(len(r) >= 3 and not "".join(r[3:]).strip() for r in want)
    assert got.fillna("").values.tolist() == [[c.strip() for c in r[:2]] for r in want]

# ---------------------------------------------------------------- columns
def test_names_that_people_use():
    labels = "label labels y_true target targets truth gt ground_truth groundtruth y true_label Label Y-True diagnosis class outcome"
    for name in labels.split():
        assert find_columns([name, "score", "sex"]).need("label", "score").label == name
    scores = ("score scores y_score prob probs probability pred_prob y_prob proba logit logits pred prediction predictions output y_pred p "
              "Probability score_x prob_malignant")
    for name in scores.split():
        roles = find_columns(["label", name, "sex"]).need("label", "score")
        assert roles.score == name and roles.score_type == ("logit" if "logit" in name else None)
    attributes = ("sex gender age age_group race ethnicity language site hospital scanner skin_tone skin_type fitzpatrick insurance "
                  "PatientSex patient_age")
    for name in attributes.split():
        assert find_columns(["label", "score", name]).sensitive == (name,)
    for prefix in "prob_ prob p p_ logit_ score_ pred_ probability_ y_score_ proba_ output_ pred_prob_ y_prob_ softmax_".split():
        roles = find_columns(["label", *(f"{prefix}{i}" for i in range(11)), "sex"])
        assert roles.tasks == ("classes",) and roles.class_column(1) == prefix + "1" and roles.class_column("10") == prefix + "10"
    for name in "dice DSC dice_score".split(): assert find_columns([name, "sex"]).tasks == ("dice",)
    for pair in (("pred_mask", "gt_mask"), ("pred_path", "gt_path"), ("pred_mask", "mask"), ("prediction_mask", "true_mask"),
                 ("mask_pred", "truth_path")):
        assert find_columns([*pair, "sex"]).tasks == ("masks",)

def test_ambiguous_columns_are_a_question():
    for columns, role in ((["label", "target", "score"], "label"), (["label", "score", "prob"], "score"),
                          (["label_a", "label_b", "score"], "label"), (["label", "score_a", "logit_b"], "score")):
        message = fails(find_columns(columns).need, role)
        assert f"--{role}" in message and all(repr(c) in message for c in columns if role in c)
    assert find_columns(["label", "logit", "prob"]).unused == ("logit",) and find_columns(["label", "prob", "pred"]).score == "prob"
    assert "lack a header line" in fails(find_columns(["1", "0", "0.37", "F"]).need, "label")
    assert "there is no column 'lable'" in fails(find_columns, ["label"], label="lable") and "no role" in fails(find_columns, ["label"],
        mask_pred="label")
    assert "called after the class" in fails(find_columns(["label", "prob_1", "prob_10"]).class_column, 0)

@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared data")
def test_shared_tables():
    nih = open_table(SHARED/"nih_scores"/"scores.csv")
    roles = find_columns(nih)
    assert roles.tasks == ("findings",) and len(roles.findings) == 14 and roles.unused == ("label_no_finding",)
    assert roles.id == "image_id" and roles.patient == "patient_id" and roles.sensitive == ("sex", "age")
    assert all((label, score) == (f"label_{name}", f"score_{name}") for name, (label, score) in roles.findings.items())
    assert find_columns(nih, label="label_hernia").score == "score_hernia"
    frame = nih.read(text=["image_id", "sex"], usecols=["image_id", "sex", "score_hernia"])
    assert len(frame) == 22433 and set(frame.sex) == {"F", "M"} and frame.image_id[0] == "00000010_000.png"
    support = find_columns(open_table(SHARED/"support2"/"scores.csv"))
    assert "--label" in fails(support.need, "label") and support.sensitive == ("sex", "age", "race")
    lungs = open_table(SHARED/"lung_seg"/"metadata.csv")
    roles, frame = find_columns(lungs), lungs.read(text="patient_id")
    assert (roles.image, roles.mask, roles.patient) == ("image_path", "mask_path", "patient_id") and len(frame) == 77
    assert len(resolve_paths(frame.mask_path, SHARED/"lung_seg")) == 77
    isic = find_columns(open_table(SHARED/"isic2017"/"metadata.csv"))
    assert (isic.label, isic.split, isic.image, isic.id) == ("label_melanoma", "split", "image_path", "image_id")

# ---------------------------------------------------------------- joining
def test_join_keeps_rows_and_says_what_is_lost():
    left = pd.DataFrame({"image_id": ["a", "b", "c", None], "score": [1, 2, 3, 4]})
    right = pd.DataFrame({"Image ID": ["c", "a", "z", None], "sex": ["F", "M", "M", "F"]})
    notes = Notes()
    out = join_tables(left, right, notes=notes)
    assert list(out) == ["image_id", "score", "sex"] and out.sex.fillna("-").tolist() == ["M", "-", "F",
        "-"] and out.score.tolist() == [1, 2, 3, 4]
    assert notes == ["2 predictions of 4 without a row in the metadata (image_id 'b'); their attributes are unknown"]

@pytest.mark.parametrize("left, right, why", [(["007"], ["7"], "leading zeros"), (["A.PNG"], ["a.png"], "capital letters"),
                                              (["x/a.png"], ["a.png"], "the folder"), (["a.png"], ["a"], "the file ending"),
                                              (["x\\a.png"], ["a"], "the folder and the file ending"), (["7.0"], ["7"], "'.0'"),
                                              (["a-1"], ["a_1"], "separators"), (["a"], ["b"], "for instance")])
def test_join_says_why_nothing_matches(left, right, why):
    assert why in fails(join_tables, pd.DataFrame({"id": left}), pd.DataFrame({"id": right, "sex": "F"}))

def test_join_compares_keys_as_text():
    for ours, theirs in (([7, 8], [8.0, 7.0]), (["7", "8"], [8, 7]), ([7.0, np.nan], ["8", "7"]), ([" 7", "8"], ["8 ", "7"])):
        out = join_tables(pd.DataFrame({"id": ours}), pd.DataFrame({"id": theirs, "sex": ["M", "F"]}))
        assert out.sex[0] == "F"

def test_join_refuses_what_nobody_can_know():
    left = pd.DataFrame({"image_id": ["a", "b"], "patient_id": [1, 1], "sex": ["F", "F"]})
    assert "2 different rows for image_id 'a'" in fails(join_tables, left[["image_id"]],
                                                        pd.DataFrame({"image_id": ["a", "a"], "sex": ["F", "M"]}))
    assert "choose the key with --on" in fails(join_tables, left, pd.DataFrame({"image_id": ["a"], "patient_id": [1]}))
    assert "'sex' says 'F' in the predictions and 'M'" in fails(join_tables, left, pd.DataFrame({"patient_id": [1], "sex": ["M"]}))
    assert "occurs 2 times" in fails(join_tables, pd.DataFrame({"image_id": ["a", "a"]}), pd.DataFrame({"image_id": ["a"], "sex": ["F"]}))
    same = join_tables(left, pd.DataFrame({"patient_id": ["1", "1"], "sex": ["F", "F"], "race": ["x", "x"]}))
    assert list(same) == ["image_id", "patient_id", "sex", "race"] and same.race.tolist() == ["x", "x"]
    assert join_tables(left, pd.DataFrame({"file": ["b", "a"], "site": [1, 2]}), on="image_id=file").site.tolist() == [2, 1]
    assert join_tables(left.assign(age=[61, 61]), pd.DataFrame({"patient_id": [1], "age": ["61.0"]})).age.tolist() == [61, 61]

@quick
@given(st.lists(st.integers(0, 30), min_size=1, max_size=40, unique=True), st.lists(st.integers(0, 30), min_size=1, max_size=40))
def test_join_is_a_left_join(have, want):
    left, right = pd.DataFrame({"patient_id": want, "row": range(len(want))}), pd.DataFrame({"patient_id": have,
        "v": [10 * h for h in have]})
    if not set(have) & set(want): assert fails(join_tables, left, right); return
    out = join_tables(left, right)
    assert out.row.tolist() == left.row.tolist() and [None if v != v else v for v in out.v] == [10 * w if w in have else None for w in want]

def test_repeats():
    check_repeats(pd.DataFrame({"image_id": ["a", "b", None, None]}), "image_id")
    assert "image_id 'a' occurs 2 times" in fails(check_repeats, pd.DataFrame({"image_id": ["a", "b", "a"], "s": [1, 2, 3]}), "image_id")
    notes = Notes()
    check_repeats(pd.DataFrame({"patient_id": ["a", "b", "a"], "s": [1, 2, 3]}), "patient_id", notes=notes)
    assert not notes

# ---------------------------------------------------------------- writing and paths
def test_writing(tmp_path):
    frame = pd.DataFrame({"group": ["=1+1", "a|b", None], "x": [0.1, np.nan, np.inf], "n": np.array([1, 2, 3])})
    for ending in WRITERS:
        if ending == ".parquet": pytest.importorskip("pyarrow")
        if ending == ".xlsx": pytest.importorskip("openpyxl")
        path = write_table(frame, tmp_path/("a" + ending))
        if ending == ".md": assert path.read_text().splitlines()[3] == "| a\\|b |  | 2 |"; continue
        got = read_table(path, text="group")
        assert got.group.fillna("").tolist() == ["=1+1", "a|b", ""] and got.x.fillna(-1).tolist() == [0.1, -1,
            np.inf] and got.n.tolist() == [1, 2, 3]
    assert not [w for v in json.loads((tmp_path/"a.json").read_text(), parse_constant=lambda c: pytest.fail(c)) for w in v if w is np.nan]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted("a" + e for e in WRITERS)
    (tmp_path/"folder.csv").mkdir()
    assert "cannot be written; these can" in fails(write_table, frame, tmp_path/"a.html")
    assert "is a folder" in fails(write_table, frame, tmp_path/"folder.csv")
    assert "does not exist" in fails(write_table, frame, tmp_path/"no"/"a.csv")

def test_a_failed_write_leaves_the_old_file(tmp_path):
    write_table(pd.DataFrame({"a": [1]}), tmp_path/"a.json")
    assert "it holds lists" in fails(write_table, pd.DataFrame({"a": [[1]]}), tmp_path/"a.json")
    assert json.loads((tmp_path/"a.json").read_text()) == [{"a": 1}] and len(list(tmp_path.iterdir())) == 1

def test_paths_stay_inside(tmp_path):
    for sub in ("t/masks", "t2"): (tmp_path/sub).mkdir(parents=True)
    for name in ("t/masks/a.png", "t2/b.png"): (tmp_path/name).write_bytes(b"")
    root = tmp_path/"t"
    assert resolve_paths(["masks/a.png", "./masks/../masks/a.png", str(root/"masks/a.png"), "masks\\a.png"],
                         root) == [root/"masks/a.png"] * 4
    for bad in ("../t2/b.png", str(tmp_path/"t2/b.png"), "masks/../../t2/b.png", "..", ".", "C:\\a.png", "a\0b", "file:///etc/passwd", "",
                None, float("nan"), "masks/b.png"):
        assert fails(resolve_paths, ["masks/a.png", bad], root).startswith("path, row 2: ")
    assert resolve_paths(["../t2/b.png", str(tmp_path/"t2/b.png")], root, allow_outside=True) == [tmp_path/"t2/b.png"] * 2
    assert "2 of 3 are missing" in fails(resolve_paths, ["masks/a.png", "x.png", "y.png"], root, column="true_mask")

@quick
@given(st.lists(st.sampled_from(["..", ".", "a", "b", "/", "\\", "~", "//", "a/b", "C:"]), min_size=1, max_size=6).map("/".join))
def test_no_path_leads_out(text):
    try: path, = resolve_paths([text], "/data/table", must_exist=False)
    except InputError: return
    assert str(path).startswith("/data/table" + os.sep) and ".." not in path.parts
