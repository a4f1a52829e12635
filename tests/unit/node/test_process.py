"""What the process does before it serves: room for its connections, and words to begin with."""

import subprocess
import sys

import pytest

from wherry.node.config import Config, ServerSection
from wherry.node.node import Node
from wherry.node.process import banner
from wherry.wire.http.pages import docs

LIMITED = """
import logging, resource, sys
from wherry.node.process import raise_file_limit
logging.basicConfig(format="%(message)s %(files)s %(connections)s")
resource.setrlimit(resource.RLIMIT_NOFILE, (150, 200))
raise_file_limit(int(sys.argv[1]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.more
@pytest.mark.parametrize(("connections", "warns"), [(200, False), (201, True)])
def test_as_many_files_as_the_system_allows_and_a_warning_if_those_are_few(connections, warns):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(connections)], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "200 200\n"
    assert ("limits.connections" in done.stderr and "200 201" in done.stderr) is warns


def printed(tmp_path, *, port=7070, keys=False, first=False):
    node = Node(Config(server=ServerSection(port=port)))
    node.keys_on, node.first_key = keys, tmp_path / "an admin.key" if first else None
    return [line.strip() for line in banner(node).splitlines()]


def test_the_banner_names_the_address_where_it_is_not_the_usual_one(tmp_path):
    assert "wherry publish --create jobs hello" in printed(tmp_path)
    assert "wherry --url http://127.0.0.1:7071 publish --create jobs hello" in printed(tmp_path, port=7071)


def test_the_banner_shows_how_to_give_a_key(tmp_path):
    assert not any("KEY" in line for line in printed(tmp_path))
    assert "export WHERRY_KEY=wk_…" in printed(tmp_path, keys=True)
    lines = printed(tmp_path, keys=True, first=True)
    assert f"export WHERRY_KEY=\"$(cat '{tmp_path}/an admin.key')\"" in lines
    assert all("WHERRY_KEY" in line for line in lines if line.startswith(("curl", "python")))


def test_the_banner_names_the_page_of_calls_only_where_it_answers(tmp_path, monkeypatch):
    assert any("http://127.0.0.1:7070/docs" in line for line in printed(tmp_path))
    monkeypatch.setattr(docs, "PACKAGE", "no_such_package_as_this")
    assert not any("/docs" in line for line in printed(tmp_path))
    assert any("/openapi.json (to try them out: pip install 'wherry[docs]')" in line for line in printed(tmp_path))
