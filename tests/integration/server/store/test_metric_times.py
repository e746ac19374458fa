"""Readings between any two times that somebody asks for, in both databases."""

from __future__ import annotations

import pytest

from people import People
from trainyard.server.records.samples import node_subject
from trainyard.server.store.usage import samples

FIRST, LAST = -62135596800.0, 253402300799.0  # years 1 and 9999


@pytest.mark.parametrize(("since", "until"), [(FIRST, LAST), (FIRST, None), (None, LAST), (None, None)])
async def test_readings_of_a_node_are_found_whatever_times_are_asked_for(people: People, since, until):
    now = people.clock.now().timestamp()
    told = [(node_subject(name), now - 20, {"cpu": 1.0}) for name in ("n1", "n10")]
    await people.db.write(lambda c: samples.add(c, told))
    found = await people.services.metrics.of_node(people.root, "n1", since=since, until=until)
    assert [one.metric for one in found.series] == ["cpu"]
