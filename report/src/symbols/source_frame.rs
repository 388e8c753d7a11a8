//! Frame of an address: a function and a line in it.

/// Function, or an inlined call of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// Function name as the compiler writes it.
    pub linkage_name: Option<String>,
    /// Path of the source file.
    pub file: Option<String>,
    /// Line number; 0 if the compiler assigned none.
    pub line: Option<u32>,
}
