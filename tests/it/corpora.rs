//! Goes through what fuzzing kept: every file of `tests/fuzz/corpus` is parsed again, on any toolchain.

use std::path::Path;

use hone_tests::parsers::PARSERS;

#[test]
fn every_kept_input_is_parsed_or_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (name, parse) in PARSERS {
        let folder = root.join(name);
        let files = std::fs::read_dir(&folder).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 3, "{} is nearly empty", folder.display());
        for file in files {
            let data = std::fs::read(&file).unwrap();
            let parsed = std::panic::catch_unwind(|| parse(&data));
            assert!(parsed.is_ok(), "{} breaks a promise", file.display());
        }
    }
}
