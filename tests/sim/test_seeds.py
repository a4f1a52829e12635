"""Seeds that ever failed are kept for ever, and a seed has one trace."""

import os
import subprocess
import sys

import pytest

from wherry.sim import __main__ as command
from wherry.sim.__main__ import try_run, try_wires
from wherry.sim.patch import patched

FAILED_ONCE = (
    2,  # a token of an earlier life
    9,  # an expired message, redriven, came back to a subscription that had acked it
    10,  # dead letters went with a removal and stayed in the count
    29,  # clocks that were set back for minutes
    62,  # a redriven message came before its due time
    65,  # a redriven message that was due later stood nowhere
    78,  # a clean stop in the middle of a start
    94,
    157,
    181,
    505,  # a flush on a failing disk ended the housekeeper
    735,  # time went by between a start and the look at what it had recovered
    846,  # transient dead letters, forgotten after a clean stop
    1_008,  # faults after the end
    1_021,  # millions of offsets reserved for transient messages
    211,  # buried, redriven and handed out within one instant
    119,  # a transient dead letter, gone with a restart
    639,  # no room on the disk to settle what an at-most-once reader was to get
    7,  # offsets reserved for transient messages, taken for lost ones by a reader of the log
    31,  # an amended message whose reader had settled the one before it, taken for lost
    44,  # messages dropped behind one that was held, and a reader of the log was not told
    47,  # an amended message, taken for lost
    15,  # a purge where keys keep their order asked for bodies that were on the disk
    58,  # lasting and transient messages, forwarded to one topic in one step, got the same offsets
    8,  # of dead letters that two forwarded at once, some were forwarded twice
    40,  # a purge took more urgent messages that came meanwhile, and left those that it was for
    48,
    11,  # a transient message was handed out before the entry that it came with was durable
    115,  # of two pulls that waited for the disk the later came first: taken for an uncounted attempt
    622,
)


WIRES_FAILED_ONCE = (
    1,  # what was requeued came after what stood behind it: its room was free before it was back in its place
    25,  # the same, where an ack made room while a message was on its way back
    107,  # a channel with a limit of its own was sent more while a transaction had acked, and was rolled back
)


@pytest.mark.rows("G1", "D13", "D14", "A15", "A16", "A6", "A8", "A1")
@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_seed_that_failed_once_is_clean(seed):
    assert try_run(seed) == []


@pytest.mark.parametrize("seed", WIRES_FAILED_ONCE)
def test_a_seed_that_failed_once_over_wires_is_clean(seed):
    assert try_wires(seed) == []


def test_the_same_seed_has_the_same_trace_under_two_hash_seeds():
    program = (
        "from wherry.sim.run import run; from wherry.sim.wire_run import run_wires;"
        "print([run(seed).trace for seed in (3, 12)], [run_wires(seed).trace for seed in range(6)])"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "4711")
    }
    assert len(traces) == 1


def test_the_part_of_a_seed_that_failed_is_named(capsys):
    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    with (
        patched(sys, "argv", lambda _: ["sim", "--seed", "3"]),
        patched(command, "run_wires", lambda _: broken),
        patched(command, "drill", lambda _: lambda *_: ["a step failed"]),
    ):
        assert command.main() == 1
        failed = command.try_seed(3)
    assert [each.split(" (")[0] for each in failed] == [
        "wires: RuntimeError: broken on purpose",
        "drill: a step failed",
    ]
    assert "run: RunPlan(" in (printed := capsys.readouterr().out)
    assert all(each in printed for each in failed)
