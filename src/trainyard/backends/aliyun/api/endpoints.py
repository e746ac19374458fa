"""The endpoints of Alibaba Cloud's products by region, and the variables that override them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.backends.aliyun.api.wire import Endpoint
from trainyard.lib.errors import InvalidError
from trainyard.settings import CloudSettings

VERSIONS = {"ecs": "2014-05-26", "vpc": "2016-04-28", "nas": "2017-06-26", "sts": "2015-04-01"}

# The rule is product.region.aliyuncs.com. These are the exceptions among the public regions, from the vendor's own maps.
_EXCEPTIONS = {
    ("ecs", "cn-hangzhou"): "ecs-cn-hangzhou.aliyuncs.com",
    ("ecs", "cn-shanghai-finance-1"): "ecs-cn-hangzhou.aliyuncs.com",
    ("ecs", "cn-shenzhen-finance-1"): "ecs-cn-hangzhou.aliyuncs.com",
    ("ecs", "cn-north-2-gov-1"): "ecs.aliyuncs.com",
    ("vpc", "cn-hangzhou"): "vpc.aliyuncs.com",
    ("vpc", "cn-shanghai-finance-1"): "vpc.aliyuncs.com",
    ("vpc", "cn-shenzhen-finance-1"): "vpc.aliyuncs.com",
    ("vpc", "cn-north-2-gov-1"): "vpc.aliyuncs.com",
    ("nas", "ap-southeast-2"): "nas.aliyuncs.com",
    ("sts", "ap-south-1"): "sts.aliyuncs.com",
    ("sts", "ap-southeast-2"): "sts.aliyuncs.com",
    ("sts", ""): "sts.aliyuncs.com",
}
_REGION = re.compile(r"[a-z]{2,}(-[a-z0-9]+)+\Z")
_HOST = re.compile(r"(?:(https?)://)?([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?/?\Z")
_LOOPBACK = re.compile(r"localhost\b|127\.|\[::1\]")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Finds the endpoint of a product; made from what the environment says."""

    everywhere: str = ""
    by_product: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, cloud: CloudSettings) -> Endpoints:
        """The overrides that the variables name."""
        return cls(cloud.endpoint, cloud.endpoints)

    def find(self, product: str, region: str) -> Endpoint:
        """A product's own variable wins, then the variable for all, then Alibaba's rule."""
        if own := self.by_product.get(product):
            return parse_endpoint(own, f"TRAINYARD_ALIYUN_ENDPOINT_{product.upper()}")
        if self.everywhere:
            return parse_endpoint(self.everywhere, "TRAINYARD_ALIYUN_ENDPOINT")
        if not _REGION.match(region) and (product, region) not in _EXCEPTIONS:
            raise InvalidError(
                f"{region!r} is not a region of Alibaba Cloud"
                if region
                else "no region of Alibaba Cloud is set",
                hint="Set ALIYUN_DEFAULT_REGION, for example to cn-beijing.",
                reason="provider.region",
            )
        return Endpoint(_EXCEPTIONS.get((product, region)) or f"{product}.{region}.aliyuncs.com")


def parse_endpoint(text: str, variable: str) -> Endpoint:
    """`host:port` or a whole address. On loopback plain http is meant where nothing else is said."""
    match = _HOST.match(text.strip())
    if match is None:
        raise InvalidError(
            f"{variable}={text!r} is not host:port", hint=f"Write it like {variable}=127.0.0.1:8080."
        )
    protocol = match[1] or ("http" if _LOOPBACK.match(match[2]) else "https")
    return Endpoint(match[2] + (match[3] or ""), protocol)
