#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use hone_domain::{Message, NextItem, NextKind, NextState, Outcome, Role};

use super::*;
use crate::labelled::{Labelled, labelled};
use crate::testing::turn;

fn rule(row: &Labelled) -> Ruling {
    let mut turn = turn(1);
    turn.messages = vec![Message::text(Role::User, row.asked.clone())];
    turn.completion_text.clone_from(&row.completion);
    let items = vec![NextItem {
        kind: row.kind,
        text: row.text.clone(),
        failed: None,
    }];
    judge(&NextState { items }, &turn)
}

fn name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Good => "good",
        Outcome::Bad => "bad",
        Outcome::Neutral | Outcome::Abstain => "none",
    }
}

/// Precision and recall of `class` in a confusion table of (label, ruled) counts.
fn rates(table: &BTreeMap<(&str, &str), u32>, class: &str) -> (f64, f64) {
    let hit = f64::from(*table.get(&(class, class)).unwrap_or(&0));
    let sum = |keep: fn(&(&str, &str), &str) -> bool| -> f64 {
        table
            .iter()
            .filter(|(key, _)| keep(key, class))
            .map(|(_, n)| f64::from(*n))
            .sum()
    };
    (
        hit / sum(|key, class| key.1 == class).max(1.0),
        hit / sum(|key, class| key.0 == class).max(1.0),
    )
}

#[test]
fn rules_are_precise_on_states_they_were_not_tuned_on() {
    let mut tables: BTreeMap<&str, BTreeMap<(&str, &str), u32>> = BTreeMap::new();
    for row in labelled() {
        let ruling = rule(&row);
        let ruled = name(ruling.outcome);
        if row.half == "tune" && ruled != row.label {
            println!(
                "tune: {} ruled {ruled} ({}): {}",
                row.label, ruling.reason, row.text
            );
        }
        *tables
            .entry(row.half)
            .or_default()
            .entry((row.label, ruled))
            .or_default() += 1;
    }
    for (half, table) in &tables {
        println!("{half}: label -> ruled");
        for ((label, ruled), count) in table {
            println!("  {label:>5} -> {ruled:<5} {count}");
        }
        for class in ["good", "bad"] {
            let (precision, recall) = rates(table, class);
            println!("  {class}: precision {precision:.3}, recall {recall:.3}");
        }
    }
    assert!(
        tables["test"].values().sum::<u32>() >= 75,
        "half of at least 150"
    );
    for (half, precision_min, recall_min) in [("test", 0.9, 0.7), ("fresh", 0.8, 0.5)] {
        for class in ["good", "bad"] {
            let (precision, recall) = rates(&tables[half], class);
            assert!(
                precision >= precision_min,
                "{half} {class}: precision {precision}"
            );
            assert!(recall >= recall_min, "{half} {class}: recall {recall}");
        }
    }
}

#[test]
fn every_item_counts_and_people_come_before_tools() {
    let item = |kind, text: &str| NextItem {
        kind,
        text: text.to_owned(),
        failed: None,
    };
    let (user, tool) = (NextKind::UserReply, NextKind::ToolResult);
    let check = |items: Vec<NextItem>, outcome, reason| {
        let ruling = judge(&NextState { items }, &turn(1));
        assert_eq!((ruling.outcome, ruling.reason), (outcome, reason));
    };
    check(
        vec![item(tool, "exit code: 0"), item(tool, "exit code: 2")],
        Outcome::Bad,
        "exit_code",
    );
    check(
        vec![
            item(tool, "exit code: 2"),
            item(user, "Thank you, perfect."),
        ],
        Outcome::Good,
        "thanks",
    );
    check(
        vec![
            item(tool, "exit code: 0"),
            item(user, "How far is the sun?"),
        ],
        Outcome::Good,
        "exit_code_zero",
    );
    check(
        vec![item(user, "How far is the sun?")],
        Outcome::Abstain,
        MOVED_ON,
    );
    check(vec![], Outcome::Abstain, "nothing_said");
}

#[test]
fn a_correction_is_a_hint_and_a_bare_complaint_is_not() {
    let hint = |text: &str| {
        let items = vec![NextItem {
            kind: NextKind::UserReply,
            text: text.to_owned(),
            failed: None,
        }];
        judge(&NextState { items }, &turn(1)).hint
    };
    assert_eq!(
        hint("No, use metric units. How far is the sun?").as_deref(),
        Some("No, use metric units.")
    );
    assert_eq!(
        hint("That's wrong. The moon is smaller.").as_deref(),
        Some("That's wrong. The moon is smaller.")
    );
    assert_eq!(hint("wrong"), None);
    assert_eq!(hint("Thanks!"), None);
}

#[test]
fn replies_of_use_are_ruled_as_they_are_meant() {
    let (bad, none) = (Outcome::Bad, Outcome::Abstain);
    let rows: &[(&str, Outcome, Option<&str>)] = &[
        // A question about the world, and what is only quoted, is no complaint.
        ("Is it wrong to eat meat?", none, None),
        ("Was it wrong to sell the house?", none, None),
        ("How do I say 'that is wrong' in French?", none, None),
        ("How do I say that's wrong in French?", none, None),
        ("Is it wrong?", bad, None),
        ("Isn't it wrong?", bad, None),
        // Mocking thanks.
        ("Thanks for nothing", bad, None),
        ("Thank you for nothing.", bad, None),
        ("Thanks, but no", bad, None),
        ("Thanks, but no thanks", none, None),
        ("Thanks for your help", Outcome::Good, None),
        (
            "Thanks for nothing less than a miracle",
            Outcome::Good,
            None,
        ),
        ("Danke für nichts", bad, None),
        ("Merci pour rien", bad, None),
        ("Gracias por nada", bad, None),
        ("Grazie per niente", bad, None),
        ("Obrigado por nada", bad, None),
        // What leads up to a complaint says no more than the complaint.
        ("You are useless", bad, None),
        ("Your answer is useless", bad, None),
        ("You are not helpful", bad, None),
        (
            "You are useless. It is Lyon.",
            bad,
            Some("You are useless. It is Lyon."),
        ),
        // Plain wishes.
        ("Use bullet points", bad, Some("Use bullet points")),
        (
            "Please use bullet points",
            bad,
            Some("Please use bullet points"),
        ),
        ("I want bullet points", bad, Some("I want bullet points")),
        ("be brief", bad, Some("be brief")),
        ("Greet me first", bad, Some("Greet me first")),
        ("Please greet me first", bad, Some("Please greet me first")),
        ("Always greet me", bad, Some("Always greet me")),
        ("skip the greeting", bad, Some("skip the greeting")),
        ("answer in German", bad, Some("answer in German")),
        (
            "I would prefer one sentence",
            bad,
            Some("I would prefer one sentence"),
        ),
        ("Benutze Stichpunkte", bad, Some("Benutze Stichpunkte")),
        ("Sois bref", bad, Some("Sois bref")),
        ("Usa viñetas", bad, Some("Usa viñetas")),
        ("Sii breve", bad, Some("Sii breve")),
        ("Seja breve", bad, Some("Seja breve")),
        ("请用要点", bad, Some("请用要点")),
    ];
    for (text, outcome, hint) in rows {
        let ruling = judge_comment(text, &turn(1));
        assert_eq!(
            (ruling.outcome, ruling.hint.as_deref()),
            (*outcome, *hint),
            "{text}"
        );
    }
}

#[test]
fn the_words_of_a_wish_in_a_new_request_are_no_wish() {
    let none = Outcome::Abstain;
    let rows: &[(&str, Outcome, Option<&str>)] = &[
        // The same words in a new request.
        ("Use bullet points to explain how rain forms", none, None),
        ("How do I use bullet points?", none, None),
        ("I always use bullet points", none, None),
        ("I want bullet points on the French revolution", none, None),
        ("Be brief: how do tides work?", none, None),
        ("Greet me in French", none, None),
        ("How do I answer in German?", none, None),
        ("I would prefer one sentence per planet", none, None),
        ("Benutze Stichpunkte, um den Regen zu erklären", none, None),
    ];
    for (text, outcome, hint) in rows {
        let ruling = judge_comment(text, &turn(1));
        let ruled = (ruling.outcome, ruling.hint.as_deref());
        assert_eq!(ruled, (*outcome, *hint), "{text}");
    }
}

#[test]
fn a_wish_keeps_the_words_it_is_said_in() {
    for (text, hint, wish) in [
        (
            "Use bullet points",
            Some("Use bullet points"),
            Some("use bullet points"),
        ),
        (
            " Way too long! My boss reads on a phone. ",
            Some("Way too long! My boss reads on a phone."),
            Some("keep it short"),
        ),
        ("answer in German", Some("answer in German"), None),
        ("wrong", None, None),
        ("Thanks!", None, None),
    ] {
        let ruling = judge_comment(text, &turn(1));
        let words = (ruling.hint.as_deref(), ruling.wish.as_deref());
        assert_eq!(words, (hint, wish), "{text}");
    }
    let long = format!("That is wrong, {}.", "it is another moon ".repeat(40));
    let ruling = judge_comment(&long, &turn(1));
    assert!(ruling.hint.is_none_or(|hint| hint.chars().count() <= 300));
}

/// Other languages than English ask about the world in the order of a statement.
#[test]
fn what_is_asked_about_the_world_is_no_complaint_in_any_language() {
    let asked = [
        "Ist es falsch, Fleisch zu essen?",
        "Lügen ist falsch?",
        "Fleisch essen ist falsch?",
        "C'est mauvais de manger de la viande ?",
        "C'est faux de dire que Rome est tombée ?",
        "Mentir, c'est mauvais ?",
        "¿Está mal comer carne?",
        "¿Está mal que mienta?",
        "¿Es falso que Roma cayó?",
        "È sbagliato mangiare carne?",
        "È sbagliato che io menta?",
        "È falso che Roma cadde?",
        "É errado comer carne?",
        "Está errado comer carne?",
        "É errado que eu minta?",
        "吃肉是错的吗？",
        "吃肉是错的吗",
        "撒谎不对吗？",
    ];
    let complaints = [
        "Das ist falsch?",
        "Das ist falsch",
        "Deine Antwort ist falsch?",
        "C'est faux ?",
        "C'est mauvais",
        "Votre code est faux ?",
        "¿Está mal esta respuesta?",
        "Eso está mal",
        "¿Eso está mal?",
        "È sbagliata questa risposta?",
        "Questo è sbagliato",
        "È sbagliato?",
        "Está errada esta resposta?",
        "Isso está errado",
        "Está errado?",
        "你的答案是错的吗？",
        "这是错的吗？",
        "不对吗？",
    ];
    check_asked(&asked, &complaints);
}

/// What names the answer first, and what goes on with a request, is said of the answer.
#[test]
fn a_complaint_that_is_asked_is_a_complaint_in_any_language() {
    let asked = [
        "C'est mauvais de mentir, non ?",
        "Est-ce que tu penses que c'est faux de dire ça ?",
        "C'est vrai que c'est mauvais pour la santé ?",
        "E è sbagliato mangiare carne?",
        "È vero che è sbagliato mentire?",
        "È sbagliato mangiare carne, pesce e uova?",
        "¿Tú crees que está mal comer carne?",
        "¿Eso significa que está mal mentir?",
        "¿Está mal comer carne, pescado y huevos?",
        "Isso quer dizer que é errado mentir?",
        "É errado comer carne, peixe e ovos?",
        "Fleisch essen ist falsch, oder?",
        "Lügen ist falsch, oder?",
        "据说吃肉是错的吗？",
    ];
    let complaints = [
        "Votre code est faux pour les listes vides, pouvez-vous corriger ?",
        "C'est faux si la liste est vide, tu peux corriger ?",
        "Votre code est faux si la liste est vide ?",
        "Il codice è sbagliato se la lista è vuota, puoi correggerlo?",
        "Il tuo codice è sbagliato se la lista è vuota?",
        "Tu respuesta está mal si la lista está vacía, ¿puedes arreglarla?",
        "Está mal que hayas usado Python 2, ¿puedes corregirlo?",
        "¿La respuesta que me diste está mal si la lista está vacía?",
        "Seu código está errado se a lista estiver vazia, pode corrigir?",
        "Está errado se a lista estiver vazia, você pode corrigir?",
        "Das Vorgehen ist falsch, kannst du es korrigieren?",
        "Dein Vorgehen ist falsch?",
        "Das Vorzeichen ist falsch, oder?",
        "Es ist falsch, gehst du bitte zu Schritt 2 zurück?",
        "公式错了吗？",
        "数据有问题吗？",
        "步骤有错吗",
    ];
    check_asked(&asked, &complaints);
}

fn check_asked(asked: &[&str], complaints: &[&str]) {
    let ruled = |text: &str| judge_comment(text, &turn(1)).outcome;
    for text in asked {
        assert_eq!(ruled(text), Outcome::Abstain, "{text}");
    }
    for text in complaints {
        assert_eq!(ruled(text), Outcome::Bad, "{text}");
    }
}

#[test]
fn odd_texts_are_ruled_without_trouble() {
    let long = "wrong ".repeat(100_000);
    for text in [
        "",
        "\u{0}",
        "?!",
        "«",
        "`",
        "İ",
        "e\u{301}\u{301}",
        "👩‍👩‍👧",
        &long,
        "\"",
        "[1",
    ] {
        judge_comment(text, &turn(1));
        tool::judge(text);
    }
}

proptest::proptest! {
    #[test]
    fn no_text_breaks_the_rules(text in "\\PC{0,300}", marks in "[`\"«»“”>\\[\\]<.?!\n \u{4e0d}a-z']{0,200}") {
        for text in [text, marks] {
            let ruling = judge_comment(&text, &turn(1));
            proptest::prop_assert!(ruling.hint.is_none_or(|h| text.contains(h.trim())));
            tool::judge(&text);
        }
    }
}
