"""The emulator judged by a stranger: the vendor's own typed clients live a whole life against it."""

from __future__ import annotations

import base64
import os
import subprocess
import warnings
from types import SimpleNamespace

import pytest

from emulation import Emulation, emulated, until

pytestmark = pytest.mark.slow  # the vendor's packages take seconds to import; a cloud is started and lived in

ZONE = "cn-beijing-h"


@pytest.fixture(scope="module")
def vendor():
    """The vendor's clients, imported once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that are not ours
        from alibabacloud_ecs20140526 import models as ecs_models
        from alibabacloud_ecs20140526.client import Client as Ecs
        from alibabacloud_nas20170626 import models as nas_models
        from alibabacloud_nas20170626.client import Client as Nas
        from alibabacloud_sts20150401.client import Client as Sts
        from alibabacloud_tea_openapi.exceptions import ClientException, ThrottlingException
        from alibabacloud_tea_openapi.utils_models import Config
        from alibabacloud_vpc20160428 import models as vpc_models
        from alibabacloud_vpc20160428.client import Client as Vpc
    return SimpleNamespace(
        Ecs=Ecs,
        Vpc=Vpc,
        Nas=Nas,
        Sts=Sts,
        Config=Config,
        ecs=ecs_models,
        vpc=vpc_models,
        nas=nas_models,
        Refused=ClientException,
        Throttled=ThrottlingException,
    )


def config(vendor, cloud: Emulation, **changes):
    return vendor.Config(
        **{
            "endpoint": cloud.endpoint,
            "protocol": "http",
            "region_id": cloud.region,
            "access_key_id": cloud.ready["access_key_id"],
            "access_key_secret": cloud.ready["access_key_secret"],
            **changes,
        }
    )


@pytest.fixture
def no_proxy(monkeypatch):
    """The vendor's client sends even loopback through a proxy."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def ssh(cloud: Emulation, address: str, key, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *("ssh", "-F", "none", "-i", str(key), "-p", str(cloud.ready["ssh_port"]), "-o", "BatchMode=yes"),
            *(
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                f"UserKnownHostsFile={key}.known",
                "-o",
                "LogLevel=ERROR",
            ),
            *("-o", "IdentitiesOnly=yes", f"{cloud.ready['ssh_user']}@{address}", command),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def make_network(vendor, client, region):
    """VPC and vSwitch, waited for."""
    made = client.create_vpc(
        vendor.vpc.CreateVpcRequest(region_id=region, cidr_block="192.168.0.0/16", vpc_name="fastgpu-vpc")
    ).body
    find = vendor.vpc.DescribeVpcsRequest(region_id=region, vpc_id=made.vpc_id)
    until(lambda: client.describe_vpcs(find).body.vpcs.vpc[0].status == "Available")
    vswitch = client.create_vswitch(
        vendor.vpc.CreateVSwitchRequest(
            region_id=region, vpc_id=made.vpc_id, zone_id=ZONE, cidr_block="192.168.0.0/20"
        )
    ).body.v_switch_id
    look = vendor.vpc.DescribeVSwitchesRequest(region_id=region, v_switch_id=vswitch)
    until(lambda: client.describe_vswitches(look).body.v_switches.v_switch[0].status == "Available")
    return made.vpc_id, vswitch


def make_group(vendor, client, region, vpc):
    group = client.create_security_group(
        vendor.ecs.CreateSecurityGroupRequest(region_id=region, vpc_id=vpc, security_group_name="fastgpu")
    ).body.security_group_id
    rule = vendor.ecs.AuthorizeSecurityGroupRequestPermissions(
        ip_protocol="TCP", port_range="22/22", source_cidr_ip="127.0.0.1/32"
    )
    client.authorize_security_group(
        vendor.ecs.AuthorizeSecurityGroupRequest(
            region_id=region, security_group_id=group, permissions=[rule]
        )
    )
    shown = client.describe_security_group_attribute(
        vendor.ecs.DescribeSecurityGroupAttributeRequest(
            region_id=region, security_group_id=group, nic_type="intranet"
        )
    ).body.permissions.permission
    assert [(one.port_range, one.source_cidr_ip) for one in shown] == [("22/22", "127.0.0.1/32")]
    return group


def test_the_vendors_clients_live_a_whole_life(vendor, no_proxy, tmp_path):
    times = ["pending=0.2", "starting=0.4", "stopping=0.3", "deleting=0.2", "visible=0.1"]
    times += ["vpc=0.1", "vswitch=0.1", "file_system=0.1", "mount_target=0.2"]
    sets = [word for time in times for word in ("--set", f"timing.{time}")]
    with emulated(tmp_path / "state", *sets, instant=False) as cloud:
        ecs = vendor.Ecs(config(vendor, cloud))
        network = vendor.Vpc(config(vendor, cloud))
        region = cloud.region
        vpc, vswitch = make_network(vendor, network, region)
        group = make_group(vendor, ecs, region, vpc)

        pair = ecs.create_key_pair(
            vendor.ecs.CreateKeyPairRequest(region_id=region, key_pair_name="mine")
        ).body
        key = tmp_path / "key"
        key.touch(mode=0o600)
        key.write_text(pair.private_key_body.rstrip("\n") + "\n")

        script = b"#!/bin/sh\necho booted > /root/booted\n"
        request = vendor.ecs.RunInstancesRequest(
            region_id=region,
            image_family="acs:ubuntu_22_04_x64",
            instance_type="ecs.gn6v-c8g1.2xlarge",
            v_switch_id=vswitch,
            security_group_id=group,
            key_pair_name="mine",
            instance_name="task0.bert",
            host_name="task0-bert",
            internet_max_bandwidth_out=5,
            user_data=base64.b64encode(script).decode(),
            client_token="once",
            dry_run=False,
            amount=1,
            system_disk=vendor.ecs.RunInstancesRequestSystemDisk(category="cloud_essd", size="60"),
            data_disk=[vendor.ecs.RunInstancesRequestDataDisk(category="cloud_essd", size=100)],
            tag=[vendor.ecs.RunInstancesRequestTag(key="fast job", value="bert+1*~/中")],
        )
        ids = ecs.run_instances(request).body.instance_id_sets.instance_id_set
        assert ecs.run_instances(request).body.instance_id_sets.instance_id_set == ids
        [instance] = ids

        def describe():
            rows = ecs.describe_instances(
                vendor.ecs.DescribeInstancesRequest(
                    region_id=region,
                    max_results=100,
                    tag=[vendor.ecs.DescribeInstancesRequestTag(key="fast job", value="bert+1*~/中")],
                )
            ).body.instances.instance
            return rows[0] if rows else None

        def status():
            return found.status if (found := describe()) else ""

        until(lambda: status() == "Running")
        first = describe()
        assert (first.instance_id, first.instance_name, first.zone_id) == (instance, "task0.bert", ZONE)
        assert (first.gpuamount, first.key_pair_name) == (1, "mine")
        public = first.public_ip_address.ip_address[0]
        private = first.vpc_attributes.private_ip_address.ip_address[0]
        assert public.startswith("127.")
        until(lambda: ssh(cloud, public, key, "cat /root/booted").stdout == "booted\n")
        there = ssh(cloud, private, key, "hostname; echo kept > /root/kept")
        assert there.stdout == "task0-bert\n", there

        ecs.stop_instances(
            vendor.ecs.StopInstancesRequest(
                region_id=region, instance_id=[instance], stopped_mode="StopCharging"
            )
        )
        until(lambda: status() == "Stopped")
        assert describe().stopped_mode == "StopCharging"
        assert ssh(cloud, private, key, "true").returncode == 255
        ecs.start_instances(vendor.ecs.StartInstancesRequest(region_id=region, instance_id=[instance]))
        until(lambda: status() == "Running")
        again = describe()
        assert again.vpc_attributes.private_ip_address.ip_address[0] == private
        assert again.public_ip_address.ip_address[0] != public
        address = again.public_ip_address.ip_address[0]
        until(lambda: ssh(cloud, address, key, "cat /root/kept").stdout == "kept\n")

        target, system = use_nas(vendor, cloud, vpc, vswitch, address, key)
        ecs.delete_instances(
            vendor.ecs.DeleteInstancesRequest(region_id=region, instance_id=[instance], force=True)
        )
        until(lambda: describe() is None)
        until(lambda: ssh(cloud, address, key, "true").returncode == 255)
        remove_nas(vendor, cloud, target, system)
        ecs.delete_key_pairs(vendor.ecs.DeleteKeyPairsRequest(region_id=region, key_pair_names='["mine"]'))
        ecs.delete_security_group(
            vendor.ecs.DeleteSecurityGroupRequest(region_id=region, security_group_id=group)
        )
        network.delete_vswitch(vendor.vpc.DeleteVSwitchRequest(region_id=region, v_switch_id=vswitch))
        network.delete_vpc(vendor.vpc.DeleteVpcRequest(region_id=region, vpc_id=vpc))
        left = cloud.control("GET", "state")
        tables = (
            "instances",
            "disks",
            "key_pairs",
            "groups",
            "vpcs",
            "vswitches",
            "file_systems",
            "machines",
        )
        assert {name: left[name] for name in tables} == {name: {} for name in tables}


def use_nas(vendor, cloud, vpc, vswitch, address, key):
    """A file system with a mount target, mounted in the machine."""
    nas = vendor.Nas(config(vendor, cloud))
    system = nas.create_file_system(
        vendor.nas.CreateFileSystemRequest(
            file_system_type="standard", protocol_type="NFS", storage_type="Performance", zone_id=ZONE
        )
    ).body.file_system_id
    look = vendor.nas.DescribeFileSystemsRequest(file_system_id=system)
    until(lambda: nas.describe_file_systems(look).body.file_systems.file_system[0].status == "Running")
    domain = nas.create_mount_target(
        vendor.nas.CreateMountTargetRequest(
            file_system_id=system,
            network_type="Vpc",
            vpc_id=vpc,
            v_switch_id=vswitch,
            access_group_name="DEFAULT_VPC_GROUP_NAME",
        )
    ).body.mount_target_domain
    find = vendor.nas.DescribeMountTargetsRequest(file_system_id=system)
    until(lambda: nas.describe_mount_targets(find).body.mount_targets.mount_target[0].status == "Active")
    if cloud.ready["isolation"] == "root":
        command = (
            f"mkdir -p /fastgpu && mount -t nfs -o vers=3,nolock {domain}:/ /fastgpu && echo hi > /fastgpu/x"
        )
        until(lambda: ssh(cloud, address, key, command).returncode == 0)
        assert (cloud.folder / "machines" / "nas" / domain / "x").read_text() == "hi\n"
    return domain, system


def remove_nas(vendor, cloud, domain, system):
    nas = vendor.Nas(config(vendor, cloud))
    nas.delete_mount_target(
        vendor.nas.DeleteMountTargetRequest(file_system_id=system, mount_target_domain=domain)
    )
    find = vendor.nas.DescribeMountTargetsRequest(file_system_id=system)
    until(lambda: not nas.describe_mount_targets(find).body.mount_targets.mount_target)
    nas.delete_file_system(vendor.nas.DeleteFileSystemRequest(file_system_id=system))


def test_the_vendors_clients_understand_refusals(vendor, no_proxy, tmp_path):
    with emulated(tmp_path / "state") as cloud:
        ecs = vendor.Ecs(config(vendor, cloud))
        cloud.control(
            "PUT",
            "faults",
            [
                {"action": "DescribeZones", "kind": "throttle", "times": 1, "retry_after_milliseconds": 1500},
                {"action": "DescribeZones", "kind": "throttle", "times": 1},
            ],
        )
        zones = vendor.ecs.DescribeZonesRequest(region_id=cloud.region)
        with pytest.raises(vendor.Throttled) as throttled:
            ecs.describe_zones(zones)
        assert throttled.value.retry_after == 1500
        with pytest.raises(vendor.Refused) as refused:
            ecs.describe_zones(zones)
        assert refused.value.code == "Throttling.User"
        assert ecs.describe_zones(zones).body.zones.zone
        with pytest.raises(vendor.Refused) as missing:
            ecs.describe_user_data(
                vendor.ecs.DescribeUserDataRequest(region_id=cloud.region, instance_id="i-none")
            )
        assert missing.value.code == "InvalidInstanceId.NotFound"
        assert missing.value.request_id
        wrong = vendor.Ecs(config(vendor, cloud, access_key_secret="wrong"))
        with pytest.raises(vendor.Refused) as unsigned:
            wrong.describe_zones(zones)
        assert unsigned.value.code == "SignatureDoesNotMatch"


def test_the_vendors_older_signature_and_sessions_pass(vendor, no_proxy, tmp_path):
    from alibabacloud_sts20150401 import models as sts_models

    with emulated(tmp_path / "state") as cloud:
        old = vendor.Ecs(config(vendor, cloud, signature_algorithm="v2"))
        assert old.describe_regions(vendor.ecs.DescribeRegionsRequest()).body.regions.region
        sts = vendor.Sts(config(vendor, cloud))
        assert sts.get_caller_identity().body.account_id == cloud.ready["account_id"]
        keys = sts.assume_role(
            sts_models.AssumeRoleRequest(
                role_arn=f"acs:ram::{cloud.ready['account_id']}:role/trainer", role_session_name="me"
            )
        ).body.credentials
        session = {
            "access_key_id": keys.access_key_id,
            "access_key_secret": keys.access_key_secret,
            "security_token": keys.security_token,
        }
        for changes in (session, {**session, "signature_algorithm": "v2"}):
            client = vendor.Sts(config(vendor, cloud, **changes))
            assert client.get_caller_identity().body.identity_type == "AssumedRoleUser"
