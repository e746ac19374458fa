"""Attempts to get out of a task, run inside of one: each prints `held NAME` or `ESCAPED NAME: how`.

Nothing is done that would hurt the machine if it succeeded: what cannot be tried harmlessly is asked for with arguments that
fail later than the right to do it. Needs only the library of Python 3.8.
"""

import ctypes
import errno
import os
import socket
import stat
import struct
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
IS_X86 = os.uname().machine == "x86_64"
RIGHTS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EROFS, errno.ENOENT}
HOST_PID = int(os.environ.get("PROBE_HOST_PID", "0"))
HOST_FILES = [path for path in os.environ.get("PROBE_HOST_FILES", "").split(":") if path]
HOST_PORT = int(os.environ.get("PROBE_HOST_PORT", "0"))
IS_ROOTS = os.environ.get("PROBE_ROOTS") == "1"  # the node's agent is root: the task has a user of its own
IS_CONTAINER = os.environ.get("PROBE_CONTAINER") == "1"
count = 0


def case(name, attempt, *, allowed=RIGHTS):
    """One attempt. It is held where it fails for want of a right, or returns nothing."""
    global count
    count += 1
    try:
        result = attempt()
    except OSError as error:
        if error.errno in allowed:
            print(f"held {name}")
        else:
            print(f"ESCAPED {name}: failed only with {errno.errorcode.get(error.errno, error.errno)}")
        return
    print(f"ESCAPED {name}: {result!r}" if result else f"held {name}")


def call(number, *words):
    """A call of the kernel; OSError where it fails."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    if libc.syscall(ctypes.c_long(number), *words) < 0:
        found = ctypes.get_errno()
        raise OSError(found, os.strerror(found))
    return "it was done"


def opened(path, flags):
    handle = os.open(path, flags)
    os.close(handle)
    return f"{path} opened"


def forked(run):
    """Try something that changes the process in another one; what it printed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = run() or ""
        except OSError as error:
            said = f"errno {error.errno}"
        os.write(writer, str(said).encode()[:1000])
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 1000).decode()
    os.close(reader)
    os.waitpid(pid, 0)
    if said.startswith("errno "):
        number = int(said.split()[1])
        raise OSError(number, os.strerror(number))
    return said


# -- descriptors of host files


def is_own(pid):
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False


def probe_descriptors():
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    first = "1"
    for pid in sorted({first, *pids[:6]}, key=int):
        case(
            f"write /proc/{pid}/exe",
            lambda pid=pid: opened(f"/proc/{pid}/exe", os.O_RDWR),
            allowed=RIGHTS | {errno.ETXTBSY},
        )
    if IS_ROOTS and not IS_CONTAINER:
        for name in (
            "exe",
            "root/etc/hostname",
            "cwd/.",
            "environ",
            "maps",
            "mem",
            "fd",
            "ns/mnt",
            "ns/user",
            "syscall",
            "stack",
        ):
            case(f"read /proc/1/{name}", lambda name=name: opened(f"/proc/1/{name}", os.O_RDONLY))
        case("write /proc/1/mem", lambda: opened("/proc/1/mem", os.O_RDWR))
        case("reopen /proc/1/exe by a path handle", lambda: os.open("/proc/1/exe", os.O_PATH))
    else:
        case(
            "reopen /proc/1/exe for writing",
            lambda: reopened("/proc/1/exe"),
            allowed=RIGHTS | {errno.ETXTBSY},
        )
    for handle in os.listdir("/proc/self/fd"):
        case(f"descriptor {handle} is no host file", lambda handle=handle: leads_out(handle))
    for handle in listed("/proc/1/fd"):
        case(
            f"descriptor {handle} of the first process",
            lambda handle=handle: written(f"/proc/1/fd/{handle}"),
            allowed=RIGHTS | {errno.EISDIR, errno.ENXIO, errno.ETXTBSY},
        )
    for path in HOST_FILES:
        for flags, how in ((os.O_RDONLY, "read"), (os.O_WRONLY, "write")):
            case(f"{how} {path}", lambda path=path, flags=flags: opened(path, flags))
            for root in (
                "/proc/1/root",
                "/proc/self/root/..",
                "/proc/thread-self/root",
                "/..",
                "/oldroot",
                "/newroot",
            ):
                case(
                    f"{how} {path} by {root}",
                    lambda path=path, flags=flags, root=root: opened(f"{root}{path}", flags),
                )


def listed(path):
    try:
        return os.listdir(path)
    except OSError:
        return []


def written(path):
    """Whether something that is a file can be opened for writing. Pipes and terminals of its own are no escape."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        return ""
    return opened(path, os.O_WRONLY)


def reopened(path):
    handle = os.open(path, os.O_PATH)
    try:
        return opened(f"/proc/self/fd/{handle}", os.O_RDWR)
    finally:
        os.close(handle)


def leads_out(handle):
    try:
        link = os.readlink(f"/proc/self/fd/{handle}")
        kind = os.stat(f"/proc/self/fd/{handle}").st_mode
    except OSError:
        return ""  # that of the listing itself
    if (
        stat.S_ISFIFO(kind)
        or stat.S_ISCHR(kind)
        or stat.S_ISSOCK(kind)
        or link.startswith(("/proc/", "/dev/"))
    ):
        return ""
    return "" if os.path.exists(link) else link


# -- other processes


def probe_processes():
    if IS_ROOTS and not IS_CONTAINER:
        for name, request in (("attach", 16), ("seize", 0x4206)):
            case(f"ptrace {name} the first process", lambda request=request: ptraced(request, 1))
        if IS_X86:
            case("read the memory of the first process", lambda: read_memory(1))
            case("take a descriptor of the first process", lambda: pidfd_taken(1))
        case("signal the first process", lambda: os.kill(1, 0) or "may be signalled")
        case("limits of the first process", lambda: limits_read(1))
        case("priority of the first process", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19) or "changed")
    for pid in {HOST_PID, os.getppid() + 100000, 2**22 - 1} if HOST_PID else ():
        case(f"see the host's process {pid}", lambda pid=pid: os.stat(f"/proc/{pid}") and "seen")
        case(
            f"signal the host's process {pid}",
            lambda pid=pid: os.kill(pid, 0) or "reached",
            allowed=RIGHTS | {errno.ESRCH},
        )
        case(
            f"ptrace the host's process {pid}",
            lambda pid=pid: ptraced(0x4206, pid),
            allowed=RIGHTS | {errno.ESRCH},
        )


def ptraced(request, pid):
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(pid), None, None) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    libc.ptrace(ctypes.c_long(17), ctypes.c_long(pid), None, None)
    return "traced"


def read_memory(pid):
    space = ctypes.create_string_buffer(8)
    local = struct.pack("PN", ctypes.addressof(space), 8)
    remote = struct.pack("PN", 0x400000, 8)
    return call(310, pid, ctypes.c_char_p(local), 1, ctypes.c_char_p(remote), 1, 0)


def pidfd_taken(pid):
    handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else libc.syscall(434, pid, 0)
    try:
        return call(438, handle, 0, 0)
    finally:
        os.close(handle)


def limits_read(pid):
    import resource

    return f"limits are {resource.prlimit(pid, resource.RLIMIT_NOFILE)}"


# -- rights


def probe_rights():
    with open("/proc/self/status") as file:
        status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if name == "CapBnd" and not IS_ROOTS:
            continue
        case(f"{name} is empty", lambda name=name: "" if int(status[name], 16) == 0 else status[name])
    case("no new rights", lambda: "" if status["NoNewPrivs"].strip() == "1" else status["NoNewPrivs"])
    case("a filter of calls", lambda: "" if status["Seccomp"].strip() == "2" else status["Seccomp"])
    if IS_ROOTS:
        numbers = {name: status[name].split() for name in ("Uid", "Gid")}
        with open("/proc/self/uid_map") as file:
            mapped = file.read().split()[1]
        for name in ("Uid", "Gid"):
            is_root = "0" in numbers[name] and mapped == "0"
            case(f"{name} is not root's", lambda is_root=is_root, name=name: numbers[name] if is_root else "")
    for name, attempt in (
        ("setuid", lambda: os.setuid(0) or "root"),
        ("setreuid", lambda: os.setreuid(0, 0) or "root"),
        ("setresuid", lambda: os.setresuid(0, 0, 0) or "root"),
        ("setgid", lambda: os.setgid(0) or "root"),
        ("setresgid", lambda: os.setresgid(0, 0, 0) or "root"),
        ("setgroups", lambda: os.setgroups([0]) or "in root's group"),
    ):
        case(name, lambda attempt=attempt: forked(attempt), allowed=RIGHTS | {errno.EINVAL})
    for program in ("/usr/bin/su", "/usr/bin/sudo", "/usr/bin/pkexec", "/usr/bin/newgrp"):
        if os.path.exists(program):
            case(f"{program} makes nobody root", lambda program=program: became_root(program))
    case("setpriv makes nobody root", lambda: became_root("setpriv", "--reuid=0", "id", "-u"))
    case("own file for root", lambda: owned(), allowed=RIGHTS | {errno.EINVAL})
    for name, attempt in (
        ("chmod", lambda path: os.chmod(path, 0o4755)),
        ("chmod, both bits", lambda path: os.chmod(path, 0o6755)),
        ("fchmod", lambda path: fchmodded(path)),
        ("open", lambda path: os.close(os.open(f"{path}2", os.O_CREAT | os.O_WRONLY, 0o4755))),
        ("openat", lambda path: created_at(path)),
        ("mknod", lambda path: os.mknod(f"{path}4", stat.S_IFREG | 0o4755)),
    ):
        case(f"a setuid file by {name}", lambda attempt=attempt: setuid_file(attempt), allowed=RIGHTS)
    for name, mode, device in (("block", stat.S_IFBLK, (8, 0)), ("character", stat.S_IFCHR, (1, 1))):
        case(
            f"a {name} device",
            lambda mode=mode, device=device: (
                os.mknod(scratch("device"), mode | 0o600, os.makedev(*device)) or "made"
            ),
        )
    case("file capabilities", lambda: capable_file())


def scratch(name):
    path = f"{os.getcwd()}/probe-{name}"
    for one in (path, f"{path}2", f"{path}3", f"{path}4"):
        if os.path.lexists(one):
            os.unlink(one)
    return path


def setuid_file(attempt):
    path = scratch("setuid")
    with open(path, "w"):
        pass
    attempt(path)
    for one in (path, f"{path}2", f"{path}3", f"{path}4"):
        if os.path.exists(one) and os.stat(one).st_mode & stat.S_ISUID:
            return oct(os.stat(one).st_mode)
    return ""


def fchmodded(path):
    with open(path) as file:
        os.fchmod(file.fileno(), 0o4755)


def created_at(path):
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.close(os.open(f"{os.path.basename(path)}3", os.O_CREAT | os.O_WRONLY, 0o4711, dir_fd=folder))
    finally:
        os.close(folder)


def owned():
    path = scratch("chown")
    with open(path, "w"):
        pass
    os.chown(path, 0, 0)
    return "it is root's" if os.stat(path).st_uid == 0 and os.getuid() else ""


def capable_file():
    path = scratch("capable")
    with open(path, "w"):
        pass
    os.setxattr(path, "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0))
    return "has rights of its own"


def became_root(*words):
    words = words if len(words) > 1 else (*words, "-c", "id -u")
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    return "root" if done.returncode == 0 and done.stdout.strip() == "0" and os.getuid() else ""


# -- mounts and rooms


def probe_rooms():
    text = ctypes.c_char_p
    libc.mount.argtypes = (text, text, text, ctypes.c_ulong, text)

    def mounted(source, target, kind, flags):
        if libc.mount(source, target, kind, flags, None) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return "mounted"

    for kind in (
        b"tmpfs",
        b"proc",
        b"sysfs",
        b"overlay",
        b"cgroup",
        b"cgroup2",
        b"devpts",
        b"mqueue",
        b"ext4",
    ):
        case(f"mount {kind.decode()}", lambda kind=kind: mounted(b"none", b"/tmp", kind, 0))
    with open("/proc/self/mounts") as file:
        places = list(dict.fromkeys(line.split()[1] for line in file))
    for place in places[:12]:
        name = os.fsencode(place.replace("\\040", " ").replace("\\012", "\n"))
        case(f"remount {place}", lambda name=name: mounted(None, name, None, 32))
        case(f"bind {place}", lambda name=name: mounted(name, b"/tmp", None, 4096))
        case(f"unmount {place}", lambda name=name: unmounted(name))
    for name, flag in {
        "mnt": 0x20000,
        "cgroup": 0x2000000,
        "uts": 0x4000000,
        "ipc": 0x8000000,
        "user": 0x10000000,
        "pid": 0x20000000,
        "net": 0x40000000,
        "time": 0x80,
    }.items():
        case(f"unshare {name}", lambda flag=flag: forked(lambda: call(272 if IS_X86 else 97, flag)))
        if name != "time":
            case(f"clone {name}", lambda flag=flag: cloned(flag))
        case(
            f"enter {name} of the first process",
            lambda name=name, flag=flag: entered(f"/proc/1/ns/{name}", flag),
        )
        case(f"enter {name} anew", lambda name=name, flag=flag: entered(f"/proc/self/ns/{name}", flag))
    probe_blind_calls()
    case("chroot", lambda: forked(lambda: os.chroot("/tmp") or "elsewhere"))
    for path in (
        "/",
        "/usr",
        "/etc",
        "/usr/bin",
        "/sys",
        "/proc",
        "/root",
        "/home",
        "/boot",
        "/srv",
        "/var/lib",
        "/lib",
        "/opt",
    ):
        case(
            f"write in {path}",
            lambda path=path: opened(f"{path}/probe", os.O_CREAT | os.O_WRONLY),
            allowed=RIGHTS,
        )


def probe_blind_calls():
    """Calls whose arguments nobody can look at in time: they are not there."""
    case("clone3", lambda: call(435, 0, 0), allowed={errno.ENOSYS})
    case("openat2", lambda: call(437, -1, 0, 0, 0), allowed={errno.ENOSYS})
    for request in (0x5412, 0x541C):
        case(f"ioctl {request:#x}", lambda request=request: typed(request), allowed={errno.EPERM})


def unmounted(name):
    if libc.umount2(name, 2) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return "unmounted"


def cloned(flag):
    number = 56 if IS_X86 else 220
    pid = libc.syscall(number, flag | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid < 0:
        found = ctypes.get_errno()
        raise OSError(found, os.strerror(found))
    os.waitpid(pid, 0)
    return "cloned"


def entered(path, flag):
    handle = os.open(path, os.O_RDONLY)
    try:
        return forked(lambda: call(308 if IS_X86 else 268, handle, flag))
    finally:
        os.close(handle)


# -- the kernel itself

CALLS = {  # name: numbers of x86_64 and aarch64
    "pivot_root": (155, 41), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "sethostname": (170, 161),
    "setdomainname": (171, 162), "init_module": (175, 105), "delete_module": (176, 106), "finit_module": (313, 273),
    "quotactl": (179, 60), "acct": (163, 89), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "perf_event_open": (298, 241), "fanotify_init": (300, 262),
    "open_by_handle_at": (304, 265), "bpf": (321, 280), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443), "vhangup": (153, 58), "syslog": (103, 116), "lookup_dcookie": (212, 18),
}  # fmt: skip
OLD_CALLS = {
    "iopl": 172,
    "ioperm": 173,
    "uselib": 134,
    "ustat": 136,
    "sysfs": 139,
    "create_module": 174,
    "query_module": 178,
    "_sysctl": 156,
}


def probe_kernel():
    for name, numbers in CALLS.items():
        case(
            name,
            lambda numbers=numbers: call(numbers[0 if IS_X86 else 1], -1, 0, 0, 0, 0),
            allowed={errno.EPERM, errno.ENOSYS},
        )
    for name, number in OLD_CALLS.items() if IS_X86 else ():
        case(name, lambda number=number: call(number, -1, 0, 0), allowed={errno.EPERM, errno.ENOSYS})
    if IS_X86 and not IS_CONTAINER:  # there it kills
        case("a call of x32", lambda: call(0x40000000 | 39), allowed={errno.ENOSYS})
    for path in (
        "/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/sda", "/dev/vda",
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/hostname",
        "/proc/sys/fs/binfmt_misc/register", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/panic", "/proc/sys/vm/panic_on_oom",
        "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/pid_max", "/proc/irq/default_smp_affinity", "/proc/mtrr",
        "/sys/kernel/uevent_helper", "/sys/kernel/debug/x", "/sys/power/state", "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent", "/sys/module/kernel/parameters/panic",
        "/proc/1/oom_score_adj", "/proc/1/uid_map", "/proc/1/setgroups", "/proc/1/comm", "/etc/shadow",
    ):  # fmt: skip
        if not IS_ROOTS and path == "/proc/sys/kernel/pid_max":
            continue  # newer kernels have one for each tree of processes: it is the view's own
        if (IS_CONTAINER or not IS_ROOTS) and path.startswith("/proc/1/"):
            continue  # it is the same user's, and no more than the task itself
        case(
            f"write {path}",
            lambda path=path: opened(path, os.O_WRONLY),
            allowed=RIGHTS | {errno.ENXIO, errno.ENODEV},
        )
    case("be spared when memory is short", lambda: spared())
    case(
        "lock the clock of others",
        lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)) or "real time",
    )


def typed(request):
    import fcntl

    master, slave = os.openpty() if os.path.exists("/dev/ptmx") else (-1, 0)
    try:
        fcntl.ioctl(slave, request, b"x")
    finally:
        for handle in (master, slave):
            if handle > 2:
                os.close(handle)
    return "typed"


def spared():
    with open("/proc/self/oom_score_adj", "r+") as file:
        before = int(file.read())
        file.seek(0)
        file.write(str(before - 500))
        file.flush()
    return "spared"


# -- the network


def probe_network():
    for port in (22, 80, 443, 1023):
        case(
            f"listen on port {port}",
            lambda port=port: bound(port),
            allowed=RIGHTS | {errno.EADDRINUSE} if port == 22 else RIGHTS,
        )
    for name, words in {
        "raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "raw, version 6": (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_TCP),
        "packets": (socket.AF_PACKET, socket.SOCK_RAW, 3),
        "packets without heads": (socket.AF_PACKET, socket.SOCK_DGRAM, 3),
    }.items():
        case(
            f"a socket for {name}",
            lambda words=words: socket.socket(*words).close() or "had",
            allowed=RIGHTS | {errno.EAFNOSUPPORT},
        )
    if HOST_PORT:
        case("share a port of somebody else", lambda: shared(HOST_PORT), allowed=RIGHTS | {errno.EADDRINUSE})


def bound(port):
    with socket.socket() as one:
        one.bind(("127.0.0.1", port))
    return "bound"


def shared(port):
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", port))
    return "shared"


if __name__ == "__main__":
    for probe in (probe_descriptors, probe_processes, probe_rights, probe_rooms, probe_kernel, probe_network):
        probe()
    sys.stdout.write(f"tried {count}\n")
