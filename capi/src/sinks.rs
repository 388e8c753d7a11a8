//! Switches sinks on and off at run time.

use std::ffi::c_char;

use jitlisten::options::SinkKind;

use crate::borrowed;
use crate::guard::{with_active_session, with_session};
use crate::session::set_closed;
use crate::status::{Failure, Status};

/// Switches all sinks off. The session stays open.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_close() -> i32 {
    with_session(|session| {
        SinkKind::ALL.into_iter().for_each(|kind| session.disable(kind));
        set_closed(true);
        Ok(())
    })
}

/// Switches a sink on.
///
/// # Safety
/// `name` must be null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_enable(name: *const c_char) -> i32 {
    with_active_session(|session| {
        // SAFETY: the caller passes null or a C string.
        session.enable(unsafe { parse_sink(name) }?);
        set_closed(false);
        jitlisten_shim::sinks_changed();
        Ok(())
    })
}

/// Switches a sink off.
///
/// # Safety
/// `name` must be null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_disable(name: *const c_char) -> i32 {
    with_session(|session| {
        // SAFETY: the caller passes null or a C string.
        session.disable(unsafe { parse_sink(name) }?);
        Ok(())
    })
}

/// Writes 1 to `enabled` if a sink is on, else 0.
///
/// # Safety
/// `name` must be null or a C string, `enabled` null or a pointer to a writable `int32_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_is_enabled(name: *const c_char, enabled: *mut i32) -> i32 {
    with_session(|session| {
        // SAFETY: the caller passes null or a C string.
        let kind = unsafe { parse_sink(name) }?;
        borrowed::check_output(enabled, "enabled")?;
        // SAFETY: the pointer is not null and is aligned; the caller vouches for the rest.
        unsafe { enabled.write(i32::from(session.is_enabled(kind))) };
        Ok(())
    })
}

/// Parses the name of a sink.
///
/// # Safety
/// `name` must be null or a C string.
unsafe fn parse_sink(name: *const c_char) -> Result<SinkKind, Failure> {
    // SAFETY: the caller passes null or a C string.
    let name = String::from_utf8_lossy(unsafe { borrowed::read_text(name, "sink") }?);
    SinkKind::from_name(&name).ok_or_else(|| Failure::new(Status::UnknownSink, format_args!("unknown sink {name:?}")))
}
