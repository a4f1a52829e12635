"""What holds for every test: how hypothesis runs."""

from hypothesis import settings

# No deadline: on a busy machine it fails tests that are right. The blob replays a failure without the local database.
settings.register_profile("wherry", deadline=None, print_blob=True)
settings.load_profile("wherry")
