//! Images as modules for the `modules` sink, with the data that the loader would provide.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;

use object::elf;

use super::content::page_runs;
use super::group::Group;
use super::images::Images;
use super::pages::page_size;
use crate::modules::NewModule;
use crate::options::NameStyle;
use crate::sink::FinalizedObject;
use crate::{AddressRange, LoadedObject};

/// Returns the runs of whole pages that contain text of `object`.
pub(crate) fn object_page_runs(object: &LoadedObject) -> Vec<AddressRange> {
    page_runs(object, page_size())
}

impl Images {
    /// Returns the module for a page run of `object`, if the whole image is mapped.
    pub(crate) fn module(
        &self,
        object: &FinalizedObject<'_>,
        run: AddressRange,
        style: NameStyle,
    ) -> Option<NewModule> {
        let group = Group::containing(object, run, page_size())?;
        let (headers, path) = self.find_headers(group.pages)?;
        let in_pages = group.functions(object).filter(|(function, _)| group.pages.covers(function.range));
        let functions = in_pages.filter_map(|(function, readable)| {
            let name = if style == NameStyle::Linkage { &*function.linkage_name } else { readable.text.as_str() };
            Some((function.range, CString::new(name).ok()?))
        });
        Some(NewModule {
            mapped: headers.mapped()?,
            bias: headers.bias,
            path: CString::new(path.as_os_str().as_bytes()).ok()?,
            eh_frame_hdr: headers.find(elf::PT_GNU_EH_FRAME).map(|header| headers.bias.wrapping_add(header.p_vaddr)),
            headers: headers.headers.clone(),
            functions: functions.collect(),
        })
    }
}
