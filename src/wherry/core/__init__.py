"""Pure decisions: order, lease, retry, dead letter, bounds, assignment, routing. No IO, clock, chance or asyncio."""
