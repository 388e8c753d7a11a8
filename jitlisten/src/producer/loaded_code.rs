//! Handle for code that a producer has reported, from *loaded* to *freeing*.

use super::{Placed, Producer, raw, set_section_addresses};
use crate::live_objects::LiveObjects;
use crate::log_line;
use crate::object::Origin;
use crate::process::host_state::HostStateGuard;
use crate::{Error, ObjectId, Session};

/// Code that was reported as *loaded*. Dropping it reports *freeing*; do that before the memory of the code is freed or
/// used again.
///
/// ```no_run
/// use jitlisten::producer::LoadedCode;
///
/// struct CompiledFunction {
///     reported: LoadedCode, // declared first: dropped before the code
///     code: Box<[u8]>,
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping it reports that the code is freed"]
pub struct LoadedCode {
    session: &'static Session,
    id: ObjectId,
}

impl LoadedCode {
    /// Reports *loaded* for an object that was placed in memory. Its loaded sections have their addresses in `sh_addr`.
    ///
    /// # Errors
    /// If the object cannot be parsed.
    pub fn from_object(session: &'static Session, producer: Producer, object: Vec<u8>) -> Result<LoadedCode, Error> {
        let _host_state = HostStateGuard::enter();
        let origin = match producer {
            Producer::Llvm => Origin::Llvm,
            Producer::Other => Origin::Caller,
        };
        LiveObjects::of(session).loaded_from(origin, object, None).map(|loaded| LoadedCode { session, id: loaded.id })
    }

    /// Reports *loaded* for an object whose section headers lack addresses; see [`set_section_addresses`].
    ///
    /// # Errors
    /// If the object cannot be parsed.
    pub fn from_object_at(
        session: &'static Session,
        producer: Producer,
        mut object: Vec<u8>,
        placed: &[Placed<'_>],
    ) -> Result<LoadedCode, Error> {
        set_section_addresses(&mut object, placed)
            .inspect_err(|error| LiveObjects::of(session).refuse(object.len(), error))?;
        LoadedCode::from_object(session, producer, object)
    }

    /// Reports *loaded* for code without an ELF object.
    ///
    /// Functions that overlap, and lines outside all functions, are reported in the log.
    ///
    /// # Errors
    /// Same as for [`raw::encode`].
    pub fn from_raw(session: &'static Session, code: &raw::Code<'_>) -> Result<LoadedCode, Error> {
        let object = raw::encode(code).inspect_err(|error| LiveObjects::of(session).refuse(0, error))?;
        let loaded = LoadedCode::from_object(session, Producer::Other, object)?;
        for mistake in raw::find_mistakes(code) {
            log_line!(Warn, "object {}: {mistake}", loaded.id);
        }
        Ok(loaded)
    }

    /// Promises, before *finalized*, that the pages of this code contain no other code, and that nothing writes to,
    /// protects, unmaps or replaces them from *finalized* to *freeing*.
    ///
    /// The image sink needs this promise in processes with several threads: it replaces the pages, and concurrent
    /// writes by another thread would be lost. Code without this promise gets no image; other sinks are not affected.
    pub fn owns_pages(&self) {
        let _host_state = HostStateGuard::enter();
        // This fails only for an object that the producer has freed. This value keeps the object until it is dropped.
        let _ = LiveObjects::of(self.session).reported_owns_pages(self.id);
    }

    /// Promises, before *finalized*, that the `size` bytes before the first page of this code are whole pages of the
    /// caller's private anonymous memory, which nothing uses until *freeing*. The image sink maps headers and unwind
    /// tables there, as `perf record --call-graph dwarf` needs; one page holds those of dozens of functions. Afterwards
    /// contents and protection of the padding are unspecified.
    ///
    /// # Errors
    /// [`Error::Padding`] if the memory is anything else, [`Error::AlreadyFinalized`] after *finalized*.
    pub fn owns_padding(&self, size: u64) -> Result<(), Error> {
        let _host_state = HostStateGuard::enter();
        LiveObjects::of(self.session).reported_owns_padding(self.id, size)
    }

    /// Reports *finalized*: the code is relocated and may run. A second call has no effect. The first call after a
    /// library was loaded takes the loader's lock, to find unwinders in that library.
    pub fn finalized(&self) {
        let _host_state = HostStateGuard::enter();
        // A second call is the only possible error.
        let _ = LiveObjects::of(self.session).reported_finalized(self.id);
    }

    /// Keeps the code until [`LiveObjects::reported_freeing`].
    pub(crate) fn into_id(self) -> ObjectId {
        std::mem::ManuallyDrop::new(self).id
    }
}

impl Drop for LoadedCode {
    fn drop(&mut self) {
        let _host_state = HostStateGuard::enter();
        let _ = LiveObjects::of(self.session).reported_freeing(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Options, SinkSet};
    use crate::{Address, AddressRange, Machine};

    #[test]
    fn dropping_it_is_freeing() {
        let session: &Session =
            Box::leak(Box::new(Session::new(Options { sinks: SinkSet::NONE, ..Options::default() })));
        let counts = || {
            let statistics = session.statistics();
            [statistics.objects_loaded, statistics.objects_finalized, statistics.objects_freed]
        };
        let functions = [raw::Function::new(AddressRange::new(Address(0x1000), 16).unwrap(), b"alpha")];
        let load = || LoadedCode::from_raw(session, &raw::Code::new(Machine::X86_64, &functions)).unwrap();
        let code = load();
        code.owns_pages();
        code.finalized();
        code.finalized();
        assert_eq!(counts(), [1, 1, 0]);
        drop(code);
        assert_eq!(counts(), [1, 1, 1]);
        let id = load().into_id();
        assert_eq!(counts(), [2, 1, 1], "a number keeps the code");
        LiveObjects::of(session).reported_freeing(id).unwrap();
        drop(load());
        assert_eq!(counts(), [3, 1, 3], "it need not be final");
    }
}
