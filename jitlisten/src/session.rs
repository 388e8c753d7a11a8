//! Takes the three verbs from every producer, keeps the living objects, notifies the sinks.
//!
//! ```text
//!   loaded(debug object)  ->  Loaded { id, text, .. }     names and addresses are valid
//!   finalized(id)                                         bytes and .eh_frame are valid; sinks are notified
//!   freeing(id)                                           last moment of the code; sinks are notified
//! ```
//!
//! A verb may come for an object that is unknown, or twice: the second time nothing happens. Every method may be called
//! from any thread, also under LLVM's or the loader's lock. The session's own lock is the innermost one: nothing is
//! called under it that could wait for another lock of the host.
//!
//! | file | content |
//! | --- | --- |
//! | `session.rs` | the state, its lock, the three verbs |
//! | `record.rs`, `alive.rs` | a living object and its neighbours; the functions of all objects, for queries |
//! | `reported.rs`, `listed.rs`, `moved.rs` | objects from two channels, from a linker and a list, copied elsewhere |
//! | `memory.rs` | changes of the memory of objects: the [`Ledger`] says what becomes of them |
//! | `notify.rs` | sinks and the observer |
//! | `fork.rs` | another process, another user |

#![forbid(unsafe_code)]

mod alive;
mod fork;
mod listed;
mod memory;
mod moved;
mod notify;
mod record;
mod reported;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use once_cell::race::OnceBox;

use crate::cfi::FunctionRules;
use crate::code_snapshot::CodeSnapshot;
use crate::ledger::{Ledger, MemoryChanges, Outcome};
use crate::log_line;
use crate::object::{Channel, DebugObject, Origin};
use crate::object_id::ObjectId;
use crate::options::{FramePointerPolicy, Options, SinkKind};
use crate::process::privilege::is_privileged;
use crate::process::write_nosignal::effective_user;
use crate::process::{clock, reserve};
use crate::sink::{self, HeaderPadding, Images, Sink, SinkContext, StaleMap};
use crate::statistics::{Counters, Statistics};
use crate::{AddressRange, Error, LoadedObject, observer, unwindability};
pub use alive::LiveFunction;
pub use fork::ForkGuard;

use record::{Record, linked_code, names};

/// What an event source learns about the object it reported.
#[derive(Debug)]
pub struct Loaded {
    /// The object's name in the other verbs.
    pub id: ObjectId,
    /// What became of it, and of others. The sinks know.
    pub outcome: Outcome,
    /// The first part of its code, if that waits for the right to run.
    pub pending: Option<AddressRange>,
    /// Whether it has a line table.
    pub has_lines: bool,
}

/// A process has one; see the module's head.
pub struct Session {
    options: Options,
    counters: Counters,
    state: Mutex<State>,
    /// Threads that wait for `state`.
    waiting: AtomicU32,
    context: SinkContext,
    warned_of_frame_pointers: AtomicBool,
    warned_of_memory: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The process this state speaks of; see [`Session::lock_here`].
    pid: u32,
    next_id: u64,
    objects: BTreeMap<ObjectId, Record>,
    /// Where the code of these is, and whether it is final.
    ledger: Ledger,
    /// System calls under way that change memory.
    changes: MemoryChanges,
    padding: HeaderPadding,
    sinks: [Option<Box<dyn Sink>>; SinkKind::ALL.len()],
    /// Sinks whose files have nothing yet of what this process has inherited from its parent: see
    /// [`Session::become_child`].
    inherits: [bool; SinkKind::ALL.len()],
    /// When this process was forked, by [`clock::monotonic`]; 0 in one that was not.
    forked_at: u64,
    /// The effective user the files are made for.
    user: u32,
    /// The objects reported through the API and not freed there, also those whose memory went before: whether they are
    /// finalized.
    reported: BTreeMap<ObjectId, bool>,
}

/// Duration and number of waits of [`Session::give_way`].
const TURN: Duration = Duration::from_micros(100);
const MAX_TURNS: u32 = 50;

static PROCESS: OnceBox<Session> = OnceBox::new();

impl Session {
    /// Opens the session of this process, with these options, or returns the one that is open. `complaints` go to the
    /// log.
    ///
    /// In a privileged process ([`is_privileged`](crate::is_privileged)) they are ignored, and the session is not
    /// active.
    #[doc(hidden)]
    pub fn open(options: Options, complaints: &[String]) -> &'static Session {
        PROCESS.get_or_init(|| {
            if is_privileged() {
                return Box::new(Session::new(Options { active: false, ..Options::default() }));
            }
            crate::log::open(&options.log);
            for complaint in complaints {
                log_line!(Warn, "{complaint}");
            }
            Box::new(Session::new(options))
        })
    }

    /// The session of this process, if it is open.
    pub fn process() -> Option<&'static Session> {
        PROCESS.get()
    }

    fn new(options: Options) -> Session {
        // Before any handler of ours: at a fork, locks are taken in the same order as everywhere, this session's first.
        if options.active {
            unwind_register::Registry::process().follow_forks();
        }
        let counters = Counters::default();
        let context = SinkContext {
            stale_map: StaleMap::find(),
            run: options.run,
            images: Arc::new(Mutex::new(Images::new(Arc::clone(&counters.images)))),
            ..SinkContext::default()
        };
        let mut state = State { pid: std::process::id(), user: effective_user(), ..State::default() };
        for kind in SinkKind::ALL.into_iter().filter(|&kind| options.active && options.sinks.contains(kind)) {
            state.sinks[kind as usize] = Some(sink::create(kind, &options, &context));
        }
        Session {
            options,
            counters,
            state: Mutex::new(state),
            waiting: AtomicU32::new(0),
            context,
            warned_of_frame_pointers: AtomicBool::new(false),
            warned_of_memory: AtomicBool::new(false),
        }
    }

    /// The options the session was opened with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The counters so far.
    pub fn statistics(&self) -> Statistics {
        self.counters.snapshot()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock was caught at its entry point; the state is a set of independent records.
        match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                state
            }
        }
    }

    /// Lets the threads that wait for the lock have it, after it was held for long: the lock goes to whoever runs, and
    /// a program that switches sinks in a loop would keep it.
    fn give_way(&self) {
        for _ in 0..MAX_TURNS {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::sleep(TURN);
        }
    }

    /// The lock, in a process that has the sinks to itself: `_Fork(3)` and `clone(2)` call no handler of
    /// `pthread_atfork`.
    fn lock_here(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        self.look_where(&mut state);
        state
    }

    /// See [`Session::lock_here`].
    fn look_where(&self, state: &mut State) {
        if state.pid != std::process::id() {
            self.become_child(state);
        }
        if state.user != effective_user() {
            self.become_user(state);
        }
    }

    /// *loaded*: LLVM has placed an object in memory; `debug_object` is a copy of its debug object, and `kept_at` is
    /// where LLVM keeps its own until *freeing*, for sinks that are switched on later. `library` is the LLVM's file.
    ///
    /// # Errors
    /// What makes it unreadable. It is counted; nothing else is lost.
    #[doc(hidden)]
    pub fn loaded(
        &self,
        debug_object: Vec<u8>,
        kept_at: Option<AddressRange>,
        library: Option<Arc<str>>,
    ) -> Result<Loaded, Error> {
        self.loaded_from(Origin::LlvmList { kept_at }, debug_object, library)
    }

    /// *loaded*, by an event source that says where the object comes from.
    ///
    /// # Errors
    /// As [`Session::loaded`].
    pub(crate) fn loaded_from(
        &self,
        origin: Origin,
        object: Vec<u8>,
        library: Option<Arc<str>>,
    ) -> Result<Loaded, Error> {
        self.check_memory(object.len())?;
        let debug_object = DebugObject { copy: Some(object), kept_at: origin.kept_at() };
        let bytes = debug_object.copy.as_deref().unwrap_or_default();
        let object = LoadedObject::parse(bytes).inspect_err(|error| self.refuse(bytes.len(), error))?;
        let names = names(&object, bytes);
        let mut state = self.lock_here();
        if let Some(id) = state.same(&object, origin) {
            log_line!(Debug, "{id:?} was reported again");
            if matches!(origin, Origin::LlvmList { .. }) {
                self.adopt_entry(&mut state, id);
            }
            let outcome = match origin.channel() {
                Channel::Discovered => state.ledger.loaded(linked_code(id, &object)),
                Channel::Api => Outcome::default(),
            };
            return Ok(self.loaded_as(&mut state, id, outcome, object.has_lines()));
        }
        self.counters.objects_loaded.add(1);
        let id = ObjectId(state.next_id);
        state.next_id += 1;
        let code = linked_code(id, &object);
        log_line!(Debug, "loaded {id:?}: {} functions, text {:?}", object.functions().len(), code.text);
        let (finalized, made_rules) = (None, Vec::new());
        let has_lines = object.has_lines();
        let record = Record {
            origin,
            library,
            object,
            from_both: false,
            names,
            debug_object,
            finalized,
            made_rules,
            owns_pages: origin.channel() == Channel::Discovered,
        };
        state.objects.insert(id, record);
        let outcome = match origin.channel() {
            Channel::Discovered => state.ledger.loaded(code),
            Channel::Api => {
                state.reported.insert(id, false);
                state.ledger.reported(code);
                Outcome::default()
            }
        };
        Ok(self.loaded_as(&mut state, id, outcome, has_lines))
    }

    fn loaded_as(&self, state: &mut State, id: ObjectId, outcome: Outcome, has_lines: bool) -> Loaded {
        self.carry_out(state, &outcome);
        let pending = state.ledger.pending(id).and_then(|text| text.first().copied());
        Loaded { id, outcome, pending, has_lines }
    }

    /// Counts an object that is not understood.
    pub(crate) fn refuse(&self, size: usize, error: &Error) {
        self.counters.objects_refused.add(1);
        log_line!(Warn, "ignoring an object of {size} bytes: {error}");
    }

    /// Whether there is memory to work on an object of that size; if not, it is counted, and logged the first time.
    ///
    /// # Errors
    /// That there is none.
    #[doc(hidden)]
    pub fn check_memory(&self, size: usize) -> Result<(), Error> {
        if reserve::is_memory_left(size) {
            return Ok(());
        }
        self.counters.objects_refused.add(1);
        if !self.warned_of_memory.swap(true, Ordering::Relaxed) {
            log_line!(Error, "out of memory: new objects are ignored until memory is available");
        }
        Err(Error::NoMemory { size })
    }

    /// The file of the LLVM that has made an object, if known.
    #[doc(hidden)]
    pub fn library(&self, id: ObjectId) -> Option<Arc<str>> {
        self.lock().objects.get(&id)?.library.clone()
    }

    /// *finalized*: the object's bytes are relocated and its code may run.
    #[doc(hidden)]
    pub fn finalized(&self, id: ObjectId) {
        let mut state = self.lock_here();
        let outcome = state.ledger.finalized(id);
        self.carry_out(&mut state, &outcome);
    }

    /// Frees and finalizes what the ledger says.
    fn carry_out(&self, state: &mut State, outcome: &Outcome) {
        outcome.freed.iter().for_each(|&id| self.gone(state, id));
        outcome.finalized.iter().for_each(|&id| self.finalize(state, id));
    }

    fn finalize(&self, state: &mut State, id: ObjectId) {
        self.notify_of_inherited(state);
        let pid = state.pid;
        let Some(record) = state.objects.get_mut(&id) else { return };
        if self.check_memory(record.debug_object.copy.as_ref().map_or(0, Vec::len)).is_err() {
            return self.free(state, id);
        }
        record.finalized = Some(clock::monotonic());
        let snapshot = CodeSnapshot::of(pid, &record.object);
        record.made_rules = self.count_unwindability(record, &snapshot);
        self.counters.objects_finalized.add(1);
        log_line!(Debug, "finalized {id:?}");
        if let Some(record) = state.objects.get(&id) {
            observer::finalized(id, &record.object, &record.made_rules, &snapshot);
        }
        for kind in SinkKind::ALL {
            self.notify(state, kind, id, &snapshot);
        }
        if let Some(record) = state.objects.get_mut(&id)
            && record.debug_object.kept_at.is_some()
        {
            record.debug_object.copy = None;
        }
    }

    /// *freeing*: the object's code is about to be freed; its memory is still there.
    #[doc(hidden)]
    pub fn freeing(&self, id: ObjectId) {
        let mut state = self.lock_here();
        self.free(&mut state, id);
    }

    /// Whether `id` is one of the objects that are alive.
    #[doc(hidden)]
    pub fn is_alive(&self, id: ObjectId) -> bool {
        self.lock().objects.contains_key(&id)
    }

    fn free(&self, state: &mut State, id: ObjectId) {
        state.ledger.freed(id);
        self.gone(state, id);
    }

    /// An object is gone, as the ledger knows.
    fn gone(&self, state: &mut State, id: ObjectId) {
        let Some(record) = state.objects.remove(&id) else { return };
        self.counters.objects_freed.add(1);
        log_line!(Debug, "freeing {id:?}");
        if record.finalized.is_none() {
            return;
        }
        if let Some(observer) = observer::observer() {
            observer.freeing(id);
        }
        let snapshot = CodeSnapshot::of(state.pid, &record.object);
        for kind in SinkKind::ALL {
            self.notify_of_end(state, kind, id, &record, &snapshot);
        }
    }

    /// Counts what the code lacks for stack walkers, and returns the rules that can be made up for it.
    fn count_unwindability(&self, record: &Record, snapshot: &CodeSnapshot) -> Vec<FunctionRules> {
        let object = &record.object;
        let shape = unwindability::Unwindability::of(object, snapshot);
        self.counters.functions.add(object.functions().len() as u64);
        self.counters.functions_without_frame_pointer.add(shape.without_frame_pointer);
        self.counters.functions_without_unwind_table.add(shape.without_unwind_table);
        if shape.without_frame_pointer > 0 && self.options.frame_pointer_policy == FramePointerPolicy::FramePointers {
            self.counters.objects_without_frame_pointers.add(1);
            let first = object.functions().first().map_or("?", |function| &function.linkage_name);
            let (without, all) = (shape.without_frame_pointer, object.functions().len());
            log_line!(Info, "{without} of {all} functions compiled with {first} have no frame pointer");
            if !self.warned_of_frame_pointers.swap(true, Ordering::Relaxed) {
                let library = record.library.as_ref().map_or_else(String::new, |library| format!("{library}: "));
                log_line!(
                    Warn,
                    "{library}code without frame pointers was loaded, first {first}: compiled without jitlisten, or by \
                     an LLVM that it cannot change"
                );
            }
        }
        shape.made_rules
    }
}
