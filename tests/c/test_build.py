"""What `make c` builds, and whether the pages about it are true: library, pkg-config file, man page, docs/c.md."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

import wherry
from tests.c.compiling import CLIENT, PLAIN, ROOT, SANITIZED, STRICT, compiled, need_openssl, run, tool

PAGE = (ROOT / "docs" / "c.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```c\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
HEADER = (CLIENT / "wherry.h").read_text(encoding="utf-8")
FUNCTIONS = sorted(set(re.findall(r"^(?:int|void|short|uint32_t|uint64_t) (wherry_\w+)\(", HEADER, re.MULTILINE)))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    tool("gcc")
    run(tool("make"), "-C", CLIENT, f"BUILD={folder}/build", f"PREFIX={folder}/there", "install")
    return folder


@pytest.mark.rows("Q17")
def test_the_library_is_installed_and_pkg_config_finds_it(built, url, tmp_path):
    flags = run(tool("pkg-config"), "--cflags", "--libs", "wherry", PKG_CONFIG_PATH=f"{built}/there/lib/pkgconfig")
    source = tmp_path / "first.c"
    source.write_text(PROGRAMS[0].replace("http://127.0.0.1:7070", url))
    run(tool("gcc"), *STRICT, source, *flags.split(), "-o", tmp_path / "first")
    assert run(tmp_path / "first", LD_LIBRARY_PATH=f"{built}/there/lib") == "on disk at offset 0\n"


def test_the_library_has_the_functions_of_the_header_and_no_other_name(built):
    listed = run("nm", "-D", "--defined-only", built / "there/lib/libwherry.so")
    assert sorted(line.split()[2] for line in listed.splitlines()) == FUNCTIONS
    needed = run("readelf", "-d", built / "there/lib/libwherry.so")
    assert re.findall(r"NEEDED.*\[(.*)\]", needed) == ["libc.so.6"]


def test_nothing_global_can_be_written(built):
    """Check the sections of the library: connections share nothing, so it has no data that changes."""
    lines = [line.split() for line in run("size", "-A", built / "build/wherry.o").splitlines()]
    sizes = {line[0]: int(line[1]) for line in lines if len(line) == 3 and line[1].isdigit()}
    assert sizes[".text"] > 0
    assert sizes[".data"] == sizes[".bss"] == 0


@pytest.mark.rows("Q17")
def test_the_man_page_names_every_function_and_has_no_fault(built):
    shown = subprocess.run(
        [tool("man"), "--warnings", "-l", str(built / "there/share/man/man3/wherry.3")],
        capture_output=True,
        text=True,
        env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "120", "LC_ALL": "C.UTF-8"},
        check=True,
    )
    assert shown.stderr == ""
    plain = re.sub(r".\x08|\x1b\[[0-9;]*m", "", shown.stdout)
    assert [name for name in FUNCTIONS if f"{name}(" not in plain] == []


def test_the_header_is_good_for_c_plus_plus(built, tmp_path):
    source = tmp_path / "only.cpp"
    source.write_text("#include <wherry.h>\nint main() { wherry_close(nullptr, 0); return WHERRY_OK; }\n")
    library = [f"-I{built}/there/include", source, built / "there/lib/libwherry.a"]
    run(tool("g++"), "-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", *library, "-o", tmp_path / "only")
    run(tmp_path / "only")


def test_the_library_builds_with_tls(tmp_path):
    need_openssl()
    run(tool("make"), "-C", CLIENT, f"BUILD={tmp_path}/build", "WHERRY_TLS=1")
    assert "Requires.private: openssl" in (tmp_path / "build/wherry.pc").read_text()


@pytest.mark.rows("Q17")
def test_the_programs_of_the_page_run_as_printed(url, tmp_path):
    publish, many, consume = (
        source.replace("http://127.0.0.1:7070", url)
        .replace("1000000", "6000")
        .replace("10000, &error) == 1", "1500, &error) == 1")
        .replace('"jobs"', '"page"')
        .replace("topics/jobs", "topics/page")
        for source in PROGRAMS
    )
    made = []
    for name, source in (("page-publish", publish), ("page-many", many), ("page-consume", consume)):
        path = tmp_path / f"{name}.c"
        path.write_text(source)
        made.append(compiled(name, [path, CLIENT / "wherry.c"], SANITIZED))
    assert run(made[0]) == "on disk at offset 0\n"
    assert run(made[2]) == "hello\n"  # until nothing comes
    run(made[1])
    with wherry.connect_sync(url) as client:
        assert client.stats("page").messages == 6_000


def test_the_examples_do_what_they_document(url, topic):
    publish, consume = (
        compiled(f"example-{name}", [CLIENT / "examples" / f"{name}.c", CLIENT / "wherry.c"], SANITIZED)
        for name in ("publish", "consume")
    )
    lines = [str(number) for number in range(6_000)]
    assert run(publish, url, topic, text="\n".join(lines)) == "6000 messages are on disk\n"
    assert run(consume, url, topic, "all", "10").split() == lines[:10]


@pytest.mark.parametrize("flags", [["--rows", "1"], ["--rows", "50", "--transient"], ["--rate", "2000"]])
def test_the_load_prints_its_figures(url, topic, flags):
    bench = compiled("example-bench", [CLIENT / "examples" / "bench.c", CLIENT / "wherry.c"], PLAIN)
    where = ["--url", url, "--topic", topic, "--count", "1000"]
    figures = msgspec.json.decode(run(bench, "publish", *where, *flags, "--size", "100", "--in-flight", "100"))
    assert figures["messages"] == 1_000
    assert figures["messages_per_s"] > 0
    assert figures["processor_s"] < figures["seconds"]
    assert figures["p50_ms"] <= figures["p99_ms"]
    assert figures["seconds"] > 0.45 or "--rate" not in flags
    figures = msgspec.json.decode(run(bench, "consume", *where, "--rows", "100"))
    assert figures["messages_per_s"] > 0
    refused = subprocess.run([bench, "publish", "--url", url], capture_output=True, text=True, check=False)
    assert (refused.returncode, "usage" in refused.stderr) == (2, True)
