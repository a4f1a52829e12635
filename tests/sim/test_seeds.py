"""Seeds that ever failed are kept for ever, and a seed has one trace.

What a seed draws changes with the workload, so an old one no longer repeats what it once found: those are part of the
long form, as the thousand seeds are.
"""

import sys
from dataclasses import fields
from typing import NoReturn

import pytest

from tests.sim.clean import assert_clean, assert_one_trace
from wherry.sim import __main__ as command
from wherry.sim import wire_run
from wherry.sim.drill.drill import drill
from wherry.sim.drill.drill_steps import STEPS
from wherry.sim.history import History
from wherry.sim.history_lines import RECORDS, lines
from wherry.sim.run import run
from wherry.sim.wire_run import run_wires

FAILED_LONG_AGO = (
    2,  # a token of an earlier life
    9,  # an expired message, redriven, came back to a subscription that had acked it
    10,  # dead letters left with a removal and stayed in the count
    29,  # clocks that were set back for minutes
    62,  # a redriven message came before its due time
    65,  # a redriven message that was due later stood nowhere
    78,  # a clean stop in the middle of a start
    94,
    157,
    181,
    505,  # a flush on a failing disk ended the housekeeper
    735,  # time passed between a start and the look at what it had recovered
    846,  # transient dead letters, forgotten after a clean stop
    1_008,  # faults after the end
    1_021,  # millions of offsets reserved for transient messages
    211,  # buried, redriven and handed out within one instant
    119,  # a transient dead letter, gone with a restart
    639,  # no room on the disk to settle what an at-most-once reader was to get
    7,  # offsets reserved for transient messages, taken for lost ones by a reader of the log
    31,  # an amended message whose reader had settled the one before it, taken for lost
    44,  # messages dropped behind one that was held, and a reader of the log got no error
    47,  # an amended message, taken for lost
)

FAILED_LATELY = (
    15,  # a purge where keys keep their order asked for bodies that were on the disk
    58,  # lasting and transient messages, forwarded to one topic in one step, got the same offsets
    8,  # of dead letters that two forwarded at once, some were forwarded twice
    40,  # a purge took more urgent messages that came meanwhile, and left those that it was for
    48,
    11,  # a transient message was handed out before the entry that it came with was durable
    115,  # of two pulls that waited for the disk the later came first: taken for an uncounted attempt
    622,
    434,  # an advance between two looks at the lag, all in one instant: a fault of the checker
    24,  # expired for one subscription, then redriven for the other and acked: a fault of the checker
    9,  # a message that had expired was delivered while the disk was full, as documented: a fault of the checker
)


WIRES_FAILED_ONCE = (
    1,  # a requeued message came after those behind it: there was room before the message was back in its place
    25,  # the same, where an ack made room while a message was being put back
    613,  # a client took a consumer tag that it used on another channel: a fault of the simulated client
    105,  # the clock was set back, and the end of a run did not wait for what expires later: a fault of the simulator
    702,  # a channel was closed with success after the journal had lost its acks
    107,  # a channel with a limit of its own was sent more while a transaction had acked, and was rolled back
)


NATIVE_FAILED_ONCE = (
    755,  # a message waited for the disk on its way to a client that was cut off: a fault of the checker
)


@pytest.mark.rows("G1", "D13", "D14", "A15", "A16", "A6", "A8", "A1")
@pytest.mark.parametrize(
    "seed", [*(pytest.param(each, marks=pytest.mark.long) for each in FAILED_LONG_AGO), *FAILED_LATELY]
)
def test_a_seed_that_failed_once_is_clean(seed):
    assert_clean(seed, "run")


@pytest.mark.parametrize("seed", WIRES_FAILED_ONCE)
def test_a_seed_that_failed_once_over_wires_is_clean(seed):
    assert_clean(seed, "wires")


@pytest.mark.parametrize("seed", NATIVE_FAILED_ONCE)
def test_a_seed_that_failed_once_with_the_native_wire_is_clean(seed):
    assert_clean(seed, "native")


def test_the_same_seed_has_the_same_trace_under_two_hash_seeds():
    assert_one_trace(
        "from wherry.sim.run import run; from wherry.sim.wire_run import run_native, run_wires;"
        "print([run(seed).trace for seed in (3, 12)], [run_wires(seed).trace for seed in range(2)],"
        "[run_native(seed).trace for seed in range(4)])"
    )


def broken(*_: object) -> NoReturn:
    raise RuntimeError("broken on purpose")


def command_of(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["sim", *words])
    return command.main()


def test_the_part_of_a_seed_that_failed_is_named(monkeypatch, capsys):
    monkeypatch.setattr(command, "run_wires", broken)
    monkeypatch.setattr(command, "drill", lambda *_, **__: ["a step failed"])
    assert command_of(monkeypatch, "--seed", "3") == 1
    printed = capsys.readouterr().out
    assert "run: RunPlan(" in printed
    assert "  wires: RuntimeError: broken on purpose (broken, line " in printed
    assert 'raise RuntimeError("broken on purpose")' in printed  # and the calls that led there
    assert ", in _show_wires" in printed
    assert "  drill: a step failed" in printed
    assert "repeat it with: make sim SEED=3 HISTORY=1\n" in command.failure(3, command.try_seed(3))


def test_a_failing_seed_reports_what_is_wrong_and_how_to_repeat_it(monkeypatch):
    monkeypatch.setattr(command, "run_wires", broken)
    with pytest.raises(AssertionError, match="make sim SEED=3 PART=wires HISTORY=1\n  wires: RuntimeError: broken on"):
        assert_clean(3, "wires")


def test_a_part_alone_shows_what_its_clients_did(monkeypatch, capsys, tmp_path):
    assert command_of(monkeypatch, "--seed", "3", "--part", "wires", "--history") == 0
    printed = capsys.readouterr().out
    found = [line.split(maxsplit=2) for line in printed.partition("history of wires\n")[2].splitlines()]
    ends = [float(end if end != "-" else start) for start, end, _ in found]
    assert ends == sorted(ends)
    result = run_wires(3)
    acts = [what for _, _, what in found]
    for name, count in (("publish", len(result.history.sent)), ("receive", len(result.history.got))):
        assert sum(f" {name} " in each for each in acts) == count > 0
    assert "run: " not in printed
    assert command_of(monkeypatch, "--seed", "3", "--part", "wires", "--history", str(tmp_path / "found")) == 0
    assert (tmp_path / "found").read_text() == printed[printed.index("history of wires") :]


def test_a_run_that_ends_in_an_exception_has_a_history(monkeypatch, capsys):
    monkeypatch.setattr(wire_run, "check_wires", broken)
    assert command_of(monkeypatch, "--seed", "3", "--part", "wires", "--history") == 1
    assert "life 1 begins" in capsys.readouterr().out


def test_a_history_of_each_part_is_written():
    seen: dict[str, tuple[History, ...]] = {}
    run(3, seen)
    drill(0, STEPS, only=[next(iter(STEPS))], seen=seen)
    assert len(seen) == 2
    for histories in seen.values():
        found = lines(*histories)
        records = [each for history in histories for name in RECORDS for each in getattr(history, name)]
        settled = [each for history in histories for each in (*history.settled, *history.left)]
        lives = histories[0].lives
        ended = [life for life in lives if life.end < float("inf")]
        assert len(found) == len(records) + len(settled) + len(lives) + len(ended) > 0


def test_every_kind_of_record_has_its_line():
    lists = {each.name for each in fields(History) if each.default_factory is list}
    assert lists - set(RECORDS) == {"settled", "lives", "remaining", "faults", "full"}
