"""Runs a command under a seccomp filter: `restricted.py COMMAND...`. The filter rejects the system calls that Docker's
default profile rejects, and also `ptrace` and related calls, which that profile allows since Linux 4.8. Needs no
privilege (`no_new_privs`).

Docker's profile is an allow list (moby, `profiles/seccomp/default.json`). For a process without capabilities, this
filter rejects all other system calls of x86_64 and aarch64 up to Linux 6.6. Rejected calls return EPERM, except that
`clone3` returns ENOSYS, as in Docker. `clone` with a namespace flag returns EPERM.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

# <linux/audit.h>, <linux/seccomp.h>, <linux/bpf_common.h>, <linux/prctl.h>
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[platform.machine()]
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
#: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET of <linux/sched.h>
NEW_NAMESPACES = 0x7E020000

# fmt: off
REJECTED_SYSCALLS = {
    "x86_64": dict(
        ptrace=101, syslog=103, ustat=136, sysfs=139, pivot_root=155, sysctl=156, acct=163, settimeofday=164, mount=165,
        umount2=166, swapon=167, swapoff=168, reboot=169, sethostname=170, setdomainname=171, iopl=172, ioperm=173,
        create_module=174, init_module=175, delete_module=176, query_module=178, quotactl=179, nfsservctl=180,
        chroot=161, lookup_dcookie=212, clock_settime=227, mbind=237, set_mempolicy=238, get_mempolicy=239,
        kexec_load=246, add_key=248, request_key=249, keyctl=250, migrate_pages=256, unshare=272, move_pages=279,
        perf_event_open=298, fanotify_init=300, name_to_handle_at=303, open_by_handle_at=304, setns=308,
        process_vm_readv=310, process_vm_writev=311, kcmp=312, finit_module=313, kexec_file_load=320, bpf=321,
        userfaultfd=323, io_uring_setup=425, io_uring_enter=426, io_uring_register=427, open_tree=428, move_mount=429,
        fsopen=430, fsconfig=431, fsmount=432, fspick=433, pidfd_getfd=438, process_madvise=440, mount_setattr=442,
        quotactl_fd=443,
    ),
    "aarch64": dict(
        ptrace=117, syslog=116, pivot_root=41, acct=89, settimeofday=170, mount=40, umount2=39, swapon=224, swapoff=225,
        reboot=142, sethostname=161, setdomainname=162, init_module=105, delete_module=106, quotactl=60, nfsservctl=42,
        chroot=51, lookup_dcookie=18, clock_settime=112, mbind=235, set_mempolicy=237, get_mempolicy=236,
        kexec_load=104, add_key=217, request_key=218, keyctl=219, migrate_pages=238, unshare=97, move_pages=239,
        perf_event_open=241, fanotify_init=262, name_to_handle_at=264, open_by_handle_at=265, setns=268,
        process_vm_readv=270, process_vm_writev=271, kcmp=272, finit_module=273, kexec_file_load=294, bpf=280,
        userfaultfd=282, io_uring_setup=425, io_uring_enter=426, io_uring_register=427, open_tree=428, move_mount=429,
        fsopen=430, fsconfig=431, fsmount=432, fspick=433, pidfd_getfd=438, process_madvise=440, mount_setattr=442,
        quotactl_fd=443,
    ),
}[platform.machine()]
CLONE, CLONE3 = {"x86_64": (56, 435), "aarch64": (220, 435)}[platform.machine()]
# fmt: on


def build_filter():
    """Encoded `struct sock_filter` entries: operation code, jump if true, jump if false, constant. Loads use offsets
    into `struct seccomp_data`."""

    def reject(syscall_number, error):
        return [(JUMP_EQUAL, 0, 1, syscall_number), (RETURN, 0, 0, ERRNO | error)]

    instructions = [
        (LOAD, 0, 0, 4),
        (JUMP_EQUAL, 1, 0, ARCHITECTURE),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
        (LOAD, 0, 0, 0),
    ]
    for syscall_number in REJECTED_SYSCALLS.values():
        instructions += reject(syscall_number, errno.EPERM)
    instructions += reject(CLONE3, errno.ENOSYS)
    # `clone` takes its flags in the first argument.
    instructions += [
        (JUMP_EQUAL, 0, 3, CLONE),
        (LOAD, 0, 0, 16),
        (JUMP_SET, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in [*instructions, (RETURN, 0, 0, ALLOW)])


def install_filter():
    libc = ctypes.CDLL(None, use_errno=True)
    program = build_filter()
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: unsigned short, pointer
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)), 16)
    zero = ctypes.c_ulong(0)
    if libc.prctl(NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if libc.prctl(SET_SECCOMP, ctypes.c_ulong(FILTER), ctypes.byref(header), zero, zero) != 0:
        raise OSError(ctypes.get_errno(), "the filter")


if __name__ == "__main__":
    install_filter()
    os.execvp(sys.argv[1], sys.argv[1:])
