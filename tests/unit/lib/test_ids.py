from __future__ import annotations

import re
import time

from trainyard.lib import ids
from trainyard.lib.ids import Serials


def test_ids_are_unique_and_plain_when_made_in_a_row():
    made = [ids.new_id("m-") for _ in range(2000)]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch(r"m-[0-9a-z]{15}", one) for one in made)


def test_later_ids_sort_later_when_a_millisecond_has_passed():
    first = ids.new_id()
    deadline = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= deadline:
        pass
    assert first < ids.new_id()


def test_hash_is_stable_when_asked_again():
    assert ids.short_hash("/a/train.py") == ids.short_hash("/a/train.py")
    assert ids.short_hash("/a/train.py") != ids.short_hash("/b/train.py")
    assert re.fullmatch(r"[a-z2-7]{5}", ids.short_hash("bad \udcff name"))
    assert len(ids.short_hash("x", 8)) == 8


def test_serials_go_up_and_never_meet_when_many_are_made_at_once():
    serials = Serials()
    made = [serials.new("dlc") for _ in range(5000)]
    assert made == sorted(set(made))
    assert {len(one) for one in made} == {16}
