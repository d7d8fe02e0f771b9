//! How long a jail takes, for `cargo test -p hone-tools --release -- --ignored --nocapture measure`.

use std::time::{Duration, Instant};

use hone_tools::{Command, Executor};

use crate::support::{bubblewrap, small};

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1000.0;
    println!("{what}: p50 {:.2} ms, p95 {:.2} ms", at(50), at(95));
}

#[tokio::test]
#[ignore = "a measurement"]
async fn measure() {
    let executor = bubblewrap();
    let mut times = Vec::new();
    for _ in 0..200 {
        let begin = Instant::now();
        let jail = executor.open(&small()).await.unwrap();
        assert_eq!(jail.exec(Command::argv(["true"])).await.exit, Some(0));
        jail.close().await;
        times.push(begin.elapsed());
    }
    print("open, exec and close a jail", times);
    let jail = executor.open(&small()).await.unwrap();
    println!("{:?}", jail.capabilities());
    let mut times = Vec::new();
    let all = Instant::now();
    for _ in 0..2000 {
        let begin = Instant::now();
        assert_eq!(jail.exec(Command::argv(["true"])).await.exit, Some(0));
        times.push(begin.elapsed());
    }
    let each = times.len() as f64 / all.elapsed().as_secs_f64();
    print("exec in a standing jail", times);
    println!("one after another: {each:.0} per second");
    jail.close().await;
}
