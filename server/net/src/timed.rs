//! A connection's own timers: headers that come too slowly, idle time between requests, and a client
//! that takes nothing of its reply.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::limits::ListenLimits;

/// The requests of a connection: how many began, and how many of them are being answered.
#[derive(Clone)]
pub(crate) struct UnderWay(Arc<Counts>);

impl Default for UnderWay {
    fn default() -> Self {
        Self(Arc::new(Counts {
            begun: AtomicUsize::new(0),
            now: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            reader: AtomicWaker::new(),
        }))
    }
}

struct Counts {
    begun: AtomicUsize,
    now: AtomicUsize,
    /// Since when nothing is under way, where that is so.
    idle_since: Mutex<Instant>,
    /// Whoever reads the connection; woken when an answer ends, because idle time begins then.
    reader: AtomicWaker,
}

/// A request that is being answered, until its reply is dropped.
pub(crate) struct Busy(UnderWay);

impl UnderWay {
    /// One more.
    pub(crate) fn begin(&self) -> Busy {
        self.0.begun.fetch_add(1, Ordering::AcqRel);
        self.0.now.fetch_add(1, Ordering::AcqRel);
        Busy(self.clone())
    }

    fn is_any(&self) -> bool {
        self.0.now.load(Ordering::Acquire) > 0
    }

    fn begun(&self) -> usize {
        self.0.begun.load(Ordering::Acquire)
    }

    /// Whether anything was asked so far, and since when nothing is under way; none while something is.
    pub(crate) fn idle(&self) -> Option<(bool, Instant)> {
        let since = *self.0.idle_since();
        (!self.is_any()).then(|| (self.begun() > 0, since))
    }
}

impl Counts {
    fn idle_since(&self) -> MutexGuard<'_, Instant> {
        // A time is whole, whatever panicked.
        self.idle_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.0.idle_since() = Instant::now();
        self.0.0.now.fetch_sub(1, Ordering::AcqRel);
        self.0.0.reader.wake();
    }
}

/// What a connection is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// Nothing: a request is being answered, and its body has a limit of its own.
    Nothing,
    /// The first byte of another request.
    Request,
    /// The rest of headers that have begun. More bytes do not move the deadline.
    Headers,
}

/// A stream with deadlines.
pub(crate) struct TimedStream {
    stream: TcpStream,
    limits: ListenLimits,
    under_way: UnderWay,
    /// Requests that had begun when it was last looked.
    begun: usize,
    awaited: Awaited,
    reading: Pin<Box<Sleep>>,
    writing: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    /// A connection that was just accepted.
    pub(crate) fn new(stream: TcpStream, limits: ListenLimits, under_way: UnderWay) -> Self {
        Self {
            stream,
            limits,
            under_way,
            begun: 0,
            // Whoever connects has something to ask.
            awaited: Awaited::Headers,
            reading: Box::pin(sleep_until(Instant::now() + limits.header_timeout)),
            writing: None,
        }
    }

    fn awaits(&mut self, awaited: Awaited, patience: Duration) {
        if self.awaited != awaited {
            self.awaited = awaited;
            self.reading.as_mut().reset(Instant::now() + patience);
        }
    }

    /// Whether a request is being answered. One that began since the last look has ended its headers,
    /// even if its answer is out already.
    fn is_answering(&mut self) -> bool {
        let begun = self.under_way.begun();
        let answering = self.under_way.is_any();
        if answering || begun != self.begun {
            self.begun = begun;
            self.awaited = Awaited::Nothing;
        }
        answering
    }

    fn came(&mut self) {
        if !self.is_answering() {
            self.awaits(Awaited::Headers, self.limits.header_timeout);
        }
    }

    /// Nothing came: is it time to give up?
    fn waited(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Registered before the look, so that no end is missed.
        self.under_way.0.reader.register(cx.waker());
        if self.is_answering() {
            return Poll::Pending;
        }
        if self.awaited == Awaited::Nothing {
            self.awaits(Awaited::Request, self.limits.idle_timeout);
        }
        let over = self.reading.as_mut().poll(cx);
        over.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn timed<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.writing = None;
            return poll;
        }
        let patience = self.limits.write_timeout;
        let writing = self
            .writing
            .get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + patience)));
        let over = writing.as_mut().poll(cx);
        over.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if poll.is_pending() {
            return self.waited(cx);
        }
        self.came();
        poll
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.timed(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.timed(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_flush(cx);
        self.timed(cx, poll)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.timed(cx, poll)
    }
}
