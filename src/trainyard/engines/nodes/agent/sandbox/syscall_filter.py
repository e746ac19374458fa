"""Which calls of the kernel a task may make: what container runtimes deny by default, as a seccomp program.

Bubblewrap loads it before a task begins; `apply` loads it into a process of ours that is about to become a person's command.
A denied call fails with EPERM. A call of another architecture kills its process, as nobody has counted those.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Any, NamedTuple

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
FILTER_MODE = 2
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, AT_LEAST, HAS_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
X32 = 0x40000000  # calls of a second kind of x86_64 begin here
MOST_STEPS = 255  # a conditional jump goes no further

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET: in a new user namespace a task has all rights again.
NEW_ROOMS = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
SETUID_BIT = 0o4000
CREATING = (os.O_CREAT, 0o20000000)  # the second makes a file without a name; without them a mode is anything
CREATES = CREATING[0] | CREATING[1]
TERMINAL_INPUT, CONSOLE = 0x5412, 0x541C  # TIOCSTI types for others; TIOCLINUX does on a console


class Machine(NamedTuple):
    """One architecture: what the kernel calls it, and which of the numbers below are its own."""

    audit: int
    column: int


NONE = -1  # it has no such call
MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}
# The numbers of calls: of x86_64, of aarch64.
DENIED = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, NONE), "ioperm": (173, NONE),
    "create_module": (174, NONE), "init_module": (175, 105), "delete_module": (176, 106), "get_kernel_syms": (177, NONE),
    "query_module": (178, NONE), "finit_module": (313, 273), "quotactl": (179, 60), "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18), "acct": (163, 89), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97), "setns": (308, 268),
    "perf_event_open": (298, 241), "fanotify_init": (300, 262), "open_by_handle_at": (304, 265), "bpf": (321, 280),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "quotactl_fd": (443, 443), "open_tree_attr": (467, 467),
    "chroot": (161, 51), "vhangup": (153, 58), "syslog": (103, 116), "ustat": (136, NONE), "sysfs": (139, NONE),
    "uselib": (134, NONE), "_sysctl": (156, NONE),
}  # fmt: skip
# Their arguments are in memory, where nobody can look at them in time: the C library has others for them.
UNKNOWN = {"clone3": (435, 435), "openat2": (437, 437)}
CLONE, IOCTL = (56, 220), (16, 29)
# Which argument is the mode of a file.
MODES = {
    "chmod": (90, NONE, 1), "fchmod": (91, 52, 1), "fchmodat": (268, 53, 2), "fchmodat2": (452, 452, 2), "creat": (85, NONE, 1),
    "mknod": (133, NONE, 1), "mknodat": (259, 33, 2),
}  # fmt: skip
# Which argument are flags, and which is a mode where those create.
CREATED = {"open": (2, NONE, 1, 2), "openat": (257, 56, 2, 3)}


class _Steps:
    """A program in the making. Names of places are put in for jumps, and become distances at the end."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, str, str, int]] = []
        self._places: dict[str, int] = {}

    def add(self, code: int, value: int, then: str = "", otherwise: str = "") -> None:
        self._steps.append((code, then, otherwise, value))

    def place(self, name: str) -> None:
        self._places[name] = len(self._steps)

    def load_argument(self, number: int) -> None:
        """The lower half: what the kernel looks at is an int, and both architectures have it first."""
        self.add(LOAD, ARGUMENTS_AT + 8 * number)

    def assembled(self) -> bytes:
        found = b""
        for at, (code, then, otherwise, value) in enumerate(self._steps):
            jumps = [self._places[name] - at - 1 if name else 0 for name in (then, otherwise)]
            if not all(0 <= jump <= MOST_STEPS for jump in jumps):
                raise ValueError(f"step {at} of the filter jumps too far")
            found += struct.pack("=HBBI", code, *jumps, value)
        return found


def program_for(machine: str) -> bytes:
    """The filter as the kernel takes it; nothing for an architecture whose numbers are not known here."""
    known = MACHINES.get(machine)
    if known is None:
        return b""
    steps = _Steps()
    steps.add(LOAD, ARCHITECTURE_AT)
    steps.add(EQUAL, known.audit, otherwise="kill")
    steps.add(LOAD, NUMBER_AT)
    if machine == "x86_64":
        steps.add(AT_LEAST, X32, then="unknown")
    for calls, verdict in ((DENIED, "denied"), (UNKNOWN, "unknown")):
        for numbers in calls.values():
            if numbers[known.column] != NONE:
                steps.add(EQUAL, numbers[known.column], then=verdict)
    _add_looks(steps, known.column)
    for name, value in (
        ("allowed", ALLOW),
        ("denied", REFUSE | errno.EPERM),
        ("unknown", REFUSE | errno.ENOSYS),
        ("kill", KILL),
    ):
        steps.place(name)
        steps.add(RETURN, value)
    return steps.assembled()


def _add_looks(steps: _Steps, column: int) -> None:
    """Steps for the calls that depend on what they are given. The last one falls through to `allowed`."""
    steps.add(EQUAL, CLONE[column], otherwise="after clone")
    steps.load_argument(0)
    steps.add(HAS_BIT, NEW_ROOMS, then="denied", otherwise="allowed")
    steps.place("after clone")
    steps.add(EQUAL, IOCTL[column], otherwise="after ioctl")
    steps.load_argument(1)
    steps.add(EQUAL, TERMINAL_INPUT, then="denied")
    steps.add(EQUAL, CONSOLE, then="denied", otherwise="allowed")
    steps.place("after ioctl")
    for name, (*numbers, mode) in MODES.items():
        if numbers[column] != NONE:
            steps.add(EQUAL, numbers[column], otherwise=f"after {name}")
            steps.load_argument(mode)
            steps.add(HAS_BIT, SETUID_BIT, then="denied", otherwise="allowed")
            steps.place(f"after {name}")
    for name, (*numbers, flags, mode) in CREATED.items():
        if numbers[column] != NONE:
            steps.add(EQUAL, numbers[column], otherwise=f"after {name}")
            steps.load_argument(flags)
            steps.add(HAS_BIT, CREATES, otherwise="allowed")
            steps.load_argument(mode)
            steps.add(HAS_BIT, SETUID_BIT, then="denied", otherwise="allowed")
            steps.place(f"after {name}")


def profile(*spared: str) -> dict[str, Any]:
    """The same for podman and docker: a profile by the names of calls, but for some. Those that they do not know, they leave out."""
    refused = {"action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM}
    rules: list[dict[str, Any]] = [
        {"names": sorted(DENIED.keys() - set(spared)), **refused},
        {"names": sorted(UNKNOWN), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
    ]
    bits = [1 << place for place in range(32) if NEW_ROOMS >> place & 1]
    rules += [{"names": ["clone"], "args": [_has(0, bit)], **refused} for bit in bits]
    for request in (TERMINAL_INPUT, CONSOLE):
        compared = {"index": 1, "value": 0xFFFFFFFF, "valueTwo": request, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append({"names": ["ioctl"], "args": [compared], **refused})
    for name, (*_, mode) in MODES.items():
        rules.append({"names": [name], "args": [_has(mode, SETUID_BIT)], **refused})
    for name, (*_, flags, mode) in CREATED.items():
        for flag in CREATING:
            rules.append({"names": [name], "args": [_has(flags, flag), _has(mode, SETUID_BIT)], **refused})
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}


def _has(argument: int, bit: int) -> dict[str, Any]:
    return {"index": argument, "value": bit, "valueTwo": bit, "op": "SCMP_CMP_MASKED_EQ"}


def own_program() -> bytes:
    """The filter for this machine; nothing where its architecture is not known, or this Python is of another one."""
    return program_for(os.uname().machine) if struct.calcsize("P") == 8 else b""


def as_file() -> int:
    """A descriptor that the filter can be read from once, as bubblewrap does; -1 where there is none."""
    found = own_program()
    if not found:
        return -1
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.write(writer, found)  # far less than a pipe takes
    os.close(writer)
    return reader


_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def apply() -> None:
    """Have this process, and what it becomes, make no denied call from now on. OSError where the kernel refuses."""
    found = own_program()
    if not found:
        return
    keep_rights_down()
    steps = ctypes.create_string_buffer(found, len(found))
    given = _Program(len(found) // 8, ctypes.cast(steps, ctypes.c_void_p))
    _checked(_libc.prctl(PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(given), 0, 0))


def keep_rights_down() -> None:
    """Have no program that this process becomes give it more rights than it has."""
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
