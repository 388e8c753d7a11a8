//! Calls functions in the main thread of another process with `ptrace(2)`, while its other threads keep running.
//!
//! ```text
//!   seize, interrupt     the thread stops, in a system call or in user code
//!   save                 all registers, including floating-point and vector registers, and the signal mask
//!   call                 with signals blocked, on a given stack, below a signal frame that holds the saved state
//!                        (`signal_frame.rs`): the function returns into `rt_sigreturn`, where the tracer stops it
//!   restore, detach      the thread continues as before: the kernel restarts an interrupted system call
//! ```
//! Signals that cannot be blocked may arrive during a call. They are sent again once the thread is restored.
//!
//! The called functions must be async-signal-safe. If a call takes too long, it is abandoned and the thread is
//! restored. The kernel detaches when the tracing thread exits, so [`with_main_thread`] traces from a separate thread.
//!
//! **The tracer may be killed at any time.** The thread enters the call through one atomic request that sets all its
//! registers, and leaves the call the same way. A thread that loses its tracer meanwhile finishes the call and restores
//! itself from the frame. On aarch64, there is no frame: the return address is 0, so returning raises a SIGSEGV that
//! only the tracer sees, and the thread dies if its tracer is killed during a call.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::inject::signal_frame::{Frame, ReturnPath};
use crate::problem::Problem;
use crate::process::memory;
use crate::system::{AllSignalsBlocked, BlockedSignals};

/// Time limit for one stop or one call.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a thread to reach a suitable point, and interval at which its position is checked.
const RESUME_TIMEOUT: Duration = Duration::from_millis(50);
const RESUME_INTERVAL: Duration = Duration::from_micros(200);
/// Upper bound for the size of a machine's vector registers.
const MAX_VECTOR_BYTES: usize = 64 << 10;
const NT_PRSTATUS: i32 = 1;
/// Bytes below the stack pointer that leaf functions may use, according to the x86_64 ABI. A signal stack may end
/// directly below them.
const RED_ZONE: u64 = 128;
/// Signals left unblocked during a call. If a call raised one of them while it was blocked, the kernel would reset the
/// program's handler.
const FAULT_SIGNALS: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
/// Signals blocked during a call.
const CALL_MASK: u64 = {
    let [a, b, c, d, e, f] = FAULT_SIGNALS;
    !(bit(a) | bit(b) | bit(c) | bit(d) | bit(e) | bit(f))
};

#[cfg(target_arch = "x86_64")]
mod machine {
    /// Register set `NT_X86_XSTATE`.
    pub(super) const VECTOR_SET: i32 = 0x202;
    pub(super) const RETURNS_BY_FAULT: bool = false;
    pub(super) type Registers = libc::user_regs_struct;
    pub(super) const FUTEX: u64 = libc::SYS_futex as u64;

    pub(super) fn set_up_call(registers: &mut Registers, stack_top: u64, function: u64, arguments: [u64; 6]) {
        [registers.rdi, registers.rsi, registers.rdx, registers.rcx, registers.r8, registers.r9] = arguments;
        registers.rip = function;
        registers.rax = 0;
        // The kernel must not restart an interrupted system call.
        registers.orig_rax = u64::MAX;
        registers.rsp = stack_top;
    }

    pub(super) fn stack_pointer(registers: &Registers) -> u64 {
        registers.rsp
    }

    pub(super) fn program_counter(registers: &Registers) -> u64 {
        registers.rip
    }

    pub(super) fn return_value(registers: &Registers) -> u64 {
        registers.rax
    }

    /// Makes system call `number` return EINTR if the thread is waiting in it. Returns true if it was.
    pub(super) fn interrupt_syscall(registers: &mut Registers, number: u64) -> bool {
        let is_waiting = registers.orig_rax == number && is_interrupted(registers);
        if is_waiting {
            registers.rax = -i64::from(libc::EINTR) as u64;
        }
        is_waiting
    }

    fn is_interrupted(registers: &Registers) -> bool {
        // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK (kernel-internal error numbers)
        [-512, -513, -514, -516].contains(&(registers.rax as i64))
    }

    /// Number and second argument of the system call that the thread is waiting in.
    pub(super) fn blocking_syscall(registers: &Registers) -> Option<(u64, u64)> {
        // Calls like `epoll_wait` are not restarted, but return EINTR.
        let is_waiting = is_interrupted(registers) || registers.rax as i64 == -i64::from(libc::EINTR);
        (registers.orig_rax as i64 >= 0 && is_waiting).then_some((registers.orig_rax, registers.rsi))
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    /// Register set `NT_PRFPREG`.
    pub(super) const VECTOR_SET: i32 = 2;
    pub(super) const RETURNS_BY_FAULT: bool = true;
    pub(super) type Registers = libc::user_regs_struct;
    pub(super) const FUTEX: u64 = libc::SYS_futex as u64;

    pub(super) fn set_up_call(registers: &mut Registers, stack_pointer: u64, function: u64, arguments: [u64; 6]) {
        registers.regs[..6].copy_from_slice(&arguments);
        registers.regs[30] = 0;
        registers.pc = function;
        registers.sp = stack_pointer;
    }

    pub(super) fn stack_pointer(registers: &Registers) -> u64 {
        registers.sp
    }

    pub(super) fn program_counter(registers: &Registers) -> u64 {
        registers.pc
    }

    pub(super) fn return_value(registers: &Registers) -> u64 {
        registers.regs[0]
    }

    /// Not implemented, because aarch64 keeps the system call number in a separate register set.
    pub(super) fn interrupt_syscall(_: &mut Registers, _: u64) -> bool {
        false
    }

    pub(super) fn blocking_syscall(_: &Registers) -> Option<(u64, u64)> {
        None
    }
}

use machine::Registers;

/// Stops the main thread of a process, calls `act`, and resumes the thread with its old state.
pub(crate) fn with_main_thread<T: Send>(
    pid: u32,
    act: impl FnOnce(&mut StoppedThread) -> io::Result<T> + Send,
) -> io::Result<T> {
    // The spawned thread inherits this signal mask.
    let _blocked = AllSignalsBlocked::new();
    let traced = move || StoppedThread::main_thread(pid).and_then(|mut stopped| act(&mut stopped));
    std::thread::scope(|scope| scope.spawn(traced).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
}

/// The stopped main thread of a process. Dropping it resumes the thread with its old state.
pub(crate) struct StoppedThread {
    pid: i32,
    registers: Registers,
    vectors: Vec<u8>,
    mask: u64,
    /// Signals that arrived during a call, to be sent again later.
    deferred_signals: Vec<i32>,
}

impl StoppedThread {
    fn main_thread(pid: u32) -> io::Result<StoppedThread> {
        let pid = pid as i32;
        // A call returns by raising a fault. If SIGSEGV is ignored, that would reset its disposition to the default.
        if machine::RETURNS_BY_FAULT && is_ignored(pid, libc::SIGSEGV) {
            return Err(io::Error::other("it ignores SIGSEGV"));
        }
        // This option prevents a thread that is stopped at a system call from receiving SIGTRAP if the tracer is
        // killed.
        request(libc::PTRACE_SEIZE, pid, 0, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        let guard = SeizedThread(pid);
        interrupt(pid)?;
        let (registers, vectors) = (registers(pid)?, read_set(pid, machine::VECTOR_SET, MAX_VECTOR_BYTES)?);
        let stopped = StoppedThread { pid, registers, vectors, mask: mask(pid)?, deferred_signals: Vec::new() };
        // From here on, dropping `stopped` detaches from the thread.
        std::mem::forget(guard);
        // Before any change, check that registers can be written back.
        stopped.restore()?;
        Ok(stopped)
    }

    /// Calls `function` and returns its result; only the low 32 bits are reliable. The stack of the call begins at
    /// `stack_top`, or by default below the thread's own stack pointer, where there is room for a system call.
    pub(crate) fn call(
        &mut self,
        function: u64,
        arguments: [u64; 6],
        stack_top: Option<u64>,
        return_path: ReturnPath,
    ) -> io::Result<u64> {
        let mut registers = self.registers;
        let stack_top = stack_top.unwrap_or(machine::stack_pointer(&registers) - RED_ZONE);
        let frame = Frame::new(stack_top, return_path, &registers, &self.vectors, self.mask);
        memory::write(self.pid as u32, frame.stack_pointer, &frame.bytes)?;
        machine::set_up_call(&mut registers, frame.stack_pointer, function, arguments);
        // Write the registers first: from then on, the thread will restore its signal mask even if the tracer is
        // killed.
        write_set(self.pid, NT_PRSTATUS, bytes_of(&registers))?;
        let result = set_mask(self.pid, CALL_MASK).and_then(|()| self.run(return_path, &frame));
        return_path.redirect(&mut registers, &frame);
        write_set(self.pid, NT_PRSTATUS, bytes_of(&registers))?;
        self.stop_again()?;
        self.restore()?;
        result
    }

    fn run(&mut self, return_path: ReturnPath, frame: &Frame) -> io::Result<u64> {
        let (started, mut last_system_call) = (Instant::now(), 0);
        loop {
            request(libc::PTRACE_SYSCALL, self.pid, 0, 0)?;
            let event = match wait(self.pid, STOP_TIMEOUT.saturating_sub(started.elapsed())) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    request(libc::PTRACE_INTERRUPT, self.pid, 0, 0)?;
                    wait(self.pid, 4 * STOP_TIMEOUT)?;
                    return Err(error);
                }
                event => event?,
            };
            let current = registers(self.pid)?;
            let has_returned = return_path.has_returned(&current, frame);
            match event {
                // Ignore a group stop caused by another thread, because the process stops again after the call.
                Event::Stopped(_) => {}
                Event::SystemCall | Event::Signal(libc::SIGSEGV) if has_returned => {
                    return Ok(ReturnPath::result(&current, last_system_call));
                }
                Event::SystemCall => last_system_call = machine::return_value(&current),
                Event::Signal(signal) if FAULT_SIGNALS.contains(&signal) && is_fault(self.pid)? => {
                    return Err(io::Error::other("the call failed"));
                }
                Event::Signal(signal) => self.deferred_signals.push(signal),
            }
        }
    }

    /// Moves the thread from a signal or system call stop to one after which the kernel considers restarting a system
    /// call. The thread executes no instruction in between.
    fn stop_again(&mut self) -> io::Result<()> {
        request(libc::PTRACE_INTERRUPT, self.pid, 0, 0)?;
        loop {
            request(libc::PTRACE_CONT, self.pid, 0, 0)?;
            match wait(self.pid, STOP_TIMEOUT)? {
                Event::Stopped(_) => return Ok(()),
                Event::SystemCall => {}
                Event::Signal(signal) => self.deferred_signals.push(signal),
            }
        }
    }

    /// Restores the thread's state. General registers come last, because until then they direct the thread into its
    /// signal frame.
    fn restore(&self) -> io::Result<()> {
        write_set(self.pid, machine::VECTOR_SET, &self.vectors)?;
        set_mask(self.pid, self.mask)?;
        write_set(self.pid, NT_PRSTATUS, bytes_of(&self.registers))
    }

    /// Program counter and stack pointer of the thread.
    pub(crate) fn pc_and_sp(&self) -> (u64, u64) {
        (machine::program_counter(&self.registers), machine::stack_pointer(&self.registers))
    }

    /// Number and second argument of the system call that the thread is waiting in, if any.
    pub(crate) fn blocking_syscall(&self) -> Option<(u64, u64)> {
        machine::blocking_syscall(&self.registers)
    }

    /// Resumes the thread and stops it repeatedly, until its program counter satisfies `is_suitable`, it waits in a
    /// system call, or time runs out. We do not single-step, because a thread being stepped dies with its tracer.
    pub(crate) fn resume_until(&mut self, is_suitable: impl Fn(u64) -> bool) -> io::Result<()> {
        let started = Instant::now();
        while !is_suitable(machine::program_counter(&self.registers))
            && self.blocking_syscall().is_none()
            && started.elapsed() < RESUME_TIMEOUT
        {
            request(libc::PTRACE_CONT, self.pid, 0, 0)?;
            std::thread::sleep(RESUME_INTERVAL);
            interrupt(self.pid)?;
            self.registers = registers(self.pid)?;
        }
        self.vectors = read_set(self.pid, machine::VECTOR_SET, MAX_VECTOR_BYTES)?;
        self.mask = mask(self.pid)?;
        Ok(())
    }

    /// Makes a wait for a lock return early, as after a signal. Code that waits on a futex then checks its condition
    /// again, and Python also runs its pending calls.
    pub(crate) fn interrupt_lock(&mut self) -> io::Result<()> {
        let mut registers = self.registers;
        if machine::interrupt_syscall(&mut registers, machine::FUTEX) {
            write_set(self.pid, NT_PRSTATUS, bytes_of(&registers))?;
        }
        Ok(())
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        for signal in &self.deferred_signals {
            // SAFETY: all arguments are integers. The main thread's TID equals the PID.
            unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.pid, *signal) };
        }
        drop(SeizedThread(self.pid));
    }
}

/// A traced thread. Dropping this value detaches from the thread.
struct SeizedThread(i32);

impl Drop for SeizedThread {
    fn drop(&mut self) {
        let _ = request(libc::PTRACE_DETACH, self.0, 0, 0);
    }
}

/// Signal number that reports a system call stop, because of `PTRACE_O_TRACESYSGOOD`.
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// Stops a traced thread that is running.
fn interrupt(pid: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, pid, 0, 0)?;
    let started = Instant::now();
    loop {
        match wait(pid, STOP_TIMEOUT.saturating_sub(started.elapsed()))? {
            Event::Stopped(libc::SIGTRAP) => return Ok(()),
            Event::Stopped(_) => return Err(io::Error::other("it is stopped: continue it first (SIGCONT)")),
            // Deliver a signal that arrived before the stop.
            Event::Signal(signal) => request(libc::PTRACE_CONT, pid, 0, signal as usize)?,
            Event::SystemCall => request(libc::PTRACE_CONT, pid, 0, 0)?,
        }
    }
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn is_ignored(pid: i32, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ignored_set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored_set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & bit(signal) != 0)
}

/// Signal mask of a thread. `PTRACE_GETSIGMASK` takes the size of the mask (8 bytes) as its address argument.
fn mask(pid: i32) -> io::Result<u64> {
    let mut mask = 0_u64;
    request(PTRACE_GETSIGMASK, pid, size_of::<u64>(), (&raw mut mask) as usize)?;
    Ok(mask)
}

fn set_mask(pid: i32, mask: u64) -> io::Result<()> {
    request(PTRACE_SETSIGMASK, pid, size_of::<u64>(), (&raw const mask) as usize)
}

/// Request numbers from <linux/ptrace.h>.
const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;

/// Returns true if the kernel itself raised the signal that stopped the thread, instead of another process.
fn is_fault(pid: i32) -> io::Result<bool> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    request(libc::PTRACE_GETSIGINFO, pid, 0, info.as_mut_ptr() as usize)?;
    // SAFETY: the structure contains only integers, for which zeros are valid, and the kernel has filled it in.
    Ok(unsafe { info.assume_init() }.si_code > 0)
}

fn request(request: libc::c_uint, pid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: each request takes integers, or addresses of memory that the caller owns.
    let result = unsafe { libc::ptrace(request, pid, address, data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reason why a traced thread stopped.
enum Event {
    /// Thread enters or leaves a system call.
    SystemCall,
    /// Thread stopped on request (`SIGTRAP`) or in a group stop caused by this signal.
    Stopped(i32),
    /// Signal is about to be delivered.
    Signal(i32),
}

/// Waits until the thread stops. The kernel then sends a `SIGCHLD`, unless our parent made us ignore it, so we also
/// poll at short intervals.
fn wait(pid: i32, timeout: Duration) -> io::Result<Event> {
    const SLICE: Duration = Duration::from_millis(20);
    let (started, child_signals) = (Instant::now(), BlockedSignals::new(&[Signal::CHILD]));
    loop {
        let mut status = 0;
        // SAFETY: `status` is a writable local variable.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
            0 if started.elapsed() < timeout => {
                child_signals.wait_signal(SLICE.min(timeout));
            }
            0 => return Err(io::ErrorKind::TimedOut.into()),
            stopped_pid if stopped_pid == pid && libc::WIFSTOPPED(status) => {
                let signal = libc::WSTOPSIG(status);
                let is_event = status >> 16 == libc::PTRACE_EVENT_STOP;
                return Ok(match signal {
                    _ if is_event => Event::Stopped(signal),
                    SYSCALL_STOP => Event::SystemCall,
                    _ => Event::Signal(signal),
                });
            }
            -1 => return Err(io::Error::last_os_error()),
            _ => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
}

fn read_set(pid: i32, set: i32, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; max_bytes];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: max_bytes };
    request(libc::PTRACE_GETREGSET as _, pid, set as usize, (&raw mut iov) as usize)?;
    // The kernel reports the size of the register set, and requires the same size for writing.
    bytes.truncate(iov.iov_len);
    Ok(bytes)
}

fn write_set(pid: i32, set: i32, bytes: &[u8]) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    request(libc::PTRACE_SETREGSET as _, pid, set as usize, (&raw mut iov) as usize)
}

fn registers(pid: i32) -> io::Result<Registers> {
    let bytes = read_set(pid, NT_PRSTATUS, size_of::<Registers>())?;
    if bytes.len() != size_of::<Registers>() {
        // A 32-bit program has a smaller register set.
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the structure contains only integers, and `bytes` has exactly its size.
    Ok(unsafe { bytes.as_ptr().cast::<Registers>().read_unaligned() })
}

fn bytes_of(registers: &Registers) -> &[u8] {
    // SAFETY: the structure contains only integers and has no padding.
    unsafe { std::slice::from_raw_parts((&raw const *registers).cast(), size_of::<Registers>()) }
}

/// Explains why the main thread could not be traced.
pub(crate) fn trace_problem(error: io::Error) -> Problem {
    match error.raw_os_error() {
        Some(libc::EPERM) => ptrace_permission_problem(),
        _ if error.kind() == io::ErrorKind::TimedOut => Problem::new("its main thread could not be stopped in time"),
        _ => Problem::new(error),
    }
}

/// Returns the probable reason why the kernel refused ptrace.
fn ptrace_permission_problem() -> Problem {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let problem = |reason: &str| Problem::new(format!("ptrace is not permitted ({reason})"));
    match scope.trim() {
        "" | "0" => problem("a seccomp filter, or privileges of the process"),
        "3" => problem("kernel.yama.ptrace_scope is 3").help("start the program with `jitlisten run`"),
        _ => problem("kernel.yama.ptrace_scope").help("use sudo, or start the program with `jitlisten run`"),
    }
}
