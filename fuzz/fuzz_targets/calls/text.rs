//! Valid and invalid names of functions, files and sections.

use std::ffi::{CString, c_char};
use std::ptr;

use crate::input::Input;

/// A C string to pass to the library, and the bytes that it should read.
pub(crate) struct Text {
    pub(crate) start: *const c_char,
    /// Expected bytes; empty for a null pointer.
    pub(crate) bytes: Vec<u8>,
    _owner: Option<CString>,
}

const VALID_NAMES: &[&[u8]] = &[
    b"alpha",
    b"beta",
    b"gamma",
    b"_ZN8__main__5innerB2v1B38c8tJTIcFKzyF2ILShI4CrgQElQb6HczSBAA_3dExx",
    b"_ZN7cpython8__main__5outerB2v2B38c8tJTIcFKzyF2ILShI4CrgQElQb6HczSBAA_3dExx",
    b"_ZNSt6vectorIiSaIiEE9push_backERKi",
    b"/source/chain.raw",
    b"/source/another file.raw",
];

const UNUSUAL_NAMES: &[&[u8]] = &[
    b"f",
    b"  two  spaces  ",
    b"a\nb 0 0 c",
    b"\x1b[31mred\x1b[0m",
    b"\xff\xfe\xfd",
    b"0x1234",
    b"na\xc3\xafve \xf0\x9f\x90\x8d",
    b"\xe2\x80\xae\xe2\x80\x8b",
    b"$x",
    b".",
];

const SECTIONS: &[&[u8]] =
    &[b".text", b".ltext", b".eh_frame", b".text.hot", b".debug_line", b".rodata", b".text", b".symtab"];

impl Text {
    fn from_bytes(bytes: &[u8]) -> Text {
        let bytes: Vec<u8> = bytes.iter().copied().take_while(|&byte| byte != 0).collect();
        let owner = CString::new(bytes.clone()).expect("without zeros");
        Text { start: owner.as_ptr(), bytes, _owner: Some(owner) }
    }

    pub(crate) fn null() -> Text {
        Text { start: ptr::null(), bytes: Vec::new(), _owner: None }
    }

    pub(crate) fn name(input: &mut Input<'_>) -> Text {
        Text::choose(input, VALID_NAMES)
    }

    pub(crate) fn section(input: &mut Input<'_>) -> Text {
        Text::choose(input, SECTIONS)
    }

    fn choose(input: &mut Input<'_>, common: &[&[u8]]) -> Text {
        match input.u8() {
            0..=159 => Text::from_bytes(input.choose(common)),
            160..=191 => Text::from_bytes(input.choose(UNUSUAL_NAMES)),
            192..=239 => {
                let size = usize::from(input.u8() & 63);
                Text::from_bytes(input.bytes(size))
            }
            240..=243 => Text::from_bytes(&[b'x'].repeat(usize::from(input.u16()) % 6000)),
            244..=246 => Text::from_bytes(b""),
            _ => Text::null(),
        }
    }
}
