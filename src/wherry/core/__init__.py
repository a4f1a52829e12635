"""Pure decisions: order, leases, retries, dead letters, bounds, assignment. No IO, clock, randomness or asyncio."""
