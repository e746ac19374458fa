"""Values on the wire: flattened parameters, nested lists, times; and where products answer."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.backends.aliyun.api.endpoints import Endpoints
from trainyard.backends.aliyun.api.wire import (
    Endpoint,
    Keys,
    flatten,
    format_time,
    json_list,
    number,
    parse_time,
    rows,
    tags,
    text,
    texts,
)
from trainyard.lib.errors import InvalidError


def test_parameters_become_flat_and_sorted():
    nested = {
        "Tag": [{"Key": "a", "Value": "b c"}, {"Key": "d", "Value": ""}],
        "DryRun": True,
        "Amount": 2,
        "SystemDisk": {"Size": 40, "Encrypted": False},
        "SpotPriceLimit": Decimal("1.50"),
        "InstanceId": ("i-1", "i-2"),
        "AutoReleaseTime": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "Nothing": None,
        "Empty": [],
    }
    flat = flatten(nested)
    assert flat == {
        "Amount": "2",
        "AutoReleaseTime": "2026-01-02T03:04:05Z",
        "DryRun": "true",
        "InstanceId.1": "i-1",
        "InstanceId.2": "i-2",
        "SpotPriceLimit": "1.50",
        "SystemDisk.Encrypted": "false",
        "SystemDisk.Size": "40",
        "Tag.1.Key": "a",
        "Tag.1.Value": "b c",
        "Tag.2.Key": "d",
        "Tag.2.Value": "",
    }
    assert list(flat) == sorted(flat)


names = st.text("ABCabc", min_size=1, max_size=4)
leaves = st.one_of(st.text(max_size=5), st.integers(), st.booleans())


@given(
    st.dictionaries(
        names,
        st.recursive(
            leaves,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
            max_leaves=8,
        ),
        max_size=4,
    )
)
def test_no_leaf_is_lost_when_parameters_are_flattened(parameters):
    def count(value) -> int:
        if isinstance(value, dict):
            return sum(count(inner) for inner in value.values())
        return sum(count(inner) for inner in value) if isinstance(value, list) else 1

    assert len(flatten(parameters)) == count(parameters)


@pytest.mark.parametrize(
    "answer", [{}, {"A": None}, {"A": ""}, {"A": {}}, {"A": {"B": None}}, {"A": {"B": []}}, {"A": []}]
)
def test_a_missing_list_is_an_empty_one(answer):
    assert rows(answer, "A.B") == []
    assert texts(answer, "A.B") == ()
    assert text(answer, "A.B") == ""
    assert number(answer, "A.B") == 0


def test_values_are_found_under_their_wrappers():
    answer = {"A": {"B": [{"x": 1}]}, "P": {"I": ["1.2.3.4"]}, "N": 1.05, "S": "0.25", "bad": "many"}
    assert rows(answer, "A.B") == [{"x": 1}]
    assert texts(answer, "P.I") == ("1.2.3.4",)
    assert number(answer, "N") == Decimal("1.05")
    assert number(answer, "S") == Decimal("0.25")
    assert number(answer, "bad") == 0


def test_tags_are_read_in_the_spelling_of_every_product():
    assert tags({"Tags": {"Tag": [{"TagKey": "a", "TagValue": "1"}]}}) == {"a": "1"}
    assert tags({"Tags": {"Tag": [{"Key": "a", "Value": "1"}, {"Key": "b"}]}}) == {"a": "1", "b": ""}
    assert tags({}) == {}


def test_times_are_read_with_and_without_seconds():
    assert parse_time("2017-12-10T04:04Z") == datetime(2017, 12, 10, 4, 4, tzinfo=UTC)
    assert parse_time("2017-12-10T04:04:05Z") == datetime(2017, 12, 10, 4, 4, 5, tzinfo=UTC)
    assert parse_time("") is None
    assert parse_time("soon") is None
    assert parse_time(format_time(datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC))) == datetime(
        2026, 5, 6, 7, 8, 9, tzinfo=UTC
    )


def test_ids_are_json_where_the_contract_says_so():
    assert json_list(["i-1", "i-2"]) == '["i-1","i-2"]'


def test_keys_show_no_secret():
    keys = Keys(access_key_id="id", access_key_secret="s3cr3t", security_token="t0ken")
    assert "s3cr3t" not in repr(keys)
    assert "t0ken" not in repr(keys)
    assert keys.scrub("a s3cr3t and a t0ken") == "a *** and a ***"


@pytest.mark.parametrize(
    ("product", "region", "host"),
    [
        ("ecs", "cn-beijing", "ecs.cn-beijing.aliyuncs.com"),
        ("ecs", "cn-hangzhou", "ecs-cn-hangzhou.aliyuncs.com"),
        ("vpc", "cn-hangzhou", "vpc.aliyuncs.com"),
        ("vpc", "us-west-1", "vpc.us-west-1.aliyuncs.com"),
        ("nas", "cn-hangzhou", "nas.cn-hangzhou.aliyuncs.com"),
        ("nas", "ap-southeast-2", "nas.aliyuncs.com"),
        ("sts", "ap-southeast-2", "sts.aliyuncs.com"),
        ("sts", "cn-beijing", "sts.cn-beijing.aliyuncs.com"),
    ],
)
def test_a_product_answers_where_the_rule_or_its_exception_says(product, region, host):
    assert Endpoints().find(product, region) == Endpoint(host, "https")


def test_variables_send_calls_elsewhere_the_products_own_first():
    endpoints = Endpoints("127.0.0.1:8080", {"vpc": "https://vpc.example.com"})
    assert endpoints.find("ecs", "cn-beijing") == Endpoint("127.0.0.1:8080", "http")
    assert endpoints.find("vpc", "cn-beijing") == Endpoint("vpc.example.com", "https")


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("http://127.0.0.1:99/", Endpoint("127.0.0.1:99", "http")),
        ("localhost:99", Endpoint("localhost:99", "http")),
        ("https://127.0.0.1:99", Endpoint("127.0.0.1:99", "https")),
        ("gateway.example.com", Endpoint("gateway.example.com", "https")),
        (" [::1]:99 ", Endpoint("[::1]:99", "http")),
    ],
)
def test_an_endpoint_may_be_given_as_an_address(given, endpoint):
    assert Endpoints(given).find("ecs", "cn-beijing") == endpoint


@pytest.mark.parametrize("given", ["ftp://x", "a b", "http://x/path", "x:port", "$(id)"])
def test_an_endpoint_that_is_none_is_named(given):
    with pytest.raises(InvalidError, match="TRAINYARD_ALIYUN_ENDPOINT"):
        Endpoints(given).find("ecs", "cn-beijing")


@pytest.mark.parametrize("region", ["", "Beijing", "cn_beijing", "evil.example.com/", "cn-beijing.evil"])
def test_a_region_that_is_none_never_becomes_a_host(region):
    with pytest.raises(InvalidError, match="region"):
        Endpoints().find("ecs", region)
