"""Run every block of Python and of shell in README and docs/recipes.md as printed, with what the page asks to install.

A block that calls a node finds one, which runs in the same environment.
"""

import re
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.installs import installed, named_in


class Ports(NamedTuple):
    """Where a node listens."""

    http: str
    flight: str


class Block(NamedTuple):
    """A program of a page."""

    page: str
    kind: str
    code: str
    needs: list[str]
    """What has to be installed for it beside Wherry: what the text above it asks for."""


ROOT = Path(__file__).parents[2]
PORT, FLIGHT_PORT = "7070", "7072"


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of Python and of shell of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    parts = re.findall(r"(.*?)^```(python|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(page, kind, code, named_in(before)) for before, kind, code in parts]


README, RECIPES = blocks_of("README.md"), blocks_of("docs/recipes.md")
BLOCKS = [*README, *RECIPES]
SHELL, PYTHON, HTTP = 0, 1, 2
"""The first message of the README, in three ways."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment with what `pip install .` brings, and no more."""
    return installed(tmp_path_factory.mktemp("plain"), ["wherry"])


@pytest.fixture
def node(tmp_path: Path, plain: dict[str, str]) -> Iterator[Ports]:
    """Run a fresh node; yield its ports."""
    command = ["wherry", "serve", "--port", "0", "--data", str(tmp_path / "served")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=plain) as process:
        assert process.stdout is not None
        printed = ""
        while "Ctrl-C" not in printed:
            printed += process.stdout.readline()
        yield Ports(*(re.search(rf"{way}://127\.0\.0\.1:(\d+)", printed)[1] for way in ("http", "grpc")))  # type: ignore[index]
        process.terminate()


def run(number: int, folder: Path, ports: Ports | None = None) -> subprocess.CompletedProcess[str]:
    """Run a block as a program of its own, in an empty directory; warnings are errors there too.

    The environment has what the page asks to install, and nothing else of this machine.
    """
    block = BLOCKS[number]
    code = block.code
    if ports is not None:
        code = code.replace(PORT, ports.http).replace(FLIGHT_PORT, ports.flight)
    program = folder / f"block.{block.kind}"
    program.write_text(code)
    command = ["python", "-W", "error"] if block.kind == "python" else ["bash", "-euo", "pipefail"]
    environment = installed(folder / f"environment {number}", ["wherry", *block.needs])
    if ports is not None:
        environment["WHERRY_URL"] = f"http://127.0.0.1:{ports.http}"
    return subprocess.run(
        [*command, str(program)],
        cwd=_empty(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


def _empty(folder: Path) -> Path:
    """Make a place for what a block leaves."""
    place = folder / "here"
    place.mkdir(exist_ok=True)
    return place


def calls_a_node(block: Block) -> bool:
    return PORT in block.code or block.kind == "sh"


def test_the_pages_have_blocks():
    assert [block.kind for block in README] == ["sh", "python", "sh"]
    assert len(RECIPES) >= 6


@pytest.mark.rows("D16")
@pytest.mark.parametrize("number", [n for n, block in enumerate(BLOCKS) if not calls_a_node(block)])
def test_a_block_runs_as_printed(number, tmp_path):
    done = run(number, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.rows("D16")
def test_the_pages_name_every_extra_and_what_is_more_than_one_install():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \| .* \|$", page.partition("| extra | brings |")[2], re.MULTILINE)
    ours = re.findall(r"`(\w+)` \(", page.partition("for work on Wherry itself")[2])
    assert set(named).isdisjoint(ours)
    assert {*named, *ours} == extras.keys()
    assert named_in(page) == ["wherry", "wherry[docs,avro]"]
    more = {need for block in BLOCKS for need in block.needs} - {"wherry"}
    assert more == {"polars"}, "all other blocks run with the one install"


@pytest.mark.rows("D16")
@pytest.mark.parametrize("extra", ["", "[docs]"])
def test_the_page_of_all_calls_comes_with_its_extra(tmp_path, extra):
    look = "from wherry.wire.http.endpoints import docs; print(docs._folder())"
    environment = installed(tmp_path / "environment", [f"wherry{extra}"])
    done = subprocess.run(["python", "-c", look], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode == 0) == bool(extra), done.stderr
    assert extra or "pip install 'wherry[docs]'" in done.stderr


@pytest.mark.rows("A17", "D16")
@pytest.mark.parametrize("number", [n for n, block in enumerate(BLOCKS) if calls_a_node(block)])
def test_a_block_runs_as_printed_against_a_node(number, tmp_path, node):
    done = run(number, tmp_path, node)
    assert done.returncode == 0, done.stderr
    assert BLOCKS[number].kind == "sh" or done.stderr == ""


def test_the_first_message_comes_out_in_three_ways(tmp_path, node):
    assert run(SHELL, tmp_path, node).stdout.endswith("hello from the shell\n")
    assert run(PYTHON, tmp_path, node).stdout == "b'hello'\nb'world'\n"
    assert "hello from curl" in run(HTTP, tmp_path, node).stdout
    assert run(len(README), tmp_path).stdout == "[b'hello', b'world']\n"


def test_the_block_about_files_finds_a_segment(tmp_path):
    assert "'payload'" in run(next(n for n, block in enumerate(BLOCKS) if "segments" in block.code), tmp_path).stdout


@pytest.mark.rows("A17")
def test_the_first_message_comes_soon_after_the_start(tmp_path, request):
    """Print how soon it comes and assert no bound: the bar of 2 s is for a machine that does nothing else."""
    began = time.perf_counter()
    port = request.getfixturevalue("node")
    served = time.perf_counter()
    assert "hello from curl" in run(HTTP, tmp_path, port).stdout
    print(f"serving after {served - began:.2f} s, the first message after {time.perf_counter() - began:.2f} s")
