# The GPU driver and CUDA, where the image has none: from the packages of Ubuntu. Defines install_driver; expects `note` and
# `install` (packages).
install_driver() {
    ! command -v nvidia-smi >/dev/null 2>&1 || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        note "the GPU driver is not in this image, and can be installed by us on Ubuntu only" && return 0
    fi
    if ! { install ubuntu-drivers-common && ubuntu-drivers install --gpgpu; }; then
        note "the GPU driver cannot be installed" && return 0
    fi
    # The driver for servers comes without nvidia-smi; what brings it has the same number.
    version=$(dpkg-query -W -f '${Package}\n' 'nvidia-headless-*' 2>/dev/null |
        sed -n 's/^nvidia-headless-\(no-dkms-\)\{0,1\}\([0-9].*\)$/\2/p' | head -n 1)
    if ! { install "nvidia-utils-$version" && install nvidia-cuda-toolkit; }; then
        note "CUDA cannot be installed" && return 0
    fi
    ! command -v modprobe >/dev/null 2>&1 || modprobe nvidia || :
    nvidia-smi >/dev/null || note "the GPU driver was installed, but nvidia-smi does not run"
}
