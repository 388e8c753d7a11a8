//! The `jitdump` sink: writes `jit-PID.dump`, which `perf inject --jit` converts to one ELF file per function.
//!
//! ```text
//! header | DEBUG_INFO  UNWINDING_INFO  CODE_LOAD | DEBUG_INFO  CODE_LOAD | CODE_LOAD | ... | CODE_CLOSE
//!          `- one group per function ----------'                                          (sink disabled)
//! ```
//!
//! The kernel's `tools/perf/Documentation/jitdump-specification.txt` is the specification. Where its text and perf's
//! reader (`tools/perf/util/jitdump.c`, `genelf.c`) differ, we follow the reader. To try it:
//!
//! ```text
//! NUMBA_DEBUGINFO=1 JITLISTEN=jitdump LD_PRELOAD=libjitlisten.so perf record -k mono -e cpu-clock -g python program.py
//! perf inject --jit -i perf.data -o perf.jit.data
//! perf report -i perf.jit.data --sort sym,srcline
//! perf annotate -i perf.jit.data -l
//! ```
//!
//! # Content of the records
//!
//! * **Code** is read from live memory after *finalized*, when call targets are already resolved. `vma` equals the code
//!   address.
//! * **Groups are whole.** perf keeps DEBUG_INFO and UNWINDING_INFO until the next CODE_LOAD *in the file*. Therefore
//!   an object is encoded in one buffer and written with one `write(2)` under the session lock. If a full disk cuts the
//!   write short, the file is truncated to the end of the previous object, and the sink stops.
//! * **Times** are `CLOCK_MONOTONIC` at *finalized*, even for objects that became final before the sink was enabled.
//!   perf sorts records by time, so samples from before the sink was enabled get names, too. If an address was reused,
//!   each sample is resolved to the function that was there at the sample's time. Code that was freed before the sink
//!   was enabled stays unnamed. In the child of a fork, no time precedes the `fork(2)`, because the child did not exist
//!   earlier.
//! * **Lines** have full file names. Their addresses are not shifted by 0x40 (perf expects no shift since 5.8). Inlined
//!   code has its own lines, and code that the compiler assigned no line has line 0. perf ends the table at the
//!   last row, which covers no bytes: see `lines`.
//! * **CODE_CLOSE** is written only when the sink is disabled. If the sink is enabled again, it starts a new file in a
//!   new directory. A process that exits writes no CODE_CLOSE, because other threads may still compile.
//! * **The PID** in the file name and in the records is that of the innermost PID namespace. perf 6.1 translates it
//!   with `/proc`. If the process is in a container, `perf inject` must therefore run while the process is alive. If it
//!   runs later, it ignores the file.
//!
//! # Unwind tables, only where they fit
//!
//! perf extends the mapping of a function by `mapped_size` (80 to 112 bytes), and looks for the tables there. If these
//! bytes were code, that code would lose its name. Therefore a function gets tables only if they fit before the next
//! known code (loaded or about to be), and before the end of the text's last page. Usually only the last function of a
//! text range meets these conditions. The result with perf 6.1 (`--call-graph dwarf`):
//!
//! ```text
//!   an object per function (llvmlite, lli, ORC per function)    whole stacks, with and without frame pointers
//!   a Numba object: function, wrapper, C wrapper                 only the last has tables; a stack sampled in the
//!                                                                function has a single frame
//!   `--call-graph fp` on the same code                           whole stacks: only frame pointers are needed
//! ```
//!
//! For `--call-graph dwarf` over Numba code use the image sink, which is free of these limits.
//!
//! # Other JITs in the process
//!
//! Once a process has a jitdump, perf drops later anonymous mappings of that process, and with them the names of a perf
//! map: see `other_jits`. `python -X perf` and Numba appear in one report, with all Python functions, if the process
//! ends with `exit(3)`. If it is killed or calls `_exit(2)`, functions since the last poll are missing.
//!
//! An object's live bytes are read once for all sinks ([`crate::code_snapshot`]), in a single read if code and
//! `.eh_frame` are adjacent. At `exit(3)`, we only try to lock the session, and never wait for it.
//!
//! # Cost
//!
//! Most of the cost is one `write(2)` per object. These alternatives were tried and dropped:
//!
//! * A shared mapping: a store takes 0.1 us and each new page 4.6 us, but truncation of the file would kill the host
//!   with SIGBUS.
//! * `fallocate`: moves the cost to one write in 87.
//! * `writev` from live code: takes 2.4 us instead of 2.05 us, and the code must be read anyway.
//! * Several objects in one write: a buffered object is lost when the process is killed.
//! * Plain loads after a probe instead of `process_vm_readv`: the host would crash if another thread unmapped the code.

mod dump_file;
mod lines;
mod other_jits;
mod record;
mod unwinding;
mod writer;

#[cfg(feature = "fuzzing")]
pub(super) use {lines::function_rows, unwinding::EhFrame};

pub(super) use writer::Jitdump;
