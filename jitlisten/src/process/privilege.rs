//! Whether this process has more privileges than its parent.

/// Whether the kernel says so (`AT_SECURE`: set-user-ID, set-group-ID, file capabilities). Such a program trusts no
/// environment variable, and neither do we: its session is switched off.
pub fn is_privileged() -> bool {
    // SAFETY: getauxval has no precondition.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
