//! What is left when jails are gone. In a process of its own, because it counts what this process has.
#![allow(clippy::unwrap_used)]

#[path = "../jails/support.rs"]
#[allow(dead_code)]
mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hone_tools::{Executor, JailSpec, PlainProcess};

use support::{bubblewrap, guest, line, run, said, small};

/// Everything of a jail that this machine could keep.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    children: Vec<String>,
    descriptors: usize,
    mounts: BTreeSet<String>,
    groups: Vec<String>,
    folders: Vec<String>,
}

fn list(folder: &str, with: impl Fn(&str) -> bool) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|n| with(n)).collect()
}

fn groups_of(pid: u32) -> Vec<String> {
    let mark = format!("hone-jail-{pid}-");
    let found = Command::new("find")
        .args(["/sys/fs/cgroup", "-name", &format!("{mark}*")])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    text.lines().map(str::to_owned).collect()
}

fn left() -> Left {
    let me = std::process::id();
    let children = list("/proc/self/task", |_| true)
        .into_iter()
        .flat_map(|task| {
            let read = std::fs::read_to_string(format!("/proc/self/task/{task}/children"));
            let read = read.unwrap_or_default();
            read.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        });
    let temporary = std::env::temp_dir();
    Left {
        children: children.collect(),
        descriptors: list("/proc/self/fd", |_| true).len(),
        mounts: std::fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect(),
        groups: groups_of(me),
        folders: list(temporary.to_str().unwrap(), |n| {
            n.starts_with(&format!("hone-jails-{me}-")) || n.starts_with("hone-work-")
        }),
    }
}

fn with_files() -> JailSpec {
    let from = tempfile::tempdir().unwrap();
    std::fs::write(from.path().join("f"), "x").unwrap();
    let folder = hone_tools::archive::open_folder(from.path()).unwrap();
    let bounds = hone_tools::archive::Bounds::of(1 << 20);
    let tar = hone_tools::archive::pack(&folder, &bounds, |_, _| true, Vec::new()).unwrap();
    JailSpec {
        files: hone_tools::Files::Tar(tar.into()),
        ..small()
    }
}

/// Jails that are opened, used and closed; `HONE_JAILS` says how many.
#[tokio::test]
async fn many_jails_leave_nothing_behind() {
    let count = std::env::var("HONE_JAILS")
        .ok()
        .and_then(|n| n.parse().ok());
    let executor = bubblewrap();
    let plain = PlainProcess::without_isolation(guest()).unwrap();
    let spec = with_files();
    let mut before = None;
    for i in 0..count.unwrap_or(300_u32) {
        let jail = if i % 10 == 9 {
            plain.open(&spec).await.unwrap()
        } else {
            executor.open(&spec).await.unwrap()
        };
        assert_eq!(
            said(&*jail, "(setsid sleep 900 &) >/dev/null 2>&1; cat f").await,
            "x"
        );
        match i % 3 {
            0 => drop(jail),
            _ => jail.close().await,
        }
        if i == 30 {
            // Now everything was used once.
            before = Some(settled(None).await);
        }
    }
    open_and_go_away(&executor, &spec).await;
    open_and_go_away(&plain, &spec).await;
    settled(before).await;
}

/// Callers that go away while their jail opens.
async fn open_and_go_away(executor: &dyn Executor, spec: &JailSpec) {
    for half_ms in 0..40_u64 {
        let wait = Duration::from_micros(half_ms * 500);
        let _ = tokio::time::timeout(wait, executor.open(spec)).await;
    }
}

/// What is left once nothing changes any more; `before`, if it is given.
async fn settled(before: Option<Left>) -> Left {
    let begin = Instant::now();
    loop {
        let now = left();
        let same = before.as_ref().is_none_or(|before| *before == now);
        if same && now.children.is_empty() && now.groups.is_empty() {
            return now;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{now:?} is not {before:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Holds jails until its process is killed, when it is told to; otherwise it closes them.
#[tokio::test]
async fn jails_are_held_and_closed() {
    let executor = bubblewrap();
    let jail = executor.open(&small()).await.unwrap();
    let mark = std::env::var("HONE_MARK").unwrap_or_else(|_| "901".to_owned());
    said(
        &*jail,
        format!("(setsid sleep {mark} &) >/dev/null 2>&1; echo"),
    )
    .await;
    println!("ready");
    if std::env::var_os("HONE_MARK").is_some() {
        let hold = line("sleep 60").timeout(Duration::from_secs(60));
        jail.exec(hold).await;
    }
    assert_eq!(run(&*jail, "true").await.exit, Some(0));
    jail.close().await;
}

fn runs(mark: &str) -> bool {
    list("/proc", |n| n.parse::<u32>().is_ok())
        .iter()
        .any(|pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
            text.is_ok_and(|t| t.contains(mark))
        })
}

#[tokio::test]
async fn a_killed_process_leaves_no_jail() {
    let mark = format!("9{:07}", std::process::id());
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "jails_are_held_and_closed", "--nocapture"])
        .env("HONE_MARK", &mark)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|l| l.contains("ready")));
    assert!(runs(&mark), "the daemon runs");
    holder.kill().unwrap();
    holder.wait().unwrap();
    let begin = Instant::now();
    while runs(&mark) {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "the daemon lives on"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The next executor removes the folder and the groups that nobody could remove.
    drop(bubblewrap());
    assert_eq!(groups_of(holder.id()), [""; 0]);
    let folder = format!("hone-jails-{}-", holder.id());
    let temporary = std::env::temp_dir();
    assert_eq!(
        list(temporary.to_str().unwrap(), |n| n.starts_with(&folder)),
        [""; 0]
    );
}
