"""The images that the provider and its marketplace offer; an account's own are records of the world."""

from __future__ import annotations

from datetime import UTC, datetime

from trainyard.emulators.aliyun.cloud.records import Image

GPU = "_with_nvidia_gpu_driver_and_cuda"

# id without its end · family without `acs:` · GiB · date · platform · name for people
_SYSTEM = f"""
ubuntu_24_04_x64_20G ubuntu_24_04_x64 20 20251202 Ubuntu Ubuntu 24.04 64位
ubuntu_24_04_x64_20G ubuntu_24_04_x64 20 20260119 Ubuntu Ubuntu 24.04 64位
ubuntu_22_04_x64_20G ubuntu_22_04_x64 20 20251103 Ubuntu Ubuntu 22.04 64位
ubuntu_22_04_x64_20G ubuntu_22_04_x64 20 20260119 Ubuntu Ubuntu 22.04 64位
ubuntu_20_04_x64_20G ubuntu_20_04_x64 20 20250917 Ubuntu Ubuntu 20.04 64位
ubuntu_18_04_x64_20G ubuntu_18_04_x64 20 20230901 Ubuntu Ubuntu 18.04 64位
ubuntu_24_04_x64{GPU}_40G ubuntu_24_04_x64{GPU} 40 20260119 Ubuntu Ubuntu 24.04 64位 预装NVIDIA GPU驱动和CUDA
ubuntu_22_04_x64{GPU}_40G ubuntu_22_04_x64{GPU} 40 20260119 Ubuntu Ubuntu 22.04 64位 预装NVIDIA GPU驱动和CUDA
ubuntu_20_04_x64{GPU}_40G ubuntu_20_04_x64{GPU} 40 20260119 Ubuntu Ubuntu 20.04 64位 预装NVIDIA GPU驱动和CUDA
aliyun_3_x64_20G alibaba_cloud_linux_3_2104_lts_x64 20 20260122 Aliyun Alibaba Cloud Linux 3.2104 LTS 64位
aliyun_3_x64_20G_uefi alibaba_cloud_linux_3_2104_lts_x64_uefi 20 20260122 Aliyun Alibaba Cloud Linux 3.2104 LTS 64位 UEFI
aliyun_3_x64{GPU}_40G alibaba_cloud_linux_3_2104_lts_x64{GPU} 40 20260122 Aliyun Alibaba Cloud Linux 3.2104 LTS 64位 GPU
aliyun_4_x64_20G alibaba_cloud_linux_4_lts_x64 20 20260210 Aliyun Alibaba Cloud Linux 4 LTS 64位
aliyun_2_1903_x64_20G alibaba_cloud_linux_2_1903_lts_x64 20 20240628 Aliyun Alibaba Cloud Linux 2.1903 LTS 64位
centos_7_9_x64_20G centos_7_9_x64 20 20240628 CentOS CentOS 7.9 64位
rockylinux_9_7_x64_20G rocky_linux_9_7_x64 20 20260104 Rocky Rocky Linux 9.7 64位
debian_13_5_x64_20G debian_13_5_x64 20 20260601 Debian Debian 13.5 64位
"""
# The image that FastGPU's manual names; the provider withdrew it long ago, the manual's readers have not.
_MANUAL = "ubuntu_18_04_64_20G - 20 20190624 Ubuntu Ubuntu 18.04 64位"

# The images with AIACC that the FastGPU demos name; had from the marketplace for nothing.
_MARKET = """
aiacc-dlimg-centos7:1.3.0.post3 CentOS CentOS 7.8 64位
aiacc-dlimg-centos7:1.3.1 CentOS CentOS 7.8 64位
aiacc-dlimg-centos7:1.3.2 CentOS CentOS 7.8 64位
aiacc-dlimg-ubuntu2004:1.5.0 Ubuntu Ubuntu 20.04 64位
"""


def _system(line: str) -> Image:
    stem, family, size, date, platform, os_name = line.split(maxsplit=5)
    name = f"{stem}_alibase_{date}.vhd"
    return Image(
        id=name,
        name=name,
        family="" if family == "-" else f"acs:{family}",
        os_name=os_name,
        platform=platform,
        size=int(size),
        created=datetime.strptime(date, "%Y%m%d").replace(tzinfo=UTC),
        boot_mode="UEFI" if "uefi" in name else "BIOS",
    )


def _market(number: int, line: str) -> Image:
    name, platform, os_name = line.split(maxsplit=2)
    return Image(
        id=f"m-market{number:016d}",
        name=name,
        owner="marketplace",
        os_name=os_name,
        platform=platform,
        size=100,
        created=datetime(2022, 3, 1, tzinfo=UTC),
        description="AIACC training",
    )


IMAGES = {
    image.id: image
    for image in (
        *(_system(line) for line in [*_SYSTEM.strip().splitlines(), _MANUAL]),
        *(_market(number, line) for number, line in enumerate(_MARKET.strip().splitlines(), start=1)),
    )
}
