//! Calls a function in another process, in its main thread, with `ptrace(2)`; the other threads run on.
//!
//! ```text
//!   seize, interrupt     the thread stops, wherever it is, in a system call or not
//!   save                 all registers, the floating-point and vector ones included
//!   call                 on its own stack below what it uses; the return address is 0, so that the return is a SIGSEGV that only
//!                        the tracer sees
//!   restore, detach      as if nothing had been: an interrupted system call is begun again by the kernel
//! ```
//!
//! What is called must be good for a signal handler. A call that does not come back in time is taken back in the same way.
//! If this command dies meanwhile, the kernel lets the thread run on as it is; so signals wait while it holds one.

use std::io;
use std::time::{Duration, Instant};

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than the vector registers of any machine.
const MOST_VECTORS: usize = 64 << 10;
const NT_PRSTATUS: i32 = 1;
/// Below the stack pointer, the ABI of x86_64 lets functions use 128 bytes; more is safe.
const RED_ZONE: u64 = 1024;

#[cfg(target_arch = "x86_64")]
mod machine {
    /// `NT_X86_XSTATE`
    pub(super) const VECTORS: i32 = 0x202;
    pub(super) type Registers = libc::user_regs_struct;
    pub(super) const FUTEX: u64 = libc::SYS_futex as u64;

    pub(super) fn prepare(registers: &mut Registers, stack: u64, function: u64, arguments: [u64; 6]) -> Option<u64> {
        [registers.rdi, registers.rsi, registers.rdx, registers.rcx, registers.r8, registers.r9] = arguments;
        registers.rip = function;
        registers.rax = 0;
        // No system call to begin again.
        registers.orig_rax = u64::MAX;
        // As after a `call`: the return address is on top.
        registers.rsp = (stack & !15) - 8;
        Some(registers.rsp)
    }

    pub(super) fn stack(registers: &Registers) -> u64 {
        registers.rsp
    }

    pub(super) fn at(registers: &Registers) -> u64 {
        registers.rip
    }

    pub(super) fn result(registers: &Registers) -> u64 {
        registers.rax
    }

    /// Makes the system call that the thread waits in return that it was interrupted, if it is this one.
    pub(super) fn interrupt(registers: &mut Registers, call: u64) -> bool {
        // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK of the kernel's <linux/errno.h>
        let is_waiting = registers.orig_rax == call && [-512, -513, -514, -516].contains(&(registers.rax as i64));
        if is_waiting {
            registers.rax = -i64::from(libc::EINTR) as u64;
        }
        is_waiting
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    /// `NT_PRFPREG`
    pub(super) const VECTORS: i32 = 2;
    pub(super) type Registers = libc::user_regs_struct;
    pub(super) const FUTEX: u64 = libc::SYS_futex as u64;

    pub(super) fn prepare(registers: &mut Registers, stack: u64, function: u64, arguments: [u64; 6]) -> Option<u64> {
        registers.regs[..6].copy_from_slice(&arguments);
        registers.regs[30] = 0;
        registers.pc = function;
        registers.sp = stack & !15;
        None
    }

    pub(super) fn stack(registers: &Registers) -> u64 {
        registers.sp
    }

    pub(super) fn at(registers: &Registers) -> u64 {
        registers.pc
    }

    pub(super) fn result(registers: &Registers) -> u64 {
        registers.regs[0]
    }

    /// The number of the system call is in a register set of its own; not done here.
    pub(super) fn interrupt(_: &mut Registers, _: u64) -> bool {
        false
    }
}

use machine::Registers;

/// The main thread of a process, stopped. Dropping it lets the thread run on as it was.
pub(crate) struct Stopped {
    pid: i32,
    registers: Registers,
    vectors: Vec<u8>,
    _quiet: Quiet,
}

impl Stopped {
    /// Stops it.
    pub(crate) fn main_thread(pid: u32) -> io::Result<Stopped> {
        let pid = pid as i32;
        let quiet = Quiet::begin();
        request(libc::PTRACE_SEIZE, pid, 0, 0)?;
        let stop = request(libc::PTRACE_INTERRUPT, pid, 0, 0).and_then(|()| wait(pid, PATIENCE));
        let registers = stop.and_then(|_| registers(pid));
        let vectors = read_set(pid, machine::VECTORS, MOST_VECTORS);
        match (registers, vectors) {
            (Ok(registers), Ok(vectors)) => {
                let stopped = Stopped { pid, registers, vectors, _quiet: quiet };
                // Whether they can be put back has to be known before anything is changed.
                stopped.restore()?;
                Ok(stopped)
            }
            (Err(error), _) | (_, Err(error)) => {
                let _ = request(libc::PTRACE_DETACH, pid, 0, 0);
                Err(error)
            }
        }
    }

    /// Calls `function`, and returns what it returns.
    pub(crate) fn call(&self, function: u64, arguments: [u64; 6]) -> io::Result<u64> {
        let mut registers = self.registers;
        let stack = machine::stack(&registers) - RED_ZONE;
        let return_address = machine::prepare(&mut registers, stack, function, arguments);
        let result = self.run(&registers, return_address);
        self.restore()?;
        result
    }

    fn run(&self, registers: &Registers, return_address: Option<u64>) -> io::Result<u64> {
        if let Some(place) = return_address {
            write_memory(self.pid, place, &0u64.to_le_bytes())?;
        }
        write_set(self.pid, NT_PRSTATUS, bytes_of(registers))?;
        let began = Instant::now();
        let mut pass_on = 0;
        loop {
            request(libc::PTRACE_CONT, self.pid, 0, pass_on)?;
            let Ok(signal) = wait(self.pid, PATIENCE.saturating_sub(began.elapsed())) else {
                request(libc::PTRACE_INTERRUPT, self.pid, 0, 0)?;
                wait(self.pid, PATIENCE)?;
                return Err(io::ErrorKind::TimedOut.into());
            };
            let now = self::registers(self.pid)?;
            if signal == libc::SIGSEGV {
                let is_back = machine::at(&now) == 0;
                return if is_back { Ok(machine::result(&now)) } else { Err(io::Error::other("the call failed")) };
            }
            // A signal for the process itself: it gets it. Stops of job control are none.
            pass_on = if signal == libc::SIGTRAP || signal == libc::SIGSTOP { 0 } else { signal as usize };
        }
    }

    fn restore(&self) -> io::Result<()> {
        write_set(self.pid, machine::VECTORS, &self.vectors)?;
        write_set(self.pid, NT_PRSTATUS, bytes_of(&self.registers))
    }

    /// Lets a wait for a lock return early, as a signal does. Users of futexes look again; Python looks at its pending calls, too.
    pub(crate) fn interrupt_lock(&self) -> io::Result<bool> {
        let mut registers = self.registers;
        let waits = machine::interrupt(&mut registers, machine::FUTEX);
        if waits {
            write_set(self.pid, NT_PRSTATUS, bytes_of(&registers))?;
        }
        Ok(waits)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = request(libc::PTRACE_DETACH, self.pid, 0, 0);
    }
}

/// Ctrl-C and its like wait.
struct Quiet(libc::sigset_t);

impl Quiet {
    fn begin() -> Quiet {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: fills the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: both are sets.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: zeros are a set.
        Quiet(unsafe { before.assume_init() })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: a set that the kernel has filled in.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

fn request(request: libc::c_uint, pid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: requests that take numbers, or addresses of what the callers below own.
    let result = unsafe { libc::ptrace(request, pid, address, data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until the thread stops; returns the signal.
fn wait(pid: i32, patience: Duration) -> io::Result<i32> {
    let began = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: the status is ours.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
            0 if began.elapsed() < patience => std::thread::sleep(Duration::from_millis(1)),
            0 => return Err(io::ErrorKind::TimedOut.into()),
            found if found == pid && libc::WIFSTOPPED(status) => return Ok(libc::WSTOPSIG(status)),
            -1 => return Err(io::Error::last_os_error()),
            _ => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
}

fn read_set(pid: i32, kind: i32, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most };
    request(libc::PTRACE_GETREGSET as _, pid, kind as usize, (&raw mut vector) as usize)?;
    // The kernel says how many there are, and wants as many back.
    bytes.truncate(vector.iov_len);
    Ok(bytes)
}

fn write_set(pid: i32, kind: i32, bytes: &[u8]) -> io::Result<()> {
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    request(libc::PTRACE_SETREGSET as _, pid, kind as usize, (&raw mut vector) as usize)
}

fn registers(pid: i32) -> io::Result<Registers> {
    let bytes = read_set(pid, NT_PRSTATUS, size_of::<Registers>())?;
    if bytes.len() != size_of::<Registers>() {
        // A 32-bit program has fewer.
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: integers, as many bytes as the structure has.
    Ok(unsafe { bytes.as_ptr().cast::<Registers>().read_unaligned() })
}

fn bytes_of(registers: &Registers) -> &[u8] {
    // SAFETY: integers without padding.
    unsafe { std::slice::from_raw_parts((&raw const *registers).cast(), size_of::<Registers>()) }
}

/// Writes where the process may write itself.
pub(crate) fn write_memory(pid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    // SAFETY: the local vector is readable; the kernel checks the other one.
    let written = unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    if written == bytes.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}
