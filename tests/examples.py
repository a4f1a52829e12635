"""How many examples a test of hypothesis takes when it wants more or fewer than its profile has."""

from hypothesis import settings


def scaled(count: int) -> int:
    """Return `count` for the usual profile, and as many times fewer or more as another profile has.

    A state machine that asked for a fixed count would take as long in `make test-quick` as in `make test`.
    """
    usual = settings.get_profile("wherry").max_examples
    return max(5, count * settings().max_examples // usual)
