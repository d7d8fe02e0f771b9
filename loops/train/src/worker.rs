//! The loop's own thread: heavy computing happens here, never on the async runtime's threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use hone_runtime::panic_text;
use tokio::sync::oneshot;

use crate::priority::Priority;

type Job = Box<dyn FnOnce() + Send>;

/// One thread of low priority that does one piece of work after the other.
#[derive(Clone)]
pub(crate) struct Worker(Sender<Job>);

/// Tells a piece of work that nobody waits for it any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sets the flag when the waiting future is dropped before its end.
struct Waiting(Abandoned, bool);

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.1 {
            self.0.0.store(true, Ordering::Relaxed);
        }
    }
}

impl Worker {
    /// Starts the thread. It ends when the last handle is gone and its work is done.
    pub(crate) fn start(name: &str, priority: &Priority) -> std::io::Result<Self> {
        let (send, receive) = channel::<Job>();
        let priority = priority.clone();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                priority.enter();
                for job in receive {
                    job();
                }
            })?;
        Ok(Self(send))
    }

    /// Runs `work` on the thread and waits for its result.
    ///
    /// # Errors
    /// What a panic said, or that the thread is gone.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(Abandoned) -> T + Send + 'static,
    ) -> Result<T, String> {
        let abandoned = Abandoned::default();
        let (send, receive) = oneshot::channel();
        let flag = abandoned.clone();
        let job: Job = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(|| work(flag)));
            // A receiver that is gone no longer wants the result.
            let _gone = send.send(result.map_err(|panic| panic_text(panic.as_ref())));
        });
        self.0
            .send(job)
            .map_err(|_| "the training thread is gone".to_owned())?;
        let mut waiting = Waiting(abandoned, false);
        let result = receive.await;
        waiting.1 = true;
        match result {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => Err(format!("training panicked: {panic}")),
            Err(_) => Err("the training thread is gone".to_owned()),
        }
    }
}

/// Processor time of the thread that made it, since then; the plain time where the system keeps no
/// account of threads.
pub(crate) struct WorkTime(Duration);

impl WorkTime {
    pub(crate) fn start() -> Self {
        Self(thread_time())
    }

    pub(crate) fn spent(&self) -> Duration {
        thread_time().saturating_sub(self.0)
    }
}

#[cfg(unix)]
#[allow(unsafe_code)]
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes the one structure it is given, which outlives it. It cannot fail: the
    // clock is the calling thread's own.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

#[cfg(not(unix))]
fn thread_time() -> Duration {
    use std::sync::LazyLock;
    use std::time::Instant;
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGAN.elapsed()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::Served;

    #[tokio::test]
    async fn a_panic_is_a_sentence_and_the_thread_lives_on() {
        let worker = Worker::start("test", &Priority::new(Arc::new(Served::default))).unwrap();
        let failed = worker.run(|_| -> u32 { panic!("boom") }).await;
        assert_eq!(failed, Err("training panicked: boom".to_owned()));
        assert_eq!(worker.run(|_| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn work_learns_that_nobody_waits() {
        let worker = Worker::start("test", &Priority::new(Arc::new(Served::default))).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let work = worker.run(move |abandoned| {
            while !abandoned.is_set() {
                std::thread::yield_now();
            }
            tell.send(()).unwrap();
        });
        let mut work = Box::pin(work);
        let none = futures_poll_once(work.as_mut()).await;
        assert!(none);
        drop(work);
        told.recv_timeout(std::time::Duration::from_secs(10))
            .unwrap();
    }

    /// Polls once; true when the future is still pending.
    async fn futures_poll_once<F: Future + Unpin>(mut future: F) -> bool {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut future).poll(cx).is_pending())
        })
        .await
    }

    #[tokio::test]
    async fn work_is_what_the_thread_computes() {
        let worker = Worker::start("test", &Priority::new(Arc::new(Served::default))).unwrap();
        let spent = worker.run(|_| {
            let work = WorkTime::start();
            std::thread::sleep(Duration::from_millis(1));
            let asleep = work.spent();
            while work.spent() < asleep + Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            (asleep, work.spent())
        });
        let (asleep, computed) = spent.await.unwrap();
        assert!(computed >= asleep + Duration::from_millis(2));
        #[cfg(unix)]
        assert!(asleep < Duration::from_millis(1), "{asleep:?}");
    }
}
