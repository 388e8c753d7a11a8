//! Constants of the `perf.data` format, shared by the writer (`sampler`) and the reader (`report`).
//!
//! Sources: `linux/perf_event.h`. Record types from 64 on, and features, are described in
//! `tools/perf/Documentation/perf.data-file-format.txt`.

#![expect(missing_docs, reason = "the sources describe their names")]

pub const PERF_RECORD_MMAP: u32 = 1;
pub const PERF_RECORD_LOST: u32 = 2;
pub const PERF_RECORD_COMM: u32 = 3;
pub const PERF_RECORD_EXIT: u32 = 4;
pub const PERF_RECORD_FORK: u32 = 7;
pub const PERF_RECORD_READ: u32 = 8;
pub const PERF_RECORD_SAMPLE: u32 = 9;
pub const PERF_RECORD_MMAP2: u32 = 10;
pub const PERF_RECORD_LOST_SAMPLES: u32 = 13;
pub const PERF_RECORD_HEADER_ATTR: u32 = 64;
pub const PERF_RECORD_FINISHED_ROUND: u32 = 68;
/// The size in the record's header excludes the trace data that follows the record.
pub const PERF_RECORD_AUXTRACE: u32 = 71;
pub const PERF_RECORD_HEADER_FEATURE: u32 = 80;
pub const PERF_RECORD_COMPRESSED: u32 = 81;
/// The record is padded; a field contains the size of its data.
pub const PERF_RECORD_COMPRESSED2: u32 = 83;

pub const PERF_RECORD_MISC_CPUMODE_MASK: u16 = 7;
pub const PERF_RECORD_MISC_KERNEL: u16 = 1;
pub const PERF_RECORD_MISC_USER: u16 = 2;
/// Flag of mapping records: the mapping contains data, not code.
pub const PERF_RECORD_MISC_MMAP_DATA: u16 = 1 << 13;
/// Flag of `COMM` records: the name was set by `exec`.
pub const PERF_RECORD_MISC_COMM_EXEC: u16 = 1 << 13;
pub const PERF_RECORD_MISC_MMAP_BUILD_ID: u16 = 1 << 14;
/// Flag of build-id table entries: the byte after the build-id is the build-id's size.
pub const PERF_RECORD_MISC_BUILD_ID_SIZE: u16 = 1 << 15;

/// Lowest call-chain value that is a marker. A marker tells whether user or kernel addresses follow it.
pub const PERF_CONTEXT_MAX: u64 = -4095_i64 as u64;
pub const PERF_CONTEXT_USER: u64 = -512_i64 as u64;
pub const PERF_CONTEXT_KERNEL: u64 = -128_i64 as u64;

pub const PERF_SAMPLE_IP: u64 = 1 << 0;
pub const PERF_SAMPLE_TID: u64 = 1 << 1;
pub const PERF_SAMPLE_TIME: u64 = 1 << 2;
pub const PERF_SAMPLE_ADDR: u64 = 1 << 3;
pub const PERF_SAMPLE_READ: u64 = 1 << 4;
pub const PERF_SAMPLE_CALLCHAIN: u64 = 1 << 5;
pub const PERF_SAMPLE_ID: u64 = 1 << 6;
pub const PERF_SAMPLE_CPU: u64 = 1 << 7;
pub const PERF_SAMPLE_PERIOD: u64 = 1 << 8;
pub const PERF_SAMPLE_STREAM_ID: u64 = 1 << 9;
pub const PERF_SAMPLE_RAW: u64 = 1 << 10;
pub const PERF_SAMPLE_BRANCH_STACK: u64 = 1 << 11;
pub const PERF_SAMPLE_REGS_USER: u64 = 1 << 12;
pub const PERF_SAMPLE_STACK_USER: u64 = 1 << 13;
pub const PERF_SAMPLE_IDENTIFIER: u64 = 1 << 16;
pub const PERF_SAMPLE_BRANCH_HW_INDEX: u64 = 1 << 17;

pub const PERF_FORMAT_TOTAL_TIME_ENABLED: u64 = 1 << 0;
pub const PERF_FORMAT_TOTAL_TIME_RUNNING: u64 = 1 << 1;
pub const PERF_FORMAT_ID: u64 = 1 << 2;
pub const PERF_FORMAT_GROUP: u64 = 1 << 3;
pub const PERF_FORMAT_LOST: u64 = 1 << 4;

// Flags of `perf_event_attr`, which the header declares as bit fields.
pub const ATTR_DISABLED: u64 = 1;
pub const ATTR_EXCLUDE_KERNEL: u64 = 1 << 5;
pub const ATTR_EXCLUDE_HV: u64 = 1 << 6;
pub const ATTR_MMAP: u64 = 1 << 8;
pub const ATTR_COMM: u64 = 1 << 9;
pub const ATTR_FREQ: u64 = 1 << 10;
pub const ATTR_TASK: u64 = 1 << 13;
pub const ATTR_SAMPLE_ID_ALL: u64 = 1 << 18;
pub const ATTR_MMAP2: u64 = 1 << 23;
pub const ATTR_COMM_EXEC: u64 = 1 << 24;
pub const ATTR_USE_CLOCKID: u64 = 1 << 25;

/// Thread id of a COMM record that has the rank of the process. No thread has this id.
pub const RANK_TID: u32 = u32::MAX - 1;
/// Thread id of a COMM record that has the name of the process, such as that of a worker in a pool.
pub const PROCESS_NAME_TID: u32 = u32::MAX - 2;
/// Thread id of a COMM record, the second record of a recording, that has the `jitlisten record` that the process
/// belongs to (`jitlisten::plumbing::Run`).
pub const RUN_TID: u32 = u32::MAX - 3;
pub const HEADER_BUILD_ID: u32 = 2;
pub const HEADER_HOSTNAME: u32 = 3;
pub const HEADER_OSRELEASE: u32 = 4;
pub const HEADER_VERSION: u32 = 5;
pub const HEADER_ARCH: u32 = 6;
pub const HEADER_CMDLINE: u32 = 11;
pub const HEADER_EVENT_DESC: u32 = 12;
pub const HEADER_SAMPLE_TIME: u32 = 21;
