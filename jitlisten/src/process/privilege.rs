//! Detection of privileged processes.

#![allow(unsafe_code)]

/// Returns true if the kernel marks the process as privileged (`AT_SECURE`: set-user-ID, set-group-ID, file
/// capabilities). Such a program must not trust environment variables, and neither must jitlisten, so the session stays
/// inactive.
pub fn is_privileged() -> bool {
    // SAFETY: getauxval has no precondition.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
