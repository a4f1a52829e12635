"""One broker for all tests of a worker; each test has topics of its own."""

import pytest

from tests.spark.brokers import broker as started


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    with started(tmp_path_factory.mktemp("broker")) as made:
        yield made
