//! Real debug objects with known contents.

use jitlisten::{Address, LineRows, LoadedObject, Machine};

fn read(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"))).expect("the object is in the repository")
}

fn all_objects() -> Vec<(String, Vec<u8>)> {
    let directory = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata")).expect("a directory");
    let names = directory.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"));
    names.filter(|name| name.ends_with(".o")).map(|name| (name.clone(), read(&name))).collect()
}

/// Functions as text: name, section and offset, size, aliases.
fn functions(object: &LoadedObject) -> Vec<String> {
    let location = |address: Address| {
        let text = object.text().iter().find(|text| text.range.contains(address)).expect("functions are in text");
        format!("{}+{:#x}", text.section, address.0 - text.range.start().0)
    };
    let functions = object.functions().iter();
    functions
        .map(|f| {
            let name = jitlisten::name::readable(&f.linkage_name, None).text;
            format!("{} {} {} {:?}", name, location(f.range.start()), f.range.size(), f.aliases)
        })
        .collect()
}

/// File and line of the first function whose name contains `function`.
fn line_of(name: &str, function: &str) -> Option<(String, u32)> {
    let bytes = read(name);
    let (object, rows) = (LoadedObject::parse(&bytes).expect("an object"), LineRows::parse(&bytes).expect("lines"));
    let function = object.functions().iter().find(|f| f.linkage_name.contains(function)).expect("the function");
    rows.find(function.range.start()).map(|(file, line)| (file.to_owned(), line))
}

#[test]
fn a_c_program_in_two_sections() {
    let object = LoadedObject::parse(&read("lli-22-mcjit-dwarf5-large.o")).expect("an object");
    assert_eq!(object.machine(), Machine::X86_64);
    assert_eq!(
        functions(&object),
        [
            "gamma_ .ltext+0x0 26 []",
            "alpha_alias .ltext+0x20 18 [\"alpha\"]",
            "beta .ltext+0x40 59 []",
            "main .ltext+0x80 17 []",
            "tail .text.hot+0x0 12 []",
        ]
    );
    assert!(object.eh_frame().is_some());
}

#[test]
fn numba_before_and_after_the_large_sections() {
    let versions = [("numba-0.56-llvm11-plain.o", ".text"), ("numba-0.57-llvm14-plain.o", ".text")];
    for (name, section) in versions.into_iter().chain([("numba-0.68-llvm22-plain.o", ".ltext")]) {
        let object = LoadedObject::parse(&read(name)).expect("an object");
        assert_eq!(object.text().len(), 1, "{name}");
        assert_eq!(&*object.text()[0].section, section, "{name}");
        let names = functions(&object).join("\n");
        for wanted in ["__main__.outer(float64, int64) [v1] ", "cpython::__main__.outer(", "cfunc::__main__.outer("] {
            assert!(names.contains(wanted), "{name}: {wanted} in\n{names}");
        }
        assert_eq!(LineRows::parse(&read(name)).expect("no lines"), LineRows::default());
    }
}

#[test]
fn an_object_without_text_is_no_error() {
    let object = LoadedObject::parse(&read("numba-0.68-llvm22-empty.o")).expect("an object");
    assert!(object.text().is_empty() && object.functions().is_empty() && object.eh_frame().is_none());
}

/// One program, compiled by every LLVM from 12 on that was available.
#[test]
fn every_llvm_says_the_same() {
    let mut object_count = 0;
    for (name, bytes) in all_objects().into_iter().filter(|(name, _)| !name.starts_with("numba-")) {
        let object = LoadedObject::parse(&bytes).expect("an object");
        let names: Vec<&str> = object.functions().iter().map(|function| &*function.linkage_name).collect();
        assert_eq!(names, ["gamma_", "alpha_alias", "beta", "main", "tail"], "{name}");
        assert!(object.eh_frame().is_some(), "{name}");
        if name.contains("dwarf") {
            for (function, line) in [("gamma_", 3), ("tail", 11), ("main", 12)] {
                let (file, actual_line) = line_of(&name, function).unwrap_or_else(|| panic!("{name}: {function}"));
                assert!(
                    file.starts_with("/src/") && file.ends_with("chain.c") && actual_line == line,
                    "{name}: {file}:{actual_line}"
                );
            }
        }
        object_count += 1;
    }
    assert!(object_count >= 19, "{object_count}");
}

#[test]
fn mapping_symbols_of_aarch64_are_no_functions() {
    let object = LoadedObject::parse(&read("clang-22-aarch64-dwarf5.o")).expect("an object");
    assert_eq!(object.machine(), Machine::Aarch64);
    let names: Vec<&str> = object.functions().iter().map(|f| &*f.linkage_name).collect();
    assert_eq!(names, ["gamma_", "alpha_alias", "beta", "main", "tail"]);
}

#[test]
fn lines_have_full_file_names() {
    let at_line = |line| Some(("/src/chain/chain.c".to_owned(), line));
    for object in ["lli-14-mcjit-dwarf4.o", "lli-22-mcjit-dwarf5-large.o", "lli-22-jitlink-dwarf5.o"] {
        assert_eq!(line_of(object, "gamma_"), at_line(3), "{object}");
        assert_eq!(line_of(object, "tail"), at_line(11), "{object}");
        assert_eq!(line_of(object, "main"), at_line(12), "{object}");
    }
    assert_eq!(line_of("clang-22-aarch64-dwarf5.o", "tail"), at_line(11));
    // Line 5 also has a row but no instruction, because its loop was hoisted to the start of the function.
    let python = Some(("/home/user/prog.py".to_owned(), 7));
    assert_eq!(line_of("numba-0.60-llvm14-dwarf4.o", "_ZN8__main__5inner"), python);
    assert_eq!(line_of("numba-0.68-llvm22-dwarf4.o", "_ZN8__main__5inner"), python);
}

/// Numba compiles kernels from generated source text; their line numbers refer to that text.
#[test]
fn a_kernel_has_lines_of_no_file() {
    let (file, _) = line_of("numba-0.68-llvm22-kernel-dwarf4.o", "_ZN13_3cdynamic_3e36").expect("lines");
    assert_eq!(file, "<string>");
}

#[test]
fn rows_are_sorted_and_every_sequence_ends() {
    for (name, bytes) in all_objects() {
        let object = LoadedObject::parse(&bytes).expect("an object");
        let lines = LineRows::parse(&bytes).expect("lines");
        let rows = lines.rows();
        assert!(rows.is_sorted_by_key(|row| row.address), "{name}");
        assert!(rows.last().is_none_or(|row| row.end_sequence), "{name}");
        assert!(rows.iter().all(|row| lines.file(row.file).is_some()), "{name}");
        let covered = object.text().iter().any(|text| rows.iter().any(|row| text.range.contains(row.address)));
        assert_eq!(covered, name.contains("dwarf"), "{name}");
    }
}
