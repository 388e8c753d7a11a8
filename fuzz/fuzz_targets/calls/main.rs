//! Any bytes as a sequence of calls of the C API, most of them right and some of them wrong: the header keeps its
//! promises.
//!
//! A process has one session, so the first input opens it, and each leaves it as it found it: nothing alive, no sink
//! on.
//!
//! ```text
//!   byte 0   what code there is        then for each call: its number, its arguments
//! ```

#![no_main]

mod api;
mod files;
mod input;
mod memory;
mod model;
mod text;
mod reported;

use std::ffi::{CStr, CString};
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use libfuzzer_sys::fuzz_target;

use crate::api::{Options, call};
use crate::input::Input;
use crate::model::Model;
use crate::reported::Kept;

fuzz_target!(|data: &[u8]| {
    let directory = opened();
    let mut model = MODEL.lock().unwrap_or_else(PoisonError::into_inner);
    let model = model.get_or_insert_with(Model::default);
    let mut input = Input::new(data);
    memory::renew(&mut input);
    let mut run = Run { directory, model, kept: Kept::default(), reported: Vec::new() };
    // So many that nothing is left to be found by more.
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        run.one(&mut input);
        run.model.check(&api::statistics());
    }
    run.end();
});

static MODEL: Mutex<Option<Model>> = Mutex::new(None);

/// One input.
struct Run<'a> {
    directory: &'a PathBuf,
    model: &'a mut Model,
    /// What the library reads until an object is freed.
    kept: Kept,
    /// Numbers that calls have returned.
    reported: Vec<u64>,
}

impl Run<'_> {
    fn one(&mut self, input: &mut Input<'_>) {
        match input.u8() % 18 {
            0..=2 => {
                let reported = reported::code(input, &mut self.kept);
                self.reported.push(reported.id);
                self.model.loaded(reported);
            }
            3 => {
                let reported = reported::object(input);
                self.reported.push(reported.id);
                self.model.loaded(reported);
            }
            4..=6 => {
                let id = self.object(input);
                // SAFETY: no precondition.
                self.model.finalized(id, call(|| unsafe { api::jitlisten_finalized(id) }));
            }
            7 => {
                let id = self.object(input);
                // SAFETY: no precondition.
                self.model.freeing(id, call(|| unsafe { api::jitlisten_freeing(id) }));
            }
            8 | 9 => self.switch(input),
            // SAFETY: no precondition.
            10 => assert_eq!(call(|| unsafe { api::jitlisten_close() }), api::OK),
            11 => self.open_again(input),
            12 => self.model.registered(reported::unwind(input)),
            13 => {
                let largest = self.model.registrations.last().copied().unwrap_or_default();
                let registration = input.choose(&[largest, largest.wrapping_sub(1), largest + 1, 0, u64::MAX]);
                // SAFETY: no precondition.
                let status = call(|| unsafe { api::jitlisten_unwind_deregister(registration) });
                self.model.deregistered(registration, status);
            }
            14 => statistics_of_any_size(input),
            15 => match input.u8() {
                level @ 0..=63 => api::receive(i32::from(level % 5)),
                level => api::receive_nonsense(i32::from(level) - 128),
            },
            16 => memory::change(input),
            _ => self.look(input),
        }
    }

    /// An object's number, mostly of one that there is.
    fn object(&self, input: &mut Input<'_>) -> u64 {
        let last = self.reported.last().copied().unwrap_or_default();
        match input.u8() {
            250 => 0,
            251 => u64::MAX,
            252 => last.wrapping_add(1),
            253 => 1,
            254 => input.u64(),
            index => self.reported.iter().rev().nth(usize::from(index) % 8).copied().unwrap_or(last),
        }
    }

    fn switch(&mut self, input: &mut Input<'_>) {
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
        // SAFETY: the header allows every pointer.
        let status = call(|| unsafe { if on { api::jitlisten_enable(name) } else { api::jitlisten_disable(name) } });
        assert_eq!(status, expected);
    }

    /// A session is opened once.
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
        let none = input.u8() & 15 == 15;
        let start = if none { ptr::null() } else { &raw const options };
        // SAFETY: the header allows every pointer.
        let status = call(|| unsafe { api::jitlisten_open_with(start) });
        if none || options.size < size_of::<usize>() {
            assert_eq!(status, api::INVALID_ARGUMENT);
        }
        // SAFETY: no precondition.
        assert_eq!(call(|| unsafe { api::jitlisten_open() }), api::OK);
    }

    /// Reads all files, between a sink's beginning and its end.
    fn look(&mut self, input: &mut Input<'_>) {
        let kind = input.u8();
        if kind & 1 == 1 {
            self.restart(c"perfmap");
            files::check_map(Some(self.model.code()));
        }
        if kind & 2 == 2 {
            // SAFETY: a text.
            assert_eq!(call(|| unsafe { api::jitlisten_disable(c"jitdump".as_ptr()) }), api::OK);
            files::check_directory(self.directory);
            self.restart(c"jitdump");
            // SAFETY: a text.
            assert_eq!(call(|| unsafe { api::jitlisten_disable(c"jitdump".as_ptr()) }), api::OK);
            files::check_new_dump(self.directory, self.model.code());
        }
        if kind & 4 == 4 {
            // Files are removed.
            let _ = fs::remove_file(files::map());
        }
    }

    /// A sink that is switched on is notified of everything that is alive.
    fn restart(&self, sink: &CStr) {
        // SAFETY: a text.
        assert_eq!(call(|| unsafe { api::jitlisten_disable(sink.as_ptr()) }), api::OK);
        // SAFETY: a text.
        assert_eq!(call(|| unsafe { api::jitlisten_enable(sink.as_ptr()) }), api::OK);
    }

    /// Everything that was begun ends.
    fn end(self) {
        while let Some(registration) = self.model.registrations.first().copied() {
            // SAFETY: no precondition.
            let status = call(|| unsafe { api::jitlisten_unwind_deregister(registration) });
            self.model.deregistered(registration, status);
        }
        while let Some(id) = self.model.known.first().map(|known| known.id) {
            // SAFETY: no precondition.
            self.model.freeing(id, call(|| unsafe { api::jitlisten_freeing(id) }));
        }
        self.model.places.clear();
        api::receive(0);
        // SAFETY: no precondition.
        assert_eq!(call(|| unsafe { api::jitlisten_close() }), api::OK);
        let found = api::statistics();
        self.model.check(&found);
        let failures = [found.perfmap_failures, found.unwind_failures, found.jitdump_failures, found.image_failures];
        assert_eq!(failures, [0; 4], "a sink has failed: perf map, unwinders, jitdump, images");
        files::check_map(None::<std::iter::Empty<_>>);
        files::check_directory(self.directory);
        let _ = fs::remove_file(files::map());
        drop(self.kept);
    }
}

/// What the library does not know it leaves alone, and what the program does not know it does not get.
fn statistics_of_any_size(input: &mut Input<'_>) {
    let mut words = [u64::MAX; 40];
    let size = usize::from(input.u16()) % (size_of_val(&words) + 1);
    words[0] = size as u64;
    // SAFETY: as many writable bytes as the size says.
    let status = call(|| unsafe { api::jitlisten_get_statistics(words.as_mut_ptr().cast()) });
    if size < size_of::<usize>() {
        assert_eq!((status, words[0]), (api::INVALID_ARGUMENT, size as u64));
        return assert!(words[1..].iter().all(|&word| word == u64::MAX));
    }
    let known = size.min(size_of::<api::Statistics>());
    assert_eq!((status, words[0]), (api::OK, known as u64));
    // SAFETY: an array of integers.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(&words)) };
    assert!(bytes[known..].iter().all(|&byte| byte == 0xff), "bytes behind the size were written");
    // SAFETY: null is allowed.
    assert_eq!(call(|| unsafe { api::jitlisten_get_statistics(ptr::null_mut()) }), api::INVALID_ARGUMENT);
}

/// Opens the session, once; where its files are.
fn opened() -> &'static PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let memory_file_system = PathBuf::from("/dev/shm");
        let base = if memory_file_system.is_dir() { memory_file_system } else { std::env::temp_dir() };
        let directory = base.join(format!("jitlisten-fuzz-{}", std::process::id()));
        fs::create_dir(&directory).expect("a new directory");
        remove_at_exit(&directory);
        open(&directory);
        directory
    })
}

fn open(directory: &PathBuf) {
    for variable in ["JITLISTEN", "JITLISTEN_DIR", "JITLISTEN_LOG", "JITLISTEN_FRAME_POINTERS", "JITLISTEN_NAMES"] {
        // SAFETY: no other thread looks at the environment yet.
        unsafe { std::env::remove_var(variable) };
    }
    // All inputs together write more than a program may.
    // SAFETY: as above.
    unsafe { std::env::set_var("JITLISTEN_QUOTA", u64::MAX.to_string()) };
    assert_eq!(api::version(), "0.1.0");
    before_the_session();
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
    // SAFETY: the options are there.
    assert_eq!(call(|| unsafe { api::jitlisten_open_with(&raw const options) }), api::OK);
    // SAFETY: no precondition.
    assert_eq!(call(|| unsafe { api::jitlisten_close() }), api::OK);
}

/// The library keeps panics from being printed, which is right where the standard library is its own. Here it is ours,
/// too.
fn show_panics() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::abort();
    }));
}

/// Everything says that it is not open.
fn before_the_session() {
    let mut statistics = api::Statistics { size: size_of::<api::Statistics>(), ..api::Statistics::default() };
    let mut id = 0;
    // SAFETY: outputs are writable.
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

/// libFuzzer ends with `exit(3)`.
fn remove_at_exit(directory: &PathBuf) {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    extern "C" fn remove() {
        let _ = PLACE.get().map(fs::remove_dir_all);
    }
    PLACE.get_or_init(|| directory.clone());
    // SAFETY: a function that needs nothing.
    unsafe { libc::atexit(remove) };
}
