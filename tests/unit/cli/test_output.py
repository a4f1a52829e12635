"""What people see is short and harmless; what programs see is whole."""

import json

from wherry.cli import output


def test_a_cell_is_one_short_line_that_moves_no_cursor():
    assert output.cell("a\nb\x1b[2Jc") == "a⏎b�[2Jc"
    assert len(output.cell("x" * 1_000)) == output.CELL_CHARS_MAX
    assert [output.cell(value) for value in (None, True, 1_234, 1.25)] == ["", "yes", "1,234", "1.2"]
    assert output.cell({"a": "1", "b": "2"}) == "a=1 b=2"


def test_sizes_and_spans():
    assert [output.size(n) for n in (0, 1_023, 1_536, 5 << 30)] == ["0 B", "1,023 B", "1.5 KiB", "5.0 GiB"]
    assert [output.span(n) for n in (0, 2.5, 900, 90_000, 7.2e6, 1e9)] == [
        "0 ms",
        "2.5 ms",
        "900 ms",
        "1.5 m",
        "2.0 h",
        "11.6 d",
    ]
    assert [output.many(n, "message") for n in (0, 1, 2_000)] == ["0 messages", "1 message", "2,000 messages"]


def test_a_listing_is_a_table_or_json_lines(capsys):
    rows = [{"name": "jobs", "lag": 1_000, "hidden": 7}, {"name": "[bold]mails", "lag": 2, "hidden": 8}]
    output.show({"name": "name", "lag": "lag"}, rows, json=False, empty="none")
    table = capsys.readouterr().out
    assert "1,000" in table
    assert "[bold]mails" in table, "the text of a message is not markup"
    assert "hidden" not in table
    output.show({"name": "name"}, rows, json=True, empty="none")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows


def test_an_empty_listing_has_a_note_beside_the_data(capsys):
    output.show({"name": "name"}, [], json=False, empty="no topics yet")
    assert capsys.readouterr() == ("", "no topics yet\n")
    output.show({"name": "name"}, [], json=True, empty="no topics yet")
    assert capsys.readouterr() == ("", "")


def test_one_thing_is_a_line_for_each_field(capsys):
    output.fields({"config": {"name": "jobs", "bound": None}, "rights": ["a", "b"], "open": True}, json=False)
    assert capsys.readouterr().out == "config.name  jobs\nrights       a, b\nopen         true\n"
