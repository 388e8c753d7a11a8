//! What the loader would say of an image, for the sink `modules`.

#![forbid(unsafe_code)]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;

use object::elf;
use object::write::elf::ProgramHeader;

use super::content::runs;
use super::encode::Encoded;
use super::group::Group;
use super::images::Images;
use super::pages::page_size;
use crate::modules::NewModule;
use crate::options::NameStyle;
use crate::sink::FinalizedObject;
use crate::{Address, AddressRange, LoadedObject};

/// What is kept of an image for as long as it is mapped.
#[derive(Clone, Debug)]
pub(super) struct ImageHeaders {
    /// Address of byte 0 of the file, if all of it were mapped.
    bias: u64,
    /// The program headers of the file that speak of what is mapped.
    headers: Vec<libc::Elf64_Phdr>,
}

impl ImageHeaders {
    pub(super) fn of(encoded: &Encoded) -> ImageHeaders {
        let layout = &encoded.layout;
        let is_mapped = |header: &ProgramHeader| {
            header.p_filesz > 0
                && header.p_offset >= layout.mapped
                && header.p_offset + header.p_filesz <= layout.code_end
        };
        // Personality routines are left out of an image's tables: an unwinder that ran through them would skip handlers.
        let is_safe = |header: &ProgramHeader| header.p_type != elf::PT_GNU_EH_FRAME || !encoded.has_personality;
        let header = |header: ProgramHeader| libc::Elf64_Phdr {
            p_type: header.p_type.0,
            p_flags: header.p_flags.0,
            p_offset: header.p_offset,
            p_vaddr: header.p_vaddr,
            p_paddr: header.p_paddr,
            p_filesz: header.p_filesz,
            p_memsz: header.p_memsz,
            p_align: header.p_align,
        };
        let headers = encoded.program_headers.iter().filter(|header| is_mapped(header) && is_safe(header));
        ImageHeaders { bias: layout.bias, headers: headers.cloned().map(header).collect() }
    }

    fn of_type(&self, p_type: elf::ProgramType) -> Option<&libc::Elf64_Phdr> {
        self.headers.iter().find(|header| header.p_type == p_type.0)
    }

    /// What is mapped of the file.
    fn mapped(&self) -> Option<AddressRange> {
        let load = self.of_type(elf::PT_LOAD)?;
        AddressRange::new(Address(self.bias.wrapping_add(load.p_vaddr)), load.p_memsz)
    }
}

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
