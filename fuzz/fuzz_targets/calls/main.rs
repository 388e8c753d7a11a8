//! Fuzz target that interprets its input as a sequence of C API calls, most of them valid and some invalid. Checks that
//! the library keeps the contract of its header.
//!
//! A process has a single session, which the first input opens. Each input restores the initial state: no live objects,
//! and no enabled sinks.
//!
//! ```text
//!   byte 0    selects the initial code
//!   ...       calls: for each, the number of a function, then its arguments
//! ```

#![no_main]

mod api;
mod files;
mod input;
mod memory;
mod model;
mod reported;
mod text;

use std::ffi::{CStr, CString};
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use libfuzzer_sys::fuzz_target;

use crate::api::{Options, call};
use crate::input::Input;
use crate::model::Model;
use crate::reported::Buffers;

fuzz_target!(|data: &[u8]| {
    let directory = open_session();
    let mut model = MODEL.lock().unwrap_or_else(PoisonError::into_inner);
    let model = model.get_or_insert_with(Model::default);
    let mut input = Input::new(data);
    memory::reset(&mut input);
    let mut run = Run { directory, model, buffers: Buffers::default(), object_ids: Vec::new() };
    // Longer sequences have not revealed further problems.
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        run.execute_call(&mut input);
        run.model.check(&api::statistics());
    }
    run.end();
});

static MODEL: Mutex<Option<Model>> = Mutex::new(None);

/// State of one fuzz run: the model, and the objects and buffers that it created.
struct Run<'a> {
    directory: &'a PathBuf,
    model: &'a mut Model,
    /// Buffers that the library may read until the corresponding object is freed.
    buffers: Buffers,
    /// IDs of objects that calls have returned.
    object_ids: Vec<u64>,
}

impl Run<'_> {
    fn execute_call(&mut self, input: &mut Input<'_>) {
        match input.u8() % 18 {
            0..=2 => {
                let reported = reported::report_code(input, &mut self.buffers);
                self.object_ids.push(reported.id);
                self.model.loaded(reported);
            }
            3 => {
                let reported = reported::report_object(input);
                self.object_ids.push(reported.id);
                self.model.loaded(reported);
            }
            4..=6 => {
                let id = self.choose_object(input);
                // SAFETY: the function has no preconditions.
                self.model.finalized(id, call(|| unsafe { api::jitlisten_finalized(id) }));
            }
            7 => {
                let id = self.choose_object(input);
                // SAFETY: the function has no preconditions.
                self.model.freeing(id, call(|| unsafe { api::jitlisten_freeing(id) }));
            }
            8 | 9 => self.switch_sink(input),
            // SAFETY: the function has no preconditions.
            10 => assert_eq!(call(|| unsafe { api::jitlisten_close() }), api::OK),
            11 => self.open_again(input),
            12 => self.model.registered(reported::register_unwind(input)),
            13 => {
                let latest = self.model.registrations.last().copied().unwrap_or_default();
                let registration = input.choose(&[latest, latest.wrapping_sub(1), latest + 1, 0, u64::MAX]);
                // SAFETY: the function has no preconditions.
                let status = call(|| unsafe { api::jitlisten_unwind_deregister(registration) });
                self.model.deregistered(registration, status);
            }
            14 => check_statistics_size(input),
            15 => match input.u8() {
                level @ 0..=63 => api::receive(i32::from(level % 5)),
                level => api::receive_nonsense(i32::from(level) - 128),
            },
            16 => memory::change(input),
            _ => self.check_files(input),
        }
    }

    /// Chooses an object ID, usually an existing one.
    fn choose_object(&self, input: &mut Input<'_>) -> u64 {
        let last = self.object_ids.last().copied().unwrap_or_default();
        match input.u8() {
            250 => 0,
            251 => u64::MAX,
            252 => last.wrapping_add(1),
            253 => 1,
            254 => input.u64(),
            index => self.object_ids.iter().rev().nth(usize::from(index) % 8).copied().unwrap_or(last),
        }
    }

    fn switch_sink(&mut self, input: &mut Input<'_>) {
        let names: [&CStr; 8] = [c"perfmap", c"jitdump", c"image", c"unwind", c"gdb", c"", c"all", c"\xff"];
        let kind = usize::from(input.u8());
        let name = match kind {
            253.. => ptr::null(),
            _ => names[kind % 8].as_ptr(),
        };
        let expected = match (kind, kind % 8) {
            (253.., _) => api::INVALID_ARGUMENT,
            (_, 0..=4) => api::OK,
            _ => api::UNKNOWN_SINK,
        };
        let on = input.u8() & 3 != 0;
        // SAFETY: the header allows any pointer.
        let status = call(|| unsafe { if on { api::jitlisten_enable(name) } else { api::jitlisten_disable(name) } });
        assert_eq!(status, expected);
    }

    /// Opens the session a second time, which must fail or have no effect.
    fn open_again(&mut self, input: &mut Input<'_>) {
        let texts: [&CStr; 6] = [c"perfmap,unwind", c"nonsense", c"", c"off", c"/nowhere/at all", c"linkage"];
        let mut text = || match input.u8() % 16 {
            index @ 0..=5 => texts[usize::from(index)].as_ptr(),
            _ => ptr::null(),
        };
        let [sinks, directory, frame_pointers, names] = std::array::from_fn(|_| text());
        let mut options = Options {
            size: size_of::<Options>(),
            sinks,
            directory,
            log: ptr::null(),
            frame_pointers,
            names,
            listen: u32::from(input.u8() % 3),
            reserved: 0,
        };
        if input.u8() & 7 == 7 {
            options.size = usize::from(input.u8()) % size_of::<Options>();
        }
        let is_null = input.u8() & 15 == 15;
        let pointer = if is_null { ptr::null() } else { &raw const options };
        // SAFETY: the header allows any pointer.
        let status = call(|| unsafe { api::jitlisten_open_with(pointer) });
        if is_null || options.size < size_of::<usize>() {
            assert_eq!(status, api::INVALID_ARGUMENT);
        }
        // SAFETY: the function has no preconditions.
        assert!(matches!(call(|| unsafe { api::jitlisten_open() }), api::ALREADY_OPEN | api::CLOSED));
    }

    /// Checks the files that the sinks have written.
    fn check_files(&mut self, input: &mut Input<'_>) {
        let kind = input.u8();
        if kind & 1 == 1 {
            self.restart(c"perfmap");
            files::check_map(Some(self.model.code()));
        }
        if kind & 2 == 2 {
            // SAFETY: the argument is a C string.
            assert_eq!(call(|| unsafe { api::jitlisten_disable(c"jitdump".as_ptr()) }), api::OK);
            files::check_directory(self.directory);
            self.restart(c"jitdump");
            // SAFETY: the argument is a C string.
            assert_eq!(call(|| unsafe { api::jitlisten_disable(c"jitdump".as_ptr()) }), api::OK);
            files::check_new_dump(self.directory, self.model.code());
        }
        if kind & 4 == 4 {
            // The library must tolerate a missing file.
            let _ = fs::remove_file(files::map_path());
        }
    }

    /// Restarts a sink. The library must then report all live objects to it.
    fn restart(&self, sink: &CStr) {
        // SAFETY: the argument is a C string.
        assert_eq!(call(|| unsafe { api::jitlisten_disable(sink.as_ptr()) }), api::OK);
        // SAFETY: the argument is a C string.
        assert_eq!(call(|| unsafe { api::jitlisten_enable(sink.as_ptr()) }), api::OK);
    }

    /// Frees all objects that this input created, and checks the final state.
    fn end(self) {
        while let Some(registration) = self.model.registrations.first().copied() {
            // SAFETY: the function has no preconditions.
            let status = call(|| unsafe { api::jitlisten_unwind_deregister(registration) });
            self.model.deregistered(registration, status);
        }
        while let Some(id) = self.model.objects.first().map(|object| object.id) {
            // SAFETY: the function has no preconditions.
            self.model.freeing(id, call(|| unsafe { api::jitlisten_freeing(id) }));
        }
        self.model.text_owners.clear();
        api::receive(0);
        // SAFETY: the function has no preconditions.
        assert_eq!(call(|| unsafe { api::jitlisten_close() }), api::OK);
        let statistics = api::statistics();
        self.model.check(&statistics);
        let failures = [
            statistics.perfmap_failures,
            statistics.unwind_failures,
            statistics.jitdump_failures,
            statistics.image_failures,
        ];
        assert_eq!(failures, [0; 4], "a sink has failed: perf map, unwinders, jitdump, images");
        files::check_map(None::<std::iter::Empty<_>>);
        files::check_directory(self.directory);
        let _ = fs::remove_file(files::map_path());
        drop(self.buffers);
    }
}

/// Calls `jitlisten_get_statistics` with other structure sizes. The library must fill only fields that the structure
/// contains.
fn check_statistics_size(input: &mut Input<'_>) {
    let mut words = [u64::MAX; 40];
    let size = usize::from(input.u16()) % (size_of_val(&words) + 1);
    words[0] = size as u64;
    // SAFETY: `words` has as many writable bytes as its size field says.
    let status = call(|| unsafe { api::jitlisten_get_statistics(words.as_mut_ptr().cast()) });
    if size < size_of::<usize>() {
        assert_eq!((status, words[0]), (api::INVALID_ARGUMENT, size as u64));
        return assert!(words[1..].iter().all(|&word| word == u64::MAX));
    }
    let shared_size = size.min(size_of::<api::Statistics>());
    assert_eq!((status, words[0]), (api::OK, shared_size as u64));
    // SAFETY: `words` is an array of integers.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(&words)) };
    assert!(bytes[shared_size..].iter().all(|&byte| byte == 0xff), "bytes behind the size were written");
    // SAFETY: the header allows a null pointer.
    assert_eq!(call(|| unsafe { api::jitlisten_get_statistics(ptr::null_mut()) }), api::INVALID_ARGUMENT);
}

/// Opens the session on the first call. Returns the directory of its files.
fn open_session() -> &'static PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let memory_file_system = PathBuf::from("/dev/shm");
        let base = if memory_file_system.is_dir() { memory_file_system } else { std::env::temp_dir() };
        let directory = base.join(format!("jitlisten-fuzz-{}", std::process::id()));
        fs::create_dir(&directory).expect("a new directory");
        remove_at_exit(&directory);
        open_first(&directory);
        directory
    })
}

fn open_first(directory: &PathBuf) {
    for variable in ["JITLISTEN", "JITLISTEN_DIR", "JITLISTEN_LOG", "JITLISTEN_FRAME_POINTERS", "JITLISTEN_NAMES"] {
        // SAFETY: no other thread reads the environment yet.
        unsafe { std::env::remove_var(variable) };
    }
    // All inputs together write more than the default quota.
    // SAFETY: no other thread reads the environment yet.
    unsafe { std::env::set_var("JITLISTEN_QUOTA", u64::MAX.to_string()) };
    assert_eq!(api::version(), "0.1.0");
    check_without_session();
    show_panics();
    let directory = CString::new(directory.as_os_str().as_encoded_bytes()).expect("a path");
    let options = Options {
        size: size_of::<Options>(),
        sinks: ptr::null(),
        directory: directory.as_ptr(),
        log: ptr::null(),
        frame_pointers: ptr::null(),
        names: ptr::null(),
        listen: 1,
        reserved: 0,
    };
    // SAFETY: `options` is a valid structure.
    assert_eq!(call(|| unsafe { api::jitlisten_open_with(&raw const options) }), api::OK);
    // SAFETY: the function has no preconditions.
    assert_eq!(call(|| unsafe { api::jitlisten_close() }), api::OK);
}

/// Makes panics print their messages. The library's panic hook only logs them. Usually the library has its own copy of
/// the standard library, but in this program it shares ours.
fn show_panics() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::abort();
    }));
}

/// Checks that functions report an error if no session is open.
fn check_without_session() {
    let mut statistics = api::Statistics { size: size_of::<api::Statistics>(), ..api::Statistics::default() };
    let mut id = 0;
    // SAFETY: all output pointers are writable.
    unsafe {
        assert_eq!(call(|| api::jitlisten_close()), api::NOT_OPEN);
        assert_eq!(call(|| api::jitlisten_enable(c"perfmap".as_ptr())), api::NOT_OPEN);
        assert_eq!(call(|| api::jitlisten_disable(ptr::null())), api::NOT_OPEN);
        assert_eq!(call(|| api::jitlisten_get_statistics(&raw mut statistics)), api::NOT_OPEN);
        assert_eq!(call(|| api::jitlisten_code_loaded(ptr::null(), &raw mut id)), api::NOT_OPEN);
        assert_eq!(call(|| api::jitlisten_owns_pages(1)), api::NOT_OPEN);
        assert_eq!(call(|| api::jitlisten_finalized(1)), api::NOT_OPEN);
        assert_eq!(call(|| api::jitlisten_freeing(0)), api::NOT_OPEN);
        assert_eq!(call(|| api::jitlisten_open_with(ptr::null())), api::INVALID_ARGUMENT);
    }
    assert_eq!(id, 0);
}

/// Removes the directory when libFuzzer calls `exit(3)`.
fn remove_at_exit(directory: &PathBuf) {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    extern "C" fn remove() {
        let _ = DIRECTORY.get().map(fs::remove_dir_all);
    }
    DIRECTORY.get_or_init(|| directory.clone());
    // SAFETY: `remove` is safe to call at exit.
    unsafe { libc::atexit(remove) };
}
