"""Gather the pages of the site, and check that the built site loads nothing from the network. See `make docs`.

python docs/site.py gather build    copy docs/ and the pages beside it to build/pages, with links that work there
python docs/site.py check build     fail if a page of build/site would load a script, a style or an image from elsewhere

The pages are written for people who read the repository: `../ARCHITECTURE.md` leads out of docs/. A site has one folder
of pages, so links between pages are rewritten, and a link to any other file becomes the path of that file.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from os.path import normpath, relpath
from pathlib import Path

ROOT = Path(__file__).parents[1]
BESIDE = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/amqp/differences.md")
"""Pages of the site that are not in docs/."""

LINK = re.compile(
    r"^```.*?^```$|``[^\n]+?``|`[^`\n]+`|(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)", re.MULTILINE | re.DOTALL
)
"""A block or a span of code, in which nothing is a link; or a link or an image: its mark, its text and its target."""

LOADED = {"link": "href"} | dict.fromkeys(("script", "img", "iframe", "source", "video", "audio"), "src")
STYLE = re.compile(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\s\"')]+)")


def sources() -> dict[str, str]:
    """Return the path of each page of the site by its path in the repository."""
    inside = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return {path: path.removeprefix("docs/") for path in inside} | {path: Path(path).name for path in BESIDE}


def links(text: str) -> Iterator[str]:
    """Yield the target of each link and image of a page that is not in code."""
    for found in LINK.finditer(text):
        if found[3] is not None:
            yield found[3]


def target(page: str, link: str) -> tuple[str, str]:
    """Return the path in the repository that a relative link of a page leads to, and the heading in it."""
    path, _, heading = link.partition("#")
    return (normpath(f"{Path(page).parent}/{path}") if path else page), heading


def rewritten(page: str, text: str, pages: dict[str, str]) -> str:
    """Return the text of a page with links that work in the site. A link to a missing file ends the program."""

    def rewrite(found: re.Match[str]) -> str:
        bang, words, link = found[1], found[2], found[3]
        if link is None or re.match(r"[a-z]+:|#", link):
            return found[0]
        path, heading = target(page, link)
        if (ROOT / path / "index.md").is_file():
            path += "/index.md"
        there = pages.get(path) or (path.removeprefix("docs/") if path.startswith("docs/images/") else None)
        if not (ROOT / path).exists():
            sys.exit(f"{page}: {link} leads nowhere")
        if there is None:
            return f"`{path}`" if words.strip("`") == path else f"{words} (`{path}`)"
        where = relpath(there, Path(pages[page]).parent)
        return f"{bang}[{words}]({where}{'#' * bool(heading)}{heading})"

    return LINK.sub(rewrite, text)


def gather(build: Path) -> None:
    """Write what the site is built from to a folder: its settings, its pages, their images and a script."""
    folder = build / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    pages = sources()
    for page, name in pages.items():
        there = folder / name
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(rewritten(page, (ROOT / page).read_text(encoding="utf-8"), pages), encoding="utf-8")
    for name in ("assets", "images"):
        shutil.copytree(ROOT / "docs" / name, folder / name)
    shutil.copy(ROOT / "docs/zensical.toml", build)


class Loads(HTMLParser):
    """Collect what a page loads from the network as soon as it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.remote: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag loads (`a` loads nothing), and a picture that a script from the network draws."""
        given = dict(attrs)
        address = given.get(LOADED.get(tag, "")) or ""
        if re.match(r"(https?:)?//", address):
            self.remote.append(address)
        if "mermaid" in (given.get("class") or "").split():
            self.remote.append("mermaid")


def remote(site: Path) -> list[str]:
    """Return what the pages and styles of a site would load from the network, each with its file."""
    found: list[str] = []
    for path in sorted(site.rglob("*.html")):
        page = Loads()
        page.feed(path.read_text(encoding="utf-8"))
        found += [f"{path}: {address}" for address in page.remote]
    for path in sorted([*site.rglob("*.css"), *site.rglob("*.html")]):
        found += [f"{path}: {address}" for address in STYLE.findall(path.read_text(encoding="utf-8"))]
    return found


def check(build: Path) -> None:
    """End with an error if the site has no search, or loads something from the network."""
    site = build / "site"
    for name in ("search.json", "search.js"):  # over HTTP, and for pages that are opened as files
        if not (site / name).is_file():
            sys.exit(f"{site} has no index for its search: {name}")
    if found := remote(site):
        sys.exit("\n".join(["the site would load from the network:", *found]))


if __name__ == "__main__":
    {"gather": gather, "check": check}[sys.argv[1]](Path(sys.argv[2]))
