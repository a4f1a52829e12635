"""What holds for every test: how hypothesis and Java run, and how tests are spread over workers."""

import os
import signal

import pytest
from hypothesis import settings

from tests.environments import JAVA_OPTIONS, SPARK_LINKS
from tests.spreading import Units, slow_first
from wherry.spark.sessions.home import linked_home

# In the background of a shell each process ignores Ctrl-C, those that tests start too: one that gets it would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nodes that tests start on a free port must not meet on the usual ports of Flight, AMQP and STOMP.
os.environ["WHERRY_FLIGHT_PORT"] = "0"
os.environ["WHERRY_AMQP_PORT"] = "0"
os.environ["WHERRY_STOMP_PORT"] = "0"

os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_DAEMON_JAVA_OPTS"] = JAVA_OPTIONS
if (home := linked_home(SPARK_LINKS)) is not None:
    os.environ["SPARK_HOME"] = str(home)

# No deadline: on a busy machine a deadline fails good tests. The blob replays a failure without the local database.
# `make test-quick` and `make test-long` choose their profile by --hypothesis-profile.
settings.register_profile("wherry", deadline=None, print_blob=True)
settings.register_profile("quick", settings.get_profile("wherry"), max_examples=20)
settings.register_profile("long", settings.get_profile("wherry"), max_examples=1_000)
settings.load_profile("wherry")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        slow_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Units:
    return Units(config, log)
