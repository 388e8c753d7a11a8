//! Counters of the session.

use jitlisten::Statistics;
use jitlisten::options::SinkKind;

use crate::borrowed;
use crate::guard::with_session;
use crate::status::Failure;

/// `struct jitlisten_statistics` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CStatistics {
    size: usize,
    objects_loaded: u64,
    objects_finalized: u64,
    objects_freed: u64,
    objects_refused: u64,
    functions: u64,
    functions_without_frame_pointer: u64,
    objects_without_frame_pointers: u64,
    functions_without_unwind_table: u64,
    perfmap_bytes_written: u64,
    perfmap_failures: u64,
    unwind_failures: u64,
    jitdump_bytes_written: u64,
    jitdump_failures: u64,
    image_bytes_written: u64,
    image_failures: u64,
    images_written: u64,
    images_without_padding: u64,
    images_refused: u64,
    images_withdrawn: u64,
    images_put_back: u64,
    log_lines_lost: u64,
    unwind_tables_refused: u64,
}

const _: () = assert!(size_of::<CStatistics>() == 23 * 8);

impl CStatistics {
    fn new(size: usize, statistics: Statistics) -> CStatistics {
        let perfmap = statistics.sink(SinkKind::PerfMap);
        let jitdump = statistics.sink(SinkKind::Jitdump);
        let image = statistics.sink(SinkKind::Image);
        let images = statistics.images;
        CStatistics {
            size,
            objects_loaded: statistics.objects_loaded,
            objects_finalized: statistics.objects_finalized,
            objects_freed: statistics.objects_freed,
            objects_refused: statistics.objects_refused,
            functions: statistics.functions,
            functions_without_frame_pointer: statistics.functions_without_frame_pointer,
            objects_without_frame_pointers: statistics.objects_without_frame_pointers,
            functions_without_unwind_table: statistics.functions_without_unwind_table,
            perfmap_bytes_written: perfmap.bytes_written,
            perfmap_failures: perfmap.failures,
            unwind_failures: statistics.sink(SinkKind::Unwind).failures,
            jitdump_bytes_written: jitdump.bytes_written,
            jitdump_failures: jitdump.failures,
            image_bytes_written: image.bytes_written,
            image_failures: image.failures,
            images_written: images.written,
            images_without_padding: images.without_padding,
            images_refused: images.refused_unreadable
                + images.refused_not_final
                + images.refused_not_encoded
                + images.refused_not_owned,
            images_withdrawn: images.withdrawn,
            images_put_back: images.restored,
            log_lines_lost: statistics.log_lines_lost,
            unwind_tables_refused: statistics.unwind_tables_refused,
        }
    }
}

/// Copies the counters. Multiple copies of the library also find each other by this function's name.
///
/// # Safety
/// `statistics` must be null, or point to as many writable bytes as its first member specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_get_statistics(statistics: *mut CStatistics) -> i32 {
    with_session(|session| {
        borrowed::check_output(statistics, "statistics")?;
        // SAFETY: the pointer is not null and is aligned; the caller vouches for at least the first member.
        let size = unsafe { (*statistics).size };
        if size < size_of::<usize>() {
            return Err(Failure::argument(format_args!("its size says {size}")));
        }
        let copied_size = size.min(size_of::<CStatistics>());
        let snapshot = CStatistics::new(copied_size, session.statistics());
        // SAFETY: the caller vouches for `size` bytes; newer members after them are not written.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const snapshot).cast::<u8>(), statistics.cast::<u8>(), copied_size)
        };
        Ok(())
    })
}
