//! The live objects: receives the three events of every source and producer, and notifies the sinks.
//!
//! ```text
//!   loaded(debug object)  ->  Loaded { id, outcome, .. }  names and addresses are valid
//!   finalized(id)                                         bytes and .eh_frame are valid; sinks are notified
//!   freeing(id)                                           code is about to be freed; sinks are notified
//! ```
//!
//! Events for unknown objects, and repeated events, are ignored. Every method may be called from any thread, even under
//! LLVM's or the loader's lock. The lock of the state is the innermost one: code that runs under it must not wait for
//! any lock of the host.
//!
//! | file | content |
//! | --- | --- |
//! | `live_objects.rs` | the state, its lock, the three events |
//! | `record.rs`, `live_functions.rs` | a live object and its neighbours; queries for live functions |
//! | `reported.rs`, `listed.rs`, `moved.rs` | objects reported twice: by two channels, or linker and list; copies |
//! | `memory.rs` | memory changes: the [`Ledger`] decides which objects they finalize or free |
//! | `notify.rs` | sinks and the observer |
//! | `fork.rs` | fork, and change of the user |

mod fork;
mod listed;
mod live_functions;
mod memory;
mod moved;
mod notify;
mod record;
mod reported;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::cfi::FunctionRules;
use crate::code_snapshot::CodeSnapshot;
use crate::ledger::{Ledger, MemoryChanges, Outcome};
use crate::liveness::Run;
use crate::log::LogEvent;
use crate::log_line;
use crate::object::{Channel, DebugObject, Origin};
use crate::object_id::ObjectId;
use crate::options::{FramePointerPolicy, Options, SinkKind};
use crate::process::write_nosignal::effective_user;
use crate::process::{clock, reserve};
use crate::sink::{self, HeaderPadding, Images, Sink, SinkContext, StaleMap};
use crate::statistics::{Counters, Statistics};
use crate::{Address, AddressRange, Error, LoadedObject, observer, unwindability};
pub use fork::ForkGuard;
pub use live_functions::LiveFunction;

use record::{Record, linked_code, readable_names};

/// Result of *loaded*, for the event source.
#[derive(Debug)]
pub struct Loaded {
    /// Identifier of the object in later events.
    pub id: ObjectId,
    /// Objects that this event finalized or freed. The sinks have been notified.
    pub outcome: Outcome,
    /// First text range of the object, if it is not executable yet.
    pub pending: Option<AddressRange>,
    /// True if the object has a line table.
    pub has_lines: bool,
}

/// The live objects of the process, and the sinks to notify: what is inside a session.
pub struct LiveObjects {
    options: Options,
    counters: Counters,
    state: Mutex<State>,
    waiting_threads: AtomicU32,
    context: SinkContext,
    warned_of_frame_pointers: AtomicBool,
    warned_of_memory: AtomicBool,
}

impl std::fmt::Debug for LiveObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveObjects").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// PID of the process that this state belongs to; see [`LiveObjects::lock_for_this_process`].
    pid: u32,
    next_id: u64,
    objects: BTreeMap<ObjectId, Record>,
    /// Code ranges of the objects, pending or final.
    ledger: Ledger,
    /// System calls in progress that change memory.
    changes: MemoryChanges,
    padding: HeaderPadding,
    /// Numbers of reported objects that share the padding with this end, which their producer owns.
    promised_padding: BTreeMap<Address, usize>,
    sinks: [Option<Box<dyn Sink>>; SinkKind::ALL.len()],
    /// True for sinks whose files do not contain the objects inherited from the parent process yet; see
    /// [`LiveObjects::become_child`].
    replay_inherited: [bool; SinkKind::ALL.len()],
    /// Time of the fork that created this process, by [`clock::monotonic`]; 0 if none.
    forked_at: u64,
    /// Effective user who owns the files.
    user: u32,
    /// Objects reported through the API and not yet freed through it, even if their memory was freed before.
    reported: BTreeMap<ObjectId, Reports>,
}

/// Number of reports of one object that the producer has not freed yet, and how many of them it has finalized.
#[derive(Default)]
struct Reports {
    loaded: u32,
    finalized: u32,
    /// Memory in front of the code that the producer has left to images.
    padding: Option<AddressRange>,
}

/// Minimum and maximum duration of the sleep in [`LiveObjects::yield_to_waiters`].
const MIN_YIELD: Duration = Duration::from_micros(100);
const MAX_YIELD: Duration = Duration::from_millis(50);

impl LiveObjects {
    pub(crate) fn new(options: Options) -> LiveObjects {
        // Register this fork handler first, so that a fork takes the locks in the usual order: the state's lock
        // before the registry's.
        if options.active {
            unwind_register::Registry::process().install_fork_handlers();
        }
        let counters = Counters::default();
        let context = SinkContext {
            stale_map: StaleMap::find(),
            run: options.run,
            images: Arc::new(Mutex::new(Images::new(Arc::clone(&counters.images)))),
            ..SinkContext::default()
        };
        // No object has the number 0: the C API uses it for none.
        let mut state = State { pid: std::process::id(), next_id: 1, user: effective_user(), ..State::default() };
        for kind in SinkKind::ALL.into_iter().filter(|&kind| options.active && options.sinks.contains(kind)) {
            state.sinks[kind as usize] = Some(sink::create(kind, &options, &context));
        }
        LiveObjects {
            options,
            counters,
            state: Mutex::new(state),
            waiting_threads: AtomicU32::new(0),
            context,
            warned_of_frame_pointers: AtomicBool::new(false),
            warned_of_memory: AtomicBool::new(false),
        }
    }

    /// Options of the session.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the `jitlisten run` or `record` that started the process.
    pub fn run(&self) -> Option<Run> {
        self.options.run
    }

    /// Current values of the counters.
    pub fn statistics(&self) -> Statistics {
        self.counters.snapshot()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Ignore poisoning: panics are caught at the entry points, and the state consists of independent records.
        match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waiting_threads.fetch_add(1, Ordering::Relaxed);
                let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                self.waiting_threads.fetch_sub(1, Ordering::Relaxed);
                state
            }
        }
    }

    /// Releases the lock, and then sleeps for as long as it was held (since `locked_at`) if other threads are waiting
    /// for it. The mutex is unfair, so without this sleep, a program that enables and disables sinks in a loop would
    /// starve threads that report code.
    fn yield_to_waiters(&self, state: MutexGuard<'_, State>, locked_at: u64) {
        let has_waiters = self.waiting_threads.load(Ordering::Relaxed) > 0;
        let held = Duration::from_nanos(clock::monotonic().saturating_sub(locked_at));
        drop(state);
        if has_waiters {
            std::thread::sleep(held.clamp(MIN_YIELD, MAX_YIELD));
        }
    }

    /// Locks the state, and updates it after a fork or a change of the user. This check is needed because `_Fork(3)`
    /// and `clone(2)` call no `pthread_atfork` handlers.
    fn lock_for_this_process(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        self.handle_process_change(&mut state);
        state
    }

    /// Detects a fork or a change of the user since the last call, and updates the state accordingly.
    fn handle_process_change(&self, state: &mut State) {
        if state.pid != std::process::id() {
            self.become_child(state);
        }
        if state.user != effective_user() {
            self.become_user(state);
        }
    }

    /// Handles *loaded*: LLVM has placed an object in memory. `debug_object` is a copy of its debug object. `kept_at`
    /// is the address of the original, which LLVM keeps until *freeing*; sinks that are enabled later read it.
    /// `library` is the path of the file that contains that copy of LLVM.
    ///
    /// # Errors
    /// If the debug object cannot be parsed. It is counted as refused and otherwise ignored.
    pub fn loaded(
        &self,
        debug_object: Vec<u8>,
        kept_at: Option<AddressRange>,
        library: Option<Arc<str>>,
    ) -> Result<Loaded, Error> {
        self.loaded_from(Origin::LlvmList { kept_at }, debug_object, library)
    }

    /// Handles *loaded* for an object of any origin.
    ///
    /// # Errors
    /// Same as for [`LiveObjects::loaded`].
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
        let names = readable_names(&object, bytes);
        let mut state = self.lock_for_this_process();
        if let Some(id) = state.find_same_object(&object, origin) {
            return Ok(self.loaded_again(&mut state, id, origin, &object));
        }
        self.counters.objects_loaded.add(1);
        let id = ObjectId(state.next_id);
        state.next_id += 1;
        let code = linked_code(id, &object);
        log_line!(
            Debug,
            "{}",
            LogEvent::Loaded {
                id: &id.to_string(),
                functions: &object.functions().len().to_string(),
                text: &code.text.iter().map(AddressRange::to_string).collect::<Vec<_>>().join(" "),
            }
        );
        let has_lines = object.has_lines();
        let record = Record {
            origin,
            library,
            object,
            in_both_channels: false,
            ignored_table: None,
            names,
            debug_object,
            finalized: None,
            derived_rules: Vec::new(),
            owns_pages: origin.channel() == Channel::Discovered,
        };
        state.objects.insert(id, record);
        let outcome = match origin.channel() {
            Channel::Discovered => state.ledger.loaded(code),
            Channel::Api => {
                state.reported.insert(id, Reports { loaded: 1, ..Reports::default() });
                state.ledger.reported(code);
                Outcome::default()
            }
        };
        Ok(self.finish_loading(&mut state, id, outcome, has_lines))
    }

    /// Handles *loaded* for an object that another source has reported as `id`.
    fn loaded_again(&self, state: &mut State, id: ObjectId, origin: Origin, object: &LoadedObject) -> Loaded {
        log_line!(Debug, "{}", LogEvent::ReportedAgain { id: &id.to_string() });
        if matches!(origin, Origin::LlvmList { .. }) {
            self.adopt_entry(state, id);
        }
        let outcome = match origin.channel() {
            Channel::Discovered => state.ledger.loaded(linked_code(id, object)),
            Channel::Api => Outcome::default(),
        };
        self.finish_loading(state, id, outcome, object.has_lines())
    }

    fn finish_loading(&self, state: &mut State, id: ObjectId, outcome: Outcome, has_lines: bool) -> Loaded {
        self.apply_outcome(state, &outcome);
        let pending = state.ledger.pending(id).and_then(|text| text.first().copied());
        Loaded { id, outcome, pending, has_lines }
    }

    /// Counts and logs an object that could not be parsed.
    pub(crate) fn refuse(&self, size: usize, error: &Error) {
        self.counters.objects_refused.add(1);
        log_line!(Warn, "{}", LogEvent::Refused { size: &size.to_string(), error: &error.to_string() });
    }

    /// Checks that there is enough memory to process an object of `size` bytes. Otherwise counts the object as refused,
    /// and logs the first one.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
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

    /// Path of the file that contains the copy of LLVM that compiled the object, if known.
    pub fn library(&self, id: ObjectId) -> Option<Arc<str>> {
        self.lock().objects.get(&id)?.library.clone()
    }

    /// Handles *finalized*: the bytes of the object are relocated, and its code may run.
    pub fn finalized(&self, id: ObjectId) {
        let mut state = self.lock_for_this_process();
        let outcome = state.ledger.finalized(id);
        self.apply_outcome(&mut state, &outcome);
    }

    /// Notifies the sinks of the objects that the ledger freed or finalized.
    fn apply_outcome(&self, state: &mut State, outcome: &Outcome) {
        outcome.freed.iter().for_each(|&id| self.remove_object(state, id));
        outcome.finalized.iter().for_each(|&id| self.finalize(state, id));
    }

    fn finalize(&self, state: &mut State, id: ObjectId) {
        self.replay_inherited_objects(state);
        let pid = state.pid;
        let Some(record) = state.objects.get_mut(&id) else { return };
        if self.check_memory(record.debug_object.copy.as_ref().map_or(0, Vec::len)).is_err() {
            return self.free_object(state, id);
        }
        record.finalized = Some(clock::monotonic());
        let snapshot = CodeSnapshot::for_object(pid, &record.object);
        record.derived_rules = self.analyse_unwindability(record, &snapshot);
        self.counters.objects_finalized.add(1);
        log_line!(Debug, "{}", LogEvent::Finalized { id: &id.to_string() });
        if let Some(record) = state.objects.get(&id) {
            observer::finalized(id, &record.object, &record.derived_rules, &snapshot);
        }
        for kind in SinkKind::ALL {
            self.notify_sink_finalized(state, kind, id, &snapshot);
        }
        if let Some(record) = state.objects.get_mut(&id)
            && record.debug_object.kept_at.is_some()
        {
            record.debug_object.copy = None;
        }
    }

    /// Handles *freeing*: the code of the object is about to be freed, but still mapped.
    pub fn freeing(&self, id: ObjectId) {
        let mut state = self.lock_for_this_process();
        self.free_object(&mut state, id);
    }

    /// Returns true if the object is live.
    pub fn is_alive(&self, id: ObjectId) -> bool {
        self.lock().objects.contains_key(&id)
    }

    fn free_object(&self, state: &mut State, id: ObjectId) {
        state.ledger.freed(id);
        self.remove_object(state, id);
    }

    /// Removes an object that the ledger has already freed, and notifies the sinks.
    fn remove_object(&self, state: &mut State, id: ObjectId) {
        let Some(record) = state.objects.remove(&id) else { return };
        self.counters.objects_freed.add(1);
        log_line!(Debug, "{}", LogEvent::Freed { id: &id.to_string() });
        if record.finalized.is_none() {
            return;
        }
        if let Some(observer) = observer::observer() {
            observer.freeing(id);
        }
        let snapshot = CodeSnapshot::for_object(state.pid, &record.object);
        for kind in SinkKind::ALL {
            self.notify_sink_freeing(state, kind, id, &record, &snapshot);
        }
    }

    /// Counts the functions that stack walkers cannot unwind, and returns the rules that could be derived for them.
    fn analyse_unwindability(&self, record: &Record, snapshot: &CodeSnapshot) -> Vec<FunctionRules> {
        let object = &record.object;
        let gaps = unwindability::Unwindability::examine(object, snapshot);
        self.counters.functions.add(object.functions().len() as u64);
        self.counters.functions_without_frame_pointer.add(gaps.without_frame_pointer);
        self.counters.functions_without_unwind_table.add(gaps.without_unwind_table);
        let is_ours_to_change = record.origin.channel() == Channel::Discovered
            && self.options.frame_pointer_policy == FramePointerPolicy::FramePointers;
        if gaps.without_frame_pointer > 0 && is_ours_to_change {
            self.counters.objects_without_frame_pointers.add(1);
            let name = object.functions().first().map_or("?", |function| &function.linkage_name);
            let (count, total) = (gaps.without_frame_pointer, object.functions().len());
            log_line!(Info, "{count} of {total} functions compiled with {name} have no frame pointer");
            if !self.warned_of_frame_pointers.swap(true, Ordering::Relaxed) {
                let library = record.library.as_ref().map_or_else(String::new, |library| format!("{library}: "));
                log_line!(Warn, "{}", LogEvent::LoadedWithoutFramePointers { library: &library, function: name });
            }
        }
        gaps.derived_rules
    }
}

#[cfg(test)]
mod test_objects {
    use crate::producer::raw::{self, Code, Function};
    use crate::{Address, AddressRange, Machine};

    /// An object of one function of 16 bytes.
    pub(super) fn object(start: u64, name: &str) -> Vec<u8> {
        let range = AddressRange::new(Address(start), 16).unwrap();
        let functions = [Function { range, name: name.as_bytes() }];
        raw::encode(&Code { machine: Machine::X86_64, functions: &functions, lines: &[], eh_frame: None }).unwrap()
    }
}
