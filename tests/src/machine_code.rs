//! Properties of machine code that do not depend on the processor model that LLVM schedules instructions for.

/// Returns true if the first 32 bytes of a function save its caller's frame pointer: `push %rbp`, optionally after
/// `endbr64`, and later `mov %rsp,%rbp`. For some processors LLVM schedules other instructions between `push` and
/// `mov`.
pub fn keeps_frame_pointer(code: &[u8]) -> bool {
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    let start = &code[..code.len().min(32)];
    start.first() == Some(&0x55) && start.windows(3).any(|bytes| bytes == [0x48, 0x89, 0xe5])
}

/// Decodes a string of hexadecimal digits.
///
/// # Panics
/// If it contains other characters.
pub fn from_hex(digits: &str) -> Vec<u8> {
    let byte = |offset: usize| u8::from_str_radix(&digits[offset..offset + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_pointers_are_seen_behind_other_instructions() {
        assert!(keeps_frame_pointer(&from_hex("554889e5ffd05dc3")));
        assert!(keeps_frame_pointer(&from_hex("f30f1efa554889e5ffd05dc3")));
        assert!(keeps_frame_pointer(&from_hex("5548b8208014bdfb7f00004889e5ffd04805f00300005dc3")));
        assert!(!keeps_frame_pointer(&from_hex("5048b8208014bdfb7f0000ffd04805f003000059c3")));
        assert!(!keeps_frame_pointer(&from_hex("55534889fbffd05b5dc3")));
    }
}
