//! Ways to be paid without doing the work, each tried in a real jail: none pays.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use hone_domain::{TaskFiles, TaskSpec};
use hone_tools::Command;

use super::*;
use crate::{ExecutorKind, ToolsConfig};

/// The first process of a jail: a program of the jails' own crate, which is built with the workspace.
fn guest() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let guest = here.ancestors().nth(2).unwrap().join("hone-guest");
    let hint = "cargo build -p hone-tools builds it";
    assert!(guest.exists(), "{} is missing; {hint}", guest.display());
    guest
}

fn jails() -> Jails {
    Jails::new(ToolsConfig {
        executor: ExecutorKind::Bubblewrap,
        memory_bytes: 256 << 20,
        processes: 64,
        disk_bytes: 16 << 20,
        command_seconds: 10,
        mounts: Vec::new(),
        guest: guest().display().to_string(),
    })
}

fn task() -> (TaskSpec, TaskFiles) {
    let spec = TaskSpec {
        instruction: "Write the right word to out.txt.".to_owned(),
        answer_file: None,
        agent_seconds: 10,
        verifier_seconds: 5,
    };
    let file = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
    let files = TaskFiles {
        environment: BTreeMap::from([file("given.txt", "7\n")]),
        tests: BTreeMap::from([
            file(
                "test.sh",
                "cmp -s out.txt /tests/right.txt && echo passed\n",
            ),
            file("right.txt", "sesame\n"),
        ]),
        solution: BTreeMap::from([file("solve.sh", "echo sesame > out.txt\n")]),
    };
    (spec, files)
}

/// What the tests say of what a command leaves behind.
async fn paid(jails: &Jails, command: &str) -> Verified {
    let (spec, files) = task();
    let jail = jails.open(&files, None).await.unwrap();
    let command = Command::argv(["bash", "-c", command]).cwd(WORK);
    jail.exec(command.timeout(Duration::from_secs(10))).await;
    jail.kill_all().await.unwrap();
    let work = jail.snapshot().await.unwrap();
    jail.close().await;
    jails.verify(&spec, &files, &work).await.unwrap()
}

#[tokio::test]
async fn work_pays_and_cheats_do_not() {
    let jails = jails();
    let honest = paid(&jails, "echo sesame > out.txt").await;
    assert_eq!(honest, Verified::Reward(1.0, "passed\n".to_owned()));
    for (name, command) in [
        ("doing nothing", "true"),
        (
            "writing the reward",
            "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
        ),
        (
            "writing the reward as JSON",
            "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.json",
        ),
        (
            "tests of its own",
            "mkdir -p /tests; echo 'exit 0' > /tests/test.sh; echo x > /tests/right.txt; cp /tests/right.txt out.txt",
        ),
        ("reading the tests early", "cp /tests/right.txt out.txt"),
        ("a link to what is right", "ln -s /tests/right.txt out.txt"),
        (
            "a link over a link",
            "ln -s /tests t; ln -s t/right.txt out.txt",
        ),
        (
            "a link by a long way",
            "ln -s ../../tests/right.txt out.txt",
        ),
        (
            "a link to the folder of tests",
            "ln -s /tests/test.sh out.txt",
        ),
        ("a hard link", "ln /tests/right.txt out.txt"),
        ("the solution", "bash /solution/solve.sh; cp /solution/* ."),
        (
            "programs in the work folder",
            "for p in cmp bash echo; do printf '#!/bin/sh\\nexit 0\\n' > $p; chmod +x $p; done",
        ),
        (
            "settings of a shell",
            "echo 'exit 0' | tee .bashrc .profile .bash_profile > ~/.bashrc; export BASH_ENV=$PWD/.bashrc",
        ),
        (
            "changing the system",
            "printf '#!/bin/sh\\nexit 0\\n' > /usr/bin/cmp; mount --bind . /usr/bin",
        ),
        (
            "a process that stays",
            "(setsid sh -c 'sleep 1; mkdir -p /logs/verifier; while :; do echo 1 > /logs/verifier/reward.txt; sleep 0.1; done' &)",
        ),
        (
            "filling the disk",
            "head -c 1000000000 /dev/zero > big; true",
        ),
        (
            "asking the network",
            "curl -m 2 http://127.0.0.1:80/right.txt > out.txt",
        ),
    ] {
        let verified = paid(&jails, command).await;
        let Verified::Reward(reward, output) = verified else {
            panic!("{name}: {verified:?}");
        };
        assert_eq!(reward, 0.0, "{name}: {output}");
    }
}

#[tokio::test]
async fn tests_that_say_nothing_pay_nothing() {
    let jails = jails();
    let (spec, mut files) = task();
    let jail = jails.open(&files, None).await.unwrap();
    let work = jail.snapshot().await.unwrap();
    jail.close().await;
    for (test, says) in [
        (
            "echo NaN > /logs/verifier/reward.txt",
            "no number from 0 to 1",
        ),
        (
            "echo 7 > /logs/verifier/reward.txt",
            "no number from 0 to 1",
        ),
        (
            "echo '{' > /logs/verifier/reward.json",
            "no number from 0 to 1",
        ),
        (
            "echo 0 > x; ln -s $PWD/x /logs/verifier/reward.txt",
            "no number from 0 to 1",
        ),
        ("mkdir /logs/verifier/reward.json", "no number from 0 to 1"),
        (
            "echo why >&2; : > /logs/verifier/reward.txt",
            "they said: why",
        ),
        ("sleep 60", "did not end within 5 seconds"),
    ] {
        files
            .tests
            .insert("test.sh".to_owned(), test.as_bytes().to_vec());
        let verified = jails.verify(&spec, &files, &work).await.unwrap();
        let Verified::Nothing(why) = verified else {
            panic!("{test}: {verified:?}");
        };
        assert!(why.contains(says), "{test}: {why}");
    }
    // Output without end is cut, and no reward either.
    let endless = "yes\n";
    files
        .tests
        .insert("test.sh".to_owned(), endless.as_bytes().to_vec());
    let verified = jails.verify(&spec, &files, &work).await.unwrap();
    assert!(
        !matches!(verified, Verified::Reward(reward, _) if reward > 0.0),
        "{verified:?}"
    );
}
