//! Lifetime tests for the Rust integrations: engines and listeners are created and dropped in every order, and the
//! session's counters are checked.
//!
//! Requires LLVM: `cargo test -p jitlisten-llvm --test lifetimes --features llvm22-1,inkwell/llvm22-1-prefer-dynamic`.

#![cfg(feature = "_llvm")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::targets::{InitializationConfig, Target};
use jitlisten::Session;
use jitlisten_llvm::inkwell as producer;

type IdentityFunction = unsafe extern "C" fn(i64) -> i64;

/// Runs one test at a time, because all tests share the session of the process.
fn lock_session() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    Target::initialize_native(&InitializationConfig::default()).unwrap();
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts of objects loaded, finalized and freed.
fn object_counts() -> [u64; 3] {
    let statistics = Session::process().expect("an integration has opened it").statistics();
    [statistics.objects_loaded, statistics.objects_finalized, statistics.objects_freed]
}

fn counts_since(before: [u64; 3]) -> [u64; 3] {
    let current = object_counts();
    std::array::from_fn(|index| current[index] - before[index])
}

fn identity(context: &Context) -> Module<'_> {
    let module = context.create_module("identity");
    let long = context.i64_type();
    let function = module.add_function("identity", long.fn_type(&[long.into()], false), None);
    let builder = context.create_builder();
    builder.position_at_end(context.append_basic_block(function, "entry"));
    builder.build_return(Some(&function.get_nth_param(0).unwrap())).unwrap();
    producer::make_unwindable(&module);
    module
}

#[test]
fn an_engine_of_ours_says_everything_itself() {
    let _lock = lock_session();
    let context = Context::create();
    let module = identity(&context);
    let before = object_counts();
    let (engine, listener) = producer::create_engine(&module, OptimizationLevel::Default).unwrap();
    // SAFETY: `identity` has this signature.
    let result = unsafe { engine.get_function::<IdentityFunction>("identity").unwrap().call(7) };
    assert_eq!((result, counts_since(before)), (7, [1, 1, 0]));
    drop((module, engine));
    assert_eq!(counts_since(before), [1, 1, 1]);
    // The listener outlives its engine.
    listener.finalized();
    assert_eq!(counts_since(before), [1, 1, 1]);
}

#[test]
fn another_engine_is_discovered_and_code_is_final_when_reported() {
    let _lock = lock_session();
    let context = Context::create();
    let module = identity(&context);
    let before = object_counts();
    let engine = module.create_jit_execution_engine(OptimizationLevel::None).unwrap();
    let listener = producer::attach(&engine);
    assert_eq!(producer::attach(&engine), listener, "a second time changes nothing");
    engine.get_function_address("identity").unwrap();
    assert_eq!(counts_since(before), [1, 0, 0]);
    listener.finalized();
    listener.finalized();
    assert_eq!(counts_since(before), [1, 1, 0]);
    drop((module, engine));
    assert_eq!(counts_since(before), [1, 1, 1]);
}

#[test]
fn a_listener_may_go_before_its_engine() {
    let _lock = lock_session();
    let context = Context::create();
    let module = identity(&context);
    let before = object_counts();
    let (engine, listener) = producer::create_engine(&module, OptimizationLevel::None).unwrap();
    drop(Box::new(listener));
    engine.get_function_address("identity").unwrap();
    assert_eq!(counts_since(before), [1, 1, 0]);
    drop((module, engine));
    assert_eq!(counts_since(before), [1, 1, 1]);
}

#[test]
fn many_engines_one_after_the_other_leave_nothing() {
    let _lock = lock_session();
    let context = Context::create();
    let before = {
        identity(&context);
        object_counts()
    };
    for _ in 0..20 {
        let module = identity(&context);
        let (engine, _) = producer::create_engine(&module, OptimizationLevel::None).unwrap();
        engine.get_function_address("identity").unwrap();
    }
    assert_eq!(counts_since(before), [20, 20, 20]);
}

/// Engines in two threads share one session.
#[test]
fn engines_in_threads_are_distinguished() {
    let _lock = lock_session();
    let before = {
        identity(&Context::create());
        object_counts()
    };
    let in_thread = || {
        let context = Context::create();
        for _ in 0..10 {
            let module = identity(&context);
            let engine = module.create_jit_execution_engine(OptimizationLevel::None).unwrap();
            let listener = producer::attach(&engine);
            engine.get_function_address("identity").unwrap();
            listener.finalized();
        }
    };
    let threads = [(); 2].map(|()| std::thread::spawn(in_thread));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(counts_since(before), [20, 20, 20]);
}
