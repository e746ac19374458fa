"""Flat parameters of the wire to typed ones, by the vendor's schema."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation import flat
from trainyard.emulators.aliyun.api.parameters import (
    has_action,
    read_parameters,
    schema,
    strange_fields,
    takes_token,
)
from trainyard.emulators.aliyun.api.problems import Problem

REGION = ("RegionId", "cn-beijing")


def read(action, *pairs, product="ecs", strict=True):
    return read_parameters(product, action, pairs, strict=strict)


def test_lists_and_structs_are_nested_and_typed():
    found = read(
        "RunInstances",
        REGION,
        ("Amount", "2"),
        ("DryRun", "False"),
        ("SpotPriceLimit", "1.5"),
        ("SystemDisk.Size", "300"),
        ("DataDisk.2.Size", "200"),
        ("DataDisk.1.Size", "100"),
        ("DataDisk.1.DeleteWithInstance", "true"),
        ("Tag.1.Key", "fast job"),
        ("Tag.1.Value", "bert+1*~/中"),
        ("NetworkInterface.1.SecurityGroupIds.1", "sg-1"),
        ("HostNames.1", "a"),
        ("HostNames.2", "b"),
    )
    assert found == {
        "RegionId": "cn-beijing",
        "Amount": 2,
        "DryRun": False,
        "SpotPriceLimit": 1.5,
        "SystemDisk": {"Size": "300"},
        "DataDisk": [{"Size": 100, "DeleteWithInstance": True}, {"Size": 200}],
        "Tag": [{"Key": "fast job", "Value": "bert+1*~/中"}],
        "NetworkInterface": [{"SecurityGroupIds": ["sg-1"]}],
        "HostNames": ["a", "b"],
    }


@pytest.mark.parametrize("text", ["true", "True", "TRUE"])
def test_booleans_are_read_in_any_case(text):
    assert read("StopInstances", REGION, ("InstanceId.1", "i-1"), ("ForceStop", text))["ForceStop"] is True


@pytest.mark.parametrize(
    "name",
    [
        "Amout",
        "DataDisk.1.Sise",
        "DataDisk.Size",
        "DataDisk.1",
        "Tag",
        "Amount.1",
        "HostNames.1.x",
        "SystemDisk",
    ],
)
def test_a_parameter_is_refused_when_the_action_does_not_have_it(name):
    with pytest.raises(Problem) as refused:
        read("RunInstances", REGION, (name, "1"))
    assert refused.value.code == "UnknownParameter"
    assert read("RunInstances", REGION, (name, "1"), strict=False) == {"RegionId": "cn-beijing"}


def test_a_near_name_is_offered_when_a_parameter_is_misspelt():
    with pytest.raises(Problem, match="Did you mean InstanceName"):
        read("RunInstances", REGION, ("InstanceNam", "1"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Amount", "two"),
        ("DryRun", "yes"),
        ("SpotPriceLimit", "x"),
        ("Tag.0.Key", "a"),
        ("Tag.9999999.Key", "a"),
    ],
)
def test_a_value_is_refused_when_it_is_of_another_kind(name, value):
    with pytest.raises(Problem) as refused:
        read("RunInstances", REGION, (name, value))
    assert refused.value.code == "InvalidParameter"


def test_a_required_parameter_is_missed():
    with pytest.raises(Problem, match='"RegionId"') as refused:
        read("RunInstances", ("Amount", "1"))
    assert refused.value.code == "MissingParameter"
    with pytest.raises(Problem, match='"KeyPairName"'):
        read("CreateKeyPair", REGION, ("KeyPairName", ""))


def test_a_tag_may_have_an_empty_value():
    found = read(
        "TagResources",
        REGION,
        ("ResourceId.1", "i-1"),
        ("ResourceType", "instance"),
        ("Tag.1.Key", "a"),
        ("Tag.1.Value", ""),
    )
    assert found["Tag"] == [{"Key": "a", "Value": ""}]


def test_json_by_contract_is_read():
    found = read(
        "RunCommand",
        REGION,
        ("Type", "RunShellScript"),
        ("CommandContent", "x"),
        ("Parameters", '{"a": "b"}'),
    )
    assert found["Parameters"] == {"a": "b"}


def test_what_signs_a_v1_request_is_no_parameter_of_the_action():
    assert (
        read("DescribeRegions", ("Action", "DescribeRegions"), ("Signature", "x"), ("Format", "JSON")) == {}
    )


def test_every_action_takes_the_region():
    assert read("DescribeFileSystems", REGION, product="nas") == {"RegionId": "cn-beijing"}


def test_the_schema_knows_who_takes_a_token():
    assert takes_token("ecs", "RunInstances")
    assert not takes_token("ecs", "StartInstances")
    assert not takes_token("nas", "CreateMountTarget")
    assert not has_action("ecs", "MakeCoffee")
    assert {product: len(actions) > 1 for product, actions in schema().items()} == dict.fromkeys(
        ["ecs", "vpc", "nas", "sts"], True
    )


def test_an_answer_is_judged_by_the_vendors_fields():
    assert strange_fields("ecs", "RunInstances", {"InstanceIdSets": {"InstanceIdSet": ["i-1"]}}) == []
    assert strange_fields("ecs", "RunInstances", {"InstanceIds": [], "TradePrice": "1"}) == [
        "InstanceIds is unknown",
        "TradePrice. is str, not float",
    ]


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


def values_of(kind):
    """Anything that a parameter of this kind may hold."""
    if isinstance(kind, list):
        return st.lists(values_of(kind[0]), min_size=1, max_size=3)
    if isinstance(kind, dict):
        required = {name.removesuffix("*"): inner for name, inner in kind.items() if name.endswith("*")}
        optional = {name: inner for name, inner in kind.items() if not name.endswith("*")}
        fields = st.fixed_dictionaries(
            {name: values_of(inner) for name, inner in required.items()},
            optional={name: values_of(inner) for name, inner in optional.items()},
        )
        return fields.filter(bool)
    return {
        "str": TEXT,
        "int": st.integers(),
        "bool": st.booleans(),
        "float": st.floats(allow_nan=False, allow_infinity=False),
        "json": st.just("{}"),
    }[kind]


@pytest.mark.slow  # a hundred requests of each kind
@given(st.data())
@pytest.mark.parametrize(
    ("product", "action"),
    [("ecs", "RunInstances"), ("ecs", "AuthorizeSecurityGroup"), ("vpc", "CreateVSwitch")],
)
def test_whatever_is_sent_arrives_as_it_was(product, action, data):
    required = {"RegionId": "r", "SecurityGroupId": "s", "VpcId": "v", "ZoneId": "z"}
    tree = schema()[product][action]["request"]
    sent = data.draw(values_of({name.removesuffix("*"): kind for name, kind in tree.items()}))
    names = {name.removesuffix("*") for name in tree}
    sent |= {name: value for name, value in required.items() if name in names}
    pairs = [(name, str(value)) for name, value in flat(sent).items()]
    data.draw(st.randoms()).shuffle(pairs)
    wire = parse_qsl(urlencode(pairs), keep_blank_values=True)
    assert read_parameters(product, action, wire) == sent
