//! The memory of an object, read once for everybody who looks at it.

#![forbid(unsafe_code)]

use std::cell::OnceCell;

use crate::{AddressRange, LoadedObject, foreign};

/// The text ranges and the `.eh_frame` of an object, as they are in memory when somebody asks for the first time.
pub(crate) struct LiveBytes {
    wanted: Vec<AddressRange>,
    read: OnceCell<Vec<(AddressRange, Vec<u8>)>>,
}

impl LiveBytes {
    pub(crate) fn of(object: &LoadedObject) -> Self {
        let text = object.text().iter().map(|text| text.range);
        LiveBytes { wanted: text.chain(object.eh_frame()).collect(), read: OnceCell::new() }
    }

    /// The bytes of `range`, which lies in one of them; `None` where they cannot be read.
    pub(crate) fn get(&self, range: AddressRange) -> Option<&[u8]> {
        let (part, bytes) = self.parts().iter().find(|(part, _)| part.covers(range))?;
        let from = (range.start().0 - part.start().0) as usize;
        bytes.get(from..from + range.size() as usize)
    }

    fn parts(&self) -> &[(AddressRange, Vec<u8>)] {
        self.read.get_or_init(|| {
            let wanted = self.wanted.iter().copied();
            match foreign::copy_all(&self.wanted) {
                Ok(bytes) => wanted.zip(bytes).collect(),
                // One of them is not there. The others may be.
                Err(_) => wanted.filter_map(|range| Some((range, foreign::copy(range).ok()?))).collect(),
            }
        })
    }
}
