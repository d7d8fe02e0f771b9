//! What the tests share.

use std::time::Duration;

use hone_tools::{
    Bubblewrap, Command, Executor, GuestProgram, Jail, JailSpec, PlainProcess, ToolResult,
};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn guest() -> GuestProgram {
    GuestProgram {
        path: std::env::var_os("HONE_TEST_GUEST")
            .unwrap_or_else(|| env!("CARGO_BIN_EXE_hone-guest").into())
            .into(),
        arguments: Vec::new(),
    }
}

pub(crate) fn bubblewrap() -> Bubblewrap {
    Bubblewrap::new(guest()).unwrap()
}

/// Both kinds of executors: what holds for one holds for the other.
pub(crate) fn executors() -> Vec<Box<dyn Executor>> {
    vec![
        Box::new(bubblewrap()),
        Box::new(bubblewrap().without_cgroups()),
        Box::new(PlainProcess::without_isolation(guest()).unwrap()),
    ]
}

/// Small limits, so that reaching one is quick.
pub(crate) fn small() -> JailSpec {
    JailSpec {
        work_folder: "/app".into(),
        memory_bytes: 256 * MIB,
        processes: 64,
        disk_bytes: 16 * MIB,
        file_bytes: 64 * MIB,
        wall_ms: 120_000,
        ..JailSpec::default()
    }
}

/// A command that must end soon.
pub(crate) fn line(line: impl Into<String>) -> Command {
    Command::shell(line).timeout(Duration::from_secs(20))
}

pub(crate) async fn run(jail: &dyn Jail, text: impl Into<String>) -> ToolResult {
    jail.exec(line(text)).await
}

/// What a command that must succeed wrote.
pub(crate) async fn said(jail: &dyn Jail, text: impl Into<String>) -> String {
    let result = run(jail, text).await;
    assert_eq!(result.exit, Some(0), "{result:?} {}", result.stderr.text());
    result.stdout.text()
}

/// A Python program with what attacks need at hand.
pub(crate) fn python(text: &str) -> Command {
    let begin =
        "import ctypes, errno, os, socket, sys, time\nlibc = ctypes.CDLL(None, use_errno=True)\n";
    let text = format!("{begin}{text}\n");
    Command::argv(["python3", "-c", &text]).timeout(Duration::from_secs(30))
}
