"""Build every page of the documentation without Quarto and check every link: `python tools/docs.py` (or `make docs`).

nbdev stages the notebooks in _proc/ (exported cells run there, `show_doc` tables are made), smalldocs renders them to _docs/. The published
site is made by Quarto from the same files (.github/workflows/docs.yml); this build shows that each page builds and each link resolves."""
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urljoin, urlsplit

ROOT = Path(__file__).resolve().parents[1]
HERE = "http://site.invalid/"  # stands for the folder of the built site
sys.path.insert(0, str(Path(__file__).resolve().parent))
import readme  # noqa: E402


def stage(root):
    "Let nbdev process the notebooks into _proc/."
    from nbdev.quarto import nbdev_sidebar, refresh_quarto_yml
    from nbdev.serve import proc_nbs
    refresh_quarto_yml()
    nbdev_sidebar.__wrapped__()
    return Path(proc_nbs(n_workers=2))


def named(staged):
    "A copy in which `02_metrics.ipynb` is `metrics.ipynb`, the name under which Quarto publishes it (`output-file`)."
    out = staged/".named"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(staged, out, ignore=shutil.ignore_patterns(".*", "_docs"))
    new = {nb: nb.with_name(readme.page(nb.name)).with_suffix(".ipynb") for nb in out.rglob("*.ipynb")}
    for nb, to in new.items():
        def link(m):
            target = new.get((nb.parent/m[1]).resolve())
            return f"]({Path(m[1]).with_name(target.name).as_posix()}" if target else m[0]
        book = json.loads(nb.read_text(encoding="utf-8"))
        for cell in book["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown": cell["source"] = re.sub(r"\]\(([^)#\s]+\.ipynb)", link, source)
            if cell["cell_type"] == "raw": cell["source"] = re.sub(r"^output-file: .*\n", "", source, flags=re.M)
        nb.unlink()
        to.write_text(json.dumps(book), encoding="utf-8")
    text = (out/"sidebar.yml").read_text(encoding="utf-8")
    (out/"sidebar.yml").write_text(re.sub(r"[\w./-]+\.ipynb", lambda m: Path(m[0]).with_name(new[(out/m[0]).resolve()].name).as_posix(), text), encoding="utf-8")
    return out


def render(source, site):
    "Run smalldocs over `source`; its pages end up in `site`."
    done = subprocess.run([Path(sys.executable).with_name("smalldocs"), "render", "--quiet", source], capture_output=True, text=True)
    expected = ("unknown key format-links", "html-math-method is ignored", "keep-md is ignored", "format commonmark is not built", "html.grid is ignored")  # Quarto's own, of no matter here
    warnings = [w for w in done.stderr.splitlines() if w.strip() and not any(e in w for e in expected)]
    if done.returncode: raise SystemExit(f"the documentation does not build:\n{done.stdout}{done.stderr}")
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(source/"_docs", site)
    return warnings


class Page(HTMLParser):
    "What a page offers (`ids`) and what it asks for (`links`)."
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)
    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[k] for k in ("id", "name") if attrs.get(k)}
        self.links += [attrs[k] for k in ("href", "src") if attrs.get(k)]


def broken_links(site, base="", repo="", root=ROOT):
    "One sentence for each link that leads nowhere: within the site (also by its full address `base`), or to a file of the repository."
    pages = {p.relative_to(site).as_posix(): Page(p.read_text(encoding="utf-8")) for p in sorted(Path(site).rglob("*.html"))}
    bad, seen = [], 0
    for name, page in pages.items():
        for link in page.links:
            url = urlsplit(urljoin(HERE + name, link))
            full = link.split("#")[0].rstrip("/")
            if base and (full == base or link.startswith(base + "/")): url = urlsplit(HERE + link[len(base):].lstrip("/"))
            source = re.match(re.escape(repo) + r"/(?:blob|tree|raw)/main/([^#?]+)(?:#L(\d+))?", link) if repo else None
            if source and root:
                seen += 1
                file = Path(root)/unquote(source[1])
                if not file.exists(): bad.append(f"{name}: {link} is not a file of the repository")
                elif source[2] and int(source[2]) > len(file.read_text(encoding="utf-8").splitlines()): bad.append(f"{name}: {link} has no such line")
            if url.netloc != urlsplit(HERE).netloc: continue
            seen += 1
            path = str(PurePosixPath(unquote(url.path).lstrip("/") or "."))
            target = Path(site)/path
            if target.is_dir(): path, target = str(PurePosixPath(path)/"index.html"), target/"index.html"
            if not target.exists() and path.endswith(".html.md"): path, target = path[:-3], target.with_suffix("")  # Quarto's Markdown twin
            if not target.exists(): bad.append(f"{name}: {link} leads to no page or file")
            elif url.fragment and path in pages and unquote(url.fragment) not in pages[path].ids: bad.append(f"{name}: {link} leads to no such place in {path}")
    return sorted(set(bad)), seen, len(pages)


def missing_pages(root, site):
    "Every notebook has its page."
    books = [p.relative_to(root/"nbs") for p in sorted((root/"nbs").rglob("*.ipynb")) if not any(q[0] in "._" for q in p.relative_to(root/"nbs").parts)]
    return [f"nbs/{b.as_posix()}: no page {readme.page(b)}" for b in books if not (site/readme.page(b)).exists()]


def readme_links(root, site, base, repo):
    "The README's links, checked like a page's."
    scratch = site/"_readme.html"
    text = (root/"README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S))
    bad = [f"README.md: {l} is not a full address" for l in links if not re.match(r"https?://|#|mailto:", l)]
    scratch.write_text("".join(f'<a href="{l}"></a>' for l in links if not l.startswith("#")), encoding="utf-8")
    try: return bad + [b.replace("_readme.html", "README.md") for b in broken_links(site, base, repo, root)[0] if b.startswith("_readme.html")]
    finally: scratch.unlink()


def main(root=ROOT):
    repo, base = readme.addresses(root)
    site = root/"_docs"
    warnings = render(named(stage(root)), site)
    bad, links, pages = broken_links(site, base, repo, root)
    problems = [*warnings, *missing_pages(root, site), *bad, *readme_links(root, site, base, repo)]
    print("\n".join(problems) if problems else f"{pages} pages built, {links} links inside the site and into the repository lead somewhere")
    return 1 if problems else 0


if __name__ == "__main__": sys.exit(main())
