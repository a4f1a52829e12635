"""amqplib of node."""

import pytest

from tests.amqp.driving import scenarios_of


@pytest.mark.rows("Q12", "Q7")
@pytest.mark.parametrize("scenario", scenarios_of("amqplib"))
def test_amqplib(drive, scenario):
    drive("amqplib", scenario)
