//! What a jail is given, what it says of itself, and what is said where there can be none.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use hone_tools::{Executor, HeldBy, Jail, JailSpec, Kind, Mount, PlainProcess, ToolsError};

use crate::support::{bubblewrap, guest, python, run, said, small};

#[tokio::test]
async fn a_jail_says_which_walls_it_has() {
    let executor = bubblewrap();
    assert_eq!(
        (executor.check(), executor.kind()),
        (Ok(()), Kind::Bubblewrap)
    );
    let jail = executor.without_cgroups().open(&small()).await.unwrap();
    let walls = jail.capabilities();
    assert!(walls.namespaces && walls.seccomp, "{walls:?}");
    assert_eq!(
        (walls.memory, walls.processes),
        (HeldBy::Rlimit, HeldBy::Rlimit)
    );
    let seccomp = said(
        &*jail,
        "grep -E 'Seccomp:|NoNewPrivs:' /proc/self/status | tr -d '\\t'",
    )
    .await;
    assert_eq!(seccomp, "NoNewPrivs:1\nSeccomp:2\n");
    jail.close().await;
    let plain = PlainProcess::without_isolation(guest()).unwrap();
    assert_eq!(plain.kind(), Kind::Process);
    let jail = plain.open(&small()).await.unwrap();
    assert!(!jail.capabilities().namespaces);
    jail.close().await;
}

/// Landlock would hide a wall that is missing before it, so these are looked at by themselves.
#[tokio::test]
async fn the_walls_before_landlock_stand_too() {
    let jail = bubblewrap().open(&small()).await.unwrap();
    let mounts = "awk '{split($4, o, \",\"); print $2, o[1]}' /proc/mounts | grep -E '^/(dev|etc|usr|run/hone/guest)? '";
    let mounts = said(&*jail, mounts).await;
    assert_eq!(
        mounts,
        "/ ro\n/usr ro\n/dev ro\n/etc ro\n/run/hone/guest ro\n"
    );
    // Nobody in the jail owns what /proc shows of the guest.
    let owners = said(&*jail, "stat -c %u /proc/1/environ /proc/self/environ").await;
    assert_eq!(owners, "65534\n1000\n");
    jail.close().await;
}

/// Where Landlock is, nothing outside the folders can be written even by who may write there.
#[tokio::test]
async fn landlock_stands_where_the_kernel_has_it() {
    let jail = bubblewrap().open(&small()).await.unwrap();
    let write = run(&*jail, "echo 500 > /proc/self/oom_score_adj").await;
    assert_eq!(
        write.exit == Some(0),
        !jail.capabilities().landlock,
        "{write:?}"
    );
    jail.close().await;
}

#[tokio::test]
async fn further_folders_and_files_of_the_host_are_there() {
    let host = tempfile::tempdir().unwrap();
    std::fs::set_permissions(host.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(host.path().join("tool"), "of the host").unwrap();
    let spec = JailSpec {
        work_folder: "/testbed".into(),
        folders: vec!["/logs/verifier".into(), "/tests".into()],
        read_only: vec![Mount {
            host: host.path().into(),
            jail: "/opt/tools".into(),
        }],
        env: [("A".to_owned(), "b c".to_owned())].into(),
        ..small()
    };
    let jail = bubblewrap().open(&spec).await.unwrap();
    assert_eq!(
        said(&*jail, "pwd; cat /opt/tools/tool; echo; echo $A").await,
        "/testbed\nof the host\nb c\n"
    );
    said(
        &*jail,
        "echo r > /logs/verifier/reward; echo w > /testbed/w; touch /tests/t",
    )
    .await;
    assert_eq!(jail.get("/logs/verifier/reward", 10).await.unwrap(), b"r\n");
    jail.put("/tests/test.py", b"x").await.unwrap();
    assert_eq!(said(&*jail, "ls /tests").await, "t\ntest.py\n");
    assert_eq!(run(&*jail, "touch /opt/tools/x").await.exit, Some(1));
    let snapshot = jail.snapshot().await.unwrap();
    assert!(!String::from_utf8_lossy(&snapshot.tar).contains("test.py"));
    jail.close().await;
}

fn model(at: &std::path::Path) -> std::path::PathBuf {
    let path = at.join("model.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming().take(20) {
            let mut connection = connection.unwrap();
            std::thread::spawn(move || {
                let mut all = Vec::new();
                connection.read_to_end(&mut all).unwrap();
                all.reverse();
                connection.write_all(&all).unwrap();
            });
        }
    });
    path
}

/// Whoever refuses a request before its end says so, and is heard.
#[tokio::test]
async fn a_refusal_is_heard_that_comes_before_the_end_of_a_request() {
    let at = tempfile::tempdir().unwrap();
    let path = at.path().join("model.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming().take(8) {
            let mut connection = connection.unwrap();
            let mut few = [0; 10];
            connection.read_exact(&mut few).unwrap();
            connection.write_all(b"refused\n").unwrap();
        }
    });
    let spec = JailSpec {
        model_socket: Some(path),
        ..small()
    };
    let jail = bubblewrap().open(&spec).await.unwrap();
    let asks = "for size in [100, 10_000, 1_000_000, 20_000_000] * 2:\n\
                \u{20} c = socket.create_connection(('127.0.0.1', 8088), 10)\n\
                \u{20} c.sendall(b'x' * size)\n\
                \u{20} print(b''.join(iter(lambda: c.recv(100), b'')).decode(), end='', flush=True)\n\
                \u{20} c.close()";
    let result = jail.exec(python(asks)).await;
    let said = (result.stdout.text(), result.stderr.text());
    assert_eq!(said, ("refused\n".repeat(8), String::new()));
    jail.close().await;
}

#[tokio::test]
async fn the_model_is_reached_and_nothing_else() {
    let at = tempfile::tempdir().unwrap();
    let spec = JailSpec {
        model_socket: Some(model(at.path())),
        ..small()
    };
    let jail = bubblewrap().open(&spec).await.unwrap();
    let asks = "import threading\n\
                def ask(i):\n\
                \u{20} c = socket.create_connection(('127.0.0.1', 8088), 10)\n\
                \u{20} sent = bytes([i]) * 3_000_000 + b'end'\n\
                \u{20} c.sendall(sent); c.shutdown(socket.SHUT_WR)\n\
                \u{20} got = b''.join(iter(lambda: c.recv(65536), b''))\n\
                \u{20} assert got == sent[::-1], len(got)\n\
                \u{20} print('ok', flush=True)\n\
                all = [threading.Thread(target=ask, args=(i,)) for i in range(8)]\n\
                [t.start() for t in all]; [t.join() for t in all]\n\
                try: socket.create_connection(('127.0.0.1', 8089), 2); print('another')\n\
                except ConnectionRefusedError: pass";
    let result = jail.exec(python(asks)).await;
    assert_eq!(
        result.stdout.text(),
        "ok\n".repeat(8),
        "{}",
        result.stderr.text()
    );
    jail.close().await;
    // A model that is away: the connection ends, and the jail goes on.
    let spec = JailSpec {
        model_socket: Some(at.path().join("missing")),
        ..small()
    };
    let jail = bubblewrap().open(&spec).await.unwrap();
    let ask = "c = socket.create_connection(('127.0.0.1', 8088), 10)\nc.settimeout(10)\nprint(c.recv(10))";
    let result = jail.exec(python(ask)).await;
    assert!(
        ["b''\n", ""].contains(&&*result.stdout.text()),
        "{result:?}"
    );
    assert!(!result.stderr.text().contains("timed out"), "{result:?}");
    assert_eq!(said(&*jail, "echo here").await, "here\n");
    jail.close().await;
}

/// A `bwrap` that says what it is told to.
fn false_bwrap(at: &std::path::Path, says: &str) -> std::path::PathBuf {
    let path = at.join("bwrap");
    std::fs::write(&path, format!("#!/bin/sh\necho '{says}' >&2\nexit 1\n")).unwrap();
    for path in [at, &path] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    path
}

#[tokio::test]
async fn a_machine_without_jails_says_what_to_do() {
    let rows = [
        (
            "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces.",
            "this machine forbids user namespaces: allow them",
        ),
        (
            "bwrap: setting up uid map: Permission denied",
            "this machine forbids user namespaces: allow them",
        ),
        (
            "bwrap: Unknown option --disable-userns",
            "bubblewrap is too old: install version 0.8 or newer",
        ),
        (
            "bwrap: something else",
            "no jail could be made: bwrap: something else",
        ),
    ];
    for (says, told) in rows {
        let at = tempfile::tempdir().unwrap();
        let executor = bubblewrap().with_bwrap(false_bwrap(at.path(), says));
        for error in [executor.check().err(), executor.open(&small()).await.err()] {
            let error = error.unwrap();
            assert!(matches!(error, ToolsError::NotAvailable(_)));
            assert!(error.to_string().starts_with(told), "{error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
    let executor = bubblewrap().with_bwrap("/nowhere/bwrap".into());
    for error in [executor.check().err(), executor.open(&small()).await.err()] {
        let told =
            "there is no bubblewrap: install the package bubblewrap (apt install bubblewrap)";
        assert_eq!(error.unwrap().to_string(), told);
    }
}

#[tokio::test]
async fn a_specification_that_cannot_be_is_refused() {
    let spec = JailSpec {
        work_folder: "/usr/app".into(),
        ..small()
    };
    let error = bubblewrap().open(&spec).await.err().unwrap();
    assert!(matches!(error, ToolsError::Spec(_)), "{error}");
    let spec = JailSpec {
        model_socket: Some("/x".into()),
        ..small()
    };
    let plain = PlainProcess::without_isolation(guest()).unwrap();
    assert!(matches!(
        plain.open(&spec).await.err(),
        Some(ToolsError::Spec(_))
    ));
}

#[tokio::test]
async fn a_jail_outlives_its_executor() {
    let jail: Box<dyn Jail> = bubblewrap().open(&small()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(
        said(&*jail, "cut -d: -f1 /etc/passwd; awk 'BEGIN{print 1}'").await,
        "root\nagent\n1\n"
    );
    jail.close().await;
}

/// Everything above holds for who is not root: the same tests again, as `nobody`.
#[test]
fn an_ordinary_user_has_the_same_walls() {
    if !rustix::process::geteuid().is_root() {
        // These tests run as an ordinary user already.
        return;
    }
    let at = tempfile::tempdir().unwrap();
    std::fs::set_permissions(at.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &std::path::Path, name: &str| {
        let to = at.path().join(name);
        std::fs::copy(from, &to).unwrap();
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755)).unwrap();
        to
    };
    let tests = copy(&std::env::current_exe().unwrap(), "tests");
    let guest = copy(&guest().path, "guest");
    let ran = std::process::Command::new("setpriv")
        .args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--",
        ])
        .arg(tests)
        .args(["--skip", "an_ordinary_user"])
        .env("HONE_TEST_GUEST", guest)
        .current_dir(at.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("test escape::fork_bomb ... ok"), "{said}");
}
