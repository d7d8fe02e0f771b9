//! The walls that the guest builds around commands: Landlock, a filter of system calls, limits of each process.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::wire::Setup;

/// What each command gets before its program starts.
pub(super) struct Walls {
    ruleset: Option<RulesetCreated>,
    limits: Vec<(Resource, u64)>,
}

impl Walls {
    /// Prepares the walls, and filters the guest's own system calls from now on.
    pub(super) fn build(setup: &Setup) -> (Self, bool) {
        let mut limits = vec![
            (Resource::Core, 0),
            (Resource::Fsize, setup.file_bytes),
            (Resource::Nofile, setup.open_files),
        ];
        if setup.watch_memory {
            limits.push((Resource::Data, setup.memory_bytes));
        }
        if !setup.walls {
            return (
                Self {
                    ruleset: None,
                    limits,
                },
                false,
            );
        }
        // The namespace counts the guest too.
        limits.push((Resource::Nproc, setup.processes + 1));
        let writable = setup.folders.iter().map(|f| f.path.as_str());
        let ruleset = ruleset(writable.chain(["/dev/shm"])).ok();
        let filtered = filters().and_then(|filters| {
            let apply = |f: &BpfProgram| seccompiler::apply_filter(f).map_err(io::Error::other);
            filters.iter().try_for_each(apply)
        });
        (Self { ruleset, limits }, filtered.is_ok())
    }

    pub(super) fn landlock(&self) -> bool {
        self.ruleset.is_some()
    }

    /// Runs between fork and exec of a command, in its process.
    pub(super) fn enter(&self) -> io::Result<()> {
        for (resource, limit) in &self.limits {
            let least = rustix::process::getrlimit(*resource).maximum;
            let limit = least.map_or(*limit, |m| m.min(*limit));
            let both = Rlimit {
                current: Some(limit),
                maximum: Some(limit),
            };
            setrlimit(*resource, both)?;
        }
        let Some(ruleset) = &self.ruleset else {
            return Ok(());
        };
        let restricted = ruleset.try_clone()?.restrict_self();
        restricted.map(|_| ()).map_err(io::Error::other)
    }
}

/// Everything may be read and run; writing is for some folders and for devices.
fn ruleset<'a>(
    writable: impl Iterator<Item = &'a str>,
) -> Result<RulesetCreated, Box<dyn std::error::Error>> {
    // A kernel without Landlock fails here; one with an older Landlock leaves out what it does not know.
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))?;
    let abi = ABI::V5;
    let all = AccessFs::from_all(abi);
    let mut ruleset = Ruleset::default().handle_access(all)?.create()?;
    let read = AccessFs::from_read(abi);
    ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new("/")?, read))?;
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::ReadDir;
    ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new("/dev")?, device))?;
    for path in writable {
        ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, all))?;
    }
    Ok(ruleset)
}

/// Calls that no command needs and that have been ways out of jails.
const DENIED: &[i64] = &[
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_vhangup,
    libc::SYS_personality,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
];

/// Calls that only some machines have.
#[cfg(target_arch = "x86_64")]
const DENIED_HERE: &[i64] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE: &[i64] = &[];

const NAMESPACES: [i32; 8] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    0x80, // CLONE_NEWTIME
];

fn condition(argument: u8, op: SeccompCmpOp, value: u64) -> io::Result<SeccompCondition> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value).map_err(io::Error::other)
}

fn rule(conditions: Vec<SeccompCondition>) -> io::Result<SeccompRule> {
    SeccompRule::new(conditions).map_err(io::Error::other)
}

fn rules() -> io::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = DENIED
        .iter()
        .chain(DENIED_HERE)
        .map(|call| (*call, Vec::new()))
        .collect();
    // Where a stack and flags lie differs; the flags are in the first argument on the machines that are built for.
    let clone = NAMESPACES.iter().map(|flag| {
        let flag = u64::from(flag.unsigned_abs());
        rule(vec![condition(0, MaskedEq(flag), flag)?])
    });
    rules.insert(libc::SYS_clone, clone.collect::<io::Result<_>>()?);
    let terminal = [
        libc::TIOCSTI,
        libc::TIOCLINUX,
        libc::TIOCCONS,
        libc::TIOCSETD,
    ];
    #[allow(
        clippy::unnecessary_cast,
        reason = "the type differs between C libraries"
    )]
    let ioctl = terminal
        .iter()
        .map(|request| rule(vec![condition(1, Eq, *request as u64)?]));
    rules.insert(libc::SYS_ioctl, ioctl.collect::<io::Result<_>>()?);
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    let other = families.map(|family| condition(0, Ne, u64::from(family.unsigned_abs())));
    let other = rule(other.into_iter().collect::<io::Result<_>>()?)?;
    let raw = |kind: i32| {
        rule(vec![condition(
            1,
            MaskedEq(0xf),
            u64::from(kind.unsigned_abs()),
        )?])
    };
    rules.insert(libc::SYS_socket, vec![other, raw(libc::SOCK_RAW)?]);
    Ok(rules)
}

/// Two filters, because each has one answer: EPERM for what is denied, and ENOSYS for clone3, whose flags no filter can
/// see, so that the C library takes clone.
fn filters() -> io::Result<[BpfProgram; 2]> {
    let hidden = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    Ok([
        compile(rules()?, libc::EPERM)?,
        compile(hidden, libc::ENOSYS)?,
    ])
}

#[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
fn compile(mut rules: BTreeMap<i64, Vec<SeccompRule>>, error: i32) -> io::Result<BpfProgram> {
    // The same calls by their second numbers (x32).
    #[cfg(target_arch = "x86_64")]
    rules.extend(rules.clone().into_iter().map(|(c, r)| (c | 0x4000_0000, r)));
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(error.unsigned_abs()),
        std::env::consts::ARCH
            .try_into()
            .map_err(io::Error::other)?,
    )
    .map_err(io::Error::other)?;
    filter.try_into().map_err(io::Error::other)
}

/// Blocks SIGCHLD and returns a descriptor that is readable when one is pending.
pub(super) fn child_signals() -> io::Result<std::fs::File> {
    use std::os::fd::FromRawFd;
    // SAFETY: the set is initialised by sigemptyset, and lives through the calls; the descriptor that signalfd
    // returns is new and owned by nobody else.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(std::fs::File::from_raw_fd(fd))
    }
}

/// Undoes what [`child_signals`] blocked, in a new process.
pub(super) fn unblock_signals() {
    // SAFETY: the set is initialised by sigemptyset and lives through the call.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Closes every descriptor but the standard ones.
pub(super) fn close_inherited() {
    // SAFETY: nothing of this process has opened a descriptor yet.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32);
    }
}

/// Sends SIGKILL to every process of the namespace but the first.
pub(super) fn kill_everything() {
    // SAFETY: kill takes no memory.
    unsafe {
        libc::kill(-1, libc::SIGKILL);
    }
}

/// Starts the program with the walls around it.
pub(super) fn spawn(
    command: &mut std::process::Command,
    walls: &std::rc::Rc<Walls>,
) -> io::Result<std::process::Child> {
    use std::os::unix::process::CommandExt;
    struct Sent(std::rc::Rc<Walls>);
    // SAFETY: the guest has one thread, so no other thread can use the counter.
    unsafe impl Send for Sent {}
    // SAFETY: as above.
    unsafe impl Sync for Sent {}
    impl Sent {
        fn enter(&self) -> io::Result<()> {
            self.0.enter()
        }
    }
    let walls = Sent(walls.clone());
    // SAFETY: the guest has one thread, so the new process may allocate.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            unblock_signals();
            walls.enter()
        });
    }
    command.spawn()
}
