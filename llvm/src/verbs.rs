//! C functions of `include/jitlisten.h` for the C++ adapters, under names private to the crate.
//!
//! If the process contains a `libjitlisten` already, for example through `LD_PRELOAD`, the functions use its session,
//! and this copy opens none. Two sessions would each write a perf map.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::panic::{AssertUnwindSafe, catch_unwind};

use once_cell::race::OnceBox;

use jitlisten::options::{FramePointerPolicy, Options};
use jitlisten::plumbing::{HostStateGuard, LiveObjects, into_id};
use jitlisten::producer::{self, LoadedCode, Producer};
use jitlisten::{Error, ObjectId, Session};

/// `JITLISTEN_OK`. One other value stands for every failure, because the adapters only test for zero.
const OK: i32 = 0;
const FAILED: i32 = 5;

/// Session that receives the calls of the adapters.
enum Backend {
    Ours(&'static Session),
    Library(Library),
}

type ObjectLoaded = unsafe extern "C" fn(*const c_void, usize, *const c_void, usize, *mut u64) -> i32;
type Verb = unsafe extern "C" fn(u64) -> i32;

/// Functions of a `libjitlisten` in this process.
struct Library {
    loaded: ObjectLoaded,
    owns_pages: Verb,
    finalized: Verb,
    freeing: Verb,
}

/// `struct jitlisten_options`: sets only `listen`, and takes the rest from the environment.
#[repr(C)]
struct OpenOptions {
    size: usize,
    strings: [*const c_char; 5],
    listen: u32,
}

const LISTEN_CALLS: u32 = 1;

impl Library {
    fn find() -> Option<Library> {
        let [loaded, open] = [c"jitlisten_object_loaded", c"jitlisten_open_with"].map(find_symbol);
        let verbs = [c"jitlisten_owns_pages", c"jitlisten_finalized", c"jitlisten_freeing"].map(find_symbol);
        let (loaded, open, [owns_pages, finalized, freeing]) = (loaded?, open?, verbs);
        let (owns_pages, finalized, freeing) = (owns_pages?, finalized?, freeing?);
        // SAFETY: the header declares the functions with these types.
        unsafe {
            let open = transmute::<*mut c_void, unsafe extern "C" fn(*const OpenOptions) -> i32>(open);
            let options =
                OpenOptions { size: size_of::<OpenOptions>(), strings: [std::ptr::null(); 5], listen: LISTEN_CALLS };
            // Does nothing if the session is open.
            open(&raw const options);
            Some(Library {
                loaded: transmute::<*mut c_void, ObjectLoaded>(loaded),
                owns_pages: transmute::<*mut c_void, Verb>(owns_pages),
                finalized: transmute::<*mut c_void, Verb>(finalized),
                freeing: transmute::<*mut c_void, Verb>(freeing),
            })
        }
    }
}

fn find_symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `name` is a C string; any result is an address or null.
    Some(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }).filter(|address| !address.is_null())
}

/// Opens the session of the process, unless it is open.
pub(super) fn open() {
    backend();
}

fn backend() -> &'static Backend {
    static BACKEND: OnceBox<Backend> = OnceBox::new();
    BACKEND.get_or_init(|| Box::new(Library::find().map_or_else(|| Backend::Ours(open_ours()), Backend::Library)))
}

fn open_ours() -> &'static Session {
    let (options, complaints) = Options::from_env();
    let session = producer::open(options, &complaints);
    // SAFETY: the handler is a function of this program.
    unsafe { libc::atexit(at_exit) };
    session
}

extern "C" fn at_exit() {
    let _ = catch_unwind(|| LiveObjects::process().map(LiveObjects::flush_sinks));
}

/// Opens the session of the process, unless it is open, and returns its frame-pointer policy.
pub(super) fn frame_pointer_policy() -> FramePointerPolicy {
    let options = match backend() {
        Backend::Ours(session) => session.options().clone(),
        Backend::Library(_) => Options::from_env().0,
    };
    if options.active { options.frame_pointer_policy } else { FramePointerPolicy::Untouched }
}

fn catch_panics(work: impl FnOnce() -> i32) -> i32 {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(FAILED)
}

/// `jitlisten_object_loaded`, as called by the adapters: the section headers of `elf` contain the load addresses, and
/// `object` points to a local variable of the adapter.
#[unsafe(no_mangle)]
unsafe extern "C" fn jitlisten_crate_object_loaded(
    elf: *const c_void,
    size: usize,
    sections: *const c_void,
    count: usize,
    object: *mut u64,
) -> i32 {
    catch_panics(|| match backend() {
        // SAFETY: the adapters pass valid arguments.
        Backend::Library(library) => unsafe { (library.loaded)(elf, size, sections, count, object) },
        Backend::Ours(session) if session.options().active => {
            // SAFETY: `elf` points to a `StringRef` of the adapters, which is valid for this call.
            let bytes = unsafe { std::slice::from_raw_parts(elf.cast::<u8>(), size) };
            let Ok(code) = LoadedCode::from_object(session, Producer::Llvm, bytes.to_vec()) else { return FAILED };
            // SAFETY: `object` points to a variable of the adapters.
            unsafe { object.write(into_id(code).0) };
            OK
        }
        Backend::Ours(_) => FAILED,
    })
}

#[unsafe(no_mangle)]
extern "C" fn jitlisten_crate_owns_pages(object: u64) -> i32 {
    report(object, |library| library.owns_pages, LiveObjects::reported_owns_pages)
}

#[unsafe(no_mangle)]
extern "C" fn jitlisten_crate_finalized(object: u64) -> i32 {
    report(object, |library| library.finalized, LiveObjects::reported_finalized)
}

#[unsafe(no_mangle)]
extern "C" fn jitlisten_crate_freeing(object: u64) -> i32 {
    report(object, |library| library.freeing, LiveObjects::reported_freeing)
}

/// Reports an event of an object: calls `verb` of a `libjitlisten` in the process, or `event` of our session.
fn report(object: u64, verb: fn(&Library) -> Verb, event: fn(&LiveObjects, ObjectId) -> Result<(), Error>) -> i32 {
    catch_panics(|| match backend() {
        // SAFETY: the function accepts any number.
        Backend::Library(library) => unsafe { verb(library)(object) },
        Backend::Ours(session) => {
            let _host_state = HostStateGuard::enter();
            event(LiveObjects::of(session), ObjectId(object)).map_or(FAILED, |()| OK)
        }
    })
}
