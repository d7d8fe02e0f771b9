//! Binding as clients meet it: requests recorded from real clients, and a generated corpus of
//! conversations that mixes every habit that is known. No request may ever land in the session of
//! another conversation.

mod traces;

use hone_bench::conversations as corpus;

/// Conversations of the corpus.
const CONVERSATIONS: usize = 10_000;

#[test]
fn no_request_of_a_generated_corpus_lands_in_another_session() {
    let table = corpus::run(7, CONVERSATIONS);
    println!("{table}");
    assert_eq!(table.cross_links(), 0, "{table}");
    assert_eq!(table.wrong_turns(), 0, "{:#?}\n{table}", table.wrong);
    for (class, least) in [
        ("continues", 0.9),
        ("continues by key", 0.99),
        ("tool results", 0.95),
        ("retry of a cut stream", 0.9),
    ] {
        let share = table.share_right(class);
        assert!(share >= least, "{class}: {share:.3} are found\n{table}");
    }
}

/// The corpus tells good binding from bad: without the scope, or with guesses, links would cross.
#[test]
fn the_corpus_has_what_could_be_mixed_up() {
    let openings = corpus::equal_openings(7, 2_000);
    assert!(
        openings > 200,
        "only {openings} conversations begin like another of the same user"
    );
}

#[test]
fn requests_of_real_clients_find_their_sessions() {
    let replayed = traces::replay_all(true);
    for (client, table) in &replayed {
        println!("{client}\n{table}");
        assert_eq!(
            table.cross_links() + table.wrong_turns(),
            0,
            "{client}\n{table}"
        );
        assert!(table.share_right("continues") >= 0.9, "{client}\n{table}");
    }
    assert!(
        replayed.len() >= 7,
        "only {} clients were replayed",
        replayed.len()
    );
    // The same twice by one user, without anything to tell the two apart: no guess.
    for (client, table) in traces::replay_all(false) {
        println!("{client}, both by one user\n{table}");
        assert_eq!(
            table.cross_links() + table.wrong_turns(),
            0,
            "{client}\n{table}"
        );
    }
}
