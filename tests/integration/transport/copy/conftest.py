"""The fixtures of copying; what tests import by name is in `copy_boxes.py`, a name that no other folder has."""

from copy_boxes import *  # noqa: F403  # fixtures are found by name in a conftest
