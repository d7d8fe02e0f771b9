//! The program at the edge of what the system gives it: files, memory, disk and clock. Answers go on, or one
//! sentence says why not; nothing acknowledged is lost.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hone_tests::{ask, broken_laws, client, get, post, temporary};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::program::{Ended, Server, is_log, program, program_after, run, serving};

/// No model, and a receipt that is waited for.
const NULL: &str = "[model]\nengine = \"null\"\n[http]\nreceipt_timeout_ms = 20000\n";
/// The same where most receipts never come.
const HASTY: &str = "[model]\nengine = \"null\"\n[http]\nreceipt_timeout_ms = 500\n";

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

fn null_ask(n: u64) -> Value {
    let mut body = ask(&format!("Hello, number {n}!"), n);
    body["model"] = json!("hone-null");
    body
}

/// Asks once on a connection of its own; the reply and how long it took.
async fn asked(url: &str, n: u64) -> (Value, Duration) {
    let began = Instant::now();
    let reply = post(&client().unwrap(), url, "/v1/chat/completions", null_ask(n)).await;
    (reply.unwrap(), began.elapsed())
}

fn check_no_panic(ended: &Ended) {
    for word in ["panicked", "stack backtrace", "memory allocation"] {
        assert!(!ended.text().contains(word), "{}", ended.text());
    }
}

/// Every one of these turns is there after a start with nothing in the way, and no law is broken.
async fn check_found(data: &Path, turns: &[String]) {
    let arguments = serving(data, NULL);
    let server = Server::start(program(&words(&arguments))).unwrap();
    for id in turns {
        let found = get(&client().unwrap(), &server.url, &format!("/v1/turns/{id}")).await;
        assert!(
            found.is_ok(),
            "turn {id} was acknowledged and is lost: {found:?}"
        );
    }
    check_no_panic(&server.stop());
    assert_eq!(broken_laws(data).await.unwrap(), Vec::<String>::new());
}

/// Many idle connections beside a small limit of open files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_beyond_the_open_files_delay_nobody_and_fill_no_log() {
    const IDLE: usize = 1_100;
    const ASKED: u64 = 20;
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    // Both limits; and the soft one alone, which the program raises.
    for limits in ["ulimit -n 1024", "ulimit -Sn 1024"] {
        let (_guard, data) = temporary().unwrap();
        let arguments = serving(&data, NULL);
        let server = Server::start(program_after(limits, &words(&arguments))).unwrap();
        let address = server.url.trim_start_matches("http://").to_owned();
        let (began, mut idle) = (Instant::now(), Vec::new());
        for _ in 0..IDLE {
            idle.push(TcpStream::connect(&address).await.unwrap());
        }
        let (mut worst, mut turns) = (Duration::ZERO, Vec::new());
        for n in 0..ASKED {
            let (reply, took) = asked(&server.url, n).await;
            assert_eq!(reply["hone"]["collected"], true, "{reply}");
            turns.push(reply["hone"]["turn_id"].as_str().unwrap().to_owned());
            worst = worst.max(took);
        }
        assert!(worst < Duration::from_secs(2), "{limits}: {worst:?}");
        let seconds = began.elapsed().as_secs_f64();
        let lines = server.errors();
        println!(
            "{limits}: {IDLE} idle connections, {ASKED} answers, the slowest after {} ms, {} lines of log in {seconds:.1} s",
            worst.as_millis(),
            lines.len()
        );
        // One may tell at the start that there are few files.
        assert!(lines.len() as f64 <= 1.0 + seconds.ceil(), "{lines:?}");
        drop(idle);
        check_no_panic(&server.stop());
        check_found(&data, &turns).await;
    }
}

/// Too little memory is one sentence; what is enough serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_little_memory_at_the_start_is_one_sentence() {
    let (mut refused, mut served) = (0, 0);
    for mib in (768..=4_096).step_by(256) {
        let (_guard, data) = temporary().unwrap();
        let arguments = serving(&data, "");
        let limits = format!("ulimit -v {}", mib * 1_024);
        match Server::start(program_after(&limits, &words(&arguments))) {
            Ok(server) => {
                served += 1;
                let (http, body) = (client().unwrap(), ask("Hello!", 1));
                let reply = post(&http, &server.url, "/v1/chat/completions", body).await;
                assert_eq!(reply.unwrap()["hone"]["collected"], true, "{mib} MiB");
                check_no_panic(&server.stop());
            }
            Err(ended) => {
                refused += 1;
                check_no_panic(&ended);
                assert!(
                    ended.sentence().contains("ulimit -v"),
                    "{mib} MiB: {ended:?}"
                );
            }
        }
    }
    println!("{refused} starts were refused in one sentence, {served} served");
    assert!(
        refused > 0 && served > 0,
        "{refused} refused, {served} served"
    );
}

/// Longest wait for an alert.
const ALERTED_MAX: Duration = Duration::from_secs(30);

/// A disk that takes no more: every file of the process may have 2 MiB and not one byte more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_no_answer_and_loses_nothing_acknowledged() {
    const ASKED: u64 = 3_000;
    let (_guard, data) = temporary().unwrap();
    let arguments = serving(&data, HASTY);
    // In blocks of 512 bytes. A write beyond the limit is an error only where the signal is ignored.
    let limits = "trap '' XFSZ; ulimit -f 4096";
    let server = Server::start(program_after(limits, &words(&arguments))).unwrap();
    let (http, mut turns, mut not_kept) = (client().unwrap(), Vec::new(), 0);
    for n in 0..ASKED {
        let reply = post(&http, &server.url, "/v1/chat/completions", null_ask(n))
            .await
            .unwrap();
        match reply["hone"]["collected"].as_bool() {
            Some(true) => turns.push(reply["hone"]["turn_id"].as_str().unwrap().to_owned()),
            _ => not_kept += 1,
        }
        if not_kept == 5 {
            break;
        }
    }
    assert!(
        not_kept > 0 && !turns.is_empty(),
        "{} kept, {not_kept} not",
        turns.len()
    );
    // What fails is spooled at once, and the watch looks now and then.
    let (began, mut why) = (Instant::now(), Value::Null);
    while why["alerts"].as_array().is_none_or(Vec::is_empty) && began.elapsed() < ALERTED_MAX {
        why = get(&http, &server.url, "/admin/v1/why").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!(
        "{} turns acknowledged before the disk was full, {not_kept} answers not kept",
        turns.len()
    );
    assert_ne!(why["alerts"], json!([]), "{why}");
    check_no_panic(&server.kill());
    check_found(&data, &turns).await;
}

/// What makes a process believe another time, which `make setup` installs.
fn fake_clock() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let found = folders
        .map(|folder| folder.join("faketime/libfaketimeMT.so.1"))
        .find(|file| file.exists());
    found.expect("libfaketime is not installed; `make setup` installs it")
}

/// The clock jumps forth and back by years under the server, and between two starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_loses_nothing_and_the_doctor_says_so() {
    let (guard, data) = temporary().unwrap();
    let (arguments, library) = (serving(&data, NULL), fake_clock());
    let offset = guard.path().join("offset");
    let set = |text: &str| std::fs::write(&offset, text).unwrap();
    let faked = |arguments: &[&str]| {
        let mut command = program(arguments);
        command
            .env("LD_PRELOAD", &library)
            .env("FAKETIME_TIMESTAMP_FILE", &offset)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command
    };
    set("+0");
    let server = Server::start(faked(&words(&arguments))).unwrap();
    let (mut turns, mut ages) = (Vec::new(), Vec::new());
    for (n, jump) in ["+0", "+400d", "-700d", "+0", "+3650d", "-1d"]
        .into_iter()
        .enumerate()
    {
        set(jump);
        for m in 0..3 {
            let (reply, took) = asked(&server.url, (n * 3 + m) as u64).await;
            assert_eq!(reply["hone"]["collected"], true, "{jump}: {reply}");
            assert!(took < Duration::from_secs(10), "{jump}: {took:?}");
            turns.push(reply["hone"]["turn_id"].as_str().unwrap().to_owned());
            ages.push(reply["created"].as_i64().unwrap());
        }
    }
    // Backwards the server waits for the clock; forth it goes along.
    let years = (ages.iter().max().unwrap() - ages.iter().min().unwrap()) / 31_557_600;
    assert!(
        years >= 9 && ages.is_sorted(),
        "the clock did jump: {ages:?}"
    );
    check_no_panic(&server.stop());
    // What was recorded last is years ahead of this machine's clock.
    set("-700d");
    let doctor = run(faked(&["doctor", "--data", data.to_str().unwrap()]));
    check_no_panic(&doctor);
    assert_eq!(doctor.code, Some(3), "{}", doctor.text());
    assert!(doctor.text().contains("timedatectl"), "{}", doctor.text());
    let lines = doctor.errors.iter().filter(|line| !is_log(line)).count();
    assert_eq!(lines, 0, "{:?}", doctor.errors);
    check_found(&data, &turns).await;
    println!(
        "{} turns over six jumps of the clock, all found",
        turns.len()
    );
}
