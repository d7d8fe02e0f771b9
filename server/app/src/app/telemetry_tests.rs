//! A server that learns, and a collector that is played here and reads what really arrives.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::{Value, json};
use toml::Value as Toml;
use uuid::Uuid;

use crate::app::App;
use crate::config::{Config, Sources};

/// What arrived, as it came.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(&'static str, Bytes)>>>);

impl Collector {
    async fn start() -> (Self, String) {
        let collector = Self::default();
        let take = |kind| {
            move |State(all): State<Self>, body: Bytes| async move {
                all.0.lock().unwrap().push((kind, body));
            }
        };
        let router = Router::new()
            .route("/v1/traces", post(take("traces")))
            .route("/v1/metrics", post(take("metrics")))
            .with_state(collector.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (collector, url)
    }

    fn bodies(&self, kind: &str) -> Vec<Bytes> {
        let all = self.0.lock().unwrap();
        all.iter()
            .filter(|(k, _)| *k == kind)
            .map(|(_, b)| b.clone())
            .collect()
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.bodies("traces").into_iter();
        let requests = requests.map(|body| ExportTraceServiceRequest::decode(body).unwrap());
        let scopes = requests
            .flat_map(|r| r.resource_spans)
            .flat_map(|r| r.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    fn numbers(&self) -> Vec<String> {
        let requests = self.bodies("metrics").into_iter();
        let requests = requests.map(|body| ExportMetricsServiceRequest::decode(body).unwrap());
        let scopes = requests
            .flat_map(|r| r.resource_metrics)
            .flat_map(|r| r.scope_metrics);
        scopes
            .flat_map(|scope| scope.metrics)
            .map(|metric| metric.name)
            .collect()
    }
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|a| a.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => Some(text.clone()),
        Any::IntValue(n) => Some(n.to_string()),
        Any::DoubleValue(n) => Some(n.to_string()),
        Any::BoolValue(b) => Some(b.to_string()),
        _ => None,
    }
}

fn config(data: &Path, endpoint: &str) -> Config {
    let flags = [
        ("http.bind", Toml::from("127.0.0.1:0")),
        ("store.data_dir", Toml::from(data.display().to_string())),
        ("telemetry.endpoint", Toml::from(endpoint)),
        ("telemetry.span_interval_ms", Toml::from(50)),
        ("telemetry.metric_interval_ms", Toml::from(100)),
        ("train.gate.held_out_share", Toml::from(0.0)),
        ("train.explicit_wait_ms", Toml::from(50)),
    ];
    let sources = Sources {
        flags: flags.map(|(key, value)| (key.to_owned(), value)).to_vec(),
        ..Sources::default()
    };
    Config::load(&sources).unwrap()
}

/// Says what must never leave the process: words, names, keys.
const CANARY: &str = "kanarienvogel";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

async fn send(url: &str, path: &str, body: Value, traced: bool) -> Value {
    hone_net::outbound::install_tls();
    let mut request = reqwest::Client::new()
        .post(format!("{url}{path}"))
        .json(&body);
    if traced {
        request = request.header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"));
    }
    request.send().await.unwrap().json().await.unwrap()
}

/// A turn that its user finds bad; returns the turn's id.
async fn lesson(url: &str, traced: bool) -> String {
    let body = json!({
        "model": "hone-starter", "max_tokens": 16, "user": format!("user {CANARY}"),
        "session_id": format!("session {CANARY}"), "metadata": {"note": CANARY},
        "messages": [{"role": "user", "content": format!("Do you know {CANARY}?")}],
    });
    let reply = send(url, "/v1/chat/completions", body, traced).await;
    let turn = reply["hone"]["turn_id"]
        .as_str()
        .unwrap_or_else(|| panic!("{reply}"));
    let feedback = json!({
        "turn_id": turn, "score": 1.0, "comment": CANARY,
        "correction": format!("Yes, {CANARY}."),
    });
    send(url, "/v1/feedback", feedback, false).await;
    turn.to_owned()
}

impl Collector {
    fn named(&self, name: &str) -> Vec<Span> {
        let spans = self.spans().into_iter();
        spans.filter(|span| span.name == name).collect()
    }

    /// Waits until a step was trained and two verdicts arrived.
    async fn whole(&self) {
        for _ in 0..2_400 {
            let arrived = (self.named("train").len(), self.named("judge").len());
            if arrived.0 > 0 && arrived.1 > 1 && !self.numbers().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("not everything arrived: {:#?}", self.spans());
    }

    /// The span of a turn's completion.
    fn chat(&self, turn: &str) -> Span {
        let chats = self.named("chat hone-starter").into_iter();
        let mut of = chats.filter(|s| attribute(s, "gen_ai.response.id").as_deref() == Some(turn));
        of.next().unwrap_or_else(|| panic!("{turn} has no span"))
    }
}

fn check_chat(chat: &Span) {
    let rows = [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "hone-starter"),
        ("gen_ai.response.model", "hone-starter@v0"),
        ("hone.collected", "true"),
        ("hone.turn.kind", "main"),
    ];
    for (key, expected) in rows {
        assert_eq!(attribute(chat, key).as_deref(), Some(expected), "{key}");
    }
    assert!(attribute(chat, "gen_ai.usage.input_tokens").is_some());
    let trace = Uuid::from_slice(&chat.trace_id).unwrap();
    assert_eq!(trace.simple().to_string(), TRACE);
    assert_eq!(chat.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_leads_from_the_request_to_the_step_that_learned_from_it() {
    let data = tempfile::tempdir().unwrap();
    let (collector, endpoint) = Collector::start().await;
    let app = App::start(config(data.path(), &endpoint)).await.unwrap();
    let url = format!("http://{}", app.addr);
    let turn = lesson(&url, true).await;
    let own = lesson(&url, false).await;
    collector.whole().await;
    assert!(app.stop().await);

    let (chat, other) = (collector.chat(&turn), collector.chat(&own));
    check_chat(&chat);
    assert_ne!(
        other.trace_id, chat.trace_id,
        "a request without a trace has its own"
    );
    assert!(other.parent_span_id.is_empty());
    let mut verdicts = collector.named("judge").into_iter();
    let verdict = verdicts
        .find(|span| span.trace_id == chat.trace_id)
        .unwrap();
    assert_eq!(verdict.parent_span_id, chat.span_id);
    assert_eq!(verdict.links[0].span_id, chat.span_id);
    let score = attribute(&verdict, "gen_ai.evaluation.score.value");
    assert_eq!(score.as_deref(), Some("1"));
    let steps = collector.named("train");
    let mut links = steps.iter().flat_map(|step| &step.links);
    let is_chat = |trace: &[u8], span: &[u8]| (trace, span) == (&chat.trace_id, &chat.span_id);
    assert!(
        links.any(|link| is_chat(&link.trace_id, &link.span_id)),
        "no step links to the turn: {steps:#?}"
    );

    let numbers = collector.numbers();
    let names = [
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
    ];
    for name in names {
        assert!(numbers.iter().any(|n| n == name), "{name}: {numbers:?}");
    }
    for (_, body) in collector.0.lock().unwrap().iter() {
        let text = String::from_utf8_lossy(body);
        for canary in [CANARY, "Do you know"] {
            assert!(!text.contains(canary), "user text left the process: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_gone_changes_nothing() {
    let data = tempfile::tempdir().unwrap();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let app = App::start(config(data.path(), &endpoint)).await.unwrap();
    let url = format!("http://{}", app.addr);
    assert!(lesson(&url, false).await.starts_with("turn_"));
    assert!(app.stop().await);
}
