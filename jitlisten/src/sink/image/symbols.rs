//! Symbols of an image.

use object::elf;

use super::content::Content;
use super::layout::Layout;
use crate::options::NameStyle;

pub(crate) struct Symbol<'a> {
    pub(crate) name: &'a [u8],
    /// File offset of the function.
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) bind: elf::SymbolBind,
}

/// Returns a symbol for every name of each function in the pages, local symbols first.
///
/// If two symbols have the same address, perf, elfutils and gdb prefer the global one, so the displayed name is global.
/// The other names are local symbols, for uprobes and for readers that look them up.
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
        let displayed = if content.style == NameStyle::Linkage { linkage } else { readable };
        globals.push(symbol(displayed, elf::STB_GLOBAL));
        let other_names = std::iter::once(linkage).chain(function.aliases.iter().map(|alias| &**alias));
        locals.extend(other_names.filter(|&name| name != displayed).map(|name| symbol(name, elf::STB_LOCAL)));
    }
    locals.extend(globals);
    locals
}
