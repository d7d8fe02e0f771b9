//! Ordinary use, the same for every executor.

use std::time::{Duration, Instant};

use hone_tools::{Command, Files, JailSpec, KilledBy, Outcome, ToolsError};

use crate::escape::processes_with;
use crate::support::{MIB, executors, line, run, said, small};

#[tokio::test]
async fn commands_run_and_say_how_they_ended() {
    for executor in executors() {
        let jail = executor.open(&small()).await.unwrap();
        let result = run(&*jail, "echo out; echo err >&2; exit 3").await;
        assert_eq!(result.outcome, Outcome::Failed);
        assert_eq!((result.exit, result.signal), (Some(3), None));
        assert_eq!(result.stdout.text(), "out\n");
        assert_eq!(result.stderr.text(), "err\n");
        let result = run(&*jail, "kill -9 $$").await;
        assert_eq!((result.exit, result.signal), (None, Some(9)));
        assert_eq!((result.outcome, result.killed_by), (Outcome::Failed, None));
        let result = jail
            .exec(Command::argv(["printf", "%s|", "a b", "$c"]))
            .await;
        assert_eq!(result.outcome, Outcome::Ok);
        assert_eq!(result.stdout.text(), "a b|$c|");
        let result = jail
            .exec(line("cat; echo $X; pwd").stdin("in\n").env("X", "y z"))
            .await;
        assert!(result.stdout.text().starts_with("in\ny z\n/"), "{result:?}");
        let result = jail.exec(Command::argv(["no-such-program"])).await;
        assert_eq!((result.outcome, result.exit), (Outcome::Failed, None));
        assert!(result.reason.unwrap().contains("no such program"));
        let result = jail.exec(line("true").cwd("missing")).await;
        assert_eq!(result.outcome, Outcome::Failed);
        jail.close().await;
    }
}

#[tokio::test]
async fn a_standing_jail_keeps_files_and_background_processes() {
    for executor in executors() {
        let jail = executor.open(&small()).await.unwrap();
        let pid = said(&*jail, "mkdir -p d; echo 1 > d/f; sleep 600 & echo $!").await;
        assert_eq!(said(&*jail, "cat d/f").await, "1\n");
        assert_eq!(
            said(&*jail, format!("kill -0 {} && echo alive", pid.trim())).await,
            "alive\n"
        );
        jail.kill_all().await.unwrap();
        let result = run(&*jail, format!("kill -0 {}", pid.trim())).await;
        assert_eq!(result.exit, Some(1), "it lives on: {result:?}");
        assert_eq!(said(&*jail, "cat d/f").await, "1\n");
        jail.close().await;
    }
}

#[tokio::test]
async fn a_timeout_ends_a_command_with_all_that_it_started_and_nothing_else() {
    for executor in executors() {
        let jail = executor.open(&small()).await.unwrap();
        let kept = said(&*jail, "sleep 601 >/dev/null & echo $!").await;
        // It closes its output, leaves its session, and is nobody's child.
        let text = "(setsid sh -c 'echo $$ > lost; exec sleep 602' &) ; sleep 0.1; exec >&- 2>&-; sleep 603";
        let begin = Instant::now();
        let result = jail
            .exec(line(text).timeout(Duration::from_millis(600)))
            .await;
        assert_eq!(result.killed_by, Some(KilledBy::Timeout));
        assert_eq!((result.outcome, result.signal), (Outcome::Failed, Some(9)));
        assert!(begin.elapsed() < Duration::from_secs(5));
        let text = format!(
            "kill -0 {} || echo kept; kill -0 $(cat lost) && echo lost; true",
            kept.trim()
        );
        let left = run(&*jail, text).await;
        assert_eq!(left.stdout.text(), "", "{:?}", executor.kind());
        jail.close().await;
    }
}

#[tokio::test]
async fn commands_run_at_once() {
    for executor in executors() {
        let jail = executor.open(&small()).await.unwrap();
        let begin = Instant::now();
        let long = line("sleep 30").timeout(Duration::from_millis(300));
        let (a, b, c, d) = tokio::join!(
            run(&*jail, "sleep 0.5; echo 0"),
            run(&*jail, "sleep 0.5; echo 1"),
            run(&*jail, "sleep 0.5; echo 2"),
            jail.exec(long),
        );
        for (i, result) in [a, b, c].iter().enumerate() {
            assert_eq!(result.stdout.text(), format!("{i}\n"), "{result:?}");
        }
        assert_eq!(d.killed_by, Some(KilledBy::Timeout));
        assert!(begin.elapsed() < Duration::from_secs(10));
        jail.close().await;
    }
}

#[tokio::test]
async fn output_without_end_is_cut_and_then_ended() {
    for executor in executors() {
        let jail = executor.open(&small()).await.unwrap();
        let mut command = line("seq 1 100000");
        command.output_bytes_max = 1000;
        let result = jail.exec(command).await;
        assert_eq!(result.outcome, Outcome::Ok);
        assert_eq!(
            (result.stdout.head.len(), result.stdout.tail.len()),
            (500, 500)
        );
        assert_eq!(result.bytes_cut(), 588_895 - 1000);
        assert!(result.stdout.text().starts_with("1\n2\n"));
        assert!(result.stdout.text().ends_with("99999\n100000\n"));
        let mut command = line("yes");
        command.output_bytes_killed = 4 * MIB;
        let result = jail.exec(command).await;
        assert_eq!(result.killed_by, Some(KilledBy::Output));
        assert!(result.bytes_cut() < 16 * MIB, "{}", result.bytes_cut());
        jail.close().await;
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_cancels_its_command() {
    for executor in executors() {
        let jail = executor.open(&small()).await.unwrap();
        let command = jail.exec(line("echo $$ > pid; exec sleep 604"));
        let gone = tokio::time::timeout(Duration::from_millis(500), command).await;
        assert!(gone.is_err());
        for _ in 0..100 {
            if run(&*jail, "kill -0 $(cat pid)").await.exit == Some(1) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(run(&*jail, "kill -0 $(cat pid)").await.exit, Some(1));
        let (killed, all) = tokio::join!(run(&*jail, "sleep 605"), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            jail.kill_all().await
        });
        all.unwrap();
        assert_eq!(killed.killed_by, Some(KilledBy::Cancelled));
        assert_eq!(killed.outcome, Outcome::Failed);
        jail.close().await;
    }
}

#[tokio::test]
async fn the_time_of_a_jail_ends_it() {
    for executor in executors() {
        // Long enough for a busy machine to begin something in it.
        let spec = JailSpec {
            wall_ms: 6_000,
            ..small()
        };
        let jail = executor.open(&spec).await.unwrap();
        // Something in the background ends without anybody asking.
        let mark = format!("6{}", std::process::id());
        said(
            &*jail,
            format!("(setsid sleep {mark} &) >/dev/null 2>&1; echo"),
        )
        .await;
        for _ in 0..200 {
            if processes_with(&mark) > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(processes_with(&mark) > 0);
        let result = run(&*jail, "sleep 606").await;
        assert_eq!(result.killed_by, Some(KilledBy::Timeout));
        for _ in 0..300 {
            if processes_with(&mark) == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(processes_with(&mark), 0);
        let result = run(&*jail, "true").await;
        assert_eq!(result.outcome, Outcome::Unknown);
        assert_eq!(result.reason.unwrap(), "the jail is gone: its time is over");
        jail.close().await;
    }
}

#[tokio::test]
async fn files_go_in_and_out() {
    for executor in executors() {
        let jail = executor.open(&small()).await.unwrap();
        jail.put("a/b.txt", b"hello").await.unwrap();
        jail.put("/app/c", b"").await.unwrap();
        assert_eq!(said(&*jail, "cat a/b.txt; stat -c %s c").await, "hello0\n");
        assert_eq!(jail.get("a/b.txt", 5).await.unwrap(), b"hello");
        let refused = jail.get("a/b.txt", 4).await.unwrap_err();
        assert!(matches!(refused, ToolsError::Refused(_)), "{refused}");
        assert!(jail.get("missing", 4).await.is_err());
        // Larger than one piece and than a socket holds.
        let large: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        jail.put("large", &large).await.unwrap();
        assert_eq!(jail.get("large", 16 * MIB).await.unwrap(), large);
        let tar = jail.get_tar("a", MIB).await.unwrap();
        jail.put_tar("copy", &tar).await.unwrap();
        assert_eq!(said(&*jail, "diff -r a copy && echo same").await, "same\n");
        jail.close().await;
    }
}

#[tokio::test]
async fn a_snapshot_holds_the_changes_and_comes_back() {
    let from = tempfile::tempdir().unwrap();
    std::fs::create_dir(from.path().join("src")).unwrap();
    std::fs::write(from.path().join("src/main.py"), "print(1)\n").unwrap();
    std::fs::write(from.path().join("old"), vec![7; 100_000]).unwrap();
    for executor in executors() {
        let spec = JailSpec {
            files: Files::Folder(from.path().into()),
            ..small()
        };
        let jail = executor.open(&spec).await.unwrap();
        let empty = jail.snapshot().await.unwrap();
        assert!(empty.tar.len() < 2048 && empty.removed.is_empty());
        let change =
            "sed -i s/1/2/ src/main.py; rm old; mkdir new; echo n > new/f; ln -s /usr/bin link";
        said(&*jail, change).await;
        let first = jail.snapshot().await.unwrap();
        assert_eq!(first.removed, ["old"]);
        assert_ne!(first.digest, empty.digest);
        assert!(first.tar.len() < 20_000, "{}", first.tar.len());
        said(&*jail, "rm -rf src new link; echo x > y").await;
        jail.restore(&first).await.unwrap();
        let now = "cat src/main.py new/f; readlink link; ls";
        assert_eq!(
            said(&*jail, now).await,
            "print(2)\nn\n/usr/bin\nlink\nnew\nsrc\n"
        );
        assert_eq!(jail.snapshot().await.unwrap().digest, first.digest);
        // Another jail that began with the same files can go on from there.
        let other = executor.open(&spec).await.unwrap();
        other.restore(&first).await.unwrap();
        assert_eq!(other.snapshot().await.unwrap().digest, first.digest);
        assert_eq!(said(&*other, now).await, said(&*jail, now).await);
        let bare = executor.open(&small()).await.unwrap();
        let refused = bare.restore(&first).await.unwrap_err();
        assert!(matches!(refused, ToolsError::Refused(_)), "{refused}");
        for jail in [jail, other, bare] {
            jail.close().await;
        }
    }
}
