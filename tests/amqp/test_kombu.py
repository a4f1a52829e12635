"""py-amqp, and kombu upon it."""

import pytest

from tests.amqp.driving import scenarios_of


@pytest.mark.rows("Q12", "Q7")
@pytest.mark.parametrize("scenario", scenarios_of("kombu"))
def test_kombu(drive, scenario):
    drive("kombu", scenario)
