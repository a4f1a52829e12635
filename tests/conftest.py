"""What holds for every test: how hypothesis runs."""

import os
import signal

from hypothesis import settings

# In the background of a shell Ctrl-C is ignored, by every process that tests start too: those that send one would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nodes that tests start on a port of their own must not meet on the usual ones of Flight, AMQP and STOMP.
os.environ["WHERRY_FLIGHT_PORT"] = "0"
os.environ["WHERRY_AMQP_PORT"] = "0"
os.environ["WHERRY_STOMP_PORT"] = "0"

# No deadline: on a busy machine it fails tests that are right. The blob replays a failure without the local database.
settings.register_profile("wherry", deadline=None, print_blob=True)
settings.load_profile("wherry")
