//! An entry point for the fuzz target `image`. Behind the feature `fuzzing`, and no part of the API.

#![allow(missing_docs)]
#![forbid(unsafe_code)]

use super::content::{Content, Part, runs};
use super::encode::encode;
use super::layout::UnwindPlace;
use crate::cfi::{Cfa, FunctionRules, UnwindRow};
use crate::loaded_object::relocate::relocated_where;
use crate::options::NameStyle;
use crate::{AddressRange, LoadedObject, Offset, name};

const PAGE: u64 = 0x1000;
/// Sections without bytes may claim any size; fuzzing `memset` is pointless.
const LARGEST: u64 = 1 << 20;

/// An image, and what a strict reader has to find in it.
#[derive(Debug)]
pub struct Image {
    pub file: Vec<u8>,
    /// Offset of the first mapped byte, of the first page of code, and behind the last one.
    pub mapped: u64,
    pub code: u64,
    pub code_end: u64,
    /// Address of byte 0 of the file.
    pub bias: u64,
    /// The bytes that were in the pages.
    pub pages: Vec<u8>,
    /// Range and shown name of each function in them.
    pub functions: Vec<(AddressRange, String)>,
    /// Text in them.
    pub text: Vec<AddressRange>,
    /// Offsets of `.eh_frame_hdr` and `.eh_frame`, where both have a mapped place.
    pub unwind: Option<(u64, u64)>,
}

/// Every image that `debug_object` would become, with `padding` pages in front.
pub fn images(debug_object: &[u8], padding: u8, style: NameStyle) -> Vec<Image> {
    let Ok(object) = LoadedObject::parse(debug_object) else { return Vec::new() };
    let names: Vec<_> =
        object.functions().iter().map(|function| name::readable(&function.linkage_name, None)).collect();
    let eh_frame = object.eh_frame().and_then(|range| Some((range, live_eh_frame(debug_object, range)?)));
    let rules = object.functions().iter().map(|function| made(function.range));
    let made_rules: Vec<FunctionRules> = if eh_frame.is_none() { rules.collect() } else { Vec::new() };
    let small = |pages: &AddressRange| pages.size() <= LARGEST;
    let image = |pages: AddressRange| {
        let text: Vec<_> = object.text().iter().map(|text| text.range).filter(|text| pages.covers(*text)).collect();
        let code = code(pages, &text);
        let content = Content {
            parts: vec![Part {
                object: &object,
                names: &names,
                eh_frame: eh_frame.as_ref().map(|(range, bytes)| (*range, bytes.as_slice().into())),
                made_rules: &made_rules,
                debug_object: Some(debug_object),
            }],
            style,
            pages,
            code: &code,
            padding: u64::from(padding) * PAGE,
            build_id: [0x5a; 20],
        };
        let encoded = encode(&content, PAGE).ok()?;
        let functions = object.functions().iter().zip(&names).filter(|(function, _)| pages.covers(function.range));
        let shown = functions.map(|(function, readable)| match style {
            NameStyle::Readable => (function.range, readable.text.clone()),
            NameStyle::Linkage => (function.range, function.linkage_name.to_string()),
        });
        let functions = shown.collect();
        let layout = encoded.layout;
        let unwind = match layout.unwind {
            UnwindPlace::Mapped { hdr, eh_frame } => Some((hdr, eh_frame)),
            UnwindPlace::FileOnly { .. } => None,
        };
        let (mapped, code_at, code_end, bias) = (layout.mapped, layout.code, layout.code_end, layout.bias);
        Some(Image { file: encoded.bytes, mapped, code: code_at, code_end, bias, pages: code, functions, text, unwind })
    };
    runs(&object, PAGE).into_iter().filter(small).filter_map(image).collect()
}

/// The section as LLVM would have relocated it, or else as it is in the file.
fn live_eh_frame(debug_object: &[u8], range: AddressRange) -> Option<Vec<u8>> {
    let sections = relocated_where(debug_object, |name| name == b".eh_frame").ok()?;
    let (_, bytes) = sections.into_iter().next()?;
    (bytes.len() as u64 == range.size()).then(|| bytes.into_owned())
}

fn made(range: AddressRange) -> FunctionRules {
    let row =
        |offset, to| UnwindRow { offset: Offset(offset), cfa: Cfa { register: 7, offset: to }, saved: Vec::new() };
    FunctionRules { range, rows: vec![row(0, 8), row(range.size() / 2, 16)] }
}

/// Int3 where text is, zeros elsewhere.
fn code(pages: AddressRange, text: &[AddressRange]) -> Vec<u8> {
    let mut code = vec![0; pages.size() as usize];
    for range in text {
        let at = (range.start().0 - pages.start().0) as usize;
        code[at..at + range.size() as usize].fill(0xcc);
    }
    code
}
