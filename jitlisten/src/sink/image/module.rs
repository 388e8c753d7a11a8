//! What the loader would say of an image, for the sink `modules`.

#![forbid(unsafe_code)]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;

use object::elf;

use super::content::runs;
use super::group::Group;
use super::images::Images;
use super::pages::page_size;
use crate::modules::NewModule;
use crate::options::NameStyle;
use crate::sink::FinalizedObject;
use crate::{AddressRange, LoadedObject};

/// The runs of whole pages that the text of `object` is in.
pub(crate) fn runs_of(object: &LoadedObject) -> Vec<AddressRange> {
    runs(object, page_size())
}

impl Images {
    /// The image of these pages of `object`, if all that it was made of is mapped still.
    pub(crate) fn module(
        &self,
        object: &FinalizedObject<'_>,
        run: AddressRange,
        style: NameStyle,
    ) -> Option<NewModule> {
        let group = Group::around(object, run, page_size())?;
        let (headers, path) = self.headers_of(group.pages)?;
        let shown = group.functions(object).filter(|(function, _)| group.pages.covers(function.range));
        let functions = shown.filter_map(|(function, readable)| {
            let name = if style == NameStyle::Linkage { &*function.linkage_name } else { readable.text.as_str() };
            Some((function.range, CString::new(name).ok()?))
        });
        Some(NewModule {
            mapped: headers.mapped()?,
            bias: headers.bias,
            path: CString::new(path.as_os_str().as_bytes()).ok()?,
            eh_frame_hdr: headers.of_type(elf::PT_GNU_EH_FRAME).map(|header| headers.bias.wrapping_add(header.p_vaddr)),
            headers: headers.headers.clone(),
            functions: functions.collect(),
        })
    }
}
