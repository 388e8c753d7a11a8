//! Field offsets in the interpreter's structures: from a table up to 3.12; since 3.13 from `_Py_DebugOffsets` at the
//! start of `_PyRuntime`.

#![forbid(unsafe_code)]

mod table;

use table::RELEASES;

/// Offset of a field that the release does not have.
pub(super) const NONE: u16 = u16::MAX;
/// `_Py_Debug_Cookie`, the first word of `_Py_DebugOffsets`.
const COOKIE: &[u8; 8] = b"xdebugpy";
/// Number of bytes of `_Py_DebugOffsets` that are read.
pub(super) const DEBUG_OFFSETS_BYTES: u64 = 8 * 104;
/// Distance from `tp_name` to `tp_dealloc`: `tp_basicsize` and `tp_itemsize` lie between them.
const DEALLOC_AFTER_NAME: u16 = 24;

/// Field offsets of one release, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) minor: u8,
    /// Offset of the finalizing flag in `_PyRuntime`.
    pub(super) finalizing: u16,
    /// Offset of the innermost frame in the thread state; in 3.11 and 3.12, of the innermost `_PyCFrame`.
    pub(super) thread_frame: u16,
    /// Offset of the thread id (`pthread_self()`) in the thread state.
    pub(super) thread_id: u16,
    pub(super) thread_status: u16,
    pub(super) cframe_current: u16,
    pub(super) cframe_previous: u16,
    pub(super) frame_code: u16,
    pub(super) frame_previous: u16,
    pub(super) frame_instruction: u16,
    pub(super) frame_owner: u16,
    pub(super) frame_is_entry: u16,
    pub(super) code_file: u16,
    pub(super) code_name: u16,
    /// Offset of the first instruction in a code object; `NONE` if frames store an index instead.
    pub(super) code_instructions: u16,
    pub(super) code_lines: u16,
    pub(super) code_first_line: u16,
    /// `sizeof(PyASCIIObject)`
    pub(super) text_header: u16,
    /// `sizeof(PyCompactUnicodeObject)`
    pub(super) text_wide_header: u16,
}

/// Offsets for finding a thread's state in the interpreter's lists, from 3.14 on. Reading
/// CPython's thread-local variable instead could allocate, at a thread's first access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Threads {
    pub(super) interpreters_head: u16,
    pub(super) interpreter_next: u16,
    pub(super) threads_head: u16,
    pub(super) thread_next: u16,
    pub(super) native_id: u16,
}

/// Offsets for following suspended coroutines, from 3.14 on, and for reading a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Coroutines {
    /// Offset of the frame in a coroutine.
    pub(super) frame: u16,
    /// Offset of the state in a coroutine.
    pub(super) state: u16,
    /// Values of `state` for `FRAME_SUSPENDED_YIELD_FROM`, and its variant with a lock.
    pub(super) suspended: [i8; 2],
    /// Offset of the stack pointer in a frame.
    pub(super) stack_pointer: u16,
    /// Position of the awaited object, in words below the top of the stack.
    pub(super) awaited_below_top: u8,
    pub(super) set_used: u16,
    pub(super) set_table: u16,
    pub(super) set_mask: u16,
}

impl Coroutines {
    /// Reads the offsets; `frame` is the word index of the frame section.
    fn parse(minor: u8, frame: usize, objects: &Objects, offset: impl Fn(usize) -> Option<u16>) -> Option<Coroutines> {
        // The set section begins twelve words before `bytes_object`. The `gc` section follows the string section, and
        // the coroutine section follows `gc`.
        let (set, coroutine) = (objects.bytes - 12, objects.text + if minor >= 15 { 10 } else { 6 });
        Some(Coroutines {
            frame: offset(coroutine + 2)?,
            state: offset(coroutine + 3)?,
            suspended: if minor >= 15 { [2, 3] } else { [-1, -1] },
            stack_pointer: offset(frame + 6)?,
            awaited_below_top: if minor >= 15 { 2 } else { 1 },
            set_used: offset(set + 1)?,
            set_table: offset(set + 2)?,
            set_mask: offset(set + 3)?,
        })
    }
}

/// All offsets of one interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) release: Release,
    pub(super) object_type: u16,
    pub(super) type_dealloc: u16,
    pub(super) text_length: u16,
    pub(super) text_state: u16,
    pub(super) bytes_size: u16,
    pub(super) bytes_value: u16,
    pub(super) threads: Threads,
    /// For finding a thread's copy of a code object's instructions: the offset of the copy's index in the frame, and of
    /// the array of copies in the code object. Only in free-threaded builds, since 3.14.
    pub(super) copies: Option<(u16, u16)>,
    pub(super) coroutines: Option<Coroutines>,
}

impl Layout {
    /// Returns the layout of a release, for tests.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn example(minor: u8) -> Option<Layout> {
        Layout::of_release(minor).or_else(|| Layout::parse(&example(minor)?))
    }

    /// Returns the layout of a release before 3.13.
    pub(super) fn of_release(minor: u8) -> Option<Layout> {
        let release = *RELEASES.iter().find(|release| release.minor == minor)?;
        Some(Layout {
            release,
            object_type: 8,
            type_dealloc: 24 + DEALLOC_AFTER_NAME,
            text_length: 16,
            text_state: 32,
            bytes_size: 16,
            bytes_value: 32,
            threads: Threads::default(),
            copies: None,
            coroutines: None,
        })
    }

    /// Parses the start of `_PyRuntime`. `None` if the offsets are missing or in an unknown format.
    pub(super) fn parse(runtime: &[u8]) -> Option<Layout> {
        let word = |index: usize| Some(u64::from_le_bytes(runtime.get(index * 8..index * 8 + 8)?.try_into().ok()?));
        let offset = |index: usize| u16::try_from(word(index)?).ok().filter(|&offset| offset != NONE);
        if runtime.get(..8)? != COOKIE {
            return None;
        }
        let version = word(1)?;
        let (minor, is_free_threaded) = ((version >> 16) as u8, word(2)? != 0);
        // `_interpreter_state` begins at word 6. In 3.14, that section has three more words, the frame section two and
        // the code object section one. In 3.15, the thread section has seven more, three of them before `thread_id`; a
        // word for exceptions follows the section.
        let (thread, thread_id, frame, code, object) = match (version >> 24, minor) {
            (3, 13) => (19, 24, 28, 34, 44),
            (3, 14) => (22, 27, 31, 39, 50),
            (3, 15) => (22, 30, 39, 47, 58),
            _ => return None,
        };
        let objects = Objects::locate(object, minor);
        let release = Release {
            minor,
            finalizing: offset(4)?,
            thread_frame: offset(thread + 4)?,
            thread_id: offset(thread_id)?,
            thread_status: offset(thread_id + 3)?,
            cframe_current: NONE,
            cframe_previous: NONE,
            frame_code: offset(frame + 2)?,
            frame_previous: offset(frame + 1)?,
            frame_instruction: offset(frame + 3)?,
            frame_owner: offset(frame + 5)?,
            frame_is_entry: NONE,
            code_file: offset(code + 1)?,
            code_name: offset(code + 3)?,
            code_instructions: offset(code + 9)?,
            code_lines: offset(code + 4)?,
            code_first_line: offset(code + 5)?,
            text_header: offset(objects.text + 3)?,
            // `PyCompactUnicodeObject` adds `utf8_length` and `utf8` to the ASCII header.
            text_wide_header: offset(objects.text + 3)? + 16,
        };
        let layout = Layout {
            release,
            object_type: offset(object + 1)?,
            type_dealloc: offset(object + 3)? + DEALLOC_AFTER_NAME,
            text_length: offset(objects.text + 2)?,
            text_state: offset(objects.text + 1)?,
            bytes_size: offset(objects.bytes + 1)?,
            bytes_value: offset(objects.bytes + 2)?,
            threads: Threads {
                interpreters_head: offset(5)?,
                interpreter_next: offset(8)?,
                threads_head: offset(9)?,
                thread_next: offset(thread + 2)?,
                native_id: offset(thread_id + 1)?,
            },
            copies: if is_free_threaded && minor >= 14 { Some((offset(frame + 7)?, offset(code + 10)?)) } else { None },
            coroutines: if minor >= 14 { Coroutines::parse(minor, frame, &objects, offset) } else { None },
        };
        layout.is_plausible().then_some(layout)
    }

    /// Checks invariants that hold in all releases, and that wrong offsets would violate.
    fn is_plausible(&self) -> bool {
        let release = &self.release;
        let words = [release.code_file, release.code_name, release.code_lines, release.frame_code];
        release.code_name == release.code_file + 16
            && release.code_lines == release.code_name + 8
            && release.frame_code == 0
            && release.frame_previous == 8
            && self.object_type >= 8
            && release.text_header > self.text_state
            && self.bytes_value > self.bytes_size
            && words.iter().all(|offset| offset.is_multiple_of(8))
    }
}

/// Word indexes of `bytes_object` and `unicode_object` in `_Py_DebugOffsets`, after the other types.
struct Objects {
    bytes: usize,
    text: usize,
}

impl Objects {
    fn locate(object: usize, minor: u8) -> Objects {
        // Sizes in words: pyobject 2, type_object 4 (3.15: 6, heap_type_object 2), tuple 3, list 3, set 4 (3.14), dict
        // 3, float 2, long 3.
        let types = if minor >= 15 { 8 } else { 4 };
        let bytes = object + 2 + types + 3 + 3 + if minor >= 14 { 4 } else { 0 } + 3 + 2 + 3;
        Objects { bytes, text: bytes + 3 }
    }
}

/// Words of `_Py_DebugOffsets`, as in x86_64 builds of the interpreter.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn example(minor: u8) -> Option<Vec<u8>> {
    let mut words = vec![u64::from_le_bytes(*COOKIE), 0x0300_02f0 | u64::from(minor) << 16, 0];
    match minor {
        // CPython 3.13.0. The fields that we read have the values from its headers.
        13 => {
            words.extend([1000, 608, 632]);
            words.extend([6000, 0, 8, 16, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
            words.extend([300, 0, 8, 16, 72, 152, 160, 200, 32]);
            words.extend([88, 8, 0, 56, 80, 74]);
            words.extend([208, 112, 120, 128, 136, 68, 52, 96, 104, 200]);
            words.extend([16, 8, 416, 24, 88, 168, 32, 24, 16, 40, 24, 16, 48, 32, 40, 24, 16, 32, 16, 24]);
            words.extend([40, 16, 32, 64, 32, 16, 40, 100, 8]);
        }
        // Debian's CPython 3.14.10.
        14 => {
            words.extend([316_616, 784, 808]);
            words.extend([225_864, 7280, 7272, 7344, 7360, 7408, 7688, 7672, 7680, 16, 7784, 0, 7800, 7792, 7992, 0]);
            words.extend([832, 0, 8, 16, 72, 152, 160, 232, 32]);
            words.extend([88, 8, 0, 56, 80, 74, 64, 0, 216, 112, 120, 128, 136, 68, 52, 96, 104, 208, 0]);
            words.extend([16, 8, 416, 24, 88, 168, 40, 32, 16, 40, 24, 16, 200, 24, 40, 32, 48, 32, 40, 24, 16]);
            words.extend([32, 16, 24, 40, 16, 32, 64, 32, 16, 40, 264, 192, 160, 24, 72, 67]);
        }
        // Debian's CPython 3.15.2.
        15 => {
            words.extend([346_568, 912, 936]);
            words.extend([226_240, 7272, 7264, 7336, 7352, 7400, 7592, 7576, 7584, 16, 7736, 0, 7752, 7744, 7944, 0]);
            words.extend([888, 0, 8, 16, 72, 80, 88, 96, 176, 184, 256, 32, 36, 40, 136, 288, 0]);
            words.extend([88, 8, 0, 56, 80, 74, 64, 0, 216, 112, 120, 128, 136, 68, 52, 96, 104, 208, 0]);
            words.extend([16, 8, 424, 24, 88, 168, 32, 288, 944, 888, 40, 32, 16, 40, 24, 16, 200, 24, 40]);
            words.extend([32, 48, 32, 40, 24, 16, 32, 16, 24, 40, 16, 32, 64, 32, 16, 40, 56]);
            words.extend([176, 112, 120, 1120, 104, 160, 24, 72, 67]);
        }
        _ => return None,
    }
    Some(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_offsets_of_an_interpreter_are_parsed() {
        let bytes = example(13).unwrap();
        let layout = Layout::parse(&bytes).unwrap();
        let release = layout.release;
        assert_eq!((release.thread_frame, release.frame_instruction, release.frame_owner), (72, 56, 74));
        assert_eq!((release.code_file, release.code_name, release.code_instructions), (112, 128, 200));
        assert_eq!((layout.bytes_size, layout.bytes_value, layout.text_state, release.text_header), (16, 32, 32, 40));
        assert_eq!((layout.type_dealloc, layout.threads.native_id, layout.copies), (48, 160, None));
        assert_eq!(layout.coroutines, None);
        // An unknown release, and one with other offsets.
        let mut unknown = bytes.clone();
        unknown[10] = 99;
        assert_eq!(Layout::parse(&unknown), None);
        let mut shifted = bytes.clone();
        shifted[34 * 8 + 24] = 0;
        assert_eq!(Layout::parse(&shifted), None);
        assert_eq!(Layout::parse(&bytes[..200]), None);
    }

    #[test]
    fn debug_offsets_of_newer_interpreters_are_parsed() {
        for (minor, thread_id) in [(14, 152), (15, 176)] {
            let layout = Layout::parse(&example(minor).unwrap()).unwrap();
            let release = layout.release;
            assert_eq!((release.thread_frame, release.thread_id, release.thread_status), (72, thread_id, 32));
            assert_eq!((layout.threads.native_id, layout.threads.thread_next), (thread_id + 8, 8));
            assert_eq!((release.frame_instruction, release.frame_owner, release.code_file), (56, 74, 112));
            assert_eq!((release.code_instructions, release.text_wide_header, layout.type_dealloc), (208, 56, 48));
            assert_eq!((layout.object_type, layout.bytes_size, layout.bytes_value, layout.text_state), (8, 16, 32, 32));
            let coroutines = layout.coroutines.unwrap();
            assert_eq!((coroutines.frame, coroutines.state, coroutines.stack_pointer), (72, 67, 64));
            assert_eq!((coroutines.set_used, coroutines.set_table, coroutines.set_mask), (24, 40, 32));
        }
    }

    #[test]
    fn earlier_releases_have_a_table() {
        for minor in 8..=12 {
            assert_eq!(Layout::of_release(minor).unwrap().release.minor, minor);
        }
        assert_eq!(Layout::of_release(7), None);
    }
}
