"""aio-pika, on asyncio."""

import pytest

from tests.amqp.driving import scenarios_of


@pytest.mark.rows("Q12", "Q7")
@pytest.mark.parametrize("scenario", scenarios_of("aio-pika"))
def test_aio_pika(drive, scenario):
    drive("aio-pika", scenario)
