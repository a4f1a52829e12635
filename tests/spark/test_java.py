"""Which Java Spark gets, and the settings of a session."""

import os
import subprocess

from wherry.spark.sessions.java import FLAG, find_java, java_home, version_of, wrapped
from wherry.spark.sessions.session import settings

FAKE = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2024' >&2; else echo "$@"; fi
"""


def fake(folder, version):
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAKE.format(version=version))
    java.chmod(0o755)
    return folder


def test_versions(tmp_path):
    assert version_of(fake(tmp_path / "new", "21.0.1") / "bin" / "java") == 21
    assert version_of(fake(tmp_path / "old", "1.8.0_292") / "bin" / "java") == 8
    assert version_of(fake(tmp_path / "odd", "?") / "bin" / "java") is None
    assert version_of(tmp_path / "none") is None


def test_the_first_that_is_new_enough(tmp_path, monkeypatch):
    old, new = fake(tmp_path / "old", "11.0.2"), fake(tmp_path / "new", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}{os.pathsep}{os.environ['PATH']}")
    found = find_java()
    assert found is not None
    assert (found.home, found.version, found.source) == (new, 17, "path")
    assert java_home() == new
    monkeypatch.setenv("JAVA_HOME", str(new))
    again = find_java()
    assert again is not None
    assert (again.home, again.source) == (new, "JAVA_HOME")


def test_the_wrapper_drops_one_flag_and_keeps_the_rest(tmp_path):
    home = wrapped(fake(tmp_path / "a java", "25"), tmp_path / "home")
    arguments = ["-cp", "a b", FLAG, "--add-modules=other", "", "$x", "Main"]
    printed = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert printed == "-cp a b --add-modules=other  $x Main\n"
    assert wrapped(tmp_path / "a java", tmp_path / "home") == home
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_settings_for_this_machine_and_for_a_cluster():
    local, far = settings("local[2]", "2g"), settings("spark://host:7077", "2g")
    assert local["spark.driver.memory"] == "2g"
    assert local["spark.ui.enabled"] == "false"
    assert "spark.ui.enabled" not in far
    assert "spark.sql.streaming.checkpointFileManagerClass" not in far
    assert local["spark.sql.session.timeZone"] == far["spark.sql.session.timeZone"] == "UTC"
