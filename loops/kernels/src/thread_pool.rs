//! The compute executor: a few threads that share one operation at a time.
//!
//! An operation is cut by output into parts, never by summation index, so results do not depend on
//! how many threads there are or on which thread ran which part. Workers claim parts one by one: a
//! helper that is asleep or not scheduled costs nothing, the caller then does its parts too.
//! Helpers spin for a moment after each job (the next one usually follows within microseconds)
//! and then sleep, so an idle executor uses no processor time.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::{JoinHandle, Thread};

/// Multiply-adds that make up the smallest part, a few microseconds: below two of these, handing one
/// to another thread costs more than it saves.
const SMALLEST_PART: usize = 128_000;
/// Parts per worker, so that a late worker leaves its share to the others.
const PARTS_PER_WORKER: usize = 8;
/// Most parts of an operation: they are counted in sixteen bits.
const PARTS_MAX: usize = 0xffff;
/// Spins of a helper before it sleeps: about twenty microseconds.
const HELPER_SPINS: usize = 2_000;
/// Multiply-adds of the largest part where threads give way between parts: a fraction of a millisecond.
const LARGEST_PART: usize = 16_000_000;
/// Spins of the caller, waiting for claimed parts, before it offers its core to the system.
const CALLER_SPINS: usize = 2_000;

type Job = &'static (dyn Fn(usize) + Sync);
type Courtesy = Box<dyn Fn() + Send + Sync>;

struct Shared {
    /// Called before every part, where there is something to give way to.
    give_way: Option<Courtesy>,
    /// `job number << 32 | parts << 16 | next unclaimed part`.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    /// Finished parts of the current job.
    done: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    asleep: Vec<AtomicBool>,
}

// SAFETY: `job` is written only by the caller holding the job lock after the previous job's parts
// are all done, and read only by a worker that has claimed a part of the current job.
unsafe impl Sync for Shared {}

impl Shared {
    fn give_way(&self) {
        if let Some(give_way) = &self.give_way {
            give_way();
        }
    }

    /// Runs unclaimed parts of the current job until there are none; true if it ran any.
    fn work(&self) -> bool {
        let mut any = false;
        let mut state = self.state.load(Ordering::Acquire);
        while let Some(part) = unclaimed(state) {
            let next = self.state.compare_exchange_weak(
                state,
                state + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if let Err(now) = next {
                state = now;
                continue;
            }
            any = true;
            // SAFETY: the claimed part keeps the job alive until `done` counts it.
            let job = unsafe { *self.job.get() }.expect("a job with parts is set");
            // The hook is somebody else's code: a part that it breaks is counted like any other.
            let ran = catch_unwind(AssertUnwindSafe(|| {
                self.give_way();
                job(part);
            }));
            if ran.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.done.fetch_add(1, Ordering::Release);
            state = self.state.load(Ordering::Acquire);
        }
        any
    }
}

/// The next part to claim in a state, if any.
fn unclaimed(state: u64) -> Option<usize> {
    let (parts, next) = (state >> 16 & 0xffff, state & 0xffff);
    (next < parts).then_some(next as usize)
}

/// A small pool of compute threads; the calling thread is one of the workers.
pub struct Executor {
    shared: Arc<Shared>,
    helpers: Vec<(JoinHandle<()>, Thread)>,
    busy: Mutex<()>,
}

impl Executor {
    /// A pool of `threads` workers (at least one, the caller). With one, everything runs inline.
    pub fn new(threads: usize) -> Self {
        Self::started(threads, || {}, None)
    }

    /// Like [`Self::new`], for work that comes second to other work on the same machine: every helper
    /// runs `start` before anything else, to lower its priority, say, and every worker runs `give_way`
    /// before every part of an operation, where it may wait. Operations are then cut into shorter parts.
    pub fn second(
        threads: usize,
        start: impl Fn() + Send + Sync + 'static,
        give_way: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self::started(threads, start, Some(Box::new(give_way)))
    }

    fn started(
        threads: usize,
        start: impl Fn() + Send + Sync + 'static,
        give_way: Option<Courtesy>,
    ) -> Self {
        let start = Arc::new(start);
        let helpers = threads.clamp(1, 256) - 1;
        let shared = Arc::new(Shared {
            give_way,
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            done: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
        });
        let helpers = (0..helpers)
            .map_while(|index| {
                let (shared, start) = (Arc::clone(&shared), Arc::clone(&start));
                let handle = std::thread::Builder::new()
                    .name(format!("hone-nn-{}", index + 1))
                    .spawn(move || {
                        start();
                        helper(&shared, index);
                    })
                    .ok()?;
                let thread = handle.thread().clone();
                Some((handle, thread))
            })
            .collect();
        Self {
            shared,
            helpers,
            busy: Mutex::new(()),
        }
    }

    /// Workers, the caller included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// How many parts an operation of `work` multiply-adds should be cut into: as many for each
    /// worker, where it is enough for all.
    pub fn parts(&self, work: usize) -> usize {
        let threads = self.threads();
        let parts = match work / SMALLEST_PART {
            0 => 1,
            _ if threads == 1 => 1,
            few if few < threads => few,
            many => many.min(threads * PARTS_PER_WORKER) / threads * threads,
        };
        match self.shared.give_way {
            Some(_) => parts.max((work / LARGEST_PART).min(PARTS_MAX)),
            None => parts,
        }
    }

    /// Runs `f` on contiguous parts of `all`, each with the place where it begins, like [`Self::split`].
    pub fn split_slice<T: Send>(
        &self,
        all: &mut [T],
        work: usize,
        f: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let shards = Shards::new(all);
        self.split(all.len(), work, &|part| {
            let from = part.start;
            // SAFETY: parts are disjoint, inside the slice it was made from.
            f(from, unsafe { shards.slice(part) });
        });
    }

    /// Runs `f` on contiguous parts of `0..n`, in parallel when `work` multiply-adds are worth it.
    pub fn split(&self, n: usize, work: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
        let parts = self.parts(work).min(n);
        if parts <= 1 {
            return f(0..n);
        }
        self.run(parts, &|part| f(n * part / parts..n * (part + 1) / parts));
    }

    /// Runs `f(0)..f(parts - 1)`, each once. When another job is under way (two callers share the
    /// pool) all parts run on the calling thread.
    ///
    /// # Panics
    /// When a part or the hook panicked; every part that began is over then.
    pub fn run(&self, parts: usize, f: &(dyn Fn(usize) + Sync)) {
        let guard = match self.busy.try_lock() {
            Ok(guard) => Some(guard),
            // A job that panicked is over.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if parts <= 1 || self.helpers.is_empty() || guard.is_none() {
            for part in 0..parts {
                self.shared.give_way();
                f(part);
            }
            return;
        }
        assert!(parts <= PARTS_MAX, "too many parts");
        let shared = &*self.shared;
        // SAFETY: the job outlives its use: this function returns only after every part is done, and
        // nothing unwinds through it before: parts and the hook are run where panics are caught. The lock keeps other callers out.
        unsafe {
            let job = std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(f);
            *shared.job.get() = Some(job);
        }
        shared.done.store(0, Ordering::Relaxed);
        let number = (shared.state.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        shared
            .state
            .store(number << 32 | (parts as u64) << 16, Ordering::SeqCst);
        for (asleep, (_, thread)) in shared.asleep.iter().zip(&self.helpers) {
            if asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        shared.work();
        let (mut spins, mut hook) = (0, Ok(()));
        while shared.done.load(Ordering::Acquire) < parts {
            spins += 1;
            if spins < CALLER_SPINS {
                std::hint::spin_loop();
            } else {
                // A helper that gives way is not waited for with a core of one's own.
                if hook.is_ok() {
                    hook = catch_unwind(AssertUnwindSafe(|| shared.give_way()));
                }
                std::thread::yield_now();
            }
        }
        drop(guard);
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = hook {
            resume_unwind(panic);
        }
        if panicked {
            resume_unwind(Box::new(
                "a part of a compute job panicked; its message is above",
            ));
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for (handle, thread) in self.helpers.drain(..) {
            thread.unpark();
            // A helper catches the panics of its parts, so joining cannot report one.
            let _ = handle.join();
        }
    }
}

fn helper(shared: &Shared, index: usize) {
    let mut spins = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.work() {
            spins = 0;
            continue;
        }
        spins += 1;
        if spins < HELPER_SPINS {
            std::hint::spin_loop();
            continue;
        }
        spins = 0;
        // Sequentially consistent with the caller: either it sees the flag and unparks us, or we
        // see its job here and do not sleep.
        shared.asleep[index].store(true, Ordering::SeqCst);
        let idle = unclaimed(shared.state.load(Ordering::SeqCst)).is_none();
        if idle && !shared.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        shared.asleep[index].store(false, Ordering::SeqCst);
    }
}

/// A pointer that parts of one operation write through, each to its own elements.
pub struct Shards<T>(*mut T);

impl<T> Clone for Shards<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shards<T> {}

// SAFETY: users hand disjoint elements to different parts; see `Shards::slice`.
unsafe impl<T: Send> Send for Shards<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shards<T> {}

impl<T> Shards<T> {
    pub fn new(data: &mut [T]) -> Self {
        Self(data.as_mut_ptr())
    }

    pub fn ptr(self) -> *mut T {
        self.0
    }

    /// Elements `range` of the slice it was made from.
    ///
    /// # Safety
    /// `range` lies inside that slice, and no other live reference overlaps it.
    pub unsafe fn slice<'a>(self, range: Range<usize>) -> &'a mut [T] {
        // SAFETY: the caller vouches for the range.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn second_work_gives_way_before_every_part_and_in_shorter_ones() {
        let work = 5 * LARGEST_PART;
        for threads in [1, 3] {
            let asked = Arc::new(AtomicUsize::new(0));
            let (started, counted) = (Arc::new(AtomicUsize::new(0)), asked.clone());
            let starts = started.clone();
            let exec = Executor::second(
                threads,
                move || _ = starts.fetch_add(1, Ordering::Relaxed),
                move || _ = counted.fetch_add(1, Ordering::Relaxed),
            );
            let parts = exec.parts(work);
            assert!(parts >= 5 && parts >= Executor::new(threads).parts(work));
            let seen: Vec<AtomicUsize> = (0..1_000).map(|_| AtomicUsize::new(0)).collect();
            exec.split(seen.len(), work, &|range| {
                for one in &seen[range] {
                    one.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(seen.iter().all(|one| one.load(Ordering::Relaxed) == 1));
            // The one who waits for the others' parts may ask more often.
            assert!(asked.load(Ordering::Relaxed) >= parts);
            drop(exec);
            assert_eq!(started.load(Ordering::Relaxed), threads - 1);
        }
        // Small work is not cut, whoever it is second to.
        assert_eq!(Executor::second(1, || {}, || {}).parts(SMALLEST_PART), 1);
    }

    /// A part that no worker counts would be waited for without end.
    #[test]
    fn a_hook_that_panics_ends_its_job_and_leaves_the_threads() {
        let (over, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let armed = Arc::new(AtomicBool::new(false));
            let hook = armed.clone();
            let give_way = move || assert!(!hook.load(Ordering::SeqCst), "the hook breaks");
            let exec = Executor::second(3, || {}, give_way);
            for _ in 0..20 {
                armed.store(true, Ordering::SeqCst);
                let run = || exec.run(64, &|_| std::thread::yield_now());
                let broke = catch_unwind(AssertUnwindSafe(run)).is_err();
                armed.store(false, Ordering::SeqCst);
                let parts = AtomicUsize::new(0);
                exec.run(64, &|_| _ = parts.fetch_add(1, Ordering::SeqCst));
                assert_eq!((broke, parts.into_inner()), (true, 64));
            }
            drop(exec);
            over.send(()).unwrap();
        });
        let ended = done.recv_timeout(Duration::from_secs(60));
        ended.expect("jobs end, whatever the hook does");
    }

    #[test]
    fn threads_share_the_work_after_a_panic_as_before() {
        let exec = Executor::new(2);
        for parts in [1, 2] {
            let gone = catch_unwind(AssertUnwindSafe(|| exec.run(parts, &|_| panic!("boom"))));
            assert!(gone.is_err());
            let (here, alone) = (AtomicUsize::new(0), AtomicBool::new(false));
            exec.run(2, &|_| {
                here.fetch_add(1, Ordering::SeqCst);
                let began = Instant::now();
                while here.load(Ordering::SeqCst) < 2 {
                    if began.elapsed() > Duration::from_secs(30) {
                        return alone.store(true, Ordering::SeqCst);
                    }
                    std::thread::yield_now();
                }
            });
            assert!(!alone.into_inner(), "one thread did both parts");
        }
    }
}
