//! Registers unwind tables without a session.

use std::ops::Range;

use unwind_register::{Registry, Section};

use crate::borrowed;
use crate::guard::guarded;
use crate::status::{Failure, Status};

/// Registers an `.eh_frame` with the unwinders of the process.
///
/// # Safety
/// `eh_frame` must be null or readable, `out` null or a pointer to a writable `uint64_t`. The tables must describe the
/// code correctly until they are deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_unwind_register(
    eh_frame: *const u8,
    eh_frame_size: usize,
    text: u64,
    text_size: usize,
    out: *mut u64,
) -> i32 {
    guarded(|| {
        borrowed::check_output(out, "out")?;
        // SAFETY: the caller guarantees that `eh_frame` is readable.
        let bytes = unsafe { borrowed::read_bytes(eh_frame, eh_frame_size, "eh_frame") }?;
        let text = borrowed::check_address_range(text, text_size as u64, "text")?;
        let text: Range<usize> = text.start().0 as usize..text.end().0 as usize;
        let section = Section::new(bytes, eh_frame as usize).text(std::slice::from_ref(&text));
        // SAFETY: the caller vouches for the tables, and for deregistering them in time.
        let registered = unsafe { Registry::process().register(&section) };
        let registration = registered.map_err(|error| Failure::new(Status::NotUnderstood, error))?;
        // SAFETY: the pointer was checked above, and the caller vouches that it is writable. 0 is never a registration.
        unsafe { out.write(registration.into_number() + 1) };
        Ok(())
    })
}

/// Removes a registration.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_unwind_deregister(registration: u64) -> i32 {
    guarded(|| {
        let was_registered = registration.checked_sub(1).is_some_and(|number| Registry::process().deregister(number));
        let not_registered = || Failure::new(Status::UnknownObject, format_args!("{registration} is not registered"));
        was_registered.then_some(()).ok_or_else(not_registered)
    })
}
