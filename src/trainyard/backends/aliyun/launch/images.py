"""Finds the image for machines by id, name, family or kind (ubuntu, centos, aliyun, aiacc).

Ids with a date vanish when newer ones come; scripts that name one get the newest of the same system, and are told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.paging import fetch_all
from trainyard.backends.aliyun.api.wire import Answer, Parameter, number, parse_time, text
from trainyard.lib.errors import InvalidError, NotFoundError

DEFAULT_KIND = "ubuntu"
# kind → families to try, newest first, and how its ids begin where no family is found.
KINDS = {
    "ubuntu": (("acs:ubuntu_22_04_x64", "acs:ubuntu_24_04_x64"), "ubuntu_"),
    "aliyun": (("acs:alibaba_cloud_linux_3_2104_lts_x64", "acs:alibaba_cloud_linux_4_lts_x64"), "aliyun_"),
    "centos": (("acs:centos_7_9_x64",), "centos_"),
    "aiacc": ((), "aiacc-dlimg"),
}
_OTHER_NAMES = {"aliyun_2": "aliyun", "alinux": "aliyun", "alibaba": "aliyun"}
DRIVER_SUFFIXES = ("_with_nvidia_gpu_driver_and_cuda", "_with_nvidia_open_source_gpu_driver_and_cuda")
_DATED = re.compile(r"(?P<system>[a-z]+)_(?P<version>\d+(?:_\d+)?)_.*\.vhd\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image. `note` says, for the user, where it is not exactly what was asked for."""

    id: str
    name: str
    family: str = ""
    system: str = ""  # "Ubuntu  22.04 64 bit"
    platform: str = ""
    architecture: str = ""
    size_gib: int = 0
    owner: str = ""  # system, self, others, marketplace
    created: datetime | None = None
    is_windows: bool = False
    note: str = ""

    @property
    def has_driver(self) -> bool:
        """Whether the GPU driver and CUDA are in it."""
        return any(suffix in f"{self.family} {self.id} {self.name}" for suffix in DRIVER_SUFFIXES) or (
            "aiacc" in self.name
        )


async def fetch_images(
    client: Client, *, name: str = "", owner: str = "", instance_type: str = ""
) -> tuple[Image, ...]:
    """The images that can be used, newest first; on one type, of one owner (system, self, others, marketplace)."""
    parameters: dict[str, Parameter] = {
        "ImageName": name or None,
        "ImageOwnerAlias": owner or None,
        "InstanceType": instance_type or None,
        "OSType": "linux",
        "Status": "Available",
    }
    found = [_read(row) for row in await fetch_all(client, "ecs", "DescribeImages", parameters)]
    return tuple(sorted(found, key=_newest_first))


async def find_image(
    client: Client, *, image: str = "", kind: str = "", instance_type: str = "", with_driver: bool = False
) -> Image:
    """The image that a user means: `image` an id, name or family, else the newest of a kind, else of the default kind.

    With `with_driver` one that has the GPU driver and CUDA is preferred where the kind has one; see `has_driver`.
    """
    if image:
        return await _find_named(client, image)
    return await _find_kind(client, kind or DEFAULT_KIND, instance_type, with_driver=with_driver)


async def _find_named(client: Client, image: str) -> Image:
    if image.startswith("acs:"):
        if found := await _newest_of_family(client, image):
            return found
        raise _missing(client, image)
    rows = await fetch_all(client, "ecs", "DescribeImages", {"ImageId": image}) if _is_id(image) else []
    if rows:
        return _read(rows[0])
    for owner in ("", "marketplace"):  # the provider looks there only when told so
        named = [each for each in await fetch_images(client, name=image, owner=owner) if each.name == image]
        if named:
            return named[0]
    found = await _newest_of_family(client, image) or await _substitute(client, image)
    if found is None:
        raise _missing(client, image)
    return found


async def _find_kind(client: Client, kind: str, instance_type: str, *, with_driver: bool) -> Image:
    plain = kind.strip().lower()
    plain = _OTHER_NAMES.get(plain, plain)
    if plain not in KINDS:
        raise InvalidError(
            f"there is no image type {kind!r}", hint=f"Choose one of: {', '.join(KINDS)}; or name an image."
        )
    families, stem = KINDS[plain]
    wanted = [family + suffix for family in families for suffix in DRIVER_SUFFIXES] if with_driver else []
    for family in (*wanted, *families):
        if found := await _newest_of_family(client, family):
            return found
    owner = "marketplace" if plain == "aiacc" else "system"
    found_all = await fetch_images(
        client, name=f"{stem}*" if plain == "aiacc" else "", owner=owner, instance_type=instance_type
    )
    matching = [each for each in found_all if each.name.startswith(stem) or each.id.startswith(stem)]
    if not matching:
        raise _missing(client, plain)
    return matching[0]


async def _newest_of_family(client: Client, family: str) -> Image | None:
    try:
        answer = await client.call("ecs", "DescribeImageFromFamily", {"ImageFamily": family})
    except (NotFoundError, InvalidError):
        return None
    row = answer.get("Image")
    return _read(row) if isinstance(row, dict) and row.get("ImageId") else None


async def _substitute(client: Client, image: str) -> Image | None:
    """For a withdrawn image with a date in its id: the newest of the same system and version, else of the system."""
    match = _DATED.match(image)
    if match is None:
        return None
    plain = [each for each in await fetch_images(client, owner="system") if not each.has_driver]
    for stem in (f"{match['system']}_{match['version']}_", f"{match['system']}_"):
        fitting = [each for each in plain if each.id.startswith(stem) and "arm64" not in each.id]
        if fitting:
            return replace(
                fitting[0], note=f"the image {image} has been withdrawn; {fitting[0].id} is used in its place"
            )
    return None


def _is_id(image: str) -> bool:
    return image.startswith("m-") or image.endswith(".vhd")


def _missing(client: Client, image: str) -> NotFoundError:
    return NotFoundError(
        f"there is no image {image} in {client.region}",
        hint="List the images with `trainyard queryimage`.",
        reason="provider.image",
        values={"image": image},
    )


def _newest_first(image: Image) -> tuple[float, str]:
    created = image.created or datetime.min.replace(tzinfo=UTC)
    return -created.timestamp() if image.created else 0.0, image.id


def _read(row: Answer) -> Image:
    return Image(
        id=text(row, "ImageId"),
        name=text(row, "ImageName"),
        family=text(row, "ImageFamily"),
        system=text(row, "OSNameEn") or text(row, "OSName"),
        platform=text(row, "Platform"),
        architecture=text(row, "Architecture"),
        size_gib=int(number(row, "Size")),
        owner=text(row, "ImageOwnerAlias"),
        created=parse_time(text(row, "CreationTime")),
        is_windows=text(row, "OSType") == "windows",
    )
