"""The public names of the package, held by a test: a name that goes or comes is a decision, not an accident."""

import wherry

NAMES = """
AlreadyExists Amended Amendment Binding Broker Clock Closed Consumer Corrupt CutOff DeadFilter Deed Delivery DiskFull
DuplicateId Fenced InUse InvalidInput LimitReached Message NotFound NotWaiting OutOfSequence PublishOptions Published
Received Retry Route Search StageLost StaleLease StorageError Strategy Subscription SubscriptionStats SystemClock
TooLarge Topic TopicStats VersionConflict WherryError WriterFailed open register_assignment
"""


def test_the_public_names_are_these():
    assert sorted(wherry.__all__) == sorted(NAMES.split())
    assert all(hasattr(wherry, name) for name in wherry.__all__)


def test_every_error_has_a_code_of_its_own_and_one_base():
    errors = [value for value in vars(wherry).values() if isinstance(value, type) and issubclass(value, Exception)]
    known = [error for error in errors if issubclass(error, wherry.WherryError)]
    assert known == errors
    codes = [error.code for error in known]
    assert len(set(codes)) == len(codes) > 15
