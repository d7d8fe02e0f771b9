//! What the commands say of a data folder, and whether they agree.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::{Ended, program, run};

pub(crate) fn check_no_panic(what: &str, ended: &Ended) {
    for word in ["panicked", "stack backtrace"] {
        assert!(!ended.text().contains(word), "{what}: {}", ended.text());
    }
}

/// The commands that look. None panics, and a backup is whole where the doctor is content. What the doctor says,
/// where it found something broken.
pub(crate) fn look(what: &str, data: &Path) -> Option<String> {
    let text = data.to_str().unwrap();
    let doctor = run(doctor_of(text));
    check_no_panic(what, &doctor);
    let copied = data.with_extension("backup");
    let copied = copied.to_str().unwrap();
    let backup = run(program(&["backup", copied, "--data", text]));
    check_no_panic(what, &backup);
    match backup.code {
        Some(0) => {
            let whole = run(program(&["restore", copied, "--check"]));
            assert_eq!(whole.code, Some(0), "{what}: {}", whole.text());
        }
        _ => assert!(
            backup.sentence().contains(';'),
            "{what}: it names no remedy: {backup:?}"
        ),
    }
    let is_broken = doctor.code == Some(3);
    if is_broken && backup.code == Some(0) {
        // An index may be damaged, which a backup makes anew: then it is sound once it is restored.
        check_restored(what, copied, data);
    } else {
        assert_eq!(
            is_broken,
            backup.code != Some(0),
            "{what}: {}\n{}",
            doctor.text(),
            backup.text()
        );
    }
    is_broken.then(|| doctor.text())
}

/// The doctor, of a port that nobody else has.
fn doctor_of(data: &str) -> Command {
    let mut command = program(&["doctor", "--data", data]);
    command.env("HONE__HTTP__BIND", "127.0.0.1:0");
    command
}

/// A backup of what the doctor finds broken is sound in the place of a data folder.
fn check_restored(what: &str, backup: &str, data: &Path) {
    let folder = data.with_extension("restored");
    let text = folder.to_str().unwrap();
    let restored = run(program(&["restore", backup, "--data", text]));
    assert_eq!(restored.code, Some(0), "{what}: {}", restored.text());
    let doctor = run(doctor_of(text));
    assert_ne!(doctor.code, Some(3), "{what}: {}", doctor.text());
    fs::remove_dir_all(folder).unwrap();
}
