"""Every block of Python and of shell in the README runs as printed, with what the README says is to be installed.

What calls a node finds one, from the same environment.
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


README = Path(__file__).parents[2] / "README.md"
PARTS: list[tuple[str, str, str]] = re.findall(
    r"(.*?)^```(python|sh)\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL
)
BLOCKS = [(kind, block) for _, kind, block in PARTS]
NEEDS = [named_in(before) for before, _, _ in PARTS]
"""What has to be installed for each block beside Wherry: what the text above it says."""
PORT, FLIGHT_PORT = "7070", "7072"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `pip install .` brings, and no more."""
    return installed(tmp_path_factory.mktemp("plain"), ["wherry"])


@pytest.fixture
def node(tmp_path: Path, plain: dict[str, str]) -> Iterator[Ports]:
    """A fresh node; its ports."""
    command = ["wherry", "serve", "--port", "0", "--data", str(tmp_path / "served")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=plain) as process:
        assert process.stdout is not None
        said = ""
        while "Ctrl-C" not in said:
            said += process.stdout.readline()
        yield Ports(*(re.search(rf"{way}://127\.0\.0\.1:(\d+)", said)[1] for way in ("http", "grpc")))  # type: ignore[index]
        process.terminate()


def run(number: int, folder: Path, ports: Ports | None = None) -> subprocess.CompletedProcess[str]:
    """A block as a program of its own, in an empty directory; warnings are errors there too.

    In an environment of its own: with what the page says, and nothing that happens to be here.
    """
    kind, block = BLOCKS[number]
    if ports is not None:
        block = block.replace(PORT, ports.http).replace(FLIGHT_PORT, ports.flight)
    program = folder / f"block.{kind}"
    program.write_text(block)
    command = ["python", "-W", "error"] if kind == "python" else ["bash", "-euo", "pipefail"]
    environment = installed(folder / f"environment {number}", ["wherry", *NEEDS[number]])
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
    """A place for what a block leaves."""
    place = folder / "here"
    place.mkdir(exist_ok=True)
    return place


def calls_a_node(kind: str, block: str) -> bool:
    return PORT in block or kind == "sh"


def test_the_page_has_blocks():
    assert len(BLOCKS) >= 8


@pytest.mark.rows("D16")
@pytest.mark.parametrize("number", [n for n, (kind, block) in enumerate(BLOCKS) if not calls_a_node(kind, block)])
def test_a_block_runs_as_printed(number, tmp_path):
    done = run(number, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.rows("D16")
def test_the_page_names_every_extra_and_what_is_more_than_one_install():
    extras = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = re.findall(r"^\| `(\w+)` \| .* \|$", README.read_text().partition("| extra | brings |")[2], re.MULTILINE)
    assert set(told[: len(extras) - 2]) == extras.keys() - {"dev", "bench"}
    assert NEEDS[0] == ["wherry", "wherry[docs,avro]"]
    assert [need for need in NEEDS[1:] if need] == [["polars"]], "all other blocks run with the one install"


@pytest.mark.rows("D16")
@pytest.mark.parametrize("extra", ["", "[docs]"])
def test_the_page_of_all_calls_comes_with_its_extra(tmp_path, extra):
    look = "from wherry.wire.http.endpoints import docs; print(docs._folder())"
    environment = installed(tmp_path / "environment", [f"wherry{extra}"])
    done = subprocess.run(["python", "-c", look], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode == 0) == bool(extra), done.stderr
    assert extra or "pip install 'wherry[docs]'" in done.stderr


@pytest.mark.rows("A17", "D16")
@pytest.mark.parametrize("number", [n for n, (kind, block) in enumerate(BLOCKS) if calls_a_node(kind, block)])
def test_a_block_runs_as_printed_against_a_node(number, tmp_path, node):
    done = run(number, tmp_path, node)
    assert done.returncode == 0, done.stderr
    assert BLOCKS[number][0] == "sh" or done.stderr == ""


def test_the_first_blocks_print_their_messages(tmp_path, node):
    said = run(0, tmp_path, node).stdout
    assert "hello from curl" in said
    assert run(1, tmp_path, node).stdout.endswith("b'hello'\nb'world'\n")
    assert run(3, tmp_path).stdout == "[b'hello', b'world']\n"


def test_the_block_about_files_finds_a_segment(tmp_path):
    assert "'payload'" in run(next(n for n, (_, block) in enumerate(BLOCKS) if "segments" in block), tmp_path).stdout


@pytest.mark.rows("A17")
def test_the_first_message_comes_soon_after_the_start(tmp_path, request):
    """How soon is printed, not asserted: the bar of 2 s is for a machine that does nothing else."""
    began = time.perf_counter()
    port = request.getfixturevalue("node")
    served = time.perf_counter()
    assert "hello from curl" in run(0, tmp_path, port).stdout
    print(f"serving after {served - began:.2f} s, the first message after {time.perf_counter() - began:.2f} s")
