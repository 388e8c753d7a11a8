//! The symbols of an image.

#![forbid(unsafe_code)]

use object::elf;

use super::content::Content;
use super::layout::Layout;
use crate::options::NameStyle;

/// One symbol; all are functions.
pub(crate) struct Symbol<'a> {
    pub(crate) name: &'a [u8],
    /// In the file.
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) bind: elf::SymbolBind,
}

/// Every function of the pages, by every name: local symbols first.
///
/// Of two symbols at one address perf, elfutils and gdb prefer the global one, so that is the name people shall see;
/// the other one stays, local, for uprobes and for readers that know it.
pub(crate) fn symbols<'a>(content: &Content<'a>, layout: &Layout) -> Vec<Symbol<'a>> {
    let (mut locals, mut globals) = (Vec::new(), Vec::new());
    let functions = content.parts.iter().flat_map(|part| part.object.functions().iter().zip(part.names));
    for (function, readable) in functions.filter(|(function, _)| content.pages.covers(function.range)) {
        let symbol = |name: &'a str, bind| Symbol {
            name: name.as_bytes(),
            offset: layout.offset(function.range.start().0),
            size: function.range.size(),
            bind,
        };
        let (linkage, readable) = (&*function.linkage_name, readable.text.as_str());
        let shown = if content.style == NameStyle::Linkage { linkage } else { readable };
        globals.push(symbol(shown, elf::STB_GLOBAL));
        let others = std::iter::once(linkage).chain(function.aliases.iter().map(|alias| &**alias));
        locals.extend(others.filter(|&name| name != shown).map(|name| symbol(name, elf::STB_LOCAL)));
    }
    locals.extend(globals);
    locals
}
