"""The images that the provider and its marketplace offer; an account's own are records of the world."""

from __future__ import annotations

from datetime import UTC, datetime

from trainyard.emulators.aliyun.records import Image


def _system(name: str, family: str, os_name: str, platform: str, size: int, date: str) -> Image:
    return Image(
        id=name,
        name=name,
        family=family,
        os_name=os_name,
        platform=platform,
        size=size,
        created=datetime.strptime(date, "%Y%m%d").replace(tzinfo=UTC),
        description="",
        boot_mode="UEFI" if "uefi" in name else "BIOS",
    )


_GPU = "_with_nvidia_gpu_driver_and_cuda"


def _systems() -> list[Image]:
    ubuntu, alinux = "Ubuntu", "Aliyun"
    images = [
        _system(
            f"ubuntu_{version}_x64_20G_alibase_{date}.vhd",
            f"acs:ubuntu_{version}_x64",
            f"Ubuntu {version.replace('_', '.')} 64位",
            ubuntu,
            20,
            date,
        )
        for version, date in (
            ("24_04", "20251202"),
            ("24_04", "20260119"),
            ("22_04", "20251103"),
            ("22_04", "20260119"),
            ("20_04", "20250917"),
            ("18_04", "20230901"),
        )
    ]
    images.extend(
        _system(
            f"ubuntu_{version}_x64{_GPU}_40G_alibase_20260119.vhd",
            f"acs:ubuntu_{version}_x64{_GPU}",
            f"Ubuntu {version.replace('_', '.')} 64位 预装NVIDIA GPU驱动和CUDA",
            ubuntu,
            40,
            "20260119",
        )
        for version in ("24_04", "22_04", "20_04")
    )
    # The image that FastGPU's manual names; the provider withdrew it long ago, the manual's readers have not.
    images.append(
        _system("ubuntu_18_04_64_20G_alibase_20190624.vhd", "", "Ubuntu 18.04 64位", ubuntu, 20, "20190624")
    )
    for name, family, os_name, platform, size, date in (
        (
            "aliyun_3_x64_20G_alibase_20260122.vhd",
            "alibaba_cloud_linux_3_2104_lts_x64",
            "3.2104 LTS",
            alinux,
            20,
            "20260122",
        ),
        (
            "aliyun_4_x64_20G_alibase_20260210.vhd",
            "alibaba_cloud_linux_4_lts_x64",
            "4 LTS",
            alinux,
            20,
            "20260210",
        ),
        (
            "aliyun_3_x64_20G_uefi_alibase_20260122.vhd",
            "alibaba_cloud_linux_3_2104_lts_x64_uefi",
            "3.2104 LTS UEFI",
            alinux,
            20,
            "20260122",
        ),
        (
            f"aliyun_3_x64{_GPU}_40G_alibase_20260122.vhd",
            f"alibaba_cloud_linux_3_2104_lts_x64{_GPU}",
            "3.2104 LTS GPU",
            alinux,
            40,
            "20260122",
        ),
        (
            "aliyun_2_1903_x64_20G_alibase_20240628.vhd",
            "alibaba_cloud_linux_2_1903_lts_x64",
            "2.1903 LTS",
            alinux,
            20,
            "20240628",
        ),
        (
            "centos_7_9_x64_20G_alibase_20240628.vhd",
            "centos_7_9_x64",
            "CentOS 7.9 64位",
            "CentOS",
            20,
            "20240628",
        ),
        (
            "rockylinux_9_7_x64_20G_alibase_20260104.vhd",
            "rocky_linux_9_7_x64",
            "Rocky Linux 9.7 64位",
            "Rocky Linux",
            20,
            "20260104",
        ),
        (
            "debian_13_5_x64_20G_alibase_20260601.vhd",
            "debian_13_5_x64",
            "Debian 13.5 64位",
            "Debian",
            20,
            "20260601",
        ),
    ):
        label = f"Alibaba Cloud Linux {os_name} 64位" if platform == alinux else os_name
        images.append(_system(name, f"acs:{family}", label, platform, size, date))
    return images


def _market() -> list[Image]:
    """The images with AIACC that the FastGPU demos name; sold in the marketplace for nothing."""
    return [
        Image(
            id=f"m-market{number:016d}",
            name=name,
            owner="marketplace",
            os_name=os_name,
            platform=platform,
            size=100,
            created=datetime(2022, 3, 1, tzinfo=UTC),
            description="AIACC training",
        )
        for number, (name, os_name, platform) in enumerate(
            (
                ("aiacc-dlimg-centos7:1.3.0.post3", "CentOS 7.8 64位", "CentOS"),
                ("aiacc-dlimg-centos7:1.3.1", "CentOS 7.8 64位", "CentOS"),
                ("aiacc-dlimg-centos7:1.3.2", "CentOS 7.8 64位", "CentOS"),
                ("aiacc-dlimg-ubuntu2004:1.5.0", "Ubuntu 20.04 64位", "Ubuntu"),
            ),
            start=1,
        )
    ]


IMAGES = {image.id: image for image in (*_systems(), *_market())}
