//! Calls functions in the main thread of another process with `ptrace(2)`; the other threads keep running.
//!
//! ```text
//!   seize, interrupt     the thread stops, wherever it is, in a system call or not
//!   save                 all registers, the floating-point and vector ones included, and the signal mask
//!   call                 with its signals blocked, on a given stack, above which a signal frame has what was saved
//!                        (`signal_frame.rs`): the function returns into `rt_sigreturn`, where the tracer stops it
//!   restore, detach      as before: the kernel restarts an interrupted system call
//! ```
//! Signals that cannot be blocked and arrive during a call are sent again when the thread is as it was.
//!
//! The functions must be safe in a signal handler. A call that takes too long is taken back. The kernel detaches when
//! the thread that traces ends, so [`with_main_thread`] has one of its own.
//!
//! **The tracer may be killed at any time.** One request, which is atomic, leads from the thread as it was into the
//! call, and one back: the first changes all registers, and the last. In between, the thread finishes the call and
//! restores itself from the frame. On aarch64 there is no frame: the return address is 0, so that the return is a
//! SIGSEGV that only the tracer sees, and a thread whose tracer is killed during a call dies.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::memory;
use crate::signal_frame::{Frame, WayBack};
use crate::system::{Blocked, Everything};

/// How long a stop, or a call, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Limit for a thread to leave the place where it is, and the interval between two looks.
const MAX_RUN_ON: Duration = Duration::from_millis(50);
const RUN_ON: Duration = Duration::from_micros(200);
/// More than the vector registers of any machine.
const MAX_VECTOR_BYTES: usize = 64 << 10;
const NT_PRSTATUS: i32 = 1;
/// Below the stack pointer, the ABI of x86_64 lets functions use 128 bytes. A signal stack may end soon behind that.
const RED_ZONE: u64 = 128;
/// Blocked signals would reset their handlers if the call raised one of these.
const FAULTS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
/// While a call is made.
const BLOCKED: u64 = {
    let [a, b, c, d, e, f] = FAULTS;
    !(bit(a) | bit(b) | bit(c) | bit(d) | bit(e) | bit(f))
};

#[cfg(target_arch = "x86_64")]
mod machine {
    /// `NT_X86_XSTATE`
    pub(super) const VECTORS: i32 = 0x202;
    pub(super) const RETURNS_BY_FAULT: bool = false;
    pub(super) type Registers = libc::user_regs_struct;
    pub(super) const FUTEX: u64 = libc::SYS_futex as u64;

    pub(super) fn prepare(registers: &mut Registers, stack: u64, function: u64, arguments: [u64; 6]) {
        [registers.rdi, registers.rsi, registers.rdx, registers.rcx, registers.r8, registers.r9] = arguments;
        registers.rip = function;
        registers.rax = 0;
        // No system call to begin again.
        registers.orig_rax = u64::MAX;
        registers.rsp = stack;
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
        let is_waiting = registers.orig_rax == call && is_interrupted(registers);
        if is_waiting {
            registers.rax = -i64::from(libc::EINTR) as u64;
        }
        is_waiting
    }

    fn is_interrupted(registers: &Registers) -> bool {
        // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK of the kernel's <linux/errno.h>
        [-512, -513, -514, -516].contains(&(registers.rax as i64))
    }

    /// The system call that the thread waits in, and its second argument.
    pub(super) fn waits_in(registers: &Registers) -> Option<(u64, u64)> {
        // The kernel does not restart calls like `epoll_wait`.
        let is_waiting = is_interrupted(registers) || registers.rax as i64 == -i64::from(libc::EINTR);
        (registers.orig_rax as i64 >= 0 && is_waiting).then_some((registers.orig_rax, registers.rsi))
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    /// `NT_PRFPREG`
    pub(super) const VECTORS: i32 = 2;
    pub(super) const RETURNS_BY_FAULT: bool = true;
    pub(super) type Registers = libc::user_regs_struct;
    pub(super) const FUTEX: u64 = libc::SYS_futex as u64;

    pub(super) fn prepare(registers: &mut Registers, stack: u64, function: u64, arguments: [u64; 6]) {
        registers.regs[..6].copy_from_slice(&arguments);
        registers.regs[30] = 0;
        registers.pc = function;
        registers.sp = stack;
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

    pub(super) fn waits_in(_: &Registers) -> Option<(u64, u64)> {
        None
    }
}

use machine::Registers;

/// Stops the main thread of a process, and lets it run on as it was when the function has returned.
pub(crate) fn with_main_thread<T: Send>(
    pid: u32,
    act: impl FnOnce(&mut Stopped) -> io::Result<T> + Send,
) -> io::Result<T> {
    // The thread below inherits this.
    let _quiet = Everything::blocked();
    let traced = move || Stopped::main_thread(pid).and_then(|mut stopped| act(&mut stopped));
    std::thread::scope(|scope| scope.spawn(traced).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
}

/// The main thread of a process, stopped. Dropping it lets the thread run on as it was.
pub(crate) struct Stopped {
    pid: i32,
    registers: Registers,
    vectors: Vec<u8>,
    mask: u64,
    /// Signals that came during a call.
    kept: Vec<i32>,
}

impl Stopped {
    fn main_thread(pid: u32) -> io::Result<Stopped> {
        let pid = pid as i32;
        // With a handler that is ignored, the return from a call would change it.
        if machine::RETURNS_BY_FAULT && ignores(pid, libc::SIGSEGV) {
            return Err(io::Error::other("it ignores SIGSEGV"));
        }
        // Should the tracer be killed while the thread stands at a system call, this is no SIGTRAP for the thread.
        request(libc::PTRACE_SEIZE, pid, 0, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        let seized = Seized(pid);
        interrupt(pid)?;
        let (registers, vectors) = (registers(pid)?, read_set(pid, machine::VECTORS, MAX_VECTOR_BYTES)?);
        let stopped = Stopped { pid, registers, vectors, mask: mask(pid)?, kept: Vec::new() };
        // From here on, `stopped` ends the tracing.
        std::mem::forget(seized);
        // Whether they can be put back has to be known before anything is changed.
        stopped.restore()?;
        Ok(stopped)
    }

    /// Calls `function`, and returns what it returns, of which 32 bits are sure. Its stack begins at `stack`; by
    /// default it is the thread's own, which is enough for a system call.
    pub(crate) fn call(
        &mut self,
        function: u64,
        arguments: [u64; 6],
        stack: Option<u64>,
        way_back: WayBack,
    ) -> io::Result<u64> {
        let mut registers = self.registers;
        let top = stack.unwrap_or(machine::stack(&registers) - RED_ZONE);
        let frame = Frame::new(top, way_back, &registers, &self.vectors, self.mask);
        memory::write(self.pid as u32, frame.at, &frame.bytes)?;
        machine::prepare(&mut registers, frame.at, function, arguments);
        // In this order: a thread with these registers gets its signal mask back, whatever happens.
        write_set(self.pid, NT_PRSTATUS, bytes_of(&registers))?;
        let result = set_mask(self.pid, BLOCKED).and_then(|()| self.run(way_back, &frame));
        way_back.take(&mut registers, &frame);
        write_set(self.pid, NT_PRSTATUS, bytes_of(&registers))?;
        self.stop_again()?;
        self.restore()?;
        result
    }

    fn run(&mut self, way_back: WayBack, frame: &Frame) -> io::Result<u64> {
        let (began, mut last_system_call) = (Instant::now(), 0);
        loop {
            request(libc::PTRACE_SYSCALL, self.pid, 0, 0)?;
            let event = match wait(self.pid, PATIENCE.saturating_sub(began.elapsed())) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    request(libc::PTRACE_INTERRUPT, self.pid, 0, 0)?;
                    wait(self.pid, 4 * PATIENCE)?;
                    return Err(error);
                }
                event => event?,
            };
            let now = registers(self.pid)?;
            let is_back = way_back.is_taken(&now, frame);
            match event {
                // A group stop that another thread caused: the process stops again after the call.
                Event::Stopped(_) => {}
                Event::SystemCall | Event::Signal(libc::SIGSEGV) if is_back => {
                    return Ok(WayBack::result(&now, last_system_call));
                }
                Event::SystemCall => last_system_call = machine::result(&now),
                Event::Signal(signal) if FAULTS.contains(&signal) && is_fault(self.pid)? => {
                    return Err(io::Error::other("the call failed"));
                }
                Event::Signal(signal) => self.kept.push(signal),
            }
        }
    }

    /// From a stop for a signal or a system call to one where the kernel looks whether a system call begins again. No
    /// instruction is executed in between.
    fn stop_again(&mut self) -> io::Result<()> {
        request(libc::PTRACE_INTERRUPT, self.pid, 0, 0)?;
        loop {
            request(libc::PTRACE_CONT, self.pid, 0, 0)?;
            match wait(self.pid, PATIENCE)? {
                Event::Stopped(_) => return Ok(()),
                Event::SystemCall => {}
                Event::Signal(signal) => self.kept.push(signal),
            }
        }
    }

    /// With the registers last: until then, they are those of the thread or lead to its frame.
    fn restore(&self) -> io::Result<()> {
        write_set(self.pid, machine::VECTORS, &self.vectors)?;
        set_mask(self.pid, self.mask)?;
        write_set(self.pid, NT_PRSTATUS, bytes_of(&self.registers))
    }

    /// The next instruction, and the stack pointer.
    pub(crate) fn place(&self) -> (u64, u64) {
        (machine::at(&self.registers), machine::stack(&self.registers))
    }

    /// The number of the system call that the thread waits in, if it does, and the call's second argument.
    pub(crate) fn waits_in(&self) -> Option<(u64, u64)> {
        machine::waits_in(&self.registers)
    }

    /// Lets the thread run on, and stops it again every now and then until it is elsewhere (`is_there`), or waits in a
    /// system call, or for long. One that is stepped dies with its tracer.
    pub(crate) fn run_on(&mut self, is_there: impl Fn(u64) -> bool) -> io::Result<()> {
        let began = Instant::now();
        while !is_there(machine::at(&self.registers)) && self.waits_in().is_none() && began.elapsed() < MAX_RUN_ON {
            request(libc::PTRACE_CONT, self.pid, 0, 0)?;
            std::thread::sleep(RUN_ON);
            interrupt(self.pid)?;
            self.registers = registers(self.pid)?;
        }
        self.vectors = read_set(self.pid, machine::VECTORS, MAX_VECTOR_BYTES)?;
        self.mask = mask(self.pid)?;
        Ok(())
    }

    /// Lets a wait for a lock return early, as a signal does. Users of futexes look again; Python looks at its pending
    /// calls, too.
    pub(crate) fn interrupt_lock(&mut self) -> io::Result<()> {
        let mut registers = self.registers;
        if machine::interrupt(&mut registers, machine::FUTEX) {
            write_set(self.pid, NT_PRSTATUS, bytes_of(&registers))?;
        }
        Ok(())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for signal in &self.kept {
            // SAFETY: numbers only. The main thread has the number of the process.
            unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.pid, *signal) };
        }
        drop(Seized(self.pid));
    }
}

/// A thread that is traced; dropping it ends that.
struct Seized(i32);

impl Drop for Seized {
    fn drop(&mut self) {
        let _ = request(libc::PTRACE_DETACH, self.0, 0, 0);
    }
}

/// The signal of a stop at a system call, with `PTRACE_O_TRACESYSGOOD`.
const AT_SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;

/// Stops a thread that is traced and runs.
fn interrupt(pid: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, pid, 0, 0)?;
    let began = Instant::now();
    loop {
        match wait(pid, PATIENCE.saturating_sub(began.elapsed()))? {
            Event::Stopped(libc::SIGTRAP) => return Ok(()),
            Event::Stopped(_) => return Err(io::Error::other("it is stopped: continue it first (SIGCONT)")),
            // It was on its way already.
            Event::Signal(signal) => request(libc::PTRACE_CONT, pid, 0, signal as usize)?,
            Event::SystemCall => request(libc::PTRACE_CONT, pid, 0, 0)?,
        }
    }
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn ignores(pid: i32, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & bit(signal) != 0)
}

/// The kernel's `PTRACE_GETSIGMASK` and `PTRACE_SETSIGMASK`: a set has 64 bits, and its size is the address.
fn mask(pid: i32) -> io::Result<u64> {
    let mut mask = 0_u64;
    request(PTRACE_GETSIGMASK, pid, size_of::<u64>(), (&raw mut mask) as usize)?;
    Ok(mask)
}

fn set_mask(pid: i32, mask: u64) -> io::Result<()> {
    request(PTRACE_SETSIGMASK, pid, size_of::<u64>(), (&raw const mask) as usize)
}

/// <linux/ptrace.h>
const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;

/// Whether the signal that the thread has stopped for is of the kernel's making, and not sent.
fn is_fault(pid: i32) -> io::Result<bool> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    request(libc::PTRACE_GETSIGINFO, pid, 0, info.as_mut_ptr() as usize)?;
    // SAFETY: integers, for which zeros are values, and which the kernel has filled in.
    Ok(unsafe { info.assume_init() }.si_code > 0)
}

fn request(request: libc::c_uint, pid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: requests that take numbers, or addresses of what the callers above own.
    let result = unsafe { libc::ptrace(request, pid, address, data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Why a traced thread stands.
enum Event {
    /// At the begin of a system call, or at its end.
    SystemCall,
    /// As asked (`SIGTRAP`), or with its process, by this signal.
    Stopped(i32),
    /// This signal is about to be delivered.
    Signal(i32),
}

/// Waits until the thread stops. The kernel sends a `SIGCHLD` then, unless our parent made us ignore it: so the time is
/// in slices.
fn wait(pid: i32, patience: Duration) -> io::Result<Event> {
    const SLICE: Duration = Duration::from_millis(20);
    let (began, child) = (Instant::now(), Blocked::new(&[Signal::CHILD]));
    loop {
        let mut status = 0;
        // SAFETY: the status is ours.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
            0 if began.elapsed() < patience => {
                child.arrived(SLICE.min(patience));
            }
            0 => return Err(io::ErrorKind::TimedOut.into()),
            found if found == pid && libc::WIFSTOPPED(status) => {
                let signal = libc::WSTOPSIG(status);
                let is_event = status >> 16 == libc::PTRACE_EVENT_STOP;
                return Ok(match signal {
                    _ if is_event => Event::Stopped(signal),
                    AT_SYSTEM_CALL => Event::SystemCall,
                    _ => Event::Signal(signal),
                });
            }
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
