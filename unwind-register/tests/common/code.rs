//! Three functions in machine code (x86_64) and their `.eh_frame`, both assembled by hand.
//!
//! ```text
//!   alpha, beta:  sub rsp, 24 + pad; call next; add rsp, 24 + pad; ret      (no frame pointer: the rules unwind it)
//!   gamma:        sub rsp, 8 + pad; call rdi; add rsp, 8 + pad; ret         (calls its argument)
//! ```

use std::ops::Range;

/// Executable memory for chains.
pub struct Page {
    pub base: *mut u8,
    pub size: usize,
}

// SAFETY: the page is plain memory that belongs to no particular thread.
unsafe impl Send for Page {}
// SAFETY: the page is plain memory that belongs to no particular thread.
unsafe impl Sync for Page {}

impl Page {
    pub fn map(size: usize) -> Page {
        Page::map_at(std::ptr::null_mut(), size)
    }

    pub fn map_at(hint: *mut u8, size: usize) -> Page {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the mapping is new and anonymous, and a hint never replaces existing mappings.
        let base = unsafe { libc::mmap(hint.cast(), size, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Page { base: base.cast(), size }
    }

    /// Writes a chain at `offset`. `pad` enlarges its frames, so that the rules of another chain do not match.
    pub fn chain(&self, offset: usize, pad: u32) -> Chain {
        assert!(pad.is_multiple_of(16) && offset + Chain::SIZE <= self.size);
        let base = self.base as usize + offset;
        let mut bytes = Vec::new();
        let frame_size = 24 + pad;
        let mut functions = Vec::new();
        for index in 0..3 {
            let start = base + bytes.len();
            let size = if index == 2 { 8u32 + pad } else { frame_size };
            bytes.extend([0x48, 0x81, 0xec]); // sub rsp, imm32
            bytes.extend(size.to_le_bytes());
            if index == 2 {
                bytes.extend([0xff, 0xd7]); // call rdi
            } else {
                bytes.push(0xe8); // call the next function, 32 bytes further on
                let next = (index + 1) * 32 - (bytes.len() + 4);
                bytes.extend((next as i32).to_le_bytes());
            }
            bytes.extend([0x48, 0x81, 0xc4]); // add rsp, imm32
            bytes.extend(size.to_le_bytes());
            bytes.push(0xc3);
            functions.push(start..base + bytes.len());
            bytes.resize((index + 1) * 32, 0xcc);
        }
        // SAFETY: the destination is inside the mapping, which is writable.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base as *mut u8, bytes.len()) };
        Chain { functions, pad }
    }

    /// Writes a chain whose functions keep a frame pointer: `push rbp; mov rbp, rsp; call ...; pop rbp; ret`.
    pub fn chain_with_frame_pointers(&self, offset: usize) -> Chain {
        let base = self.base as usize + offset;
        let (mut bytes, mut functions) = (Vec::new(), Vec::new());
        for index in 0..3 {
            let start = base + bytes.len();
            bytes.extend([0x55, 0x48, 0x89, 0xe5]);
            if index == 2 {
                bytes.extend([0xff, 0xd7]);
            } else {
                bytes.push(0xe8);
                let next = (index + 1) * 32 - (bytes.len() + 4);
                bytes.extend((next as i32).to_le_bytes());
            }
            bytes.extend([0x5d, 0xc3]);
            functions.push(start..base + bytes.len());
            bytes.resize((index + 1) * 32, 0xcc);
        }
        // SAFETY: the destination is inside the mapping, which is writable.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base as *mut u8, bytes.len()) };
        Chain { functions, pad: 0 }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `map_at` created this mapping.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}

/// The functions alpha, beta and gamma, in this order.
#[derive(Clone)]
pub struct Chain {
    pub functions: Vec<Range<usize>>,
    pub pad: u32,
}

impl Chain {
    /// Size of a chain in bytes.
    pub const SIZE: usize = 96;

    pub fn text(&self) -> Range<usize> {
        self.functions[0].start..self.functions[2].end
    }

    /// Calls alpha, which calls `callback` through beta and gamma.
    pub fn call(&self, callback: extern "C" fn()) {
        // SAFETY: alpha takes the callback in the first argument register and keeps the C calling convention.
        let alpha: extern "C" fn(extern "C" fn()) = unsafe { std::mem::transmute(self.functions[0].start) };
        alpha(callback);
    }

    /// Returns the index (0, 1, 2) of the function that contains this return address.
    pub fn index(&self, address: usize) -> Option<usize> {
        self.functions.iter().position(|function| function.contains(&address.wrapping_sub(1)))
    }

    /// Encodes the unwind rules: absolute pointers, one CIE, three FDEs, a terminator.
    pub fn eh_frame(&self) -> Vec<u8> {
        self.eh_frame_of(&[0, 1, 2])
    }

    /// Encodes the rules of the given functions only.
    pub fn eh_frame_of(&self, indices: &[usize]) -> Vec<u8> {
        let mut out = Vec::new();
        push_entry(&mut out, 0, &[1, b'z', b'R', 0, 1, 0x78, 16, 1, 0, 0x0c, 7, 8, 0x90, 1]);
        for &index in indices {
            let function = &self.functions[index];
            let size = if index == 2 { 8 + self.pad } else { 24 + self.pad };
            let mut body = Vec::new();
            body.extend((function.start as u64).to_le_bytes());
            body.extend((function.len() as u64).to_le_bytes());
            body.push(0);
            body.extend([0x40 | 7, 0x0e]); // after the `sub`: CFA = rsp + 8 + size
            push_uleb128(&mut body, 8 + size);
            body.extend([0x40 | (function.len() - 8) as u8, 0x0e, 8]); // at the `ret`
            let distance = out.len() as u32 + 4;
            push_entry(&mut out, distance, &body);
        }
        out.extend([0; 4]);
        out
    }
}

/// Appends a CIE (`id` 0) or an FDE (`id` is the distance to its CIE), padded to 8 bytes.
fn push_entry(out: &mut Vec<u8>, id: u32, body: &[u8]) {
    let length = (4 + body.len()).next_multiple_of(8) - 4 + 4;
    out.extend((length as u32).to_le_bytes());
    out.extend(id.to_le_bytes());
    out.extend(body);
    out.resize(out.len() + length - 4 - body.len(), 0);
}

fn push_uleb128(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
