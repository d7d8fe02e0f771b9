//! What dashboards and alerts ask for exists in `/metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use hone_tests::{TestApp, ask, client, temporary};
use serde_json::Value;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Words of a query that begin with `hone_`.
fn names(query: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    query
        .split(|c| !is_part(c))
        .filter(|word| word.starts_with("hone_"))
        .map(str::to_owned)
        .collect()
}

/// Label names that a query matches or groups by, with the metric they belong to where it is plain.
fn matched_labels(query: &str) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for (at, _) in query.match_indices('{') {
        let name = query[..at]
            .rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .next();
        let inner = query[at + 1..].split('}').next().unwrap();
        for part in inner.split("\",") {
            let label = part.split(['=', '!', '~']).next().unwrap().trim();
            found.insert((name.unwrap().to_owned(), label.to_owned()));
        }
    }
    found
}

fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(deploy().join("grafana/hone.json")).unwrap();
    let registry: Value = serde_json::from_str(&text).unwrap();
    let panels = registry["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|p| p["targets"].as_array())
        .flatten();
    let mut all: Vec<String> = targets
        .map(|t| t["expr"].as_str().unwrap().to_owned())
        .collect();
    let variables = registry["templating"]["list"].as_array().unwrap();
    all.extend(
        variables
            .iter()
            .filter_map(|v| v["query"].as_str())
            .map(str::to_owned),
    );
    let alerts = std::fs::read_to_string(deploy().join("prometheus/alerts.yaml")).unwrap();
    let exprs = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    all.extend(exprs.map(str::to_owned));
    let scaler = deploy().join("kubernetes-workers/keda/by-prometheus.yaml");
    let scaler = std::fs::read_to_string(scaler).unwrap();
    let query = scaler
        .lines()
        .find_map(|line| line.trim().strip_prefix("query: "));
    all.push(query.unwrap().to_owned());
    all
}

/// The reference names every metric of a page.
fn told_in_the_docs(page: &str) {
    let reference = std::fs::read_to_string(deploy().join("../docs/API.md")).unwrap();
    let (_, section) = reference.split_once("\n## Metrics\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let words = section.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let told: BTreeSet<&str> = words.collect();
    for line in page.lines().filter_map(|l| l.strip_prefix("# TYPE hone_")) {
        let name = line.split(' ').next().unwrap();
        assert!(
            told.contains(name),
            "docs/API.md says nothing of hone_{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_query_names_metrics_and_labels_that_exist() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &[]).await.unwrap();
    app.chat(ask("Hello!", 1)).await.unwrap();
    let page = client()
        .unwrap()
        .get(format!("{}/metrics", app.url))
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let ends: &[&str] = match kind {
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            for end in ends {
                labels.entry(format!("{name}{end}")).or_default();
            }
        } else if let Some((name, rest)) = line.split_once('{') {
            let known = labels.entry(name.to_owned()).or_default();
            let inner = rest.rsplit_once('}').unwrap().0;
            known.extend(
                inner
                    .split("\",")
                    .map(|p| p.split('=').next().unwrap().to_owned()),
            );
        }
    }
    told_in_the_docs(&page);
    let queries = queries();
    assert!(queries.len() > 30, "{} queries were found", queries.len());
    for query in &queries {
        for name in names(query) {
            assert!(
                labels.contains_key(&name),
                "no {name} in /metrics, but in: {query}"
            );
        }
        for (name, label) in matched_labels(query) {
            assert!(
                labels[&name].contains(&label),
                "{name} has no label {label}: {query}"
            );
        }
    }
    assert!(!labels.contains_key("hone_no_such_metric"));
    app.stop().await.unwrap();
}
