"""Is everything that is generated in step with the notebooks? `python tools/in_step.py` (or `make step`) says which file is not.

The sources are copied to a scratch folder, every generated module is thrown away there and made again, the notebooks are cleaned,
the README is rebuilt; then the two folders are compared byte by byte. Your own files are only read, whatever state they are in."""
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("nbs", "fairmedfm", "tools", "README.md", "settings.ini", "setup.py", "pyproject.toml", "_quarto.yml")
BY_HAND = ("__init__.py", "__main__.py")
SKIP = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "nbdev.yml", "sidebar.yml")


def copy(root, to):
    "The files that matter, from `root` to the folder `to`."
    for part in PARTS:
        if (root/part).is_dir(): shutil.copytree(root/part, to/part, symlinks=True, ignore=SKIP)
        elif (root/part).exists(): shutil.copy2(root/part, to/part)


def regenerate(root):
    "Throw away what notebooks export, then export, clean and rebuild the README, all in `root`."
    for module in (root/"fairmedfm").rglob("*.py"):
        if module.name not in BY_HAND: module.unlink()
    env = {k: v for k, v in os.environ.items() if k != "IN_TEST"} | {"PYTHONPATH": str(root)}
    for code in ("from nbdev.doclinks import nbdev_export as f; f.__wrapped__()", "from nbdev.clean import nbdev_clean as f; f.__wrapped__()"):
        done = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True)
        if done.returncode: raise SystemExit(f"export or clean failed:\n{done.stdout}{done.stderr}")
    done = subprocess.run([sys.executable, root/"tools/readme.py"], cwd=root, env=env, capture_output=True, text=True)
    if done.returncode: raise SystemExit(f"the README could not be built:\n{done.stdout}{done.stderr}")


def files(root):
    "Relative path -> bytes of what is compared."
    found = [p for part in ("nbs", "fairmedfm") for p in (root/part).rglob("*") if p.is_file()]
    found = [p for p in [*found, root/"README.md"] if p.exists() and not {"__pycache__", ".ipynb_checkpoints"} & set(p.parts)]
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in found if p.name not in ("nbdev.yml", "sidebar.yml") and p.suffix != ".pyc"}


def first_difference(old, new, lines=8):
    "A few lines of a unified diff."
    diff = difflib.unified_diff(*(b.decode("utf-8", "replace").splitlines() for b in (old, new)), "as it is", "as made from the notebooks", n=1, lineterm="")
    return "".join(f"\n    {line[:160]}" for line in list(diff)[:lines])


def check(root=ROOT):
    "One sentence for each file that is out of step; empty when all is well."
    root = Path(root)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch).resolve()
        copy(root, scratch)
        regenerate(scratch)
        have, want = files(root), files(scratch)
    problems = [f"{f}: no notebook exports it; delete it" for f in sorted(have.keys() - want.keys())]
    problems += [f"{f}: is missing; run make export" for f in sorted(want.keys() - have.keys())]
    for f in sorted(have.keys() & want.keys()):
        if have[f] == want[f]: continue
        what = "is not clean" if f.endswith(".ipynb") else "is out of step with nbs/index.ipynb" if f == "README.md" else "is not what the notebooks export"
        problems.append(f"{f}: {what}; run make export" + first_difference(have[f], want[f]))
    return problems


if __name__ == "__main__":
    problems = check(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    print("\n".join(problems) if problems else "modules, notebooks and README are in step")
    sys.exit(bool(problems))
