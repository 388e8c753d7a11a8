//! The jitdump: `jit-PID.dump`, from which `perf inject --jit` makes an ELF file for every function.
//!
//! ```text
//! header | DEBUG_INFO  UNWINDING_INFO  CODE_LOAD | DEBUG_INFO  CODE_LOAD | CODE_LOAD | ... | CODE_CLOSE
//!          `- one group per function ----------'                                          (switched off)
//! ```
//!
//! The specification is `tools/perf/Documentation/jitdump-specification.txt` of the kernel, and where its text and perf's
//! reader (`tools/perf/util/jitdump.c`, `genelf.c`) differ, the reader counts. To see it work:
//!
//! ```text
//! NUMBA_DEBUGINFO=1 JITLISTEN=jitdump LD_PRELOAD=libjitlisten.so perf record -k mono -e cpu-clock -g python program.py
//! perf inject --jit -i perf.data -o perf.jit.data
//! perf report -i perf.jit.data --sort sym,srcline
//! perf annotate -i perf.jit.data -l
//! ```

mod lines;
mod other_jits;
mod place;
mod record;
mod unwinding;
mod writer;

pub(super) use writer::Jitdump;
