"""Compiles the C client and the programs that test it, under `build/c`; installs a compiler where it is missing.

Programs are kept by the content of their sources, so a second run compiles nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import debian

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "c"
TESTS = Path(__file__).parent
BUILD = ROOT / "build" / "c-tests"

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
SANITIZED = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
PLAIN = ("-g", "-O2")
TLS = ("-DWHERRY_TLS",)
TLS_LIBRARIES = ("-lssl", "-lcrypto")
PATIENCE_S = 120

PACKAGES = {
    "gcc": "gcc libc6-dev",
    "g++": "g++",
    "make": "make",
    "valgrind": "valgrind",
    "pkg-config": "pkgconf",
    "man": "man-db groff-base",
}
"""By program, the packages of Debian that bring it."""


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Let one test process at a time do something."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def tool(name: str) -> str:
    """Return the path of a program; install it if it is missing and we may, else fail with how to get it."""
    with _alone("install"):
        return shutil.which(name) or _installed(name, PACKAGES[name])


def _installed(name: str, packages: str) -> str:
    if not debian.may_install():
        pytest.fail(f"the tests of the C client need {name}: apt-get install {packages}", pytrace=False)
    debian.install(packages)
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is missing, and apt-get install {packages} did not bring it", pytrace=False)
    return found


def need_openssl() -> None:
    """Make sure that the headers of OpenSSL are there."""
    probe = [tool("gcc"), "-E", "-include", "openssl/ssl.h", "-x", "c", os.devnull, "-o", os.devnull]
    with _alone("install"):
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return
        if debian.may_install():
            debian.install("libssl-dev")
        if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
            pytest.fail("TLS of the C client is built with OpenSSL: apt-get install libssl-dev", pytrace=False)


def compiled(name: str, sources: list[Path], flags: tuple[str, ...], libraries: tuple[str, ...] = ()) -> Path:
    """Return the program that sources make, compiled as strictly as the client itself."""
    if CLIENT / "wherry.c" in sources:  # compiled once for all programs with these flags
        client = _made("wherry.o", [CLIENT / "wherry.c"], (*flags, "-c"))
        sources = [client if source == CLIENT / "wherry.c" else source for source in sources]
    return _made(name, sources, flags, libraries)


def _made(name: str, sources: list[Path], flags: tuple[str, ...], libraries: tuple[str, ...] = ()) -> Path:
    """Return what the compiler makes of sources; it is kept by their content and that of the client."""
    inputs = [*sources, *sorted(CLIENT.glob("*.[ch]"))]
    content = b"\0".join([*(path.read_bytes() for path in inputs), " ".join((*flags, *libraries)).encode()])
    stem, dot, ending = name.partition(".")
    made = BUILD / f"{stem}-{hashlib.sha256(content).hexdigest()[:16]}{dot}{ending}"
    gcc = tool("gcc")
    with _alone(made.name):
        if not made.exists():
            new = made.with_name(f"new-{made.name}")
            command = [gcc, *STRICT, *flags, f"-I{CLIENT}", *map(str, sources), *libraries, "-o", str(new)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            new.rename(made)
    return made


def run(*command: str | Path, text: str = "", patience_s: float = PATIENCE_S, **environment: str) -> str:
    """Run a program; return its output. Anything a sanitizer, valgrind or a check finds fails the test."""
    done = subprocess.run(
        [str(part) for part in command],
        input=text,
        capture_output=True,
        text=True,
        timeout=patience_s,
        env={**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1", **environment},
        check=False,
    )
    assert done.returncode == 0, f"ended with {done.returncode}:\n{done.stdout[-2_000:]}{done.stderr[-6_000:]}"
    return done.stdout


def valgrind(*command: str | Path, **more: float) -> str:
    """Run a program under valgrind, which must find no fault and no leak."""
    checks = ["--quiet", "--leak-check=full", "--show-leak-kinds=all", "--track-fds=no", "--error-exitcode=9"]
    return run(tool("valgrind"), *checks, *command, **more)  # type: ignore[arg-type]
