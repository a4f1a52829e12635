"""One run: two queries over one topic, whatever the plan breaks on the way, and each row once at the end."""

from __future__ import annotations

import shutil
import time
from random import Random
from typing import NamedTuple

from tests.spark.soak.driver import digest
from tests.spark.soak.plan import QUERIES, Fault, Plan, drawn
from tests.spark.soak.rig import DriverGone, Rig
from tests.spark.soak.strikes import Strikes

TRIES_MAX = 12
PATIENCE_S = 180
KEYS = 50

Row = tuple[str, bytes]


class Outcome(NamedTuple):
    """What became of a run; it is well if nothing is wrong."""

    plan: Plan
    wrong: list[str]
    struck: list[Fault]
    tries: int
    seconds: float

    def line(self) -> str:
        faults = [str(fault) + ("" if fault in self.struck else " (not reached)") for fault in self.plan.faults]
        verdict = "ok" if not self.wrong else "FAILED: " + "; ".join(self.wrong)
        size = f"{self.plan.rows:>5,} rows  {self.tries:>2} tries  {self.seconds:5.1f} s"
        return f"seed {self.plan.seed:>5}  {size}  {verdict}  ({', '.join(faults)})"


def run(seed: int, rig: Rig) -> Outcome:
    """Run a seed. What the run wrote is kept where something is wrong with it."""
    began, plan = time.monotonic(), drawn(seed, rig.kinds)
    folder = rig.folder / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rows, broker = made(plan), rig.broker
    source = broker.create(partitions=plan.partitions, name=f"in-{seed}", **plan.keep)
    target = broker.create(partitions=plan.out_partitions, name=f"out-{seed}")
    for query in QUERIES:  # of a queue, what one query has read is gone for a query that comes later
        broker.link.action("subscribe", {"topic": source, "name": f"to-{query}"})
    publish(rig, source, rows[plan.later :])
    files = folder / "files"
    strikes = Strikes(plan, rig, files)
    job = {"folder": str(folder), "files": str(files), "source": source, "target": target}
    job |= {"url": rig.proxy.url, "address": strikes.address, "rows_per_batch": str(plan.rows_per_batch)}
    tries, later, errors = 0, plan.later, {"": ""}
    try:
        while errors and tries < TRIES_MAX:
            tries += 1
            errors = _tried(rig, job)
            if not errors and later:
                with strikes.quiet():
                    broker.link.action("create-topic", {"name": source, "partitions": plan.grown})
                    publish(rig, source, rows[:later])
                later, errors = 0, {"": "there is more to read"}
    finally:
        strikes.close()
    wrong = [f"{name} did not get to its end: {why}" for name, why in errors.items()]
    if not wrong:  # what is half done cannot be read
        wrong += _differences(rig, job, rows)
    wrong += [f"{name} has lag {stats['lag']}" for name, stats in broker.subscriptions(source).items() if stats["lag"]]
    if not wrong:
        shutil.rmtree(folder)
        for topic in (source, target):
            broker.link.action("delete-topic", {"topic": topic})
    return Outcome(plan, wrong, strikes.struck, tries, time.monotonic() - began)


def made(plan: Plan) -> list[Row]:
    """Make the rows of a plan: all different."""
    random = Random(plan.seed)
    return [(f"k{n % KEYS}", f"{n} {'x' * random.randint(0, plan.size)}".encode()) for n in range(plan.rows)]


def publish(rig: Rig, topic: str, rows: list[Row]) -> None:
    rig.broker.publish(topic, [payload for _, payload in rows], key=[key for key, _ in rows])


def _tried(rig: Rig, job: dict[str, str]) -> dict[str, str]:
    """Run both queries once; return the errors of those that did not get to their end."""
    try:
        errors: dict[str, str] = rig.driver.ask("run", job, PATIENCE_S)
        return errors
    except DriverGone:
        late = rig.driver.late
        rig.renew()
        return {"driver": f"no answer in {PATIENCE_S} s" if late else "killed"}


def _differences(rig: Rig, job: dict[str, str], rows: list[Row]) -> list[str]:
    wanted = digest((key, b"seen " + payload) for key, payload in rows)
    found = {"topic": digest((row["key"], row["payload"]) for row in rig.broker.rows(job["target"]))}
    try:
        count, name = rig.driver.ask("files", job, PATIENCE_S)
    except DriverGone:  # struck at the very end
        rig.renew()
        count, name = rig.driver.ask("files", job, PATIENCE_S)
    found["files"] = (count, name)
    return [f"{name}: {each[0]} rows for {wanted[0]}" for name, each in found.items() if each != wanted]
