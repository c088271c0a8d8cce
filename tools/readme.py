"""README.md from nbs/index.ipynb: `python tools/readme.py` (or `make readme`). Needs nothing but Python.

Prose is taken over; a code cell becomes a fenced block with its stored output below it. GitHub and the package index show the
README away from the notebooks, so links to notebooks become links into the documentation, links to images their raw address."""
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTE = "<!-- Made from nbs/index.ipynb by tools/readme.py: edit the notebook, then run `make readme`. -->"


def addresses(root):
    "The repository and the documentation, as pyproject.toml names them."
    urls = dict(re.findall(r'^(\w+) = "(https://[^"]+)"$', (root/"pyproject.toml").read_text(encoding="utf-8"), re.M))
    return urls["Repository"].rstrip("/"), urls["Documentation"].rstrip("/")


def page(path):
    "`02_metrics.ipynb` is published as `metrics.html`."
    return str(Path(path).with_name(re.sub(r"^\d+[a-zA-Z0-9]*_", "", Path(path).name.lower())).with_suffix(".html").as_posix())


def absolute(text, root):
    "The relative links of a cell made absolute; a link to a file that is not there is an error."
    repo, docs = addresses(root)
    def one(m):
        bang, label, target = m.groups()
        file, hash, anchor = target.partition("#")
        if not file or re.match(r"[a-z]+:", file): return m[0]
        if not (root/"nbs"/file).exists(): raise SystemExit(f"nbs/index.ipynb links to {file}, which is not in nbs/")
        if file.endswith(".ipynb"): address = f"{docs}/{page(file)}"
        else: address = f"{repo.replace('https://github.com', 'https://raw.githubusercontent.com')}/main/nbs/{file}"
        return f"{bang}[{label}]({address}{hash}{anchor})"
    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", one, text)


def fenced(text, language=""):
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join([f"```{language}", *lines, "```"])


def shown(output):
    "A stored output as Markdown."
    if output["output_type"] == "stream": return fenced("".join(output["text"]), "text")
    data = output.get("data", {})
    if "text/markdown" in data: return "".join(data["text/markdown"]).strip()
    if "text/plain" in data and "image/png" not in data: return fenced("".join(data["text/plain"]), "text")
    raise SystemExit("nbs/index.ipynb holds an output that a README cannot show: keep the figure in nbs/images and link to it")


def cell_blocks(cell, root):
    "The Markdown blocks that a cell gives."
    lines = "".join(cell["source"]).splitlines()
    flags = {re.sub(r"\s+", " ", l[2:].strip()) for l in lines if l.startswith("#|")}
    source = "\n".join(l for l in lines if not l.startswith("#|")).strip()
    if flags & {"hide", "include: false"} or cell["cell_type"] == "raw": return []
    if cell["cell_type"] == "markdown": return [absolute(source, root)]
    language, source = ("bash", source.split("\n", 1)[1]) if re.match(r"%%(bash|sh)\b", source) else ("python", source)
    code = [] if flags & {"echo: false", "hide_input"} else [fenced(source, language)]
    return code + ([] if flags & {"output: false", "hide_output"} else [shown(o) for o in cell.get("outputs", [])])


def readme(root=ROOT):
    "The text of README.md; code cells that follow each other without an output become one block."
    blocks = [NOTE]
    for cell in json.loads((root/"nbs/index.ipynb").read_text(encoding="utf-8"))["cells"]:
        for block in cell_blocks(cell, root):
            if block.startswith("```python") and blocks[-1].startswith("```python"): blocks[-1] = blocks[-1][:-3] + block.replace("```python", "", 1)
            else: blocks.append(block)
    return "\n\n".join(b for b in blocks if b) + "\n"


if __name__ == "__main__":
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    (root/"README.md").write_bytes(readme(root).encode("utf-8"))
