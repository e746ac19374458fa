"""Tell own_crash.sh that the work is done, when the interpreter goes in good order. Import it after the framework.

What is registered later runs earlier: at that moment the framework has not begun to leave.
"""

import atexit
import os
import sys


def tell():
    if os.environ.get("DONE") and not hasattr(sys, "last_type"):  # no exception has ended the program
        with open(os.environ["DONE"], "w"):
            pass


atexit.register(tell)
