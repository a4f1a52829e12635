"""The check that a seed is clean; if it is not, the error names the command that repeats it."""

from wherry.sim.__main__ import failure, try_seed


def assert_clean(seed: int, part: str) -> None:
    """Run one part of a seed; fail with its violations and with the command that repeats it."""
    violations = try_seed(seed, [part])
    assert not violations, failure(seed, violations)
