//! Entry point for the `image` fuzz target. Requires the `fuzzing` feature; not part of the API.

#![allow(missing_docs)]
use super::content::{Content, Part, page_runs};
use super::encode::encode;
use super::layout::UnwindSections;
use crate::cfi::{Cfa, FunctionRules, UnwindRow};
use crate::loaded_object::relocate::relocated_where;
use crate::options::NameStyle;
use crate::{AddressRange, LoadedObject, Offset, name};

const PAGE: u64 = 0x1000;
/// Maximum total size of the pages. A section without file content may claim any size, and larger ones would only
/// exercise `memset`.
const MAX_PAGES_BYTES: u64 = 1 << 20;

/// An image, and the content that a strict reader must find in it.
#[derive(Debug)]
pub struct Image {
    pub file: Vec<u8>,
    /// Offset of the first mapped byte; `code` and `code_end` are the offsets of the code pages.
    pub mapped: u64,
    pub code: u64,
    pub code_end: u64,
    /// Address at which byte 0 of the file would be mapped.
    pub bias: u64,
    /// Bytes of the pages.
    pub pages: Vec<u8>,
    /// Range and displayed name of each function in the pages.
    pub functions: Vec<(AddressRange, String)>,
    /// Text ranges in the pages.
    pub text: Vec<AddressRange>,
    /// Offsets of `.eh_frame_hdr` and `.eh_frame`, if both are mapped.
    pub unwind: Option<(u64, u64)>,
}

/// Encodes every image of `debug_object`, with `padding` pages before the code.
pub fn images(debug_object: &[u8], padding: u8, style: NameStyle) -> Vec<Image> {
    let Ok(object) = LoadedObject::parse(debug_object) else { return Vec::new() };
    let names: Vec<_> =
        object.functions().iter().map(|function| name::readable(&function.linkage_name, None)).collect();
    let eh_frame = object.eh_frame().and_then(|range| Some((range, live_eh_frame(debug_object, range)?)));
    let rules = object.functions().iter().map(|function| make_rules(function.range));
    let derived_rules: Vec<FunctionRules> = if eh_frame.is_none() { rules.collect() } else { Vec::new() };
    let is_small = |pages: &AddressRange| pages.size() <= MAX_PAGES_BYTES;
    let encode_image = |pages: AddressRange| {
        let text: Vec<_> = object.text().iter().map(|text| text.range).filter(|text| pages.covers(*text)).collect();
        let code = fill_text(pages, &text);
        let content = Content {
            parts: vec![Part {
                object: &object,
                names: &names,
                eh_frame: eh_frame.as_ref().map(|(range, bytes)| (*range, bytes.as_slice().into())),
                derived_rules: &derived_rules,
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
        let displayed = functions.map(|(function, readable)| match style {
            NameStyle::Readable => (function.range, readable.text.clone()),
            NameStyle::Linkage => (function.range, function.linkage_name.to_string()),
        });
        let functions = displayed.collect();
        let layout = encoded.layout;
        let unwind = match layout.unwind {
            UnwindSections::Mapped { hdr, eh_frame } => Some((hdr, eh_frame)),
            UnwindSections::FileOnly { .. } => None,
        };
        let (mapped, code_start, code_end, bias) =
            (layout.mapped_start, layout.code_start, layout.code_end, layout.bias);
        Some(Image {
            file: encoded.bytes,
            mapped,
            code: code_start,
            code_end,
            bias,
            pages: code,
            functions,
            text,
            unwind,
        })
    };
    page_runs(&object, PAGE).into_iter().filter(is_small).filter_map(encode_image).collect()
}

/// Returns the `.eh_frame` section as LLVM would have relocated it.
fn live_eh_frame(debug_object: &[u8], range: AddressRange) -> Option<Vec<u8>> {
    let sections = relocated_where(debug_object, |name| name == b".eh_frame").ok()?;
    let (_, bytes) = sections.into_iter().next()?;
    (bytes.len() as u64 == range.size()).then(|| bytes.into_owned())
}

fn make_rules(range: AddressRange) -> FunctionRules {
    let row = |offset, cfa_offset| UnwindRow {
        offset: Offset(offset),
        cfa: Cfa { register: 7, offset: cfa_offset },
        saved: Vec::new(),
    };
    FunctionRules { range, rows: vec![row(0, 8), row(range.size() / 2, 16)] }
}

/// Returns pages with `int3` in place of text, and zeros elsewhere.
fn fill_text(pages: AddressRange, text: &[AddressRange]) -> Vec<u8> {
    let mut code = vec![0; pages.size() as usize];
    for range in text {
        let offset = (range.start().0 - pages.start().0) as usize;
        code[offset..offset + range.size() as usize].fill(0xcc);
    }
    code
}
