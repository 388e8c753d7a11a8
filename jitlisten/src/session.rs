//! Takes the three verbs from every producer, keeps what is alive, notifies the sinks.
//!
//! ```text
//!   loaded(debug object)  ->  Loaded { id, text, .. }     names and addresses are true
//!   finalized(id)                                         bytes and .eh_frame are true; sinks are notified
//!   freeing(id)                                           last moment the code is there; sinks are notified
//! ```
//!
//! A verb may come for an object that is unknown, or twice: the second time nothing happens. Every method may be called
//! from any thread, also under LLVM's or the loader's lock. The session's own lock is the innermost one: nothing is called
//! under it that could wait for another lock of the host.
//!
//! In the child of a fork the sinks close the parent's files, and everything alive is written to files of the child before its first
//! own object, in writes of a megabyte. A link to the parent's map, made at the fork, would give names to a perf that is
//! attached later; but CPython and others open `/tmp/perf-PID.map` to append or to truncate, in the child or after `exec`, and would
//! write into the map of the living parent. A copy in the kernel would leave a file for each child that only calls `exec`.

#![forbid(unsafe_code)]

mod alive;
mod listed;
mod moved;
mod reported;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use once_cell::race::OnceBox;

use crate::cfi::FunctionRules;
use crate::code_snapshot::CodeSnapshot;
use crate::loaded_object::LineRows;
use crate::log_line;
use crate::name::{self, ReadableName};
use crate::object::{Channel, DebugObject, ObjectId, Origin};
use crate::options::{FramePointerPolicy, Options, SinkKind};
use crate::process::write_nosignal::{effective_user, user_is_final};
use crate::process::{allocator, checked_read, clock, fork_gate};
use crate::sink::{
    self, FinalizedObject, Forked, HeaderPadding, Images, Neighbour, Neighbours, Sink, SinkContext, SinkError,
    StaleMap, Unwinders,
};
use crate::statistics::{Counters, Statistics};
use crate::{Address, AddressRange, Error, LoadedObject, is_privileged, observer, unwindability};
pub use alive::LiveFunction;

/// What an event source learns about the object it reported.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The object's name in the other verbs.
    pub id: ObjectId,
    /// Where its code is.
    pub text: Vec<AddressRange>,
    /// Where its live `.eh_frame` is.
    pub eh_frame: Option<AddressRange>,
}

/// A process has one; see the module's head.
pub struct Session {
    options: Options,
    counters: Counters,
    state: Mutex<State>,
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
    /// Text ranges of finalized objects: start address to end address and owner.
    text: BTreeMap<u64, (u64, ObjectId)>,
    /// Where text of objects that are not finalized yet begins.
    pending: BTreeMap<u64, ObjectId>,
    padding: HeaderPadding,
    sinks: [Option<Box<dyn Sink>>; SinkKind::ALL.len()],
    /// Sinks whose files have nothing yet of what this process has inherited from its parent: see [`Session::become_child`].
    inherits: [bool; SinkKind::ALL.len()],
    /// When this process was forked, by [`clock::monotonic`]; 0 in one that was not.
    forked_at: u64,
    /// The effective user the files are made for.
    user: u32,
    /// The objects reported through the API and not freed there, also those whose memory went before: whether they are finalized.
    reported: BTreeMap<ObjectId, bool>,
}

struct Record {
    origin: Origin,
    object: LoadedObject,
    /// Whether the other channel has reported it, too.
    from_both: bool,
    names: Vec<ReadableName>,
    debug_object: DebugObject,
    /// When it was finalized, by [`clock::monotonic`].
    finalized: Option<u64>,
    /// Unwind rules for functions its `.eh_frame` lacks; empty before *finalized*.
    made_rules: Vec<FunctionRules>,
}

impl Record {
    fn as_finalized<'a>(
        &'a self,
        id: ObjectId,
        debug_object: Option<&'a [u8]>,
        next_code: &'a dyn Fn(Address) -> Option<Address>,
        neighbours: &'a dyn Fn(AddressRange) -> Neighbours<'a>,
        padding: &'a HeaderPadding,
        snapshot: &'a CodeSnapshot,
    ) -> FinalizedObject<'a> {
        let since = self.finalized.unwrap_or_default();
        let (object, names, made_rules) = (&self.object, &*self.names, &*self.made_rules);
        let origin = self.origin;
        FinalizedObject {
            id,
            object,
            names,
            made_rules,
            debug_object,
            snapshot,
            since,
            next_code,
            neighbours,
            origin,
            padding,
        }
    }

    fn text_starts(&self) -> impl Iterator<Item = u64> {
        self.object.text().iter().map(|text| text.range.start().0)
    }
}

static PROCESS: OnceBox<Session> = OnceBox::new();

impl Session {
    /// Opens the session of this process, with these options, or returns the one that is open. `complaints` go to the log.
    ///
    /// In a privileged process ([`is_privileged`](crate::is_privileged)) they are ignored, and the session is not active.
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, in a process that has the sinks to itself: `_Fork(3)` and `clone(2)` call no handler of `pthread_atfork`.
    fn lock_here(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if state.pid != std::process::id() {
            self.become_child(&mut state);
        }
        if state.user != effective_user() {
            self.become_user(&mut state);
        }
        state
    }

    /// In the child of a fork: the parent's files stay the parent's. Nothing is done here that takes longer the more objects
    /// there are, and nothing is written: most children call `exec`, or run what they inherited. The first object that the
    /// child finalizes itself brings everything alive into files of its own.
    fn become_child(&self, state: &mut State) {
        state.pid = std::process::id();
        state.forked_at = clock::monotonic();
        fork_gate::in_child();
        self.context.forget_map();
        self.images().begin_anew();
        for kind in SinkKind::ALL {
            let Some(sink) = &mut state.sinks[kind as usize] else { continue };
            state.inherits[kind as usize] |= sink.forked() == Forked::KnowsNothing;
        }
    }

    /// The process has become another user (`setuid(2)`): new files are made where that user may, and belong to them.
    fn become_user(&self, state: &mut State) {
        state.user = effective_user();
        self.images().begin_anew();
        for kind in SinkKind::ALL.into_iter().filter(|_| user_is_final()) {
            let Some(sink) = &mut state.sinks[kind as usize] else { continue };
            state.inherits[kind as usize] |= sink.user_changed() == Forked::KnowsNothing;
        }
        log_line!(Info, "the process runs as user {} from now on", state.user);
    }

    /// Before the first object of a child's own: brings what it has inherited into its files.
    fn notify_of_inherited(&self, state: &mut State) {
        for kind in SinkKind::ALL {
            if std::mem::take(&mut state.inherits[kind as usize]) {
                self.notify_of_everything(state, kind);
            }
        }
    }

    /// *loaded*: LLVM has placed an object in memory; `debug_object` is a copy of its debug object, and `kept_at` is where
    /// LLVM keeps its own until *freeing*, for sinks that are switched on later.
    ///
    /// # Errors
    /// What makes it unreadable. It is counted; nothing else is lost.
    pub fn loaded(&self, debug_object: Vec<u8>, kept_at: Option<AddressRange>) -> Result<Loaded, Error> {
        self.loaded_from(Origin::LlvmList { kept_at }, debug_object)
    }

    /// *loaded*, by an event source that says where the object comes from.
    ///
    /// # Errors
    /// As [`Session::loaded`].
    pub(crate) fn loaded_from(&self, origin: Origin, object: Vec<u8>) -> Result<Loaded, Error> {
        self.check_memory(object.len())?;
        let debug_object = DebugObject { copy: Some(object), kept_at: origin.kept_at() };
        let bytes = debug_object.copy.as_deref().unwrap_or_default();
        let object = LoadedObject::parse(bytes).inspect_err(|error| self.refuse(bytes.len(), error))?;
        let names = names(&object, bytes);
        let text: Vec<AddressRange> = object.text().iter().map(|text| text.range).collect();
        let eh_frame = object.eh_frame();
        let mut state = self.lock_here();
        if let Some(id) = state.same(&object, origin) {
            log_line!(Debug, "{id:?} is reported once more");
            if matches!(origin, Origin::LlvmList { .. }) {
                self.adopt_entry(&mut state, id);
            }
            return Ok(Loaded { id, text, eh_frame });
        }
        self.counters.objects_loaded.add(1);
        let id = ObjectId(state.next_id);
        state.next_id += 1;
        log_line!(Debug, "loaded {id:?}: {} functions, text {text:?}", object.functions().len());
        if origin.channel() == Channel::Api {
            state.reported.insert(id, false);
        }
        let (finalized, made_rules) = (None, Vec::new());
        let record = Record { origin, object, from_both: false, names, debug_object, finalized, made_rules };
        state.pending.extend(record.text_starts().map(|start| (start, id)));
        state.objects.insert(id, record);
        Ok(Loaded { id, text, eh_frame })
    }

    /// Counts an object that is not understood.
    pub(crate) fn refuse(&self, size: usize, error: &Error) {
        self.counters.objects_refused.add(1);
        log_line!(Warn, "an object of {size} bytes is not understood: {error}");
    }

    /// Whether there is memory to work on an object of that size; if not, it is counted, and logged the first time.
    ///
    /// # Errors
    /// That there is none.
    pub fn check_memory(&self, size: usize) -> Result<(), Error> {
        if allocator::is_there(size) {
            return Ok(());
        }
        self.counters.objects_refused.add(1);
        if !self.warned_of_memory.swap(true, Ordering::Relaxed) {
            log_line!(Error, "no memory: objects are not taken until there is some");
        }
        Err(Error::NoMemory { size })
    }

    /// *finalized*: the object's bytes are relocated and its code may run.
    pub fn finalized(&self, id: ObjectId) {
        let mut state = self.lock_here();
        if state.objects.get(&id).is_none_or(|record| record.finalized.is_some()) {
            return;
        }
        self.notify_of_inherited(&mut state);
        let pid = state.pid;
        let Some(record) = state.objects.get_mut(&id) else { return };
        if self.check_memory(record.debug_object.copy.as_ref().map_or(0, Vec::len)).is_err() {
            return self.free(&mut state, id);
        }
        record.finalized = Some(clock::monotonic());
        let ranges: Vec<AddressRange> = record.object.text().iter().map(|text| text.range).collect();
        let snapshot = CodeSnapshot::of(pid, &record.object);
        record.made_rules = self.count_unwindability(&record.object, &snapshot);
        // What was alive there before has been freed, whether that was reported or not.
        for stale in ranges.iter().flat_map(|&range| state.owners(range)).collect::<Vec<_>>() {
            self.free(&mut state, stale);
        }
        for range in ranges {
            state.text.insert(range.start().0, (range.end().0, id));
            state.pending.remove(&range.start().0);
        }
        self.counters.objects_finalized.add(1);
        log_line!(Debug, "finalized {id:?}");
        if let Some(record) = state.objects.get(&id) {
            observer::finalized(id, &record.object, &record.made_rules, &snapshot);
        }
        for kind in SinkKind::ALL {
            self.notify(&mut state, kind, id, &snapshot);
        }
        if let Some(record) = state.objects.get_mut(&id)
            && record.debug_object.kept_at.is_some()
        {
            record.debug_object.copy = None;
        }
    }

    /// *freeing*: the object's code is about to be freed; its memory is still there.
    pub fn freeing(&self, id: ObjectId) {
        let mut state = self.lock_here();
        self.free(&mut state, id);
    }

    /// LLVM has taken the object out of its list for debuggers, and will give its debug object up; the code stays. Call it while
    /// the debug object is there.
    pub fn unregistered(&self, id: ObjectId) {
        let mut state = self.lock_here();
        let Some(record) = state.objects.get_mut(&id) else { return };
        let kept_at = record.debug_object.kept_at.take();
        if record.debug_object.copy.is_none()
            && let Some(range) = kept_at.filter(|range| allocator::is_there(range.size() as usize))
        {
            record.debug_object.copy = checked_read::copy(range).ok();
        }
        log_line!(Debug, "unregistered {id:?}: alive until its memory goes");
    }

    /// Memory was reserved in front of code that is still to come; sinks may use it once that is *finalized*.
    pub fn reserve_header_padding(&self, padding: AddressRange) {
        self.lock().padding.insert(padding.end(), padding);
    }

    /// Takes back the memory in front of `code`, if some was reserved.
    pub fn take_header_padding(&self, code: Address) -> Option<AddressRange> {
        self.lock().padding.remove(&code)
    }

    /// What is in `range` may change from now on: its owner is about to make it writable, or to take the right to execute
    /// it, and has reported all that is *freeing* there. No image names it any more.
    pub fn changing(&self, range: AddressRange) {
        let state = self.lock();
        self.images().withdraw(range, &state.padding);
    }

    /// `range` is about to be unmapped.
    pub fn unmapping(&self, range: AddressRange) {
        let _state = self.lock();
        self.images().forget(range);
    }

    /// Must be called under the session's lock.
    fn images(&self) -> MutexGuard<'_, Images> {
        self.context.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `id` is one of the objects that are alive.
    pub fn is_alive(&self, id: ObjectId) -> bool {
        self.lock().objects.contains_key(&id)
    }

    fn free(&self, state: &mut State, id: ObjectId) {
        let Some(record) = state.objects.remove(&id) else { return };
        for start in record.text_starts() {
            if state.text.get(&start).is_some_and(|&(_, owner)| owner == id) {
                state.text.remove(&start);
            }
            if state.pending.get(&start) == Some(&id) {
                state.pending.remove(&start);
            }
        }
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

    fn notify_of_end(&self, state: &mut State, kind: SinkKind, id: ObjectId, record: &Record, snapshot: &CodeSnapshot) {
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        let gate = |_| Neighbours::default();
        let freed = record.as_finalized(id, None, &|_| None, &gate, &state.padding, snapshot);
        if let Err(error) = sink.freeing(&freed) {
            self.give_up(state, kind, &error);
        }
    }

    /// One sink need not know an object any more that lives on.
    fn notify_freeing(&self, state: &mut State, kind: SinkKind, id: ObjectId) {
        let Some(record) = state.objects.remove(&id) else { return };
        let snapshot = CodeSnapshot::of(state.pid, &record.object);
        self.notify_of_end(state, kind, id, &record, &snapshot);
        state.objects.insert(id, record);
    }

    /// Notifies `observer` of all code that is alive, and from now on of all that comes and goes. One observer in a process.
    pub fn observe(&self, observer: &'static dyn observer::CodeObserver) {
        let state = self.lock_here();
        observer::activate(observer);
        for (&id, record) in state.objects.iter().filter(|(_, record)| record.finalized.is_some()) {
            observer::finalized(id, &record.object, &record.made_rules, &CodeSnapshot::of(state.pid, &record.object));
        }
    }

    /// Ends that.
    pub fn stop_observing(&self) {
        let _state = self.lock();
        observer::deactivate();
    }

    /// Switches a sink on, and notifies it of everything that is alive. If it is on, nothing happens, except in the child of a
    /// fork: what it has inherited is written now.
    pub fn enable(&self, kind: SinkKind) {
        let mut state = self.lock_here();
        if std::mem::take(&mut state.inherits[kind as usize]) {
            self.notify_of_everything(&mut state, kind);
        } else if state.sinks[kind as usize].is_none() {
            // A map that is there by now may be ours, of an earlier time: it is not stale.
            state.sinks[kind as usize] = Some(sink::create(kind, &self.options, &self.context));
            self.notify_of_everything(&mut state, kind);
        }
    }

    /// Switches a sink off; its files are closed and stay.
    pub fn disable(&self, kind: SinkKind) {
        let mut state = self.lock();
        self.end(&mut state, kind);
        state.sinks[kind as usize] = None;
        state.inherits[kind as usize] = false;
    }

    /// The process exits: sinks write what they have kept. They stay on, because other threads may still compile.
    pub fn ending(&self) {
        // The lock is not waited for: its holder may be this very thread, whose signal handler exits.
        if let Ok(mut state) = self.state.try_lock()
            && state.pid == std::process::id()
        {
            SinkKind::ALL.into_iter().for_each(|kind| self.end(&mut state, kind));
        }
        crate::log::flush();
    }

    fn end(&self, state: &mut State, kind: SinkKind) {
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        match sink.ending() {
            Ok(bytes) => self.counters.sinks[kind as usize].bytes_written.add(bytes),
            Err(error) => self.give_up(state, kind, &error),
        }
    }

    /// Whether a sink is on: asked for, and not failed.
    pub fn is_enabled(&self, kind: SinkKind) -> bool {
        self.lock().sinks[kind as usize].is_some()
    }

    fn notify_of_everything(&self, state: &mut State, kind: SinkKind) {
        let finalized = state.objects.iter().filter_map(|(&id, record)| Some((record.finalized?, id)));
        let mut oldest_first: Vec<(u64, ObjectId)> = finalized.collect();
        oldest_first.sort_unstable();
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        sink.many_begin();
        for (_, id) in oldest_first {
            let Some(record) = state.objects.get(&id) else { continue };
            let snapshot = CodeSnapshot::of(state.pid, &record.object);
            self.notify(state, kind, id, &snapshot);
        }
        let Some(sink) = &mut state.sinks[kind as usize] else { return };
        match sink.many_end() {
            Ok(bytes) => self.counters.sinks[kind as usize].bytes_written.add(bytes),
            Err(error) => self.give_up(state, kind, &error),
        }
    }

    fn notify(&self, state: &mut State, kind: SinkKind, id: ObjectId, snapshot: &CodeSnapshot) {
        let &mut State { ref objects, ref text, ref pending, ref mut sinks, ref padding, forked_at, .. } = state;
        let (Some(sink), Some(record)) = (&mut sinks[kind as usize], objects.get(&id)) else { return };
        let debug_object = sink.wants_debug_object().then(|| record.debug_object.bytes(&record.object)).flatten();
        let next_code = |from: Address| {
            let next =
                [text.range(from.0..).next().map(|next| *next.0), pending.range(from.0..).next().map(|next| *next.0)];
            next.into_iter().flatten().min().map(Address)
        };
        let neighbours = |range: AddressRange| neighbours(objects, text, pending, range);
        let mut finalized =
            record.as_finalized(id, debug_object.as_deref(), &next_code, &neighbours, padding, snapshot);
        // Before the fork there was no such process.
        finalized.since = finalized.since.max(forked_at);
        match sink.finalized(&finalized) {
            Ok(bytes) => self.counters.sinks[kind as usize].bytes_written.add(bytes),
            Err(error) => self.give_up(state, kind, &error),
        }
    }

    fn give_up(&self, state: &mut State, kind: SinkKind, error: &SinkError) {
        state.sinks[kind as usize] = None;
        state.inherits[kind as usize] = false;
        self.counters.sinks[kind as usize].failures.add(1);
        log_line!(Error, "the {} sink stops: {error}", kind.name());
    }

    /// Counts what the code lacks for stack walkers, and returns the rules that can be made up for it.
    fn count_unwindability(&self, object: &LoadedObject, snapshot: &CodeSnapshot) -> Vec<FunctionRules> {
        let shape = unwindability::Unwindability::of(object, snapshot);
        self.counters.functions.add(object.functions().len() as u64);
        self.counters.functions_without_frame_pointer.add(shape.without_frame_pointer);
        self.counters.functions_without_unwind_table.add(shape.without_unwind_table);
        if shape.without_frame_pointer > 0 && self.options.frame_pointer_policy == FramePointerPolicy::FramePointers {
            self.counters.objects_without_frame_pointers.add(1);
            let first = object.functions().first().map_or("?", |function| &function.linkage_name);
            log_line!(Info, "{} functions beside {first} keep no frame pointer", shape.without_frame_pointer);
            if !self.warned_of_frame_pointers.swap(true, Ordering::Relaxed) {
                log_line!(
                    Warn,
                    "code without frame pointers was loaded: from a cache written without jitlisten, compiled before it came, or by an \
                     LLVM whose modules jitlisten does not reach"
                );
            }
        }
        shape.made_rules
    }

    /// Libraries have come, or may have: what is alive is registered with unwinders in them. Cheap when none has. Must not be called
    /// under a lock that another thread waits for inside the loader.
    pub fn libraries_changed(&self) -> Unwinders {
        if self.counters.objects_loaded.get() == 0 || !self.is_enabled(SinkKind::Unwind) {
            return Unwinders::NotWanted;
        }
        fork_gate::look(sink::look_for_unwinders).unwrap_or(Unwinders::Unrelocated)
    }

    /// Debuggers that read our list, and no other, find this one there: the list of an LLVM, by the address of its first entry.
    pub fn show_to_debuggers(&self, first_entry: u64) {
        sink::show_list_of(first_entry);
    }

    /// Takes the session's lock across `fork(2)`; call it in the `prepare` handler of `pthread_atfork`.
    pub fn lock_for_fork(&'static self) -> ForkGuard {
        let _gate = fork_gate::ClosedGate::close();
        let state = self.lock();
        ForkGuard { session: self, state, log: crate::log::lock_for_fork(), _gate }
    }
}

/// The session's lock, held by the thread that forks, in the parent and then in the child too. Dropping it is all a parent
/// has to do.
pub struct ForkGuard {
    session: &'static Session,
    state: MutexGuard<'static, State>,
    log: crate::log::QueueGuard,
    _gate: fork_gate::ClosedGate,
}

impl ForkGuard {
    /// In the child: its files are its own from now on.
    pub fn in_child(self) {
        let ForkGuard { session, mut state, log, _gate } = self;
        drop(log);
        session.become_child(&mut state);
    }
}

impl State {
    /// The finalized objects that have a byte in `range`.
    fn owners(&self, range: AddressRange) -> Vec<ObjectId> {
        let (start, end) = (range.start().0, range.end().0);
        let below = self.text.range(..end).rev();
        below.take_while(|(_, (text_end, _))| *text_end > start).map(|(_, &(_, owner))| owner).collect()
    }
}

/// All objects that have text in `range`.
fn neighbours<'a>(
    objects: &'a BTreeMap<ObjectId, Record>,
    text: &BTreeMap<u64, (u64, ObjectId)>,
    pending: &BTreeMap<u64, ObjectId>,
    range: AddressRange,
) -> Neighbours<'a> {
    let (start, end) = (range.start().0, range.end().0);
    let mut ids: Vec<ObjectId> =
        text.range(..end).rev().take_while(|(_, (text_end, _))| *text_end > start).map(|(_, (_, id))| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    let record = |id: ObjectId| Some((id, objects.get(&id)?));
    let neighbour = |(id, record): (ObjectId, &'a Record)| Neighbour {
        id,
        object: &record.object,
        names: &record.names,
        made_rules: &record.made_rules,
        debug_object: &record.debug_object,
    };
    let has_text = |record: &Record| record.object.text().iter().any(|text| text.range.overlaps(range));
    let last_pending = pending.range(..end).next_back().and_then(|(_, id)| objects.get(id));
    Neighbours {
        finalized: ids.into_iter().filter_map(record).map(neighbour).collect(),
        unfinished: last_pending.is_some_and(has_text),
    }
}

fn names(object: &LoadedObject, debug_object: &[u8]) -> Vec<ReadableName> {
    let functions = object.functions().iter();
    let wanted = object.has_lines() && functions.clone().any(|function| name::wants_location(&function.linkage_name));
    let rows = wanted.then(|| LineRows::parse(debug_object).ok()).flatten().unwrap_or_default();
    let mut reader = name::Reader::default();
    functions.map(|function| reader.readable(&function.linkage_name, rows.find(function.range.start()))).collect()
}
