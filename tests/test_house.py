"""The rules of the house: layers, light imports, documented names, clean notebooks, one version, and tools that find what is wrong."""
import ast
import configparser
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT/"tools"))
import docs  # noqa: E402
import in_step  # noqa: E402
import readme  # noqa: E402

import fairmedfm  # noqa: E402

NOTEBOOKS = [p for p in sorted((ROOT/"nbs").rglob("*.ipynb")) if not any(part[0] in "._" for part in p.relative_to(ROOT).parts)]
by_name = dict(argvalues=NOTEBOOKS, ids=[p.relative_to(ROOT/"nbs").as_posix() for p in NOTEBOOKS])


def source(cell): return "".join(cell["source"])
def directives(cell): return [l[2:].split() for l in source(cell).splitlines() if l.startswith("#|")]


@lru_cache(None)
def cells(notebook): return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def tree(cell):
    "The syntax of a code cell without its magics; nothing for a cell in another language."
    text = source(cell)
    if text.lstrip("#| \n").startswith("%%") or re.search(r"^%%", text, re.M): return ast.parse("")
    return ast.parse("\n".join("pass" if re.match(r"\s*[%!]", l) else l for l in text.splitlines()))


def code(notebook, exported):
    "The code cells that go into the module, or those that do not."
    flag = lambda c: any(d[0] in ("export", "exporti", "exports") for d in directives(c) if d)
    return [c for c in cells(notebook) if c["cell_type"] == "code" and flag(c) == exported]


def module_of(notebook):
    "`data.core` for a notebook with `#| default_exp data.core`."
    return next((d[1] for c in cells(notebook) for d in directives(c) if d and d[0] == "default_exp"), None)


def number(notebook):
    "The layer: the leading number of the file, or of its folder."
    found = [re.match(r"(\d+)", part) for part in reversed(notebook.relative_to(ROOT/"nbs").parts)]
    return next((int(m[1]) for m in found if m), None)


MODULES = {module_of(p): p for p in NOTEBOOKS if module_of(p)}


def imported(node):
    "The chapters a piece of code imports, however it does so; a name that belongs to none is given as it stands."
    def chapter(dotted):
        parts = dotted.split(".")[1:]
        prefixes = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
        return next((p for p in prefixes if p in MODULES), fairmedfm._HOME.get(dotted.split(".")[-1], ".".join(parts) or "as a whole"))
    for n in ast.walk(node):
        if isinstance(n, ast.Import): names = [a.name for a in n.names]
        elif isinstance(n, ast.ImportFrom):
            base = ".".join(filter(None, ["fairmedfm" if n.level else "", n.module]))
            names = [f"{base}.{a.name}" for a in n.names if a.name != "__version__"]
        elif isinstance(n, ast.Constant) and isinstance(n.value, str) and re.fullmatch(r"fairmedfm(\.\w+)+", n.value): names = [n.value]
        else: continue
        yield from (chapter(name) for name in names if name.split(".")[0] == "fairmedfm")


# -- layers ------------------------------------------------------------------------------------------------------------------------------

def too_high(notebook, layer):
    "Imports of a chapter that is not below `layer`."
    for cell in code(notebook, exported=True):
        for chapter in imported(tree(cell)):
            if chapter not in MODULES: yield f"imports fairmedfm.{chapter}, which no notebook exports"
            elif number(MODULES[chapter]) >= layer: yield f"imports {chapter} (layer {number(MODULES[chapter])})"


@pytest.mark.parametrize("notebook", **by_name)
def test_a_chapter_imports_only_smaller_numbers(notebook):
    if module_of(notebook) is None:
        assert not code(notebook, exported=True), "exports cells but names no module (#| default_exp)"
        return
    assert number(notebook) is not None, "a notebook that exports needs a number"
    assert not sorted(set(too_high(notebook, number(notebook))))


def test_the_layer_rule_can_fail():
    assert list(imported(ast.parse("def f():\n    from fairmedfm.core import InputError"))) == ["core"]
    assert list(imported(ast.parse("from .core import InputError"))) == ["core"]
    assert list(imported(ast.parse("from fairmedfm import InputError, core"))) == ["core", "core"]
    assert list(imported(ast.parse("import fairmedfm.core as c, numpy"))) == ["core"]
    assert list(imported(ast.parse("import fairmedfm"))) == ["as a whole"] and list(imported(ast.parse("from fairmedfm import __version__"))) == []
    assert list(imported(ast.parse("from fairmedfm.nothing import x"))) == ["nothing.x"]
    assert list(imported(ast.parse("import_module('fairmedfm.core')"))) == ["core"]
    assert list(too_high(MODULES["inputs"], 0)) and not list(too_high(MODULES["inputs"], 1))


def test_two_chapters_never_share_a_number_or_a_module():
    layers = [number(p) for p in MODULES.values()]
    assert len(layers) == len(set(layers)), sorted(layers)
    assert len(MODULES) == sum(module_of(p) is not None for p in NOTEBOOKS)


def top_imports(notebook):
    "Roots of what the module imports when it is imported itself, and of what its functions import later."
    now, later = set(), set()
    for cell in code(notebook, exported=True):
        t = tree(cell)
        outer = {n for top in t.body if isinstance(top, (ast.Import, ast.ImportFrom, ast.Try, ast.If, ast.With)) for n in ast.walk(top)}
        for n in ast.walk(t):
            names = [a.name for a in n.names] if isinstance(n, ast.Import) else [n.module or "fairmedfm"] if isinstance(n, ast.ImportFrom) else []
            (now if n in outer else later).update("fairmedfm" if getattr(n, "level", 0) else name.split(".")[0] for name in names)
            if isinstance(n, ast.Call) and getattr(n.func, "id", getattr(n.func, "attr", "")) in ("require", "import_module") and n.args and isinstance(n.args[0], ast.Constant):
                later.add(str(n.args[0].value).split(".")[0])
    return now, later


@pytest.mark.parametrize("notebook", [p for p in MODULES.values() if number(p) < 10], ids=lambda p: p.name)
def test_the_metrics_chapters_stay_light(notebook):
    now, later = top_imports(notebook)
    assert now <= {*sys.stdlib_module_names, "numpy", "pandas", "fairmedfm"}, "everything else is imported inside the function that needs it"
    assert not {"torch", "torchvision"} & later


# -- light imports -----------------------------------------------------------------------------------------------------------------------

def clean(program, *flags):
    "Run a program in a process of its own."
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}
    done = subprocess.run([sys.executable, *flags, "-c", program], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("module", ["fairmedfm", "fairmedfm.core", "fairmedfm.cli"])
def test_import_loads_nothing_heavy(module):
    heavy = ["numpy", "pandas", "sklearn", "scipy", "torch", "matplotlib", "pyarrow", "PIL"]
    out = clean(f"import sys, {module}; print(*[m for m in {heavy} if m in sys.modules])").stdout.split()
    assert out == []


def test_import_adds_at_most_20_ms():
    def milliseconds():
        "Of `import fairmedfm` itself, all it pulls in included."
        return int(re.search(r"\|\s*(\d+) \|\s*fairmedfm$", clean("import fairmedfm", "-X", "importtime").stderr, re.M)[1]) / 1000
    assert min(milliseconds() for _ in range(5)) <= 20


# -- names -------------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", fairmedfm.__all__)
def test_a_public_name_is_there_and_documented(name):
    value = getattr(fairmedfm, name)
    assert value.__module__ == f"fairmedfm.{fairmedfm._HOME[name]}"
    assert value.__doc__ and len(value.__doc__.split()) >= 5
    assert name in dir(fairmedfm)


def prose_before(chapter, name):
    "The words of the section in which `name` is defined, up to its definition."
    words = []
    for c in cells(chapter):
        text = source(c)
        if c["cell_type"] == "markdown":
            if re.match(r"#{1,3} ", text): words = []
            words += re.sub(r"^#+ .*$", "", text, flags=re.M).split()
        elif c in code(chapter, exported=True) and re.search(rf"^(?:(?:def|class) {name}\b|{name}\s*(?::[^=]+)?=)", text, re.M): return words
    pytest.fail(f"{chapter.name} does not define {name}")


@pytest.mark.parametrize("name", fairmedfm.__all__)
def test_a_public_name_is_explained_and_shown_in_its_chapter(name):
    chapter = MODULES[fairmedfm._HOME[name]]
    assert len(prose_before(chapter, name)) >= 8, f"{chapter.name} says nothing before it defines {name}"
    assert any(re.search(rf"(?<!\w){name}(?!\w)", source(c)) for c in code(chapter, exported=False)), f"{chapter.name} shows no example of {name}"


def test_public_names_are_unique_and_no_module_hides_behind_one():
    names = [n for names in fairmedfm._EXPORTS.values() for n in names]
    assert len(names) == len(set(names)) and not set(names) & {m.split(".")[0] for m in MODULES}


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="auc_gapp"): fairmedfm.auc_gapp
    with pytest.raises(ImportError): exec("from fairmedfm import auc_gapp")


@pytest.mark.parametrize("module", MODULES)
def test_every_exported_definition_has_a_docstring(module):
    body = ast.parse((ROOT/"fairmedfm"/(module.replace(".", "/") + ".py")).read_text(encoding="utf-8")).body
    public = [d for d in body if isinstance(d, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and not d.name.startswith("_")]
    assert [d.name for d in public if not ast.get_docstring(d)] == []


# -- notebooks ---------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("notebook", **by_name)
def test_a_notebook_is_clean_and_opens_with_its_reason(notebook):
    first, *rest = cells(notebook)
    assert first["cell_type"] == "markdown" and re.match(r"# .+\n\n> .+", source(first)), "the first cell is `# name`, a blank line, `> one sentence`"
    assert source(first).count("\n> ") == 1, "the sentence stays on one line: nbdev takes a second line for a documentation of the package"
    assert any(c["cell_type"] == "markdown" and not source(c).startswith("#") for c in rest[:2]), "why comes before what: open with two or three sentences"
    for c in cells(notebook):
        assert not c["metadata"], f"cell {c['id']} carries metadata"
        if c["cell_type"] != "code": continue
        assert c["execution_count"] is None and all(o.get("execution_count") is None for o in c["outputs"]), f"cell {c['id']} carries an execution count"
        assert not any(o["output_type"] == "error" for o in c["outputs"]), f"cell {c['id']} holds an error"


@pytest.mark.parametrize("notebook", **by_name)
def test_imports_stand_in_cells_of_their_own(notebook):
    "The documentation runs every cell that holds an import, and only those and the exported ones."
    is_import = lambda n: isinstance(n, (ast.Import, ast.ImportFrom))
    mixed = [source(c)[:200] for c in code(notebook, exported=False) if any(map(is_import, tree(c).body)) and not all(map(is_import, tree(c).body))]
    assert mixed == []


MACHINE = [r"(?<![\w.~])/(?:work|root|tmp|home|opt|Users|private|mnt|scratch)/\w", r"\b[A-Z]:\\\\?Users", r" at 0x[0-9a-f]{6,}", r"/var/folders/",
           r"\b(?:pypi|pythonhosted|npmjs|debian)\.(?:org|com)\b", r"\blocalhost:\d+", r"site-packages"]


@pytest.mark.parametrize("notebook", **by_name)
def test_a_notebook_names_no_machine(notebook):
    for c in cells(notebook):
        text = source(c) + "".join(json.dumps({k: v for k, v in o.get("data", o).items() if k != "image/png"}) for o in c.get("outputs", []))
        for pattern in MACHINE: assert not re.search(pattern, text), f"cell {c['id']}: {re.search(pattern, text)[0]}"


def test_a_machine_would_be_found():
    for text in ("saved to /tmp/x.csv", "<object at 0x7f1234567890>", "/home/me/fairness.json", "C:\\Users\\me"): assert any(re.search(p, text) for p in MACHINE)
    assert not any(re.search(p, "nbs/work/tmp_x and https://example.org/work/x") for p in MACHINE)


def test_no_file_names_the_machine_it_was_written_on():
    kinds = {".py", ".md", ".ini", ".toml", ".yml", ".sh", ".css", ".json", ""}
    folders = ["fairmedfm", "tests", "tools", "benchmarks", ".ci", ".github"]
    files = [p for p in [*ROOT.iterdir(), *(q for f in folders for q in (ROOT/f).rglob("*"))] if p.is_file() and p.suffix in kinds and p.name != "test_house.py"]
    wrong = re.compile(r"(?<![\w.~])/(?:work|root)/\w|/opt/(?:wheels|pypi)|pythonhosted|\bpypi\.org|registry\.npmjs|deb\.debian")
    assert {p.relative_to(ROOT).as_posix(): m[0] for p in files if (m := wrong.search(p.read_text(encoding="utf-8", errors="replace")))} == {}
    assert len(files) > 20


# -- packaging ---------------------------------------------------------------------------------------------------------------------------

def settings():
    parser = configparser.ConfigParser(delimiters=["="], interpolation=None)
    parser.read(ROOT/"settings.ini", encoding="utf-8")
    return parser["DEFAULT"]


def test_the_version_is_one_everywhere():
    from nbdev.config import get_config
    version = settings()["version"]
    assert fairmedfm.__version__ == importlib.metadata.version("fairmedfm") == get_config(ROOT).version == version
    assert re.search(rf"^## \[(Unreleased\] .*{re.escape(version)}|{re.escape(version)}\])", (ROOT/"CHANGELOG.md").read_text(encoding="utf-8"), re.M)


def test_pyproject_and_settings_agree():
    cfg, text = settings(), (ROOT/"pyproject.toml").read_text(encoding="utf-8")
    for line in (f'name = "{cfg["lib_name"]}"', f'description = "{cfg["description"]}"', f'requires-python = ">={cfg["min_python"]}"', f'license = "{cfg["license"]}"'):
        assert line in text


def test_extras_are_what_settings_say():
    have = {e.lower() for e in importlib.metadata.metadata("fairmedfm").get_all("Provides-Extra")}
    assert have == {"io", "plots", "cls", "seg", "all", "dev"}
    bare = [r for r in importlib.metadata.requires("fairmedfm") if "extra ==" not in r]
    assert sorted(re.split(r"\W", r)[0] for r in bare) == ["numpy", "pandas", "scikit"]


def test_the_wheel_takes_every_data_file_along():
    call = next(n for n in ast.walk(ast.parse((ROOT/"setup.py").read_text(encoding="utf-8"))) if isinstance(n, ast.keyword) and n.arg == "package_data")
    patterns = ast.literal_eval(call.value)
    data = [p.relative_to(ROOT/"fairmedfm") for p in (ROOT/"fairmedfm").rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")]
    taken = lambda p: any(p.match(pattern) for pattern in patterns[""]) or any(len(p.parts) == len(Path(pattern).parts) and p.match(pattern) for pattern in patterns["fairmedfm"])
    assert data and [str(p) for p in data if not taken(p)] == []


def test_extras_that_messages_name_exist():
    "`require(module, extra)` tells people to install fairmedfm[extra]; it has to be there."
    found = set()
    for module in MODULES:
        for n in ast.walk(ast.parse((ROOT/"fairmedfm"/(module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))):
            if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "require" and len(n.args) > 1 and isinstance(n.args[1], ast.Constant): found.add(n.args[1].value)
    assert found - {None} <= {"io", "plots", "cls", "seg", "all", "dev"}


# -- the tools find what they are for ----------------------------------------------------------------------------------------------------

def test_what_is_out_of_step_is_named(tmp_path):
    in_step.copy(ROOT, tmp_path)
    assert in_step.check(tmp_path) == in_step.check(ROOT)
    (tmp_path/"fairmedfm/stale.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path/"fairmedfm/core.py").write_text((tmp_path/"fairmedfm/core.py").read_text(encoding="utf-8").replace("limit:int=5", "limit:int=6"), encoding="utf-8")
    (tmp_path/"README.md").write_text("something else\n", encoding="utf-8")
    (tmp_path/"fairmedfm/_modidx.py").unlink()
    book = json.loads((tmp_path/"nbs/index.ipynb").read_text(encoding="utf-8"))
    next(c for c in book["cells"] if c["cell_type"] == "code")["execution_count"] = 7
    (tmp_path/"nbs/index.ipynb").write_text(json.dumps(book, indent=1), encoding="utf-8")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    said = "\n".join(in_step.check(tmp_path))
    for sentence in ("fairmedfm/stale.py: no notebook", "fairmedfm/core.py: is not what", "README.md: is out of step", "_modidx.py: is missing", "nbs/index.ipynb: is not clean"):
        assert sentence in said
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}, "checking changes nothing"


def test_a_broken_link_is_found(tmp_path):
    (tmp_path/"a.html").write_text('<h2 id="here">x</h2><a href="#here"></a><a href="b.html#there"></a><a href="https://d.org/p/b.html"></a><img src="no.png">'
                                   '<a href="#nowhere"></a><a href="c.html"></a><a href="https://d.org/p/b.html#nowhere"></a><a href="https://else.org/x"></a>'
                                   '<a href="https://git.org/r/blob/main/LICENSE#L3"></a><a href="https://git.org/r/blob/main/LICENCE"></a><a href="./"></a>', encoding="utf-8")
    (tmp_path/"b.html").write_text('<h2 id="there">x</h2><a href="../out.html"></a>', encoding="utf-8")
    bad, links, pages = docs.broken_links(tmp_path, "https://d.org/p", "https://git.org/r", ROOT)
    assert pages == 2 and links == 11
    assert [b.split(" ")[1] for b in bad] == ["#nowhere", "./", "c.html", "https://d.org/p/b.html#nowhere", "https://git.org/r/blob/main/LICENCE", "no.png", "../out.html"]


def test_the_readme_tool(tmp_path):
    (tmp_path/"nbs").mkdir()
    shutil.copy(ROOT/"pyproject.toml", tmp_path)
    cell = lambda kind, text, **more: {"cell_type": kind, "source": text, "metadata": {}, "id": "a", **more}
    out = lambda data: {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": None}
    book = [cell("markdown", "# x\n\n[m](02_m.ipynb#gap) ![f](f.png)"), cell("code", "#| hide\nsecret", outputs=[]), cell("code", "a = 1", outputs=[]),
            cell("code", "a", outputs=[out({"text/plain": ["1"], "text/html": ["<b>1</b>"]})]), cell("code", "%%bash\nls", outputs=[{"output_type": "stream", "name": "stdout", "text": ["f\n"]}])]
    (tmp_path/"nbs/index.ipynb").write_text(json.dumps({"cells": book}), encoding="utf-8")
    for f in ("02_m.ipynb", "f.png"): (tmp_path/"nbs"/f).touch()
    repo, base = readme.addresses(tmp_path)
    assert readme.readme(tmp_path).split("\n\n", 1)[1] == (
        f"# x\n\n[m]({base}/m.html#gap) ![f]({repo.replace('github.com', 'raw.githubusercontent.com')}/main/nbs/f.png)\n\n"
        "```python\na = 1\n\na\n```\n\n```text\n1\n```\n\n```bash\nls\n```\n\n```text\nf\n```\n")
    (tmp_path/"nbs/f.png").unlink()
    with pytest.raises(SystemExit, match="f.png"): readme.readme(tmp_path)
