"""All steps of the drill, by name."""

from __future__ import annotations

from wherry.sim.drill.drill import Step
from wherry.sim.drill.drill_catalog import CATALOG
from wherry.sim.drill.drill_reads import READS
from wherry.sim.drill.drill_tokens import TOKENS
from wherry.sim.drill.drill_writes import WRITES

STEPS: dict[str, Step] = {**WRITES, **CATALOG, **READS, **TOKENS}
