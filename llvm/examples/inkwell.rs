//! Compiler built on inkwell, visible to perf, gdb and unwinders.
//!
//! ```text
//! cargo build --release -p jitlisten-llvm --example inkwell --features llvm22-1,inkwell/llvm22-1-prefer-dynamic
//! perf record -g target/release/examples/inkwell 2     # seconds of CPU time
//! perf report                                          # alpha, beta and gamma, with their callers
//! ```
//!
//! With `timer` after the seconds, SIGVTALRM is raised while `gamma` runs, so that a debugger stops there. With
//! `attach`, inkwell alone creates the engine, and the listener is attached to it later.

// Examples may print.
#![allow(clippy::disallowed_methods, reason = "a program of its own")]
#![allow(clippy::print_stdout)]

use inkwell::OptimizationLevel;
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::targets::{InitializationConfig, Target};
use inkwell::values::{FloatValue, FunctionValue};
use inkwell::{FloatPredicate, IntPredicate};
use jitlisten_llvm::inkwell as producer;

type Chain = unsafe extern "C" fn(i64, f64) -> f64;
const LOOP: i64 = 2_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds: f64 = arguments.first().map_or(Ok(1.0), |argument| argument.parse())?;
    Target::initialize_native(&InitializationConfig::default())?;
    let context = Context::create();
    let module = chain(&context)?;

    // Enable frame pointers and unwind tables before any code is generated.
    producer::make_unwindable(&module);
    let (engine, listener) = if arguments.iter().any(|argument| argument == "attach") {
        let engine = module.create_jit_execution_engine(OptimizationLevel::Default)?;
        let listener = producer::attach(&engine);
        (engine, listener)
    } else {
        producer::create_engine(&module, OptimizationLevel::Default)?
    };
    // SAFETY: `chain` built the function with this signature.
    let alpha = unsafe { engine.get_function::<Chain>("alpha")? };
    // Needed after `attach`, whenever code has been finalized; redundant after `create_engine`.
    listener.finalized();

    // SAFETY: `chain` built the function with this signature.
    println!("{}\nrunning", unsafe { alpha.call(10, 1.0) });
    if arguments.iter().any(|argument| argument == "timer") {
        raise_sigvtalrm_soon();
    }
    let deadline = cpu_time() + seconds;
    let mut result = 1.0;
    while cpu_time() < deadline {
        // SAFETY: `chain` built the function with this signature.
        result = unsafe { alpha.call(LOOP, 1.0) };
    }
    println!("{result}");
    Ok(())
}

/// Builds the chain `alpha` -> `beta` -> `gamma`; `gamma` uses nearly all of the time.
fn chain(context: &Context) -> Result<Module<'_>, BuilderError> {
    let module = context.create_module("chain");
    let builder = context.create_builder();
    let gamma = hot_loop(context, &module, &builder)?;
    let beta = caller(context, &module, &builder, "beta", gamma)?;
    caller(context, &module, &builder, "alpha", beta)?;
    Ok(module)
}

/// Declares a function `double name(i64 n, double x)` that LLVM must not inline.
fn declare<'ctx>(context: &'ctx Context, module: &Module<'ctx>, name: &str) -> FunctionValue<'ctx> {
    let (n, x) = (context.i64_type(), context.f64_type());
    let function = module.add_function(name, x.fn_type(&[n.into(), x.into()], false), None);
    let noinline = inkwell::attributes::Attribute::get_named_enum_kind_id("noinline");
    let attribute = context.create_enum_attribute(noinline, 0);
    function.add_attribute(inkwell::attributes::AttributeLoc::Function, attribute);
    function
}

fn caller<'ctx>(
    context: &'ctx Context,
    module: &Module<'ctx>,
    builder: &Builder<'ctx>,
    name: &str,
    callee: FunctionValue<'ctx>,
) -> Result<FunctionValue<'ctx>, BuilderError> {
    let function = declare(context, module, name);
    builder.position_at_end(context.append_basic_block(function, "entry"));
    let arguments: Vec<_> = function.get_param_iter().map(Into::into).collect();
    let result = builder.build_call(callee, &arguments, "called")?.try_as_basic_value().unwrap_basic();
    // Code after the call prevents a tail call.
    let doubled = builder.build_float_mul(result.into_float_value(), context.f64_type().const_float(2.0), "twice")?;
    builder.build_return(Some(&doubled))?;
    Ok(function)
}

/// Builds `for _ in 0..n { x = x * 0.75 + 1 / (x * x + 1) }`.
fn hot_loop<'ctx>(
    context: &'ctx Context,
    module: &Module<'ctx>,
    builder: &Builder<'ctx>,
) -> Result<FunctionValue<'ctx>, BuilderError> {
    let (i64_type, f64_type) = (context.i64_type(), context.f64_type());
    let function = declare(context, module, "gamma");
    let [entry, body, out] = ["entry", "body", "out"].map(|name| context.append_basic_block(function, name));
    let (n, x) = (function.get_nth_param(0).expect("n"), function.get_nth_param(1).expect("x"));
    builder.position_at_end(entry);
    builder.build_unconditional_branch(body)?;

    builder.position_at_end(body);
    let (i, x_now) = (builder.build_phi(i64_type, "i")?, builder.build_phi(f64_type, "x")?);
    let next_x = step(f64_type.const_float(1.0), builder, x_now.as_basic_value().into_float_value())?;
    let next_i = builder.build_int_add(i.as_basic_value().into_int_value(), i64_type.const_int(1, false), "next")?;
    i.add_incoming(&[(&i64_type.const_zero(), entry), (&next_i, body)]);
    x_now.add_incoming(&[(&x, entry), (&next_x, body)]);
    let done = builder.build_int_compare(IntPredicate::UGE, next_i, n.into_int_value(), "done")?;
    builder.build_conditional_branch(done, out, body)?;

    builder.position_at_end(out);
    // Return 0 instead of NaN, which would mean that the loop is wrong.
    let ordered = builder.build_float_compare(FloatPredicate::ORD, next_x, next_x, "ordered")?;
    let result = builder.build_select(ordered, next_x, f64_type.const_zero(), "result")?;
    builder.build_return(Some(&result))?;
    Ok(function)
}

fn step<'ctx>(
    one: FloatValue<'ctx>,
    builder: &Builder<'ctx>,
    x: FloatValue<'ctx>,
) -> Result<FloatValue<'ctx>, BuilderError> {
    let square = builder.build_float_mul(x, x, "square")?;
    let inverse = builder.build_float_div(one, builder.build_float_add(square, one, "more")?, "inverse")?;
    let scaled = builder.build_float_mul(x, one.get_type().const_float(0.75), "less")?;
    builder.build_float_add(scaled, inverse, "next_x")
}

/// CPU time of this process in seconds.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn raise_sigvtalrm_soon() {
    let half_second = libc::timeval { tv_sec: 0, tv_usec: 500_000 };
    let timer = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: half_second };
    // SAFETY: the structure is initialised, and the old value is not requested.
    unsafe { libc::setitimer(libc::ITIMER_VIRTUAL, &raw const timer, std::ptr::null_mut()) };
}
