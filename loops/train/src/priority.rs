//! How the system's scheduler treats training's threads beside all others.
//!
//! A thread of lower weight (niceness) still keeps its core until its turn is over, which is checked
//! every few milliseconds: several tokens' worth. What is scheduled as idle leaves it at once, and
//! counts as a free core where the system looks for one. Even then it slows its neighbours: cores share
//! caches, memory and often their arithmetic units. So training keeps to the pauses of serving, as long as
//! these give it enough.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::serving::Serving;

/// How often one that waits for a pause looks whether it is there.
const NAP: Duration = Duration::from_micros(300);
/// Longest that all threads together wait for pauses between two calls of [`Priority::set`].
const WAIT_MAX: Duration = Duration::from_millis(200);

/// How urgent training is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    /// As [`Self::Leftover`], and only while nobody is served.
    Pauses,
    /// Runs only where no other thread wants the core, and not during the long steps of serving.
    Leftover,
    /// Takes turns with the others, with less weight than they have: so training gets what is its
    /// own on a machine that is never idle.
    #[default]
    Turns,
}

/// The priority of all of training's threads. Without effect but on Linux.
#[derive(Clone)]
pub struct Priority(Arc<Shared>);

/// What training's threads wait for, as a number.
const NOTHING: u8 = 0;
const SHORT_STEPS: u8 = 1;
const PAUSES: u8 = 2;

struct Shared {
    serving: Serving,
    waits_for: AtomicU8,
    /// Since the last call of [`Priority::set`], in microseconds.
    waited_us: AtomicU64,
    /// Whether the system lets a thread leave the lowest class again.
    returns: bool,
    threads: Mutex<Threads>,
}

#[derive(Debug, Default)]
struct Threads {
    urgency: Urgency,
    ids: BTreeSet<system::ThreadId>,
}

impl Shared {
    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread while it lives; an id may be another thread's afterwards.
struct Member(Arc<Shared>, system::ThreadId);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.threads().ids.remove(&self.1);
    }
}

thread_local! {
    static MEMBER: RefCell<Option<Member>> = const { RefCell::new(None) };
}

impl Priority {
    /// Of no thread yet. Asks the system whether a thread may be raised again; where it may not,
    /// training takes turns always. `serving` says whether there is a pause.
    pub fn new(serving: Serving) -> Self {
        Self(Arc::new(Shared {
            serving,
            waits_for: AtomicU8::new(NOTHING),
            waited_us: AtomicU64::new(0),
            returns: system::may_return(),
            threads: Mutex::default(),
        }))
    }

    /// The calling thread is one of training's from now on, until it ends.
    pub fn enter(&self) {
        let id = system::this_thread();
        let mut threads = self.0.threads();
        threads.ids.insert(id);
        // Lowered once by niceness, so that it takes turns in the right weight later.
        let mut set = system::set(id, Urgency::Turns);
        if threads.urgency == Urgency::Leftover {
            set = set.and(system::set(id, Urgency::Leftover));
        }
        drop(threads);
        MEMBER.with_borrow_mut(|member| *member = Some(Member(self.0.clone(), id)));
        if let Err(error) = set {
            tracing::warn!(%error, "a thread of training keeps normal priority");
        }
    }

    /// Changes how urgent all of them are; a call that changes nothing costs next to nothing.
    pub fn set(&self, urgency: Urgency) {
        let (waits_for, urgency) = match urgency {
            // To the system the two are one.
            Urgency::Pauses => (PAUSES, Urgency::Leftover),
            Urgency::Leftover => (SHORT_STEPS, urgency),
            Urgency::Turns => (NOTHING, urgency),
        };
        self.0.waited_us.store(0, Ordering::Relaxed);
        self.0.waits_for.store(waits_for, Ordering::Relaxed);
        let mut threads = self.0.threads();
        if !self.0.returns || threads.urgency == urgency {
            return;
        }
        threads.urgency = urgency;
        for id in &threads.ids {
            // What the system let one thread do it lets all do; one that just ended is no loss.
            let _ended = system::set(*id, urgency);
        }
    }

    /// Waits for a pause, where training keeps to them, or for the end of a long step, where it keeps out
    /// of those. To be called by its threads every fraction of a millisecond. All of them together wait
    /// for 200 ms at most between two calls of [`Self::set`], which can decide then whether there are
    /// pauses enough.
    pub fn give_way(&self) {
        let shared = &*self.0;
        let in_the_way = || match shared.waits_for.load(Ordering::Relaxed) {
            NOTHING => false,
            SHORT_STEPS => (shared.serving)().long_step,
            _ => (shared.serving)().now,
        };
        while in_the_way() {
            let began = Instant::now();
            std::thread::sleep(NAP);
            let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            let waited = shared.waited_us.fetch_add(us, Ordering::Relaxed) + us;
            if Duration::from_micros(waited) > WAIT_MAX {
                shared.waits_for.store(NOTHING, Ordering::Relaxed);
            }
        }
    }

    /// Whether training can run as [`Urgency::Leftover`].
    pub fn can_be_leftover(&self) -> bool {
        self.0.returns
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
mod system {
    use std::io;

    use super::Urgency;

    pub(super) type ThreadId = libc::pid_t;

    /// Niceness of training where it takes turns: about a tenth of the usual weight.
    const NICENESS: i32 = 10;
    /// Longest that it then keeps a core that another thread wants (Linux 6.12 on), nanoseconds:
    /// the shortest that there is.
    const TURN_NS: u64 = 100_000;
    /// `SCHED_IDLE`, which libc has as a signed number.
    const IDLE: u32 = libc::SCHED_IDLE as u32;

    /// `struct sched_attr` of sched_setattr(2), its first version.
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }

    pub(super) fn this_thread() -> ThreadId {
        // SAFETY: a plain system call without arguments.
        unsafe { libc::gettid() }
    }

    pub(super) fn set(thread: ThreadId, urgency: Urgency) -> io::Result<()> {
        let attributes = Attributes {
            size: size_of::<Attributes>() as u32,
            policy: match urgency {
                Urgency::Pauses | Urgency::Leftover => IDLE,
                Urgency::Turns => libc::SCHED_OTHER as u32,
            },
            flags: 0,
            nice: NICENESS,
            priority: 0,
            runtime_ns: TURN_NS,
            deadline_ns: 0,
            period_ns: 0,
        };
        // SAFETY: the structure is laid out as the system call asks, with its size in it, and
        // outlives the call, which only reads it.
        let failed =
            unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) };
        match failed {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Tries it on a thread that does nothing else: who is not allowed to could not undo it.
    pub(super) fn may_return() -> bool {
        let tried = std::thread::Builder::new().spawn(|| {
            let id = this_thread();
            let there = set(id, Urgency::Turns).and_then(|()| set(id, Urgency::Leftover));
            there.and_then(|()| set(id, Urgency::Turns)).is_ok()
        });
        tried.is_ok_and(|thread| thread.join().unwrap_or(false))
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;

    use super::Urgency;

    pub(super) type ThreadId = i32;

    pub(super) fn this_thread() -> ThreadId {
        0
    }

    pub(super) fn set(_thread: ThreadId, _urgency: Urgency) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn may_return() -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(unsafe_code, clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::serving::Served;

    /// Policy and niceness of a thread.
    fn seen(thread: system::ThreadId) -> (i32, i32) {
        // SAFETY: plain system calls without pointers.
        unsafe {
            let policy = libc::sched_getscheduler(thread);
            (policy, libc::getpriority(libc::PRIO_PROCESS, thread as u32))
        }
    }

    #[test]
    fn all_threads_change_together_and_leave_when_they_end() {
        let priority = Priority::new(Arc::new(Served::default));
        let before = seen(system::this_thread());
        let (tell, told) = channel();
        let (end, ended) = channel::<()>();
        let (end_too, ended_too) = channel::<()>();
        let threads = [ended, ended_too].map(|ended| {
            let (priority, tell) = (priority.clone(), tell.clone());
            std::thread::spawn(move || {
                priority.enter();
                tell.send(system::this_thread()).unwrap();
                let _dropped = ended.recv();
            })
        });
        let ids: Vec<_> = (0..2).map(|_| told.recv().unwrap()).collect();
        assert!(ids.iter().all(|id| seen(*id) == (libc::SCHED_OTHER, 10)));
        priority.set(Urgency::Leftover);
        let idle = match priority.can_be_leftover() {
            true => libc::SCHED_IDLE,
            false => libc::SCHED_OTHER,
        };
        assert!(ids.iter().all(|id| seen(*id).0 == idle));
        priority.set(Urgency::Turns);
        assert!(ids.iter().all(|id| seen(*id) == (libc::SCHED_OTHER, 10)));
        drop((end, end_too));
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(priority.0.threads().ids.is_empty());
        assert_eq!(seen(system::this_thread()), before);
    }

    #[test]
    fn whoever_keeps_to_pauses_waits_for_one_but_not_for_ever() {
        // Served until so often was asked.
        let left = Arc::new(AtomicU64::new(u64::MAX));
        let asked = left.clone();
        let priority = Priority::new(Arc::new(move || Served {
            now: asked.fetch_sub(1, Ordering::Relaxed) > 1,
            ..Served::default()
        }));
        let waits = || {
            let waited = || priority.0.waited_us.load(Ordering::Relaxed);
            let before = waited();
            priority.give_way();
            Duration::from_micros(waited() - before)
        };
        for urgency in [Urgency::Leftover, Urgency::Turns] {
            priority.set(urgency);
            assert_eq!(waits(), Duration::ZERO);
        }
        // Served all the time: the wait ends by itself, and there is no second one.
        priority.set(Urgency::Pauses);
        assert!(waits() >= WAIT_MAX);
        assert_eq!(waits(), Duration::ZERO);
        // A long step is kept out of by what is less urgent than turns, and not for ever.
        let long = Priority::new(Arc::new(|| Served {
            now: true,
            long_step: true,
            ..Served::default()
        }));
        let waited = |urgency| {
            long.set(urgency);
            long.give_way();
            Duration::from_micros(long.0.waited_us.load(Ordering::Relaxed))
        };
        assert!(waited(Urgency::Leftover) >= WAIT_MAX);
        assert_eq!(waited(Urgency::Turns), Duration::ZERO);
        // A pause ends it, and in a pause there is none.
        priority.set(Urgency::Pauses);
        left.store(3, Ordering::Relaxed);
        assert!(waits() >= NAP);
        left.store(1, Ordering::Relaxed);
        assert_eq!(waits(), Duration::ZERO);
    }
}
