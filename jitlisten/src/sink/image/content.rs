//! What goes into one image: a run of whole pages of code, and everything known about it.

#![forbid(unsafe_code)]

use crate::cfi::FunctionRules;
use crate::name::ReadableName;
use crate::options::NameStyle;
use crate::{Address, AddressRange, LoadedObject, TextRange};

/// One image before it is a file.
pub(crate) struct Content<'a> {
    /// The object whose text, or some of it, is in the pages.
    pub(crate) object: &'a LoadedObject,
    /// One per function of `object`, in its order.
    pub(crate) names: &'a [ReadableName],
    /// Which name the tools shall prefer.
    pub(crate) style: NameStyle,
    /// Whole pages.
    pub(crate) pages: AddressRange,
    /// The bytes of `pages`.
    pub(crate) code: &'a [u8],
    /// How many bytes in front of `pages` will be mapped from the file too: whole pages, or 0.
    pub(crate) room: u64,
    /// The live `.eh_frame`: where it is, and its bytes.
    pub(crate) eh_frame: Option<(AddressRange, &'a [u8])>,
    /// Rules for functions that the live `.eh_frame` says nothing of.
    pub(crate) made_rules: &'a [FunctionRules],
    /// The debug object, for its DWARF.
    pub(crate) debug_object: Option<&'a [u8]>,
    /// Never given to two images.
    pub(crate) build_id: [u8; 20],
}

impl<'a> Content<'a> {
    /// The text in the pages.
    pub(crate) fn text(&self) -> impl Iterator<Item = &'a TextRange> {
        let pages = self.pages;
        self.object.text().iter().filter(move |text| pages.covers(text.range))
    }

    /// How many zeros stand at the end of the pages, behind all text.
    pub(crate) fn slack(&self) -> u64 {
        let text_end = self.text().map(|text| text.range.end().0).max().unwrap_or(self.pages.end().0);
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
