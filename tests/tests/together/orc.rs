//! llvmlite's ORC entry points. With JITLink, llvmlite registers no object with debuggers. The library detects objects
//! when they are passed to the linker, through a vtable that only the file's symbols reveal, because the wheels are
//! built without RTTI.

use jitlisten_tests::host::{self, Host, Preload};
use jitlisten_tests::scenario::{self, Verdict};
use jitlisten_tests::{gdb, integration, machine_code, perf};

const VENVS: [&str; 2] = ["numba-0.68.1", "numba-0.60.0"];

fn host(venv: &str, linker: &str, seconds: &str) -> Option<Host> {
    Some(integration::numba(venv, "orc.py")?.argument(seconds).argument(linker))
}

/// Returns true if `gamma`, whose first bytes the host prints, keeps a frame pointer.
fn keeps_frame_pointer(stderr: &str) -> bool {
    machine_code::keeps_frame_pointer(&machine_code::from_hex(stderr.trim()))
}

fn check_frame_pointer(linker: &str) {
    for venv in VENVS {
        let Some(host) = host(venv, linker, "0") else { continue };
        let stock = host.run(Preload::Nothing).expect_success();
        assert!(!keeps_frame_pointer(&stock.stderr), "stock code has a frame pointer already: this proves nothing");
        let preloaded = host.run(Preload::Library).expect_success();
        assert!(keeps_frame_pointer(&preloaded.stderr), "{venv}: no frame pointer: {}", preloaded.stderr);
        assert_eq!(stock.stdout, preloaded.stdout);
    }
}

#[test]
fn rtdyld_code_gets_a_frame_pointer() {
    check_frame_pointer("rtdyld");
}

#[test]
fn jitlink_code_gets_a_frame_pointer() {
    check_frame_pointer("jitlink");
}

/// With JITLink, LLVM's GDB JIT list stays empty.
#[test]
fn gdb_names_jitlink_code_and_its_callers() {
    for venv in VENVS {
        let (Some(()), Some(host)) = (gdb::is_available(), host(venv, "jitlink", "100")) else { continue };
        let host = host.variable("JITLISTEN", "perfmap,gdb");
        let mut running = host.start(Preload::Library);
        running.wait_for_line("running");
        let session = gdb::attach_in("gamma", &running);
        let frames = &session.backtrace.frames;
        let is_chain = frames.len() > 3
            && scenario::CHAIN.iter().zip(frames).all(|(name, frame)| scenario::names_function(frame, name));
        assert!(is_chain && frames[3].contains("libffi"), "{venv}: {}", session.output);
    }
}

/// GHC's calling convention on x86-64 passes an argument in the frame-pointer register.
#[test]
fn functions_that_need_the_frame_pointer_register_have_it() {
    for venv in VENVS {
        let Some(host) = integration::numba(venv, "conventions.py").filter(|_| cfg!(target_arch = "x86_64")) else {
            continue;
        };
        let outcome = host::assert_same_output(&host).expect_success();
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), "3003\n3003\n");
    }
}

#[test]
fn rtdyld_code_is_named_and_complete() {
    check_names_and_stacks("rtdyld");
}

#[test]
fn jitlink_code_is_named_and_complete() {
    check_names_and_stacks("jitlink");
}

fn check_names_and_stacks(linker: &str) {
    for venv in VENVS {
        let (Some(()), Some(host)) = (perf::is_available(), host(venv, linker, "2")) else { continue };
        let recording = perf::record(&host, Preload::Library);
        scenario::assert_samples_named(&recording.samples, &recording.perf_map(), "gamma");
        Verdict::from_samples(&recording.samples, "libffi").assert_complete();
    }
}
