//! Grammars that are kept, and the threads that make masks.

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
    let constraint = book.constraint(&grammar, &setup, model_config().vocab);
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
