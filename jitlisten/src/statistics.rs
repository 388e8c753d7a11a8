//! Counters of a session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::options::SinkKind;

/// Snapshot of a session's counters. They count from the opening of the session, for this process only.
///
/// ```
/// use jitlisten::options::SinkKind;
/// use jitlisten::{Session, Statistics};
///
/// fn describe(statistics: &Statistics) -> String {
///     let perf_map = statistics.sink(SinkKind::PerfMap);
///     format!("{} functions, {} bytes of perf map", statistics.functions, perf_map.bytes_written)
/// }
///
/// if let Some(session) = Session::process() {
///     println!("{}", describe(&session.statistics()));
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Objects reported as *loaded*.
    pub objects_loaded: u64,
    /// Objects whose code became final and executable.
    pub objects_finalized: u64,
    /// Objects whose code was freed.
    pub objects_freed: u64,
    /// Objects that could not be read (truncated, corrupt, of another machine).
    pub objects_refused: u64,
    /// Functions in the finalized objects.
    pub functions: u64,
    /// Functions without a frame pointer.
    pub functions_without_frame_pointer: u64,
    /// Objects that contain functions without a frame pointer although frame pointers were requested. The code was
    /// cached by an earlier process, or compiled before jitlisten was loaded.
    pub objects_without_frame_pointers: u64,
    /// Functions without an entry in the object's `.eh_frame`.
    pub functions_without_unwind_table: u64,
    /// Unwind tables of reported objects that were ignored, because they are unreadable, malformed or for other code.
    pub unwind_tables_refused: u64,
    /// Counters of each sink, in the order of [`SinkKind::ALL`]; see [`Statistics::sink`].
    sinks: [SinkStatistics; SinkKind::ALL.len()],
    /// Counters of images.
    pub images: ImageStatistics,
    /// Log lines that were lost because the file cannot be opened, belongs to another user, is on a full disk, ...
    pub log_lines_lost: u64,
}

impl Statistics {
    /// Returns the counters of one sink.
    pub fn sink(&self, kind: SinkKind) -> SinkStatistics {
        self.sinks[kind as usize]
    }
}

/// Counters of images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageStatistics {
    /// Images written and mapped.
    pub written: u64,
    /// Images without header padding, so that perf's `--call-graph dwarf` cannot use their unwind tables.
    pub without_padding: u64,
    /// Runs of pages that got no image because their memory cannot be read.
    pub refused_unreadable: u64,
    /// Runs of pages that got no image because they are writable, shared with other processes, or not executable.
    pub refused_not_final: u64,
    /// Runs of pages that got no image because their contents cannot be represented as an ELF file.
    pub refused_not_encoded: u64,
    /// Runs of pages that got no image because other threads may write to them.
    pub refused_not_owned: u64,
    /// Images removed because LLVM was about to change their pages.
    pub withdrawn: u64,
    /// Image mappings that failed so late that the original code had to be restored.
    pub restored: u64,
}

/// Counters of one sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SinkStatistics {
    /// Bytes written to files.
    pub bytes_written: u64,
    /// Number of failures; each one disabled the sink.
    pub failures: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) objects_loaded: Counter,
    pub(crate) objects_finalized: Counter,
    pub(crate) objects_freed: Counter,
    pub(crate) objects_refused: Counter,
    pub(crate) functions: Counter,
    pub(crate) functions_without_frame_pointer: Counter,
    pub(crate) objects_without_frame_pointers: Counter,
    pub(crate) functions_without_unwind_table: Counter,
    pub(crate) unwind_tables_refused: Counter,
    pub(crate) sinks: [SinkCounters; SinkKind::ALL.len()],
    pub(crate) images: Arc<ImageCounters>,
}

#[derive(Debug, Default)]
pub(crate) struct ImageCounters {
    pub(crate) written: Counter,
    pub(crate) without_padding: Counter,
    pub(crate) refused_unreadable: Counter,
    pub(crate) refused_not_final: Counter,
    pub(crate) refused_not_encoded: Counter,
    pub(crate) refused_not_owned: Counter,
    pub(crate) withdrawn: Counter,
    pub(crate) restored: Counter,
}

impl ImageCounters {
    fn snapshot(&self) -> ImageStatistics {
        ImageStatistics {
            written: self.written.get(),
            without_padding: self.without_padding.get(),
            refused_unreadable: self.refused_unreadable.get(),
            refused_not_final: self.refused_not_final.get(),
            refused_not_encoded: self.refused_not_encoded.get(),
            refused_not_owned: self.refused_not_owned.get(),
            withdrawn: self.withdrawn.get(),
            restored: self.restored.get(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct SinkCounters {
    pub(crate) bytes_written: Counter,
    pub(crate) failures: Counter,
}

impl Counters {
    pub(crate) fn snapshot(&self) -> Statistics {
        Statistics {
            objects_loaded: self.objects_loaded.get(),
            objects_finalized: self.objects_finalized.get(),
            objects_freed: self.objects_freed.get(),
            objects_refused: self.objects_refused.get(),
            functions: self.functions.get(),
            functions_without_frame_pointer: self.functions_without_frame_pointer.get(),
            objects_without_frame_pointers: self.objects_without_frame_pointers.get(),
            functions_without_unwind_table: self.functions_without_unwind_table.get(),
            unwind_tables_refused: self.unwind_tables_refused.get(),
            sinks: std::array::from_fn(|index| SinkStatistics {
                bytes_written: self.sinks[index].bytes_written.get(),
                failures: self.sinks[index].failures.get(),
            }),
            images: self.images.snapshot(),
            log_lines_lost: crate::log::lost_lines(),
        }
    }
}
