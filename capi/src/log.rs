//! Lets the program receive log messages through a callback: see [`log_callback`].

use std::ffi::c_void;

use jitlisten::log::Level;

use crate::guard::guarded;
use crate::log_callback::{self, Function};
use crate::status::Failure;

/// Sets, replaces or removes the callback.
///
/// # Safety
/// `function` must be safe to call with `user`, from any thread, until another callback is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_set_log(function: Option<Function>, user: *mut c_void, level: i32) -> i32 {
    guarded(|| {
        let Some(function) = function else {
            log_callback::remove();
            return Ok(());
        };
        let level = u8::try_from(level).ok().and_then(Level::from_number);
        let level = level.ok_or_else(|| Failure::argument("level: from 1 (errors) to 4 (everything)"))?;
        log_callback::set(function, user, level);
        Ok(())
    })
}
