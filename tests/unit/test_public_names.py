"""The public names of the package, held by a test: to add or remove one is a decision, not an accident."""

import subprocess
import sys

import wherry

NAMES = """
AlreadyExists Amended Amendment ApiKey AuditRecord Batch Binding Broker CallContext Client ClientCredentials Clock
Closed ConnectionLost Consumer Corrupt CutOff DeadFilter Delivery DiskFull DuplicateId Failed Fate Fates Fenced
Forbidden HistoryLost InUse InvalidInput Leased LimitReached ListenAt Losses Message NotFound NotWaiting OutOfSequence
Outcome Peer PublishOptions Published Received RefusalCode Refused Removal Retry Right Route Scan Search Service
StageLost StaleLease StorageError Strategy Subscription SubscriptionStats SyncClient SyncPeer SystemClock TimedOut
TooLarge Topic TopicStats Trust TrustedIssuer Unauthorized Unavailable VersionConflict VirtualClock Webhook WherryError
WriterFailed connect connect_sync current_call embedded embedded_sync open peer peer_sync register_assignment
scan verify_webhook
"""


def test_the_public_names_are_these():
    assert sorted(wherry.__all__) == sorted(NAMES.split())
    assert all(hasattr(wherry, name) for name in wherry.__all__)


def test_every_error_has_a_code_of_its_own_and_one_base():
    named = [getattr(wherry, name) for name in wherry.__all__]
    errors = [value for value in named if isinstance(value, type) and issubclass(value, Exception)]
    known = [error for error in errors if issubclass(error, wherry.WherryError)]
    assert known == errors
    codes = [error.code for error in known]
    assert len(set(codes)) == len(codes) > 15


def test_importing_the_package_loads_no_module_before_its_use():
    code = "import sys, wherry, wherry.client.pytest_plugin; print('pyarrow' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
