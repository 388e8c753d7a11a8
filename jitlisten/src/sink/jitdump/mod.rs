//! The jitdump: `jit-PID.dump`. `perf inject --jit` makes an ELF file for every function in it.
//!
//! ```text
//! header | DEBUG_INFO  UNWINDING_INFO  CODE_LOAD | DEBUG_INFO  CODE_LOAD | CODE_LOAD | ... | CODE_CLOSE
//!          `- one group per function ----------'                                          (switched off)
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
//! * **After *finalized***: the code is read from live memory, so calls have their targets. `vma` is the address too.
//! * **Groups are whole.** perf keeps DEBUG_INFO and UNWINDING_INFO until the next CODE_LOAD *in the file*. Therefore
//!   an object is encoded in one buffer and written with one `write(2)` under the session's lock. If the disk takes
//!   only a part, the file is truncated to the end of the previous object, and the sink stops.
//! * **Times** are `CLOCK_MONOTONIC` at *finalized*, even for objects that were final before the sink was switched on.
//!   perf sorts by time: samples from before the switch get their names, and if an address was reused, each sample is
//!   resolved to the function of its time. Code that was freed before the switch stays unnamed. In a child, the time is
//!   at least that of the `fork(2)`; the process did not exist earlier.
//! * **Lines**: full names, no shift by 0x40 (perf wants none since 5.8), inlined code with its own lines, line 0 where
//!   the compiler assigned none. perf ends the table at the last row, which covers no bytes: see `lines`.
//! * **CODE_CLOSE** is written only when the sink is switched off; switched on again, it starts a new file in a new
//!   directory. A process that exits writes none, because other threads may still compile.
//! * **The PID** in the file's name and in the records is that of the innermost PID namespace. perf 6.1 resolves it
//!   with `/proc`. For a container, `perf inject` therefore has to run while the process lives; afterwards it ignores
//!   the file.
//!
//! # Unwind tables, only where they fit
//!
//! perf extends the mapping of a function by `mapped_size` (80 to 112 bytes), and looks for the tables there. These
//! bytes must not be code, or that code loses its name. A function gets tables only if they fit before the next known
//! code, loaded or about to be, and before the end of the text's last page. That is usually the last function of a text
//! range. With perf 6.1 (`--call-graph dwarf`) the reader gets:
//!
//! ```text
//!   an object per function (llvmlite, lli, ORC per function)    whole stacks, with and without frame pointers
//!   a Numba object: function, wrapper, C wrapper                 only the last has tables; a sample in the function
//!                                                                is a single frame
//!   `--call-graph fp` on the same code                           whole stacks: only frame pointers are needed
//! ```
//!
//! For `--call-graph dwarf` over Numba code use the image sink, which has none of these limits.
//!
//! # Other JITs in the process
//!
//! perf drops later anonymous mappings of a process with a jitdump, and with them the names of a perf map: see
//! `other_jits`. `python -X perf` and Numba appear in one report, with all Python functions, if the process ends with
//! `exit(3)`. If it is killed or calls `_exit(2)`, the functions since the last poll are missing.
//!
//! An object's live bytes are read once for all sinks ([`crate::code_snapshot`]), in one read if code and `.eh_frame`
//! are adjacent. `exit()` tries the session's lock and never waits for it.
//!
//! # Cost
//!
//! One `write(2)` per object costs most. Tried and dropped:
//!
//! * A shared mapping: a store takes 0.1 us, each new page 4.6 us, and truncating the file kills the host with SIGBUS.
//! * `fallocate`: the cost moves to one write in 87.
//! * `writev` from live code: 2.4 us instead of 2.05; the code must be read anyway.
//! * Several objects in one write: a buffered object is lost when the process is killed.
//! * Plain loads after a probe instead of `process_vm_readv`: a concurrent unmapping would crash the host.

mod dump_file;
mod lines;
mod other_jits;
mod record;
mod unwinding;
mod writer;

#[cfg(feature = "fuzzing")]
pub(super) use {lines::function_rows, unwinding::EhFrame};

pub(super) use writer::Jitdump;
