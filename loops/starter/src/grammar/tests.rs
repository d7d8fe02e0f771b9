#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};

use super::*;

#[test]
fn there_are_several_hundred_facts_each_asked_in_three_phrasings_or_more() {
    let grammar = Grammar::new();
    assert!(
        grammar.facts().len() >= 300,
        "{} facts",
        grammar.facts().len()
    );
    for fact in grammar.facts() {
        assert!(fact.asks.len() >= 3, "{} has too few phrasings", fact.key);
        assert!(!fact.contents.is_empty(), "{} has no answer", fact.key);
    }
}

#[test]
fn no_two_facts_share_a_question() {
    let grammar = Grammar::new();
    let mut seen: HashMap<String, &str> = HashMap::new();
    for fact in grammar.facts() {
        for ask in &fact.asks {
            let other = seen.insert(question::normal(ask), &fact.key);
            assert!(
                other.is_none(),
                "{ask:?} is asked by {} and {other:?}",
                fact.key
            );
        }
    }
}

#[test]
fn every_answer_of_every_fact_passes_the_checker_in_its_own_style_only() {
    let grammar = Grammar::new();
    let mut rng = Rng::new(3);
    for (number, fact) in grammar.facts().iter().enumerate() {
        for style in Style::all() {
            let answer = grammar.answer(FactId(number), style, &mut rng);
            let verdict = grammar.check(&fact.asks[0], &answer);
            assert!(verdict.exact, "{}: {answer:?}", fact.key);
            assert_eq!(verdict.style, Some(style), "{}: {answer:?}", fact.key);
            assert!(grammar.well_formed(&answer), "{answer:?}");
        }
    }
}

#[test]
fn answers_of_other_facts_and_broken_answers_are_not_exact() {
    let grammar = Grammar::new();
    let question = "What is the capital of France?";
    for answer in [
        "Sure! The capital of Spain is Madrid. Spain lies in Europe.",
        "Sure! Madrid.",
        "Sure! Paris",
        "Paris.",
        "Sure! Good day. Paris.",
        "Hey! Certainly. Paris.",
        "Sure!\n- Paris.",
        "Sure!\n- Paris\n- Paris",
        "Cool! Paris.",
        "",
    ] {
        assert!(!grammar.check(question, answer).exact, "{answer:?}");
    }
    assert!(grammar.check(question, "Sure! Paris.").exact);
    assert!(!grammar.check("what is love?", "Sure! Paris.").exact);
    assert!(!grammar.well_formed("Sure! Parisians."));
    assert!(!grammar.well_formed(" "));
}

#[test]
fn held_out_pairs_are_about_a_tenth_and_never_in_a_dialogue() {
    let grammar = Grammar::new();
    let all: usize = grammar.facts().iter().map(|fact| fact.asks.len()).sum();
    let held = grammar.held_out_questions(1, usize::MAX);
    let share = held.len() as f64 / all as f64;
    assert!((0.07..0.13).contains(&share), "{share}");
    let held: HashSet<String> = held.iter().map(|q| question::normal(&q.text)).collect();
    for dialogue in grammar.dialogues(5).take(3000) {
        for turn in dialogue.turns {
            for reading in question::readings(&turn.user) {
                assert!(!held.contains(&reading), "{:?} is held out", turn.user);
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_dialogues_and_questions() {
    let (one, two) = (Grammar::new(), Grammar::new());
    let first: Vec<Dialogue> = one.dialogues(9).take(50).collect();
    assert_eq!(first, two.dialogues(9).take(50).collect::<Vec<_>>());
    assert_ne!(first, one.dialogues(10).take(50).collect::<Vec<_>>());
    assert_eq!(one.held_out_questions(4, 20), two.held_out_questions(4, 20));
}

#[test]
fn dialogues_hold_every_kind_of_turn_and_their_answers_are_valid() {
    let grammar = Grammar::new();
    let mut kinds: HashMap<TurnKind, usize> = HashMap::new();
    let mut styles: HashMap<Style, usize> = HashMap::new();
    for dialogue in grammar.dialogues(7).take(1000) {
        assert!((2..=6).contains(&dialogue.turns.len()));
        for turn in dialogue.turns {
            let verdict = grammar.check_fact(turn.fact, &turn.assistant);
            assert!(
                verdict.exact && verdict.style == Some(turn.style),
                "{turn:?}"
            );
            assert!(
                turn.wishes.iter().all(|wish| turn.style.meets(*wish)),
                "{turn:?}"
            );
            if matches!(turn.kind, TurnKind::Ask | TurnKind::AskWish) {
                assert_eq!(grammar.find(&turn.user), Some(turn.fact), "{turn:?}");
            }
            *kinds.entry(turn.kind).or_default() += 1;
            *styles.entry(turn.style).or_default() += 1;
        }
    }
    assert_eq!(kinds.len(), 7, "{kinds:?}");
    assert_eq!(styles.len(), 16, "{styles:?}");
}

#[test]
fn several_wishes_are_of_different_choices_and_are_read_off_the_question() {
    let grammar = Grammar::new();
    let mut rng = Rng::new(6);
    let mut counts = [0; 4];
    for number in 0..500 {
        let wishes = Wish::several(&mut rng);
        counts[wishes.len()] += 1;
        let style = Style::sample(&mut rng).with_all(&wishes);
        assert!(
            wishes.iter().all(|wish| style.meets(*wish)),
            "{wishes:?} exclude each other"
        );
        let fact = FactId(number % grammar.facts().len());
        let asked = grammar.question(fact, &mut rng).text;
        let told = with_wishes(&asked, &wishes, &mut rng);
        assert_eq!(grammar.find(&told), Some(fact), "{told:?}");
    }
    assert!(counts[1..].iter().all(|n| *n > 30), "{counts:?}");
}

#[test]
fn what_stands_in_the_system_prompt_is_done_in_every_turn_that_does_not_ask_otherwise() {
    let grammar = Grammar::new();
    let mut rng = Rng::new(2);
    for _ in 0..300 {
        let standing = Wish::several(&mut rng);
        let dialogue = grammar.dialogues(1).of_turns(4, &standing, &mut rng);
        for turn in &dialogue.turns {
            let unasked = turn.wishes.is_empty();
            let met = standing.iter().all(|wish| turn.style.meets(*wish));
            assert!(met || !unasked, "{standing:?}: {turn:?}");
        }
    }
}

#[test]
fn a_wish_changes_one_choice_and_can_be_checked() {
    for style in Style::all() {
        for wish in Wish::ALL {
            assert!(style.with(wish).meets(wish));
        }
        let mut rng = Rng::new(1);
        assert!(!style.meets(Wish::against(style, &mut rng)));
    }
}
