//! Source-level frame of an address: function and line.

/// Function or inlined call at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceFrame {
    /// Function name as written by the compiler.
    pub linkage_name: Option<String>,
    /// Path of the source file.
    pub file: Option<String>,
    /// Line number; 0 if the compiler assigned none.
    pub line: Option<u32>,
}
