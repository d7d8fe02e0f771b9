//! Answers about versions as text.

use serde_json::Value;

use crate::table::{
    Side::{Left, Right},
    table,
};

fn rows(answer: &Value) -> impl Iterator<Item = &Value> {
    answer["data"].as_array().into_iter().flatten()
}

fn marks(version: &Value) -> String {
    let marks = [
        "on_trial",
        "pinned",
        "provisional",
        "tripped",
        "tainted",
        "retired",
        "pruned",
    ];
    let set = marks.into_iter().filter(|mark| version[*mark] == true);
    let mut text = set.collect::<Vec<_>>().join(" ");
    if let Some(note) = version["note"].as_str() {
        text = format!("{text} {note}");
    }
    text.trim().to_owned()
}

fn score(value: &Value) -> String {
    value
        .as_f64()
        .map_or("-".to_owned(), |mean| format!("{mean:.2}"))
}

pub(super) fn list(answer: &Value) -> String {
    let mut text = format!("served: version {}\n", served(answer));
    if let Some(why) = answer["standing"]["tripped"]["note"].as_str() {
        text.push_str(&format!("learning is stopped: {why}\n"));
    }
    text.push_str(&trial(answer));
    let row = |v: &Value| {
        vec![
            v["version"].to_string(),
            v["parent"].to_string(),
            v["status"].as_str().unwrap_or_default().to_owned(),
            v["samples"].to_string(),
            score(&v["mean_score"]),
            v["scored_turns"].to_string(),
            marks(v),
        ]
    };
    let names = [
        ("version", Right),
        ("parent", Right),
        ("status", Left),
        ("samples", Right),
        ("score", Right),
        ("turns", Right),
        ("", Left),
    ];
    text.push_str(&table(&names, &rows(answer).map(row).collect::<Vec<_>>()));
    text
}

pub(super) fn one(v: &Value) -> String {
    let mut text = format!(
        "version {} ({}), from {}: {} samples, score {}\n",
        v["version"],
        v["status"].as_str().unwrap_or_default(),
        v["parent"],
        v["samples"],
        score(&v["mean_score"]),
    );
    let marks = marks(v);
    if !marks.is_empty() {
        text.push_str(&format!("{marks}\n"));
    }
    if !v["lineage"].is_null() {
        text.push_str(&format!(
            "continues {}; continued by {}\n",
            v["lineage"], v["children"]
        ));
    }
    for turn in v["turns"].as_array().into_iter().flatten() {
        let id = turn["turn_id"].as_str().unwrap_or_default();
        text.push_str(&format!("  {id}  {}\n", score(&turn["score"])));
    }
    text
}

pub(super) fn hold(v: &Value) -> String {
    let pinned = if v["pinned"] == true { ", pinned" } else { "" };
    let stopped = v["tripped"].as_str();
    let stopped = stopped.map_or(String::new(), |why| format!(", learning stopped: {why}"));
    format!(
        "served: version {}{pinned}{stopped}\n{}",
        served(v),
        trial(v)
    )
}

/// The version that every session gets that no trial draws.
fn served(answer: &Value) -> &Value {
    let proven = answer["trial"].get("proven");
    proven.unwrap_or(&answer["current"])
}

/// What both sides of a trial have done; nothing where nothing is on trial.
fn trial(answer: &Value) -> String {
    let trial = &answer["trial"];
    let Some(share) = trial["share"].as_f64() else {
        return String::new();
    };
    let mut text = format!(
        "version {} is on trial on {:.0} % of the sessions:\n",
        trial["version"],
        share * 100.0
    );
    for arm in trial["arms"].as_array().into_iter().flatten() {
        text.push_str(&format!(
            "  version {}: {} answers, {} judged, {} complaints, score {}\n",
            arm["version"],
            arm["turns"],
            arm["scored_turns"],
            arm["complaints"],
            score(&arm["mean_score"]),
        ));
    }
    text
}

pub(super) fn pairs(answer: &Value) -> String {
    let mut text = String::new();
    for pair in rows(answer) {
        let asked = pair["messages"].as_array().and_then(|m| m.last());
        let asked = asked
            .and_then(|m| m["content"].as_str())
            .unwrap_or_default();
        text.push_str(&format!("> {asked}\n"));
        for side in ["a", "b"] {
            let said = &pair[side];
            let words = said["text"].as_str().unwrap_or_default();
            text.push_str(&format!("  v{}: {words}\n", said["version"]));
        }
    }
    text
}

pub(super) fn scopes(answer: &Value) -> String {
    let row = |s: &Value| {
        let pinned = (s["pinned"] == true).then(|| "pinned".to_owned());
        let stopped = s["tripped"].as_str().map(|why| format!("stopped: {why}"));
        let tried = s["canary"].as_u64().map(|v| format!("{v} is on trial"));
        let marks: Vec<String> = pinned.into_iter().chain(stopped).chain(tried).collect();
        vec![
            s["current"].to_string(),
            s["versions"].to_string(),
            s["turns"].to_string(),
            score(&s["mean_score"]),
            s["scope"].as_str().unwrap_or_default().to_owned(),
            marks.join(", "),
        ]
    };
    let names = [
        ("served", Right),
        ("versions", Right),
        ("turns", Right),
        ("score", Right),
        ("scope", Left),
        ("", Left),
    ];
    table(&names, &rows(answer).map(row).collect::<Vec<_>>())
}

pub(super) fn refusals(answer: &Value) -> String {
    let mut text = String::new();
    for r in rows(answer) {
        text.push_str(&format!(
            "{} from version {} ({} samples, {})\n",
            r["scope"].as_str().unwrap_or_default(),
            r["parent"],
            r["samples"],
            r["reason"].as_str().unwrap_or_default(),
        ));
        for reason in r["reasons"].as_array().into_iter().flatten() {
            text.push_str(&format!("  {}\n", reason.as_str().unwrap_or_default()));
        }
    }
    if text.is_empty() {
        text.push_str("no candidate was refused\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_shows_what_people_look_for() {
        let answer = json!({
            "current": 3,
            "standing": {"pinned": true, "tripped": null},
            "data": [{"version": 3, "parent": 1, "status": "rollback", "samples": 0,
                      "mean_score": -0.25, "scored_turns": 4, "pinned": true, "note": "worse"}],
        });
        let text = list(&answer);
        assert!(text.starts_with("served: version 3\n"), "{text}");
        let wanted = "\
version  parent  status    samples  score  turns
      3       1  rollback        0  -0.25      4  pinned worse
";
        assert!(text.ends_with(wanted), "{text}");
    }

    #[test]
    fn what_is_on_trial_is_not_what_is_served() {
        let arm = |version: u64| json!({"version": version, "turns": 5, "scored_turns": 1, "complaints": 0});
        let trial = json!({"version": 3, "proven": 2, "share": 0.2, "arms": [arm(3), arm(2)]});
        let answer = json!({"current": 3, "standing": {}, "trial": trial, "data": []});
        let wanted = "\
served: version 2
version 3 is on trial on 20 % of the sessions:
  version 3: 5 answers, 1 judged, 0 complaints, score -
  version 2: 5 answers, 1 judged, 0 complaints, score -
";
        assert_eq!(hold(&answer), wanted);
        assert!(list(&answer).starts_with(wanted));
    }

    #[test]
    fn scopes_stand_in_columns_whatever_their_names() {
        let answer = json!({"data": [
            {"current": 12, "versions": 140, "turns": 7, "mean_score": 0.5, "scope": "5:local",
             "pinned": true, "tripped": "worse"},
            {"current": 4, "versions": 4, "turns": 123456, "mean_score": null, "canary": 4,
             "scope": "9:helpdesk-/zo\u{eb}"},
        ]});
        let wanted = "\
served  versions   turns  score  scope
    12       140       7   0.50  5:local          pinned, stopped: worse
     4         4  123456      -  9:helpdesk-/zo\u{eb}  4 is on trial
";
        assert_eq!(scopes(&answer), wanted);
    }
}
