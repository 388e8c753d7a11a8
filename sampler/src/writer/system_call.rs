//! System calls that threads wait in, and what a signal would do to them.

#![forbid(unsafe_code)]

use std::fs;

/// System call that a thread is waiting in, as in `/proc/self/task/TID/syscall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SystemCall {
    pub(super) number: i64,
    arguments: [u64; 6],
    pub(super) stack: u64,
    pub(super) address: u64,
}

impl SystemCall {
    /// Reads the system call of a thread. `None` if the thread is running, or the file cannot be read.
    pub(super) fn read(tid: u32) -> Option<SystemCall> {
        SystemCall::parse(&fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).ok()?)
    }

    /// Parses `NUMBER ARGUMENT... STACK ADDRESS`, or `-1 STACK ADDRESS` for a thread blocked outside a system call.
    /// `None` for `running`.
    fn parse(line: &str) -> Option<SystemCall> {
        let mut words = line.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut word = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let mut arguments = [0; 6];
        if number >= 0 {
            for argument in &mut arguments {
                *argument = word()?;
            }
        }
        Some(SystemCall { number, arguments, stack: word()?, address: word()? })
    }

    /// True if the call has had no effect when it fails with `EINTR`.
    pub(super) fn is_restartable(&self) -> bool {
        /// System calls that aarch64 does not have.
        #[cfg(target_arch = "x86_64")]
        const X86_64_CALLS: [i64; 4] = [libc::SYS_epoll_wait, libc::SYS_pause, libc::SYS_poll, libc::SYS_select];
        #[cfg(not(target_arch = "x86_64"))]
        const X86_64_CALLS: [i64; 0] = [];
        /// Missing in the `libc` crate.
        const SYS_IO_PGETEVENTS: i64 = if cfg!(target_arch = "x86_64") { 333 } else { 292 };
        const RESTARTABLE_CALLS: [i64; 31] = [
            SYS_IO_PGETEVENTS,
            libc::SYS_accept,
            libc::SYS_accept4,
            libc::SYS_clock_nanosleep,
            libc::SYS_connect,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_fcntl,
            libc::SYS_flock,
            libc::SYS_futex,
            libc::SYS_io_getevents,
            libc::SYS_io_uring_enter,
            libc::SYS_mq_timedreceive,
            libc::SYS_mq_timedsend,
            libc::SYS_msgrcv,
            libc::SYS_msgsnd,
            libc::SYS_nanosleep,
            libc::SYS_ppoll,
            libc::SYS_pread64,
            libc::SYS_preadv,
            libc::SYS_pselect6,
            libc::SYS_read,
            libc::SYS_readv,
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_rt_sigsuspend,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_semop,
            libc::SYS_semtimedop,
            libc::SYS_wait4,
            libc::SYS_waitid,
        ];
        RESTARTABLE_CALLS.contains(&self.number) || X86_64_CALLS.contains(&self.number)
    }

    /// True if the program would notice an interruption: part of the work is done, or the call is a `pause` that
    /// [`restart_system_call`](super::wall_clock::restart_system_call) cannot restart.
    pub(super) fn is_interruption_visible(&self) -> bool {
        self.is_transfer() || cfg!(not(target_arch = "x86_64")) && self.is_pause()
    }

    /// True for `pause`, which on aarch64 is a `ppoll` without files and timeout, or a `sigsuspend`.
    fn is_pause(&self) -> bool {
        let has_no_file_or_timeout = self.arguments[..3] == [0; 3];
        (self.number == libc::SYS_ppoll && has_no_file_or_timeout) || self.number == libc::SYS_rt_sigsuspend
    }

    /// True if a signal may end the call with part of the data transferred.
    fn is_transfer(&self) -> bool {
        /// System calls that transfer data. `Some`: index of the flags argument; only calls with `MSG_WAITALL` count.
        const TRANSFER_SYSCALLS: [(i64, Option<usize>); 13] = [
            (libc::SYS_write, None),
            (libc::SYS_writev, None),
            (libc::SYS_pwrite64, None),
            (libc::SYS_pwritev, None),
            (libc::SYS_sendto, None),
            (libc::SYS_sendmsg, None),
            (libc::SYS_sendmmsg, None),
            (libc::SYS_sendfile, None),
            (libc::SYS_splice, None),
            (libc::SYS_vmsplice, None),
            (libc::SYS_recvmmsg, None),
            (libc::SYS_recvfrom, Some(3)),
            (libc::SYS_recvmsg, Some(2)),
        ];
        let has_waitall =
            |argument: usize| self.arguments.get(argument).is_some_and(|flags| flags & libc::MSG_WAITALL as u64 != 0);
        TRANSFER_SYSCALLS.iter().any(|(number, flags)| *number == self.number && flags.is_none_or(has_waitall))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_are_parsed_as_the_kernel_formats_them() {
        let call = |number: i64, rest: &str| SystemCall::parse(&format!("{number} {rest} 0x7ffd10 0x7f0040\n"));
        assert_eq!((SystemCall::parse("running\n"), SystemCall::parse("")), (None, None));
        let outside_call = SystemCall::parse("-1 0x7ffd10 0x7f0040\n").unwrap();
        assert_eq!((outside_call.stack, outside_call.address), (0x7ffd10, 0x7f0040));
        assert!(!outside_call.is_transfer() && !outside_call.is_restartable());
        let write = call(libc::SYS_write, "0x1 0x5 0x1000 0x0 0x0 0x0").unwrap();
        assert_eq!((write.arguments, write.stack), ([1, 5, 4096, 0, 0, 0], 0x7ffd10));
        assert!(write.is_transfer() && !write.is_restartable());
        let waitall_arguments = format!("0x1 0x5 0x1000 {:#x} 0x0 0x0", libc::MSG_WAITALL);
        assert!(call(libc::SYS_recvfrom, &waitall_arguments).unwrap().is_transfer());
        let partial = call(libc::SYS_recvfrom, "0x1 0x5 0x1000 0x0 0x0 0x0").unwrap();
        assert!(!partial.is_transfer() && partial.is_restartable());
        assert_eq!(call(libc::SYS_write, "0x1 0x5"), None);
        let pause = call(libc::SYS_ppoll, "0x0 0x0 0x0 0x0 0x8 0x0").unwrap();
        let poll = call(libc::SYS_ppoll, "0x7ff0 0x1 0x0 0x0 0x8 0x0").unwrap();
        assert!(pause.is_pause() && !poll.is_pause());
    }
}
