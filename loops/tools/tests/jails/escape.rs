//! Ways out of a jail. Each row is one attack, with a witness that it was really tried and did not succeed.

use std::io::Read;
use std::time::{Duration, Instant};

use hone_tools::{
    Bubblewrap, Command, Executor, HeldBy, Jail, JailSpec, KilledBy, Outcome, ToolsError,
};

use crate::support::{MIB, bubblewrap, line, python, run, said, small};

/// With cgroups where they can be made, and without.
fn both() -> [Bubblewrap; 2] {
    [bubblewrap(), bubblewrap().without_cgroups()]
}

async fn open() -> Box<dyn Jail> {
    bubblewrap().open(&small()).await.unwrap()
}

/// Runs an attack in Python that says `refused` when it is; anything else is a success of the attack or a mistake.
async fn refused(attack: &str) {
    let jail = open().await;
    let result = jail.exec(python(attack)).await;
    let said = result.stdout.text();
    assert!(
        said.starts_with("refused"),
        "{said} {}",
        result.stderr.text()
    );
    jail.close().await;
}

/// A system call that must not work.
async fn refused_call(number: i64, arguments: &str) {
    refused(&format!(
        "r = libc.syscall({number}, {arguments})\n\
         e = ctypes.get_errno()\n\
         print('refused' if r == -1 and e in (errno.EPERM, errno.ENOSYS) else f'{{r}} {{e}}')"
    ))
    .await;
}

macro_rules! calls {
    ($($name:ident: $call:ident($arguments:literal);)*) => {
        $(#[tokio::test]
        async fn $name() {
            refused_call(libc::$call, $arguments).await;
        })*
    };
}

calls! {
    call_mount: SYS_mount("b'none', b'/app', b'tmpfs', 0, None");
    call_umount: SYS_umount2("b'/tmp', 2");
    call_pivot_root: SYS_pivot_root("b'/app', b'/app'");
    call_chroot: SYS_chroot("b'/app'");
    call_fsopen: SYS_fsopen("b'tmpfs', 0");
    call_open_tree: SYS_open_tree("-100, b'/', 1");
    call_unshare_users: SYS_unshare("0x10000000");
    call_unshare_mounts: SYS_unshare("0x20000");
    call_clone_users: SYS_clone("0x10000000 | 17, 0, 0, 0, 0");
    call_clone_network: SYS_clone("0x40000000 | 17, 0, 0, 0, 0");
    call_clone3: SYS_clone3("ctypes.create_string_buffer(88), 88");
    call_setns: SYS_setns("os.open('/proc/self/ns/net', os.O_RDONLY), 0");
    call_ptrace_guest: SYS_ptrace("16, 1, 0, 0");
    call_ptrace_me: SYS_ptrace("0, 0, 0, 0");
    call_read_memory_of_guest: SYS_process_vm_readv("1, None, 0, None, 0, 0");
    call_take_descriptor_of_guest: SYS_pidfd_getfd("os.pidfd_open(1), 3, 0");
    call_keyctl: SYS_keyctl("0, -3, 0, 0, 0");
    call_add_key: SYS_add_key("b'user', b'a', b'b', 1, -3");
    call_bpf: SYS_bpf("0, ctypes.create_string_buffer(72), 72");
    call_perf: SYS_perf_event_open("ctypes.create_string_buffer(112), 0, -1, -1, 0");
    call_userfaultfd: SYS_userfaultfd("1");
    call_io_uring: SYS_io_uring_setup("4, ctypes.create_string_buffer(120)");
    call_init_module: SYS_init_module("b'', 0, b''");
    call_kexec: SYS_kexec_load("0, 0, None, 0");
    call_file_handles: SYS_open_by_handle_at("0, ctypes.create_string_buffer(16), 0");
    call_sethostname: SYS_sethostname("b'x', 1");
    call_reboot: SYS_reboot("0xfee1dead, 672274793, 0, None");
    call_personality: SYS_personality("0x0400000");
}

#[tokio::test]
async fn what_is_harmless_works() {
    let jail = open().await;
    let attack = "fd = os.memfd_create('x')\n\
                  os.write(fd, open('/usr/bin/true', 'rb').read())\n\
                  import threading, subprocess\n\
                  t = threading.Thread(target=lambda: None); t.start(); t.join()\n\
                  a, b = socket.socketpair()\n\
                  l = socket.create_server(('127.0.0.1', 0)); socket.create_connection(l.getsockname())\n\
                  pid = os.fork()\n\
                  if pid == 0: os.execve(fd, ['true'], {})\n\
                  print(os.waitpid(pid, 0)[1], subprocess.check_output(['awk', 'BEGIN{print 1}']))";
    let result = jail.exec(python(attack)).await;
    assert_eq!(
        result.stdout.text(),
        "0 b'1\\n'\n",
        "{}",
        result.stderr.text()
    );
    let capabilities = jail.capabilities();
    assert!(
        capabilities.namespaces && capabilities.seccomp,
        "{capabilities:?}"
    );
    jail.close().await;
}

#[tokio::test]
async fn fork_bomb() {
    for executor in both() {
        let jail = executor.open(&small()).await.unwrap();
        let bomb = line(":(){ :|:& };:; sleep 60").timeout(Duration::from_secs(2));
        let begin = Instant::now();
        let result = jail.exec(bomb).await;
        assert_eq!(result.outcome, Outcome::Failed, "{result:?}");
        assert!(begin.elapsed() < Duration::from_secs(30));
        jail.kill_all().await.unwrap();
        assert_eq!(said(&*jail, "set -- /proc/[0-9]*; echo $#").await, "2\n");
        jail.close().await;
    }
}

#[tokio::test]
async fn more_processes_than_allowed() {
    for executor in both() {
        let jail = executor.open(&small()).await.unwrap();
        let attack = "n = 0\n\
                      try:\n  while n < 5000:\n    if os.fork() == 0: time.sleep(30); os._exit(0)\n    n += 1\n\
                      except OSError: print('refused', n)\n\
                      os.kill(-1, 9)";
        let result = jail.exec(python(attack)).await;
        let said = result.stdout.text();
        let count = said.strip_prefix("refused ").unwrap_or("9999");
        assert!(
            (32..=64).contains(&count.trim().parse::<u64>().unwrap()),
            "{result:?}"
        );
        jail.close().await;
    }
}

#[tokio::test]
async fn fill_the_disk() {
    let jail = open().await;
    for folder in ["/app", "/tmp"] {
        let fill = format!("head -c 100M /dev/zero > {folder}/f; stat -c %s {folder}/f");
        let size: u64 = said(&*jail, fill).await.trim().parse().unwrap();
        assert!((8 * MIB..=16 * MIB).contains(&size), "{folder}: {size}");
    }
    let shared = said(
        &*jail,
        "head -c 300M /dev/zero > /dev/shm/f; stat -c %s /dev/shm/f",
    )
    .await;
    assert!(
        shared.trim().parse::<u64>().unwrap() <= 64 * MIB,
        "{shared}"
    );
    jail.close().await;
}

#[tokio::test]
async fn write_where_nothing_may_be_written() {
    let jail = open().await;
    for path in [
        "/x",
        "/usr/x",
        "/etc/x",
        "/etc/passwd",
        "/bin/x",
        "/dev/x",
        "/run/x",
        "/run/hone/guest",
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/proc/1/oom_score_adj",
    ] {
        let result = run(&*jail, format!("echo x >> {path}")).await;
        assert_eq!(result.exit, Some(1), "{path}: {result:?}");
        let removed = format!("! test -e {path} || {{ rm -f {path}; test -e {path}; }}");
        assert_eq!(run(&*jail, removed).await.exit, Some(0), "{path}");
    }
    jail.close().await;
}

#[tokio::test]
async fn fill_the_memory() {
    for executor in both() {
        let jail = executor.open(&small()).await.unwrap();
        let attack = "b = []\nwhile len(b) < 2000: b.append(bytearray(b'x' * (1 << 20)))\nprint('succeeded')";
        let result = jail.exec(python(attack)).await;
        assert_eq!(result.outcome, Outcome::Failed, "{result:?}");
        assert_eq!(result.stdout.text(), "");
        let counted = jail.capabilities().memory == HeldBy::Cgroup;
        assert_eq!(
            result.killed_by,
            counted.then_some(KilledBy::Memory),
            "{result:?}"
        );
        // In many processes, each of which is small.
        let attack = "for i in range(40):\n  if os.fork() == 0: b = b'x' * (40 << 20); time.sleep(5); os._exit(0)\n\
                      ends = [os.wait()[1] for i in range(40)]; print(sum(e == 9 for e in ends))";
        let begin = Instant::now();
        let result = jail.exec(python(attack)).await;
        let killed = result.stdout.text();
        let all_lived = killed == "0\n" || killed.is_empty() && result.killed_by.is_none();
        assert!(!all_lived, "{result:?}");
        assert!(begin.elapsed() < Duration::from_secs(25));
        assert_eq!(said(&*jail, "echo still here").await, "still here\n");
        jail.close().await;
    }
}

#[tokio::test]
async fn ten_gigabytes_of_output() {
    let jail = open().await;
    let result = run(&*jail, "head -c 10G /dev/zero").await;
    assert_eq!(result.killed_by, Some(KilledBy::Output));
    assert!(result.stdout.head.len() + result.stdout.tail.len() <= 64 << 10);
    assert!(result.bytes_cut() < 80 * MIB);
    jail.close().await;
}

#[tokio::test]
async fn links_out_with_get() {
    let jail = open().await;
    said(&*jail, "ln -s /etc/passwd file; ln -s / root; ln -s /proc/self/fd fds; mkfifo pipe; ln -s ../etc up").await;
    for path in [
        "file",
        "root/etc/passwd",
        "fds/0",
        "up/passwd",
        "pipe",
        "../etc/passwd",
        "/etc/passwd",
        "/app/../etc/passwd",
    ] {
        let got = jail.get(path, MIB).await;
        assert!(
            matches!(got, Err(ToolsError::Refused(_))),
            "{path}: {got:?}"
        );
    }
    for path in ["root", "root/etc", "..", "/"] {
        assert!(jail.get_tar(path, MIB).await.is_err(), "{path}");
    }
    // A link stays a link.
    let tar = jail.get_tar("", MIB).await.unwrap();
    assert!(!String::from_utf8_lossy(&tar).contains("nologin"));
    let snapshot = jail.snapshot().await.unwrap();
    assert!(!String::from_utf8_lossy(&snapshot.tar).contains("nologin"));
    jail.close().await;
}

#[tokio::test]
async fn links_out_with_put() {
    let jail = open().await;
    said(
        &*jail,
        "ln -s /tmp out; ln -s /tmp/target file; mkdir d; ln -s ../../tmp d/up",
    )
    .await;
    for path in ["out/x", "d/up/x", "../tmp/x", "/etc/x", "", "/", "d/.."] {
        assert!(jail.put(path, b"x").await.is_err(), "{path}");
    }
    // The link itself is replaced, and what it points to is not written.
    jail.put("file", b"x").await.unwrap();
    assert_eq!(
        said(&*jail, "ls /tmp; test -L file || echo replaced").await,
        "replaced\n"
    );
    jail.close().await;
}

#[tokio::test]
async fn a_race_of_links_with_put_and_get() {
    let jail = open().await;
    let swap = "end = time.time() + 2\nn = 0\nwhile time.time() < end:\n  n += 1\n  \
                for step in (lambda: os.symlink('/tmp', 'd'), lambda: os.remove('d'), lambda: os.mkdir('d'), lambda: os.rmdir('d'), lambda: os.remove('d/x')):\n    \
                try: step()\n    except OSError: pass\nprint(n > 100)";
    let all = async {
        let begin = Instant::now();
        let mut put = 0;
        while begin.elapsed() < Duration::from_secs(2) {
            put += u32::from(jail.put("d/x", b"x").await.is_ok());
            if let Ok(got) = jail.get("d/x", MIB).await {
                assert!(got == b"x" || got.is_empty(), "{got:?}");
            }
        }
        assert!(put > 10, "{put}");
    };
    let (swapped, ()) = tokio::join!(jail.exec(python(swap)), all);
    assert_eq!(swapped.stdout.text(), "True\n", "{}", swapped.stderr.text());
    assert_eq!(said(&*jail, "ls /tmp").await, "");
    jail.close().await;
}

#[tokio::test]
async fn read_files_of_the_host() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "hone-secret").unwrap();
    let jail = open().await;
    let path = secret.path().display();
    for path in [
        format!("{path}"),
        "/etc/shadow".into(),
        "/root".into(),
        "/home".into(),
        "/sys".into(),
        "/var".into(),
        "/proc/1/root/etc".into(),
        "/proc/1/cwd/".into(),
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into(),
    ] {
        let result = run(&*jail, format!("ls -la {path}; cat {path}")).await;
        assert_eq!(result.exit, Some(1), "{path}: {result:?}");
    }
    let users = said(&*jail, "cut -d: -f1 /etc/passwd").await;
    assert_eq!(users, "root\nagent\n");
    jail.close().await;
}

#[tokio::test]
async fn read_the_environment_of_the_host() {
    assert!(std::env::vars().any(|(n, _)| n == "PATH"));
    let jail = open().await;
    let names = said(&*jail, "env | cut -d= -f1 | sort | tr '\\n' ' '").await;
    assert_eq!(names, "HOME LANG PATH PWD SHLVL TERM USER _ ");
    let other = run(&*jail, "cat /proc/1/environ").await;
    assert_eq!((other.exit, other.stdout.text()), (Some(1), String::new()));
    jail.close().await;
}

#[tokio::test]
async fn look_into_the_guest() {
    let jail = open().await;
    for path in [
        "/proc/1/root/",
        "/proc/1/fd/",
        "/proc/1/mem",
        "/proc/1/maps",
        "/proc/1/environ",
        "/proc/1/exe",
        "/proc/1/cwd/",
        "/proc/1/task/1/fd/",
    ] {
        let result = run(&*jail, format!("ls {path} >/dev/null && head -c 1 {path}")).await;
        assert_ne!(result.exit, Some(0), "{path}: {result:?}");
    }
    assert_eq!(said(&*jail, "ls -d /proc/1").await, "/proc/1\n");
    jail.close().await;
}

#[tokio::test]
async fn speak_with_the_host_in_place_of_the_guest() {
    refused(
        "n = 0\n\
         for fd in range(64):\n  try:\n    os.write(os.open(f'/proc/1/fd/{fd}', os.O_RDWR), b'x' * 64); n += 1\n  except OSError: pass\n\
         held = [fd for fd in range(3, 256) if os.path.exists(f'/proc/self/fd/{fd}')]\n\
         print('refused' if n == 0 and not held else (n, held))",
    )
    .await;
}

#[tokio::test]
async fn kill_the_guest() {
    let jail = open().await;
    for attack in [
        "kill -9 1",
        "kill -STOP 1",
        "kill -TERM 1; kill -SEGV 1; kill -CHLD 1",
    ] {
        run(&*jail, attack).await;
        assert_eq!(said(&*jail, "echo here").await, "here\n", "{attack}");
    }
    run(&*jail, "kill -9 -1").await;
    assert_eq!(said(&*jail, "echo here").await, "here\n");
    jail.close().await;
}

#[tokio::test]
async fn signal_a_process_of_the_host() {
    let mut victim = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let jail = open().await;
    let result = run(&*jail, format!("kill -9 {}", victim.id())).await;
    assert_eq!(result.exit, Some(1));
    let attack = "import signal\nfor pid in range(2, 70000):\n  if pid != os.getpid():\n    try: os.kill(pid, 9)\n    except OSError: pass\nprint('tried')";
    assert_eq!(jail.exec(python(attack)).await.stdout.text(), "tried\n");
    assert!(victim.try_wait().unwrap().is_none(), "the victim died");
    victim.kill().unwrap();
    victim.wait().unwrap();
    jail.close().await;
}

#[tokio::test]
async fn reach_a_socket_of_the_host() {
    use std::os::linux::net::SocketAddrExt;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let name = format!("hone-escape-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let abstract_listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    // The listeners are there for who shares the host's network.
    std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    std::os::unix::net::UnixStream::connect_addr(&address).unwrap();
    refused(&format!(
        "n = 0\n\
         for address in ('127.0.0.1', '::1'):\n  try: socket.create_connection((address, {port}), 2); n += 1\n  except OSError: pass\n\
         try: s = socket.socket(socket.AF_UNIX); s.connect('\\0{name}'); n += 1\n\
         except OSError: pass\n\
         print('refused' if n == 0 else n)"
    ))
    .await;
    drop(abstract_listener);
}

#[tokio::test]
async fn reach_the_model_without_leave() {
    refused("try: socket.create_connection(('127.0.0.1', 8088), 2); print('reached')\nexcept ConnectionRefusedError: print('refused')").await;
}

#[tokio::test]
async fn reach_the_internet() {
    refused(
        "n = 0\n\
         try: socket.getaddrinfo('example.com', 80); n += 1\n\
         except OSError: pass\n\
         for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):\n  try:\n    s = socket.socket(socket.AF_INET, kind); s.settimeout(2); s.connect(('1.1.1.1', 53)); n += 1\n  except OSError as e: assert e.errno == errno.ENETUNREACH, e\n\
         print('refused' if n == 0 else n)",
    )
    .await;
}

#[tokio::test]
async fn sockets_of_other_families() {
    refused(
        "n = 0\n\
         for family, kind in ((socket.AF_INET, socket.SOCK_RAW), (socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_NETLINK, socket.SOCK_RAW), (socket.AF_VSOCK, socket.SOCK_STREAM), (38, 5)):\n\
         \u{20} try: socket.socket(family, kind); n += 1\n\
         \u{20} except OSError as e: assert e.errno == errno.EPERM, (family, e)\n\
         print('refused' if n == 0 else n)",
    )
    .await;
}

#[tokio::test]
async fn type_into_a_terminal() {
    refused(
        "import pty, fcntl\n\
         a, b = pty.openpty()\n\
         n = 0\n\
         for request in (0x5412, 0x541C, 0x541D, 0x100005412):\n  e = libc.ioctl(b, ctypes.c_ulong(request), b'x')\n  n += e != -1 or ctypes.get_errno() != errno.EPERM\n\
         print('refused' if n == 0 else n)",
    )
    .await;
    refused("try: open('/dev/tty', 'w'); print('opened')\nexcept OSError: print('refused')").await;
}

#[tokio::test]
async fn become_another_user() {
    let jail = open().await;
    for call in [
        "os.setuid(0)",
        "os.setresuid(0, 0, 0)",
        "os.setgid(0)",
        "os.setgroups([0])",
        "os.chown('/app', 0, 0)",
    ] {
        let attack = format!("try: {call}; print('did')\nexcept OSError: print('refused')");
        assert_eq!(
            jail.exec(python(&attack)).await.stdout.text(),
            "refused\n",
            "{call}"
        );
    }
    let set = "cp /usr/bin/id .; chmod 6755 id; ./id -u; grep -E 'CapEff|CapBnd|CapPrm|NoNewPrivs' /proc/self/status | tr -d '\\t\\n'";
    assert_eq!(
        said(&*jail, set).await,
        "1000\nCapPrm:0000000000000000CapEff:0000000000000000CapBnd:0000000000000000NoNewPrivs:1"
    );
    jail.close().await;
}

#[tokio::test]
async fn make_a_device() {
    let jail = open().await;
    let attack = "import stat\nn = 0\n\
                  for kind, a, b in ((stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 1, 1)):\n  try: os.mknod('/app/dev', kind | 0o600, os.makedev(a, b)); n += 1\n  except OSError: pass\n\
                  print('refused' if n == 0 else n)";
    assert_eq!(jail.exec(python(attack)).await.stdout.text(), "refused\n");
    let devices = said(
        &*jail,
        "find /dev -type b; find /dev -type c | sort | tr '\\n' ' '",
    )
    .await;
    let known = ["full", "null", "ptmx", "random", "tty", "urandom", "zero"];
    for device in devices.split_whitespace() {
        assert!(known.iter().any(|k| device.ends_with(k)), "{device}");
    }
    jail.close().await;
}

#[tokio::test]
async fn load_a_library_into_the_guest() {
    let jail = open().await;
    let result = run(&*jail, "echo /app/evil.so > /etc/ld.so.preload").await;
    assert_eq!(result.exit, Some(1));
    let result = jail
        .exec(line("echo ran").env("LD_PRELOAD", "/app/evil.so"))
        .await;
    assert!(
        result.stderr.text().contains("evil.so"),
        "it was tried: {result:?}"
    );
    let result = run(
        &*jail,
        "export LD_PRELOAD=/app/evil.so BASH_ENV=/app/evil PATH=/app; exit 0",
    )
    .await;
    assert_eq!(result.outcome, Outcome::Ok);
    let result = run(&*jail, "env").await;
    assert!(!result.stdout.text().contains("evil"), "{result:?}");
    assert_eq!(result.stderr.text(), "");
    jail.close().await;
}

#[tokio::test]
async fn huge_arguments() {
    let jail = open().await;
    for bytes in [3 << 20, 40 << 20] {
        let result = jail
            .exec(Command::argv(["echo".to_owned(), "x".repeat(bytes)]))
            .await;
        assert_eq!((result.outcome, result.exit), (Outcome::Failed, None));
        assert!(result.reason.is_some());
    }
    let result = jail.exec(Command::argv(vec!["echo"; 2_000_000])).await;
    assert_eq!(result.outcome, Outcome::Failed);
    let result = jail.exec(Command::argv([""; 0])).await;
    assert_eq!(result.outcome, Outcome::Failed);
    let result = jail.exec(line("true").stdin(vec![0; 9 << 20])).await;
    assert_eq!(result.outcome, Outcome::Failed);
    let result = jail.exec(Command::argv(["a\0b"])).await;
    assert_eq!(result.outcome, Outcome::Failed);
    assert_eq!(said(&*jail, "echo here").await, "here\n");
    jail.close().await;
}

#[tokio::test]
async fn folders_without_bottom_and_files_without_end() {
    let jail = open().await;
    let deep = "for i in range(6000):\n  os.mkdir('d'); os.chdir('d')\nprint('made')";
    assert_eq!(jail.exec(python(deep)).await.stdout.text(), "made\n");
    let refused = jail.snapshot().await.unwrap_err();
    assert!(!matches!(refused, ToolsError::Lost(_)), "{refused}");
    let empty = open().await.snapshot().await.unwrap();
    jail.restore(&empty).await.unwrap();
    assert_eq!(said(&*jail, "ls -A").await, "");
    said(&*jail, "truncate -s 60M sparse").await;
    assert!(matches!(
        jail.get("sparse", MIB).await,
        Err(ToolsError::Refused(_))
    ));
    assert!(matches!(jail.snapshot().await, Err(ToolsError::Refused(_))));
    let result = run(&*jail, "truncate -s 1T larger").await;
    assert_ne!(result.outcome, Outcome::Ok, "{result:?}");
    jail.close().await;
}

#[tokio::test]
async fn closed_folders() {
    let jail = open().await;
    said(&*jail, "mkdir -p a/b; echo x > a/b/f; chmod 0 a/b/f a/b a").await;
    assert!(jail.snapshot().await.is_err());
    let empty = open().await.snapshot().await.unwrap();
    jail.restore(&empty).await.unwrap();
    assert_eq!(said(&*jail, "ls -A").await, "");
    jail.close().await;
}

/// Processes of this machine whose arguments hold a mark.
pub(crate) fn processes_with(mark: &str) -> usize {
    let mut found = 0;
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let mut text = Vec::new();
        if let Ok(mut file) = std::fs::File::open(entry.path().join("cmdline")) {
            let _ = file.read_to_end(&mut text);
        }
        found += usize::from(String::from_utf8_lossy(&text).contains(mark));
    }
    found
}

#[tokio::test]
async fn survive_the_jail() {
    for executor in both() {
        for closes in [true, false] {
            let mark = format!("7{}{}", std::process::id(), u8::from(closes));
            let jail = executor.open(&small()).await.unwrap();
            let daemon = format!(
                "(setsid nohup sh -c 'trap \"\" TERM HUP; sleep {mark}' >/dev/null 2>&1 &)"
            );
            said(&*jail, daemon).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(processes_with(&mark) >= 1, "the daemon runs");
            if closes {
                jail.close().await;
            } else {
                drop(jail);
            }
            for _ in 0..200 {
                if processes_with(&mark) == 0 {
                    break;
                }
                assert!(!closes, "something is left after close");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(processes_with(&mark), 0);
        }
    }
}

#[tokio::test]
async fn a_guest_that_is_killed_makes_the_outcome_unknown() {
    for executor in both() {
        let mark = format!("8{}", std::process::id());
        let spec = JailSpec {
            env: [("MARK".to_owned(), mark.clone())].into(),
            ..small()
        };
        let jail = executor.open(&spec).await.unwrap();
        let (result, ()) = tokio::join!(run(&*jail, format!("sleep {mark}")), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let guest = parent_of(&format!("sleep\0{mark}"));
            let killed = std::process::Command::new("kill")
                .args(["-9", &guest])
                .status();
            assert!(killed.unwrap().success());
        });
        assert_eq!(result.outcome, Outcome::Unknown);
        assert_eq!((result.exit, result.killed_by), (None, None));
        assert!(result.reason.unwrap().starts_with("the jail is gone"));
        assert_eq!(run(&*jail, "true").await.outcome, Outcome::Unknown);
        assert!(matches!(jail.get("x", 1).await, Err(ToolsError::Lost(_))));
        assert_eq!(processes_with(&mark), 0);
        jail.close().await;
    }
}

fn parent_of(arguments: &str) -> String {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read =
            |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if read("cmdline").contains(arguments) {
            let status = read("status");
            let parent = status.lines().find_map(|l| l.strip_prefix("PPid:\t"));
            return parent.unwrap().to_owned();
        }
    }
    panic!("{arguments:?} does not run");
}
