//! The jitdump: `jit-PID.dump`, from which `perf inject --jit` makes an ELF file for every function.
//!
//! ```text
//! header | DEBUG_INFO  UNWINDING_INFO  CODE_LOAD | DEBUG_INFO  CODE_LOAD | CODE_LOAD | ... | CODE_CLOSE
//!          `- one group per function ----------'                                          (switched off)
//! ```
//!
//! The specification is `tools/perf/Documentation/jitdump-specification.txt` of the kernel, and where its text and
//! perf's reader (`tools/perf/util/jitdump.c`, `genelf.c`) differ, the reader counts. To see it work:
//!
//! ```text
//! NUMBA_DEBUGINFO=1 JITLISTEN=jitdump LD_PRELOAD=libjitlisten.so perf record -k mono -e cpu-clock -g python program.py
//! perf inject --jit -i perf.data -o perf.jit.data
//! perf report -i perf.jit.data --sort sym,srcline
//! perf annotate -i perf.jit.data -l
//! ```
//!
//! # What a record says, and why
//!
//! * **After *finalized***: the code is read from live memory, so calls have their targets. `vma` is the address too.
//! * **A group is whole.** perf keeps DEBUG_INFO and UNWINDING_INFO until the next CODE_LOAD *in the file*. So an
//!   object is encoded in one buffer and written by one `write(2)` under the session's lock; where the disk takes only
//!   a part, the file is cut back to the object before, and the sink stops.
//! * **Times** are `CLOCK_MONOTONIC`, the moment of *finalized*, also for objects reported when the sink is switched on
//!   later: perf sorts by time, so samples from before the switch get their names, and at an address used twice every
//!   sample goes to the function of its time. Code that was freed before the switch stays unnamed. In a child after
//!   `fork(2)` the time is that of the fork; before it there is no such process.
//! * **Lines**: full names, no shift by 0x40 (perf wants none since 5.8), inlined code with its own lines, 0 where the
//!   compiler could not say. perf ends the table at the last row, which covers nothing: see `lines`.
//! * **CODE_CLOSE** only when the sink is switched off; switched on again, it begins a new file in a new directory.
//!   A process that ends writes none, because other threads may still compile.
//! * **The PID**, in the file's name and in the records, is that of the innermost PID namespace. perf 6.1 asks `/proc`
//!   which process that is, so for a container `perf inject` has to run while the process lives; afterwards it ignores
//!   the file.
//!
//! # Unwind tables, only where there is space
//!
//! perf prolongs the mapping of a function over what lies behind it, by `mapped_size` (80 to 112 bytes), and looks
//! there for the tables. What lies there must not be code, or that code loses its name. So a function has tables when
//! up to the next code we know of, loaded or about to be, and up to the end of the page its text ends in, there is
//! space for them: the last function of a text range mostly, others never. With perf 6.1 (`--call-graph dwarf`) the
//! reader gets:
//!
//! ```text
//!   an object per function (llvmlite, lli, ORC per function)    whole stacks, with and without frame pointers
//!   a Numba object: function, wrapper, C wrapper                 the last has tables; a sample in the function
//!                                                                is that one frame and nothing above
//!   `--call-graph fp` on the same code                           whole stacks: nothing but frame pointers is needed
//! ```
//!
//! For `--call-graph dwarf` over Numba code use the image sink, where none of these limits exist.
//!
//! # Other JITs in the process
//!
//! perf drops later anonymous mappings of a process with a jitdump, and with them the names of a perf map: see
//! `other_jits`. `python -X perf` and Numba appear in one report, with all functions of Python, if the process ends
//! with `exit(3)`. If it is killed or calls `_exit(2)`, the functions since the last look are missing.
//!
//! An object's live bytes are read once ([`crate::code_snapshot`]), for all sinks, and in one piece where code and
//! `.eh_frame` are neighbours. `exit()` tries the session's lock and never waits for it.
//!
//! # Cost
//!
//! The largest cost is one `write(2)` per object. Tried and dropped:
//!
//! * A shared mapping: a store takes 0.1 us, each new page 4.6 us, and truncating the file kills the host with SIGBUS.
//! * `fallocate`: the cost moves to one write in 87.
//! * `writev` from live code: 2.4 us instead of 2.05; the code must be read anyway.
//! * Several objects in one write: a buffered object is lost when the process is killed.
//! * Plain loads after a probe instead of `process_vm_readv`: a concurrent unmapping would crash the host.

mod lines;
mod other_jits;
mod place;
mod record;
mod unwinding;
mod writer;

#[cfg(feature = "fuzzing")]
pub(super) use {lines::of_function, unwinding::EhFrame};

pub(super) use writer::Jitdump;
