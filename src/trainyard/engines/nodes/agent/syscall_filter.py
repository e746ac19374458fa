"""Which calls of the kernel a task may make: what container runtimes deny by default, as a seccomp program.

Bubblewrap loads it before a task begins; `apply` loads it into a process of ours that is about to become a person's command.
A denied call fails with EPERM. A call of another architecture kills its process, as nobody has counted those.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import NamedTuple

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
CREATES = os.O_CREAT | 0o20000000  # O_CREAT or O_TMPFILE; without them a mode is whatever was there before
TERMINAL_INPUT, CONSOLE = 0x5412, 0x541C  # TIOCSTI types for others; TIOCLINUX does on a console


class Machine(NamedTuple):
    """The numbers of one architecture."""

    audit: int
    denied: tuple[int, ...]
    clone: int
    clone3: int
    ioctl: int
    modes: tuple[tuple[int, int], ...]  # call → which argument is the mode of a file
    created: tuple[
        tuple[int, int, int], ...
    ]  # call → which argument are flags, and which a mode where those create


# mount, umount2, pivot_root, swapon, swapoff, reboot, sethostname, setdomainname, iopl, ioperm, the loading of modules,
# quotactl, nfsservctl, lookup_dcookie, acct, settimeofday, clock_settime, clock_adjtime, kexec, keys, unshare, setns,
# perf_event_open, fanotify_init, open_by_handle_at, bpf, userfaultfd, io_uring, the new calls for mounts, chroot, vhangup,
# syslog, ustat, sysfs, uselib, _sysctl.
_X86_64 = (
    165, 166, 155, 167, 168, 169, 170, 171, 172, 173, 174, 175, 176, 177, 178, 179, 180, 212, 163, 164, 227, 305, 246, 320,
    248, 249, 250, 272, 308, 298, 300, 304, 313, 321, 323, 425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 443, 467, 161,
    153, 103, 136, 139, 134, 156,
)  # fmt: skip
_AARCH64 = (
    40, 39, 41, 224, 225, 142, 161, 162, 105, 106, 60, 42, 18, 89, 170, 112, 266, 104, 294, 217, 218, 219, 97, 268, 241, 262,
    265, 273, 280, 282, 425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 443, 467, 51, 58, 116,
)  # fmt: skip
OPENAT2 = 437  # everywhere; its flags are in memory, where nobody can look at them in time
MACHINES = {
    "x86_64": Machine(
        0xC000003E, _X86_64, 56, 435, 16,
        modes=((90, 1), (91, 1), (268, 2), (452, 2), (85, 1), (133, 1), (259, 2)),
        created=((2, 1, 2), (257, 2, 3)),
    ),
    "aarch64": Machine(
        0xC00000B7, _AARCH64, 220, 435, 29, modes=((52, 1), (53, 2), (452, 2), (33, 2)), created=((56, 2, 3),)
    ),
}  # fmt: skip


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
    for number in known.denied:
        steps.add(EQUAL, number, then="denied")
    # The C library takes the older clone then, whose flags can be seen.
    for number in (known.clone3, OPENAT2):
        steps.add(EQUAL, number, then="unknown")
    _add_looks(steps, known)
    for name, value in (
        ("allowed", ALLOW),
        ("denied", REFUSE | errno.EPERM),
        ("unknown", REFUSE | errno.ENOSYS),
        ("kill", KILL),
    ):
        steps.place(name)
        steps.add(RETURN, value)
    return steps.assembled()


def _add_looks(steps: _Steps, known: Machine) -> None:
    """Steps for the calls that depend on what they are given. The last one falls through to `allowed`."""
    steps.add(EQUAL, known.clone, otherwise="after clone")
    steps.load_argument(0)
    steps.add(HAS_BIT, NEW_ROOMS, then="denied", otherwise="allowed")
    steps.place("after clone")
    steps.add(EQUAL, known.ioctl, otherwise="after ioctl")
    steps.load_argument(1)
    steps.add(EQUAL, TERMINAL_INPUT, then="denied")
    steps.add(EQUAL, CONSOLE, then="denied", otherwise="allowed")
    steps.place("after ioctl")
    for number, mode in known.modes:
        steps.add(EQUAL, number, otherwise=f"after {number}")
        steps.load_argument(mode)
        steps.add(HAS_BIT, SETUID_BIT, then="denied", otherwise="allowed")
        steps.place(f"after {number}")
    for number, flags, mode in known.created:
        steps.add(EQUAL, number, otherwise=f"after {number}")
        steps.load_argument(flags)
        steps.add(HAS_BIT, CREATES, otherwise="allowed")
        steps.load_argument(mode)
        steps.add(HAS_BIT, SETUID_BIT, then="denied", otherwise="allowed")
        steps.place(f"after {number}")


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
