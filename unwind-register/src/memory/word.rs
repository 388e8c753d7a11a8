//! Reads of words at addresses that may not be mapped.

/// Reads the word at `address`; returns `None` if it is unreadable.
///
/// A malformed `.eh_frame` may point anywhere. `process_vm_readv(2)` on our own process returns `EFAULT` where a load
/// would crash the host.
pub(crate) fn word_at(address: u64) -> Option<u64> {
    let mut word = [0; 8];
    let local = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: word.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut _, iov_len: word.len() };
    // SAFETY: `local` describes eight writable bytes, and the kernel checks `remote`. `getpid` has no preconditions.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (copied == 8).then(|| u64::from_ne_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::word_at;

    #[test]
    fn a_word_that_is_not_there_is_none() {
        let word = 0x1234_5678_9abc_def0_u64;
        assert_eq!(word_at(&raw const word as u64), Some(word));
        assert_eq!(word_at(16), None);
        assert_eq!(word_at(u64::MAX - 3), None);
    }
}
