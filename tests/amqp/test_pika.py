"""pika, with its blocking connection, and with its own loop."""

import pytest

from tests.amqp.driving import scenarios_of


@pytest.mark.rows("Q12", "Q7")
@pytest.mark.parametrize("scenario", scenarios_of("pika"))
def test_pika(drive, scenario):
    drive("pika", scenario)
