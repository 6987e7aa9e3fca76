"""Settings of all tests."""

from hypothesis import settings

# Examples are judged by their results: on a busy machine any of them may be slow once.
settings.register_profile("jitree", deadline=None)
settings.load_profile("jitree")
