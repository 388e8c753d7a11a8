//! Content of an image: a run of whole code pages, and the data that describes the code.

use std::borrow::Cow;

use crate::cfi::FunctionRules;
use crate::name::ReadableName;
use crate::options::NameStyle;
use crate::{Address, AddressRange, LoadedObject, Machine, TextRange};

/// Input of the encoder for one image.
pub(crate) struct Content<'a> {
    /// Objects with text in the pages. Usually there is only one, but LLVM may place several objects on shared pages if
    /// it finalizes them together.
    pub(crate) parts: Vec<Part<'a>>,
    /// Style of the name that tools should prefer.
    pub(crate) style: NameStyle,
    pub(crate) pages: AddressRange,
    /// Bytes of `pages`.
    pub(crate) code: &'a [u8],
    /// Size of the header padding before `pages`, which is also mapped from the file: whole pages, or 0.
    pub(crate) padding: u64,
    /// Unique build-id of the image.
    pub(crate) build_id: [u8; 20],
}

/// Object in an image.
pub(crate) struct Part<'a> {
    /// The object; at least some of its text is in the pages.
    pub(crate) object: &'a LoadedObject,
    /// Names of the functions of `object`, in the same order.
    pub(crate) names: &'a [ReadableName],
    /// Range and bytes of the live `.eh_frame`.
    pub(crate) eh_frame: Option<(AddressRange, Cow<'a, [u8]>)>,
    /// Derived rules for functions that the live `.eh_frame` does not cover.
    pub(crate) derived_rules: &'a [FunctionRules],
    pub(crate) debug_object: Option<&'a [u8]>,
}

impl<'a> Content<'a> {
    /// Instruction set of the code, the same for all objects of a process.
    pub(crate) fn machine(&self) -> Option<Machine> {
        self.parts.first().map(|part| part.object.machine())
    }

    /// Text ranges in the pages, sorted by address.
    pub(crate) fn text(&self) -> Vec<&'a TextRange> {
        let all_text = self.parts.iter().flat_map(|part| part.object.text());
        let mut text: Vec<&TextRange> = all_text.filter(|text| self.pages.covers(text.range)).collect();
        text.sort_by_key(|text| text.range.start());
        text
    }

    /// Number of zero bytes at the end of the pages, after all text.
    pub(crate) fn slack(&self) -> u64 {
        let ends = self.text().into_iter().map(|text| text.range.end().0);
        let text_end = ends.max().unwrap_or(self.pages.end().0);
        let tail = self.code.get((text_end - self.pages.start().0) as usize..).unwrap_or_default();
        tail.iter().rev().take_while(|&&byte| byte == 0).count() as u64
    }
}

/// Returns the runs of whole pages that contain text of `object`.
pub(crate) fn page_runs(object: &LoadedObject, page_size: u64) -> Vec<AddressRange> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for text in object.text() {
        let start = text.range.start().0 / page_size * page_size;
        let Some(end) = text.range.end().0.checked_next_multiple_of(page_size) else { continue };
        match runs.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => runs.push((start, end)),
        }
    }
    runs.into_iter().filter_map(|(start, end)| AddressRange::new(Address(start), end - start)).collect()
}
