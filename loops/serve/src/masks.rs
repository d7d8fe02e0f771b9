//! Masks of constrained completions, made on threads of their own while the model computes: which
//! tokens a grammar allows next depends on the tokens so far and on nothing else. A mask that takes
//! longer than the step delays its own completion and few others: a few threads take turns, and grammars
//! whose last mask was slow have threads of their own. Where a grammar rules calls alone, nothing is masked between them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use hone_domain::TokenMask;
use hone_domain::{CallFinder, Grammar, ServeError, Token};
use hone_text::grammar::{Constraint, GrammarError, Grammars};
use hone_text::tokenizer::Tokenizer;

use crate::sequence::Setup;

/// Compiled grammars that are kept, and bytes of their texts: compiled, one takes some hundred times
/// as much. The longest unused goes first; those of requests on their way to an ask stay.
const GRAMMARS_MAX: usize = 64;
const GRAMMARS_BYTES_MAX: usize = 1 << 20;
/// Stack of each thread: grammars nest.
const STACK_BYTES: usize = 8 << 20;
/// Cores that share a thread for masks of either kind, and most of those threads: the model needs the cores.
const CORES_EACH: usize = 4;
const THREADS_MAX: usize = 8;
/// A mask that takes this long is slow; most take a tenth of it, with a vocabulary of 150,000 too.
const SLOW: Duration = Duration::from_millis(2);

/// Compiled grammars, because clients send the same schema with every request.
#[derive(Default)]
pub(crate) struct GrammarBook {
    /// Made at the first grammar: a large vocabulary takes a moment.
    compiler: OnceLock<Result<Grammars, GrammarError>>,
    known: Mutex<VecDeque<Known>>,
}

struct Known {
    grammar: Grammar,
    constraint: Constraint,
    /// Who wants to find it here.
    held: HeldGrammar,
}

/// Keeps a compiled grammar while a request is on its way to the ask, which then need not compile it.
#[derive(Clone, Debug, Default)]
#[must_use = "the grammar may be forgotten once this is dropped"]
pub struct HeldGrammar(Arc<()>);

impl HeldGrammar {
    /// Whether a clone of it holds the grammar.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl GrammarBook {
    /// A constraint at the beginning of a completion.
    pub(crate) fn constraint(
        &self,
        grammar: &Grammar,
        model: (&Setup, usize),
    ) -> Result<Constraint, ServeError> {
        self.look_up(grammar, model, |known| known.constraint.fork())
    }

    /// Keeps a grammar where [`Self::constraint`] finds it.
    pub(crate) fn hold(
        &self,
        grammar: &Grammar,
        model: (&Setup, usize),
    ) -> Result<HeldGrammar, ServeError> {
        self.look_up(grammar, model, |known| known.held.clone())
    }

    /// What `take` takes of a compiled grammar, and compiles it first where it is not known.
    fn look_up<T>(
        &self,
        grammar: &Grammar,
        (setup, vocab): (&Setup, usize),
        take: impl Fn(&Known) -> T,
    ) -> Result<T, ServeError> {
        if let Some(taken) = self.find(grammar, &take) {
            return Ok(taken);
        }
        let refused = |error: GrammarError| ServeError::Grammar(error.to_string());
        let compiler = self
            .compiler
            .get_or_init(|| Grammars::new(&setup.tokenizer, vocab, &setup.end_tokens));
        let compiler = compiler.as_ref().map_err(|error| refused(error.clone()))?;
        let entry = Known {
            grammar: grammar.clone(),
            constraint: compiler.compile(&grammar.0).map_err(refused)?,
            held: HeldGrammar::default(),
        };
        let taken = take(&entry);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut known, grammar.0.len());
        known.push_back(entry);
        Ok(taken)
    }

    fn find<T>(&self, grammar: &Grammar, take: impl Fn(&Known) -> T) -> Option<T> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let at = known.iter().position(|k| k.grammar == *grammar)?;
        let entry = known.remove(at)?;
        let taken = take(&entry);
        known.push_back(entry);
        Some(taken)
    }
}

/// Makes room for one more grammar of so many bytes.
fn forget(known: &mut VecDeque<Known>, more: usize) {
    let mut bytes = more + known.iter().map(|k| k.grammar.0.len()).sum::<usize>();
    while known.len() >= GRAMMARS_MAX || bytes > GRAMMARS_BYTES_MAX {
        let oldest = known.iter().position(|k| !k.held.is_shared());
        let Some(gone) = oldest.and_then(|at| known.remove(at)) else {
            return;
        };
        bytes -= gone.grammar.0.len();
    }
}

/// The threads that make masks; they end with the last clone of this.
#[derive(Clone, Debug)]
pub(crate) struct Masks {
    quick: Sender<Job>,
    slow: Sender<Job>,
    #[cfg(test)]
    probe: Arc<Probe>,
}

/// What tests set and look at.
#[cfg(test)]
#[derive(Debug, Default)]
struct Probe {
    /// Added to every mask, in microseconds.
    delay_us: std::sync::atomic::AtomicU64,
    /// Masks that were asked for.
    asked: std::sync::atomic::AtomicU64,
}

struct Job {
    constraint: Constraint,
    took: Took,
    /// Whether something free follows the end of the grammar.
    goes_on: bool,
    /// The completion it is for; once that is gone, nobody wants the mask.
    completion: Weak<()>,
    back: SyncSender<Made>,
}

/// What was said since the constraint was where it is.
enum Took {
    Nothing,
    /// The token drawn under the last mask.
    Token(Token),
    /// The beginning of a call, which nothing ruled.
    Beginning(Vec<u8>),
}

/// What came of a job.
struct Made {
    /// None where nothing is ruled any more: the call is over, or began as no call does.
    mask: Result<Option<Mask>, GrammarError>,
    /// For the next call, where one began.
    next_call: Option<Constraint>,
    was_slow: bool,
}

struct Mask {
    constraint: Constraint,
    allowed: TokenMask,
}

impl Masks {
    pub(crate) fn start() -> std::io::Result<Self> {
        #[cfg(test)]
        let probe = Arc::<Probe>::default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / CORES_EACH).clamp(1, THREADS_MAX);
        let line = |name: &str| {
            #[cfg(test)]
            let delay = probe.clone();
            let before_each = move || {
                #[cfg(test)]
                std::thread::sleep(Duration::from_micros(
                    delay.delay_us.load(std::sync::atomic::Ordering::Relaxed),
                ));
            };
            line_of(name, threads, before_each)
        };
        Ok(Self {
            quick: line("hone-masks")?,
            slow: line("hone-slow-masks")?,
            #[cfg(test)]
            probe,
        })
    }

    /// Makes every mask from now on take this long.
    #[cfg(test)]
    pub(crate) fn slow(&self, delay: Duration) {
        let us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        let delay = &self.probe.delay_us;
        delay.store(us, std::sync::atomic::Ordering::Relaxed);
    }

    /// Masks that were asked for so far.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> u64 {
        self.probe.asked.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// A queue of masks that so many threads make.
fn line_of(
    name: &str,
    threads: usize,
    before_each: impl Fn() + Clone + Send + 'static,
) -> std::io::Result<Sender<Job>> {
    let (jobs, inbox) = channel::<Job>();
    let inbox = Arc::new(Mutex::new(inbox));
    for _ in 0..threads {
        let (inbox, before_each) = (Arc::clone(&inbox), before_each.clone());
        let thread = std::thread::Builder::new().name(name.to_owned());
        let next = move || {
            let inbox = inbox.lock().unwrap_or_else(PoisonError::into_inner);
            inbox.recv().ok()
        };
        let thread = thread.stack_size(STACK_BYTES);
        thread.spawn(move || make_all(next, before_each))?;
    }
    Ok(jobs)
}

/// Makes the masks that are still wanted, until nobody can want any. One that panics costs its own
/// completion.
fn make_all(next: impl Fn() -> Option<Job>, mut before_each: impl FnMut()) {
    while let Some(job) = next() {
        if job.completion.strong_count() == 0 {
            continue;
        }
        let began = Instant::now();
        let back = job.back;
        let made = catch_unwind(AssertUnwindSafe(|| {
            before_each();
            let is_begun = matches!(job.took, Took::Beginning(_));
            let next_call = is_begun.then(|| job.constraint.fork());
            (next_call, make(job.constraint, (job.took, job.goes_on)))
        }));
        let (next_call, mask) = made.unwrap_or_else(|_| {
            tracing::error!("making a mask panicked; its completion fails");
            (None, Err(GrammarError::new("making a mask panicked")))
        });
        let made = Made {
            next_call,
            mask,
            was_slow: began.elapsed() >= SLOW,
        };
        // A completion that was cancelled meanwhile wants no mask.
        let _gone = back.send(made).is_err();
    }
}

fn make(
    mut constraint: Constraint,
    (took, goes_on): (Took, bool),
) -> Result<Option<Mask>, GrammarError> {
    match took {
        Took::Nothing => {}
        Took::Token(token) => constraint.take(token)?,
        Took::Beginning(bytes) => {
            if constraint.take_bytes(&bytes).is_err() {
                return Ok(None);
            }
        }
    }
    if goes_on && constraint.may_end()? {
        return Ok(None);
    }
    let allowed = constraint.mask()?;
    Ok(Some(Mask {
        constraint,
        allowed,
    }))
}

/// The grammar's side of one completion.
pub(crate) struct Masked {
    masks: Masks,
    /// Goes with it, so that what is in line for it is skipped.
    alive: Arc<()>,
    /// Whether the last mask was slow.
    is_slow: bool,
    calls: Option<Calls>,
    state: State,
}

/// Where a grammar rules calls alone.
pub(crate) struct Calls {
    tokenizer: Arc<Tokenizer>,
    finder: CallFinder,
    /// At the beginning of the next one; away while it is being copied.
    next: Option<Constraint>,
    /// Whether the first one ends the completion.
    single: bool,
}

impl Calls {
    pub(crate) fn new(
        constraint: Constraint,
        (finder, single): (CallFinder, bool),
        tokenizer: Arc<Tokenizer>,
    ) -> Self {
        Self {
            tokenizer,
            finder,
            next: Some(constraint),
            single,
        }
    }

    /// Hears what was said outside calls; what of it is the beginning of one.
    fn hear(&mut self, token: Token) -> Option<Vec<u8>> {
        // Control tokens are no text.
        if self.tokenizer.is_special(token) {
            return None;
        }
        self.finder.push(self.tokenizer.token_bytes(token))
    }
}

enum State {
    /// Nothing is ruled until a call begins.
    Free,
    /// Being made.
    Away(Receiver<Made>),
    /// The mask of the next token.
    Here(Box<Mask>),
    /// A token is drawn under the mask that was given out.
    Drawing(Box<Constraint>),
    Broken(String),
}

impl Masked {
    /// At the beginning of a completion; its first mask is on its way.
    pub(crate) fn new(constraint: Constraint, masks: Masks) -> Self {
        let mut masked = Self {
            masks,
            alive: Arc::default(),
            is_slow: false,
            calls: None,
            state: State::Broken(String::new()),
        };
        masked.send(constraint, Took::Nothing);
        masked
    }

    /// At the beginning of a completion whose calls alone are ruled.
    pub(crate) fn calls(calls: Calls, masks: Masks) -> Self {
        Self {
            masks,
            alive: Arc::default(),
            is_slow: false,
            calls: Some(calls),
            state: State::Free,
        }
    }

    fn send(&mut self, constraint: Constraint, took: Took) {
        let (back, made) = sync_channel(1);
        let job = Job {
            constraint,
            took,
            goes_on: self.calls.as_ref().is_some_and(|calls| !calls.single),
            completion: Arc::downgrade(&self.alive),
            back,
        };
        #[cfg(test)]
        let asked = &self.masks.probe.asked;
        #[cfg(test)]
        asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let line = if self.is_slow {
            &self.masks.slow
        } else {
            &self.masks.quick
        };
        self.state = match line.send(job) {
            Ok(()) => State::Away(made),
            Err(_) => State::Broken("the thread that makes masks is gone".to_owned()),
        };
    }

    /// Whether a token can be drawn now; waits at most this long for the mask.
    pub(crate) fn is_ready(&mut self, wait: Duration) -> bool {
        let State::Away(made) = &self.state else {
            return true;
        };
        self.state = match made.recv_timeout(wait) {
            Ok(made) => self.took(made),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => State::Broken("making a mask failed".to_owned()),
        };
        true
    }

    fn took(&mut self, made: Made) -> State {
        self.is_slow = made.was_slow;
        if let (Some(calls), Some(next)) = (&mut self.calls, made.next_call) {
            calls.next = Some(next);
        }
        match made.mask {
            Ok(Some(here)) => State::Here(Box::new(here)),
            Ok(None) => State::Free,
            Err(error) => State::Broken(error.to_string()),
        }
    }

    /// Whether nothing rules the next token, as far as is known.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.state, State::Free)
    }

    /// The mask of the next token, once it is ready; none where nothing rules it.
    pub(crate) fn mask(&mut self) -> Result<Option<TokenMask>, ServeError> {
        let empty = State::Broken("the mask was not ready".to_owned());
        match std::mem::replace(&mut self.state, empty) {
            State::Free => {
                self.state = State::Free;
                Ok(None)
            }
            State::Here(here) => {
                self.state = State::Drawing(Box::new(here.constraint));
                Ok(Some(here.allowed))
            }
            State::Broken(why) => Err(ServeError::Internal(format!(
                "the completion could not be held to its grammar: {why}"
            ))),
            State::Away(_) | State::Drawing(_) => Err(ServeError::Internal(
                "a mask was drawn from twice".to_owned(),
            )),
        }
    }

    /// A token was drawn and the completion goes on: its next mask is made from now on.
    pub(crate) fn drew(&mut self, token: Token) {
        let empty = State::Broken("a token came before its mask".to_owned());
        match std::mem::replace(&mut self.state, empty) {
            State::Drawing(constraint) => self.send(*constraint, Took::Token(token)),
            State::Free => {
                self.state = State::Free;
                let calls = self.calls.as_mut();
                let begun = calls.and_then(|calls| Some((calls.hear(token)?, calls.next.take()?)));
                if let Some((bytes, constraint)) = begun {
                    self.send(constraint, Took::Beginning(bytes));
                }
            }
            State::Away(_) | State::Here(_) | State::Broken(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tests::support::{END, model_config, tokenizer};

    type Lines = (Masks, [Receiver<Job>; 2]);

    /// Nobody makes what stands in these lines.
    fn lines() -> Lines {
        let (quick, first) = channel();
        let (slow, second) = channel();
        let probe = Arc::default();
        (Masks { quick, slow, probe }, [first, second])
    }

    fn masked(masks: &Masks, grammar: &str) -> Masked {
        Masked::new(constraint(&GrammarBook::default(), grammar), masks.clone())
    }

    fn constraint(book: &GrammarBook, grammar: &str) -> Constraint {
        let setup = Setup::new(Arc::new(tokenizer()), vec![END], 100);
        let grammar = Grammar(Arc::from(grammar));
        let constraint = book.constraint(&grammar, (&setup, model_config().vocab));
        constraint.expect("a sound grammar")
    }

    #[test]
    fn a_book_keeps_the_newest_grammars_by_number_and_by_length() {
        let book = GrammarBook::default();
        let kept = || {
            let known = book.known.lock().expect("nothing broke");
            known.iter().map(|k| k.grammar.0.len()).collect::<Vec<_>>()
        };
        let of = |text: String| constraint(&book, &format!("start: \"{text}\""));
        for n in 0..=GRAMMARS_MAX {
            of(n.to_string());
        }
        assert_eq!(
            (kept().len(), is_known(&book, "start: \"0\"")),
            (GRAMMARS_MAX, false)
        );
        for letter in ["a", "b", "c"] {
            of(letter.repeat(GRAMMARS_BYTES_MAX * 2 / 5));
        }
        assert_eq!(kept().len(), 2);
        of("few".to_owned());
        assert_eq!(kept().len(), 3);
    }

    fn is_known(book: &GrammarBook, grammar: &str) -> bool {
        let grammar = Grammar(Arc::from(grammar));
        book.find(&grammar, |_| ()).is_some()
    }

    #[test]
    fn a_grammar_on_its_way_to_the_ask_stays_however_many_come() {
        let book = GrammarBook::default();
        let few = "start: \"few\"";
        constraint(&book, few);
        let held = book.find(&Grammar(Arc::from(few)), |known| known.held.clone());
        let others = |n| (0..=n).for_each(|n| drop(constraint(&book, &format!("start: \"{n}\""))));
        others(2 * GRAMMARS_MAX);
        assert!(is_known(&book, few));
        drop(held);
        others(GRAMMARS_MAX);
        assert!(!is_known(&book, few));
    }

    /// Makes all that stands in a line, and tells how much that was.
    fn make_those(inbox: &Receiver<Job>, takes: Duration) -> usize {
        // Who waits for one could ask for another, so the line does not end by itself.
        let (again, rest) = channel();
        inbox.try_iter().for_each(|job| drop(again.send(job)));
        drop(again);
        let mut made = 0;
        make_all(
            || rest.recv().ok(),
            || {
                made += 1;
                std::thread::sleep(takes);
            },
        );
        made
    }

    #[test]
    fn the_mask_of_a_completion_that_is_gone_is_not_made() {
        let (masks, [inbox, _]) = lines();
        let [first, mut second, third] = [(); 3].map(|()| masked(&masks, "start: /[a-d]{8}/"));
        drop((first, third));
        assert_eq!(make_those(&inbox, Duration::ZERO), 1);
        assert!(second.is_ready(Duration::ZERO) && second.mask().is_ok());
    }

    #[test]
    fn a_mask_that_panics_costs_its_own_completion_and_no_other() {
        let (masks, [inbox, _]) = lines();
        let [mut first, mut second] = [(); 2].map(|()| masked(&masks, "start: /[a-d]{8}/"));
        let mut count = 0;
        let next = || inbox.try_recv().ok();
        make_all(next, || {
            count += 1;
            assert!(count > 1, "the first one breaks");
        });
        assert!(first.is_ready(Duration::ZERO));
        let error = first.mask().expect_err("it broke");
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(second.is_ready(Duration::ZERO) && second.mask().is_ok());
    }

    #[test]
    fn threads_make_masks_beside_each_other() {
        // Each mask waits until both are being made.
        let both = Arc::new((Mutex::new(0), std::sync::Condvar::new()));
        let meet = {
            let both = Arc::clone(&both);
            move || {
                let (count, changed) = &*both;
                let mut count = count.lock().expect("nothing broke");
                *count += 1;
                changed.notify_all();
                let wait = Duration::from_secs(60);
                drop(changed.wait_timeout_while(count, wait, |count| *count < 2));
            }
        };
        let jobs = line_of("masks", 2, meet).expect("threads");
        let (quick, slow, probe) = (jobs.clone(), jobs, Arc::default());
        let masks = Masks { quick, slow, probe };
        let began = Instant::now();
        let mut all = [(); 2].map(|()| masked(&masks, "start: /[a-d]{8}/"));
        for masked in &mut all {
            assert!(masked.is_ready(Duration::from_secs(120)) && masked.mask().is_ok());
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "one after the other"
        );
    }

    #[test]
    fn a_grammar_whose_masks_are_slow_stands_in_nobodys_way_until_they_are_quick_again() {
        let (masks, [quick, slow]) = lines();
        let mut masked = masked(&masks, "start: /[a-d]{8}/");
        let mut draw = |line: &Receiver<Job>, takes| {
            assert_eq!(make_those(line, takes), 1);
            assert!(masked.is_ready(Duration::ZERO) && masked.mask().is_ok());
            masked.drew(b'a'.into());
        };
        draw(&quick, SLOW);
        assert_eq!(make_those(&quick, Duration::ZERO), 0);
        draw(&slow, SLOW);
        // On a busy machine any mask can take long.
        let quick_again = (0..6).any(|_| {
            draw(&slow, Duration::ZERO);
            quick.try_recv().is_ok()
        });
        assert!(quick_again);
    }
}
