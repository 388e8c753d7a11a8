//! The content of one image: a run of whole pages of code, and all data about it.

#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::cfi::FunctionRules;
use crate::name::ReadableName;
use crate::options::NameStyle;
use crate::{Address, AddressRange, LoadedObject, Machine, TextRange};

/// One image before it is a file.
pub(crate) struct Content<'a> {
    /// Every object that has text in the pages: mostly one. LLVM puts what it finalizes together on common pages.
    pub(crate) parts: Vec<Part<'a>>,
    /// Which name the tools shall prefer.
    pub(crate) style: NameStyle,
    /// Whole pages.
    pub(crate) pages: AddressRange,
    /// The bytes of `pages`.
    pub(crate) code: &'a [u8],
    /// How many bytes in front of `pages` will be mapped from the file too: whole pages, or 0.
    pub(crate) padding: u64,
    /// Never given to two images.
    pub(crate) build_id: [u8; 20],
}

/// One object of an image.
pub(crate) struct Part<'a> {
    /// The object whose text, or some of it, is in the pages.
    pub(crate) object: &'a LoadedObject,
    /// One per function of `object`, in its order.
    pub(crate) names: &'a [ReadableName],
    /// The live `.eh_frame`: where it is, and its bytes.
    pub(crate) eh_frame: Option<(AddressRange, Cow<'a, [u8]>)>,
    /// Rules for functions that the live `.eh_frame` says nothing of.
    pub(crate) made_rules: &'a [FunctionRules],
    /// The debug object, for its DWARF.
    pub(crate) debug_object: Option<&'a [u8]>,
}

impl<'a> Content<'a> {
    /// What the code is for: one process has one kind.
    pub(crate) fn machine(&self) -> Option<Machine> {
        self.parts.first().map(|part| part.object.machine())
    }

    /// The text in the pages, by address.
    pub(crate) fn text(&self) -> Vec<&'a TextRange> {
        let all = self.parts.iter().flat_map(|part| part.object.text());
        let mut text: Vec<&TextRange> = all.filter(|text| self.pages.covers(text.range)).collect();
        text.sort_by_key(|text| text.range.start());
        text
    }

    /// How many zeros stand at the end of the pages, behind all text.
    pub(crate) fn slack(&self) -> u64 {
        let ends = self.text().into_iter().map(|text| text.range.end().0);
        let text_end = ends.max().unwrap_or(self.pages.end().0);
        let behind = self.code.get((text_end - self.pages.start().0) as usize..).unwrap_or_default();
        behind.iter().rev().take_while(|&&byte| byte == 0).count() as u64
    }
}

/// The runs of whole pages that the text of `object` is in.
pub(crate) fn runs(object: &LoadedObject, page: u64) -> Vec<AddressRange> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for text in object.text() {
        let start = text.range.start().0 / page * page;
        let Some(end) = text.range.end().0.checked_next_multiple_of(page) else { continue };
        match runs.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => runs.push((start, end)),
        }
    }
    runs.into_iter().filter_map(|(start, end)| AddressRange::new(Address(start), end - start)).collect()
}
