//! Which preferences the users have: what the model does when told, and seldom does untold.
//!
//! A learner is not to be measured on what the model cannot do at all, nor on what it does anyway.
//! So every pair of compatible tastes is tried on the model as it ships, before anything is learned,
//! and the rule below takes three of them.

use futures::future::join_all;
use hone_starter::grammar::{FactId, Grammar};
use hone_starter::rng::Rng;
use serde_json::{Value, json};

use super::talker::Talker;
use crate::Bench;
use crate::demo::taste::Taste;
use crate::report::{Report, milli};

/// Two tastes of one user, in the order in which they are best told.
pub(super) type Pair = [Taste; 2];

/// Users.
pub(super) const USERS: usize = 3;
/// Questions that each pair is tried on, and how many are asked side by side.
const QUESTIONS: usize = 100;
const TOGETHER: usize = 8;
/// Percent of the answers to both tastes: at least this when told, at most that when not.
const TOLD_MIN: usize = 95;
const UNTAUGHT_MAX: usize = 30;

/// How often the model as it ships answers to a pair of tastes, in percent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried {
    pair: Pair,
    untaught: usize,
    told: usize,
}

impl Tried {
    /// Whether it is something to learn, and something that can be learned.
    fn passes(&self) -> bool {
        self.told >= TOLD_MIN && self.untaught <= UNTAUGHT_MAX
    }

    fn name(&self) -> String {
        name(self.pair)
    }
}

/// The pair as it is written.
pub(super) fn name(pair: Pair) -> String {
    pair.map(Taste::name).join("+")
}

/// A question with the tastes told behind it.
pub(super) fn told(question: &str, pair: Pair) -> String {
    pair.iter().fold(question.to_owned(), |told, taste| {
        format!("{told} {}", taste.wish())
    })
}

/// Every pair of compatible tastes on the model as it ships.
pub(super) async fn measure(bench: &Bench) -> Result<Vec<Tried>, String> {
    let config = bench.config.clone();
    bench.app(config, async |url| try_all(url).await).await
}

async fn try_all(url: &str) -> Result<Vec<Tried>, String> {
    let questions = questions();
    let untold = answers(url, &questions).await?;
    let mut all = Vec::new();
    for pair in pairs() {
        let mut tried = Tried {
            pair,
            untaught: percent(&untold, pair),
            told: 0,
        };
        for [first, second] in [pair, [pair[1], pair[0]]] {
            let asked = questions.iter().map(|q| told(q, [first, second]));
            let asked: Vec<String> = asked.collect();
            let share = percent(&answers(url, &asked).await?, pair);
            if share > tried.told {
                tried.told = share;
                tried.pair = [first, second];
            }
        }
        all.push(tried);
    }
    Ok(all)
}

/// All pairs of tastes that do not exclude each other.
fn pairs() -> Vec<Pair> {
    let all = Taste::ALL.into_iter().enumerate();
    let pairs =
        all.flat_map(|(at, one)| Taste::ALL[at + 1..].iter().map(move |other| [one, *other]));
    pairs.filter(|[one, other]| !one.excludes(*other)).collect()
}

/// Questions as the users of the sessions ask them, by seeds that no session has.
fn questions() -> Vec<String> {
    let grammar = Grammar::new();
    let question = |number: usize| {
        let mut rng = Rng::at(0, number as u64);
        let fact = FactId(rng.below(grammar.facts().len()));
        grammar.question(fact, &mut rng).text
    };
    (0..QUESTIONS).map(question).collect()
}

/// Answers that are not stored, in the order of the questions.
async fn answers(url: &str, questions: &[String]) -> Result<Vec<String>, String> {
    let each = questions.len().div_ceil(TOGETHER);
    let parts = questions.chunks(each.max(1)).enumerate();
    let parts = join_all(parts.map(|(part, questions)| async move {
        let mut talker = Talker::new(url, format!("asks-{part}")).await?;
        let mut said = Vec::new();
        for (number, question) in questions.iter().enumerate() {
            let seed = (part * each + number) as u64;
            said.push(talker.answer(question, seed).await);
        }
        match talker.failed {
            0 => Ok(said),
            failed => Err(format!("{failed} questions were not answered")),
        }
    }));
    let parts: Result<Vec<Vec<String>>, String> = parts.await.into_iter().collect();
    Ok(parts?.into_iter().flatten().collect())
}

fn percent(answers: &[String], pair: Pair) -> usize {
    let liked = answers.iter().filter(|a| pair.iter().all(|t| t.likes(a)));
    100 * liked.count() / answers.len().max(1)
}

/// The users' preferences: of the pairs that pass, again and again the one that shares the fewest
/// tastes with those before it, of these the one that untaught answers meet least, then the first.
///
/// # Errors
/// Too few pairs pass.
pub(super) fn chosen(tried: &[Tried]) -> Result<[Pair; USERS], String> {
    let mut left: Vec<&Tried> = tried.iter().filter(|t| t.passes()).collect();
    let mut taken: Vec<Pair> = Vec::new();
    while taken.len() < USERS && !left.is_empty() {
        let shared = |t: &&Tried| {
            let mine = taken.iter().flatten();
            mine.filter(|taste| t.pair.contains(taste)).count()
        };
        let order = |(at, t): &(usize, &&Tried)| (shared(t), t.untaught, *at);
        let best = left.iter().enumerate().min_by_key(order).map(|(at, _)| at);
        taken.extend(best.map(|at| left.remove(at).pair));
    }
    let few = |taken: Vec<Pair>| {
        let n = taken.len();
        format!("{n} pairs of preferences suit this model, and {USERS} are needed")
    };
    taken.try_into().map_err(few)
}

/// The table of all pairs, with the rule and what it took.
pub(super) fn report(tried: &[Tried], chosen: &[Pair; USERS]) -> Report {
    let title =
        format!("preferences: {QUESTIONS} answers of the model as it ships, % to both tastes");
    let mut report = Report::new(title, &["pair, as told", "untaught", "told", "passes"]);
    for t in tried {
        let passes = if t.passes() { "yes" } else { "" };
        report.row([
            t.name(),
            t.untaught.to_string(),
            t.told.to_string(),
            passes.to_owned(),
        ]);
    }
    let users = chosen.map(name).join(", ");
    report.note(format!(
        "told at least {TOLD_MIN}, untaught at most {UNTAUGHT_MAX}; then fewest tastes in common, then lowest untaught: {users}"
    ));
    report
}

/// The same for programs.
pub(super) fn object(tried: &[Tried], chosen: &[Pair; USERS]) -> Value {
    let each = tried.iter().map(|t| {
        json!({
            "pair": t.name(),
            "untaught": milli(t.untaught as f64 / 100.0),
            "told": milli(t.told as f64 / 100.0),
            "passes": t.passes(),
        })
    });
    json!({ "tried": each.collect::<Vec<_>>(), "chosen": chosen.map(name) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use Taste::{Brief, Formal, Greeted, List, Prose};

    #[test]
    fn pairs_do_not_contradict_themselves() {
        let pairs = pairs();
        assert_eq!(pairs.len(), 24);
        assert!(!pairs.contains(&[List, Prose]));
    }

    #[test]
    fn the_rule_takes_what_can_be_told_is_rare_and_differs() {
        let tried = |pair, untaught, told| Tried {
            pair,
            untaught,
            told,
        };
        let mut all = vec![
            tried([List, Greeted], 23, 99),
            tried([List, Formal], 20, 98),
            // Cannot be told; is common anyway.
            tried([Brief, List], 1, 94),
            tried([Prose, Formal], 31, 100),
            tried([Prose, Greeted], 29, 95),
        ];
        let taken = chosen(&all).unwrap();
        assert_eq!(taken, [[List, Formal], [Prose, Greeted], [List, Greeted]]);
        all.pop();
        assert!(chosen(&all).unwrap_err().starts_with("2 pairs"));
    }

    #[test]
    fn tastes_are_told_behind_the_question() {
        assert_eq!(
            told("Why?", [List, Greeted]),
            "Why? use bullet points greet me first"
        );
        assert_eq!(
            percent(&["- a".to_owned(), "Hi!\n- a".to_owned()], [List, Greeted]),
            50
        );
        assert_eq!(questions().len(), QUESTIONS);
    }
}
