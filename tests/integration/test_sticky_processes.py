"""Clients in processes of their own compute the same split, whatever they saw before."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CLIENT = """
import json, random, sys
from wherry.mesh.instance import Instance
from wherry.service.balancing.sticky import Sticky

chance = random.Random(sys.argv[1])
sessions = [f"customer-{at}" for at in range(1_000)]
known, unknown = Sticky(chance.sample(sessions, 1_000)), Sticky()
found = {}
for count in chance.sample(range(1, 21), 20):  # each process sees the instances come and go in an order of its own
    there = tuple(Instance(service="billing", id=f"i{at:02}", url="http://10.0.0.1:7080") for at in range(count))
    found[count] = [
        [there.index(b.choose(there, session=each, chance=chance.random(), now=0.0)) for each in sessions]
        for b in (known, unknown)
    ]
print(json.dumps(found, sort_keys=True))
"""


@pytest.mark.rows("P7", "P8")
def test_three_processes_compute_the_same_equal_split():
    running = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(seed)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        )
        for seed in (1, 2, 3)
    ]
    answers = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert answers[0] == answers[1] == answers[2]
    for count, (known, _) in json.loads(answers[0]).items():
        parts = [known.count(at) for at in range(int(count))]
        assert max(parts) - min(parts) <= 1
        assert sum(parts) == 1_000
