//! Traces and numbers over OTLP, with the names of OpenTelemetry's conventions for generative AI.
//! Off without an endpoint. What leaves here are ids, counts, times and settings, never a word of
//! what people or the model said, no names of people and no names that clients chose.
//!
//! A completion's span is in the trace that its client named (`traceparent`), else in one named
//! after the request; the span's id is made from the turn's id. So a verdict, minutes later, and the
//! step that learned from the turn find it again: the ledger has all they need.

mod config;
mod ledger;
mod send;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hone_domain::{Ask, Millis, PolicyVersion, ServeError, StopReason, Turn, TurnId, TurnKind};
use http::HeaderMap;
use opentelemetry::metrics::{Histogram, MeterProvider as _};
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _,
    TraceFlags, TraceId, TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, IdGenerator, RandomIdGenerator, Sampler, SdkTracer,
    SdkTracerProvider,
};
use uuid::Uuid;

pub use config::TelemetryConfig;
pub use ledger::Traced;

use hone_net::outbound::Outbound;

/// Where the endpoint is named if the configuration names none.
pub const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Spans in one call to the collector.
const BATCH_SPANS: usize = 512;
/// Most turns that a training step's span links to.
const LINKS_MAX: usize = 128;

/// The span of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Its trace.
    pub trace: Uuid,
    /// Its id.
    pub span: [u8; 8],
}

/// The span that a request's `traceparent` names (W3C Trace Context). Whether the client samples is
/// not taken over: that is decided here.
pub fn parent(headers: &HeaderMap) -> Option<Parent> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let mut parts = text.split('-');
    let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, n: usize| {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        text.len() == n && digits
    };
    if !hex(version, 2) || version == "ff" || !hex(trace, 32) || !hex(span, 16) {
        return None;
    }
    let trace = Uuid::try_parse(trace).ok().filter(|id| !id.is_nil())?;
    let span = u64::from_str_radix(span, 16).ok().filter(|id| *id != 0)?;
    Some(Parent {
        trace,
        span: span.to_be_bytes(),
    })
}

/// A completion that ended, one way or the other.
pub struct Completed<'a> {
    /// What was asked.
    pub ask: &'a Ask,
    /// The client's span.
    pub parent: Option<Parent>,
    /// When the first token came.
    pub first_token_ms: Option<Millis>,
    /// When it ended.
    pub ended_ms: Millis,
    /// Tokens sampled.
    pub tokens: usize,
    /// Why it ended, under which version, and whether its turn was collected; or why it failed.
    pub outcome: Result<(StopReason, PolicyVersion, bool), &'a ServeError>,
}

/// A turn as later spans name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnMark {
    trace: Uuid,
    turn: TurnId,
}

impl TurnMark {
    /// Of a recorded turn.
    pub fn of(turn: &Turn) -> Self {
        Self {
            trace: turn.trace(),
            turn: turn.id,
        }
    }

    fn context(self) -> SpanContext {
        remote(self.trace, span_of(self.turn))
    }
}

/// A settled verdict.
pub(crate) struct Judged {
    pub(crate) mark: TurnMark,
    pub(crate) began_ms: Millis,
    pub(crate) ended_ms: Millis,
    pub(crate) score: Option<f32>,
    pub(crate) decided_by: Option<&'static str>,
    pub(crate) votes: usize,
}

/// A training step and what became of it.
pub(crate) struct Trained<'a> {
    pub(crate) marks: &'a [TurnMark],
    pub(crate) began_ms: Millis,
    pub(crate) ended_ms: Millis,
    pub(crate) batch: Uuid,
    pub(crate) parent: PolicyVersion,
    /// The version, or why there is none.
    pub(crate) outcome: Result<PolicyVersion, &'static str>,
}

/// Sends traces and numbers.
pub struct Telemetry {
    traces: SdkTracerProvider,
    tracer: SdkTracer,
    meters: SdkMeterProvider,
    duration: Histogram<f64>,
    first_token: Histogram<f64>,
    per_token: Histogram<f64>,
    model: String,
}

impl Telemetry {
    /// Begins to send; none where no endpoint is named.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn start(
        config: &TelemetryConfig,
        outbound: &Arc<Outbound>,
        model: String,
    ) -> Result<Option<Arc<Self>>, String> {
        let named = [
            Some(config.endpoint.clone()),
            std::env::var(ENDPOINT_VARIABLE).ok(),
        ];
        let named = named.into_iter().flatten().find(|text| !text.is_empty());
        let Some(base) = named else {
            return Ok(None);
        };
        let timeout = Duration::from_millis(config.timeout_ms);
        let url = |path: &str| {
            let url = format!("{}/{path}", base.trim_end_matches('/'));
            outbound.url("telemetry.endpoint", &url).map(String::from)
        };
        let sender = || send::Sender::new(outbound.clone(), timeout);
        let failed = |error: &dyn std::fmt::Display| format!("telemetry could not begin: {error}");
        let spans = SpanExporter::builder()
            .with_http()
            .with_http_client(sender())
            .with_endpoint(url("v1/traces")?)
            .with_timeout(timeout)
            .build()
            .map_err(|error| failed(&error))?;
        let numbers = MetricExporter::builder()
            .with_http()
            .with_http_client(sender())
            .with_endpoint(url("v1/metrics")?)
            .with_timeout(timeout)
            .build()
            .map_err(|error| failed(&error))?;
        let resource = Resource::builder_empty()
            .with_service_name(config.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(config.queue_max)
            .with_max_export_batch_size(BATCH_SPANS.min(config.queue_max))
            .with_scheduled_delay(Duration::from_millis(config.span_interval_ms))
            .build();
        let processor = BatchSpanProcessor::builder(spans)
            .with_batch_config(batches)
            .build();
        let traces = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(Sampler::TraceIdRatioBased(config.sample_share))
            .with_id_generator(GivenIds::default())
            .with_resource(resource.clone())
            .build();
        let reader = PeriodicReader::builder(numbers)
            .with_interval(Duration::from_millis(config.metric_interval_ms))
            .build();
        let meters = SdkMeterProvider::builder()
            .with_reader(reader)
            .with_resource(resource)
            .build();
        Ok(Some(Arc::new(Self::over(traces, meters, model))))
    }

    fn over(traces: SdkTracerProvider, meters: SdkMeterProvider, model: String) -> Self {
        let meter = meters.meter("hone");
        let seconds = |name: &'static str, what: &'static str| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(what)
                .with_boundaries(SECONDS.to_vec())
                .build()
        };
        Self {
            tracer: traces.tracer("hone"),
            duration: seconds("gen_ai.server.request.duration", "From ask to last token."),
            first_token: seconds(
                "gen_ai.server.time_to_first_token",
                "From ask to first token.",
            ),
            per_token: seconds("gen_ai.server.time_per_output_token", "Between two tokens."),
            traces,
            meters,
            model,
        }
    }

    /// A completion ended.
    pub fn completed(&self, done: &Completed<'_>) {
        let ask = done.ask;
        let parent = match done.parent {
            Some(parent) => remote(parent.trace, SpanId::from_bytes(parent.span)),
            None => SpanContext::empty_context(),
        };
        let mut attributes = self.attributes_of(ask);
        attributes.push(KeyValue::new(
            "gen_ai.usage.output_tokens",
            count(done.tokens),
        ));
        match done.outcome {
            Ok((stop, version, collected)) => {
                let served = format!("{}@v{version}", self.model);
                attributes.push(KeyValue::new("gen_ai.response.model", served));
                let reasons = opentelemetry::Array::String(vec![stop.as_str().into()]);
                let reasons = opentelemetry::Value::Array(reasons);
                attributes.push(KeyValue::new("gen_ai.response.finish_reasons", reasons));
                attributes.push(KeyValue::new("hone.policy.version", signed(version.0)));
                attributes.push(KeyValue::new("hone.collected", collected));
            }
            Err(error) => attributes.push(KeyValue::new("error.type", kind(error))),
        }
        let began_ms = ask.context.admitted_ms;
        let builder = SpanBuilder::from_name(format!("chat {}", self.model))
            .with_kind(SpanKind::Server)
            .with_start_time(at(began_ms))
            .with_attributes(attributes);
        let trace = done.parent.map_or(ask.request.0, |parent| parent.trace);
        GivenIds::give(trace_of(trace), span_of(ask.turn));
        self.end(
            builder,
            &parent,
            done.ended_ms,
            done.outcome.err().map(kind),
        );
        self.measure(done, began_ms);
    }

    fn attributes_of(&self, ask: &Ask) -> Vec<KeyValue> {
        let sampling = &ask.sampling;
        let kind = match ask.kind {
            TurnKind::Main => "main",
            TurnKind::Side => "side",
        };
        vec![
            KeyValue::new("gen_ai.operation.name", "chat"),
            KeyValue::new("gen_ai.provider.name", "hone"),
            KeyValue::new("gen_ai.request.model", self.model.clone()),
            KeyValue::new("gen_ai.response.id", ask.turn.prefixed()),
            KeyValue::new("gen_ai.conversation.id", ask.context.session.prefixed()),
            KeyValue::new("gen_ai.request.max_tokens", i64::from(ask.stop.max_tokens)),
            KeyValue::new(
                "gen_ai.request.temperature",
                f64::from(sampling.temperature),
            ),
            KeyValue::new("gen_ai.request.top_p", f64::from(sampling.top_p)),
            KeyValue::new("gen_ai.usage.input_tokens", count(ask.prompt_tokens.len())),
            KeyValue::new("hone.turn.kind", kind),
        ]
    }

    fn measure(&self, done: &Completed<'_>, began_ms: Millis) {
        let mut labels = vec![
            KeyValue::new("gen_ai.operation.name", "chat"),
            KeyValue::new("gen_ai.provider.name", "hone"),
            KeyValue::new("gen_ai.request.model", self.model.clone()),
        ];
        if let Err(error) = done.outcome {
            labels.push(KeyValue::new("error.type", kind(error)));
        }
        self.duration
            .record(seconds(began_ms, done.ended_ms), &labels);
        if let Some(first_ms) = done.first_token_ms {
            self.first_token
                .record(seconds(began_ms, first_ms), &labels);
            if done.tokens > 1 {
                let each = seconds(first_ms, done.ended_ms) / (done.tokens - 1) as f64;
                self.per_token.record(each, &labels);
            }
        }
    }

    /// A verdict was settled: a span in the turn's own trace, below its completion.
    pub(crate) fn judged(&self, judged: &Judged) {
        let turn = judged.mark.context();
        let mut attributes = vec![
            KeyValue::new("gen_ai.operation.name", "evaluate"),
            KeyValue::new("gen_ai.evaluation.name", "verdict"),
            KeyValue::new("gen_ai.response.id", judged.mark.turn.prefixed()),
            KeyValue::new("hone.votes", count(judged.votes)),
        ];
        if let Some(score) = judged.score {
            attributes.push(KeyValue::new(
                "gen_ai.evaluation.score.value",
                f64::from(score),
            ));
        }
        let decided_by = judged.decided_by.unwrap_or("abstained");
        attributes.push(KeyValue::new("gen_ai.evaluation.score.label", decided_by));
        let builder = SpanBuilder::from_name("judge")
            .with_kind(SpanKind::Internal)
            .with_start_time(at(judged.began_ms))
            .with_attributes(attributes)
            .with_links(vec![Link::with_context(turn.clone())]);
        self.end(builder, &turn, judged.ended_ms, None);
    }

    /// A batch was trained and published or refused: a trace of its own that links to every turn.
    pub(crate) fn trained(&self, trained: &Trained<'_>) {
        let links = trained.marks.iter().take(LINKS_MAX);
        let links = links
            .map(|mark| Link::with_context(mark.context()))
            .collect();
        let mut attributes = vec![
            KeyValue::new("gen_ai.operation.name", "train"),
            KeyValue::new("gen_ai.request.model", self.model.clone()),
            KeyValue::new("hone.batch.id", trained.batch.to_string()),
            KeyValue::new("hone.samples", count(trained.marks.len())),
            KeyValue::new("hone.policy.parent", signed(trained.parent.0)),
        ];
        let refused = match trained.outcome {
            Ok(version) => {
                attributes.push(KeyValue::new("hone.policy.version", signed(version.0)));
                None
            }
            Err(reason) => {
                attributes.push(KeyValue::new("error.type", reason));
                Some(reason)
            }
        };
        let builder = SpanBuilder::from_name("train")
            .with_kind(SpanKind::Internal)
            .with_start_time(at(trained.began_ms))
            .with_attributes(attributes)
            .with_links(links);
        self.end(
            builder,
            &SpanContext::empty_context(),
            trained.ended_ms,
            refused,
        );
    }

    fn end(
        &self,
        builder: SpanBuilder,
        parent: &SpanContext,
        ended_ms: Millis,
        error: Option<&'static str>,
    ) {
        let context = Context::new().with_remote_span_context(parent.clone());
        let mut span = self.tracer.build_with_context(builder, &context);
        if let Some(error) = error {
            span.set_status(Status::error(error));
        }
        span.end_with_timestamp(at(ended_ms));
        GivenIds::forget();
    }

    /// Sends what waits, and ends.
    pub async fn close(self: Arc<Self>) {
        let closed = tokio::task::spawn_blocking(move || {
            // Both are tried; what a collector did not take in time is lost.
            let ended = [self.traces.shutdown(), self.meters.shutdown()];
            for error in ended.into_iter().filter_map(Result::err) {
                tracing::warn!(%error, "the last traces may not have arrived");
            }
        });
        if closed.await.is_err() {
            tracing::error!("telemetry could not be closed");
        }
    }
}

/// Upper bounds of durations in seconds, as the conventions advise.
const SECONDS: [f64; 14] = [
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
];

thread_local! {
    static GIVEN: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Ids that were given for the next span of this thread, else random ones.
#[derive(Debug, Default)]
struct GivenIds(RandomIdGenerator);

impl GivenIds {
    fn give(trace: TraceId, span: SpanId) {
        GIVEN.set(Some((trace, span)));
    }

    fn forget() {
        GIVEN.set(None);
    }
}

impl IdGenerator for GivenIds {
    fn new_trace_id(&self) -> TraceId {
        GIVEN
            .get()
            .map_or_else(|| self.0.new_trace_id(), |given| given.0)
    }

    fn new_span_id(&self) -> SpanId {
        GIVEN
            .get()
            .map_or_else(|| self.0.new_span_id(), |given| given.1)
    }
}

fn trace_of(id: Uuid) -> TraceId {
    TraceId::from_bytes(*id.as_bytes())
}

/// The id of a turn's span: the random half of the turn's id.
fn span_of(turn: TurnId) -> SpanId {
    SpanId::from_bytes(turn.0.as_u64_pair().1.to_be_bytes())
}

fn remote(trace: Uuid, span: SpanId) -> SpanContext {
    let state = TraceState::default();
    SpanContext::new(trace_of(trace), span, TraceFlags::SAMPLED, true, state)
}

fn at(ms: Millis) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

fn seconds(from_ms: Millis, to_ms: Millis) -> f64 {
    (to_ms - from_ms).max(0) as f64 / 1e3
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A failure by its kind only; its text may repeat what a client wrote.
fn kind(error: &ServeError) -> &'static str {
    match error {
        ServeError::Overloaded { .. } => "overloaded",
        ServeError::TooLong { .. } => "too_long",
        ServeError::Unsupported(_) => "unsupported",
        ServeError::Grammar(_) => "grammar",
        ServeError::Adapter(_) => "adapter",
        ServeError::Memory => "memory",
        ServeError::Stopping => "stopping",
        ServeError::Late => "late",
        ServeError::Internal(_) => "internal",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn what_is_no_trace_is_not_taken() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", text.parse().unwrap());
            parent(&headers)
        };
        assert!(of(&format!("00-{TRACE}-00f067aa0ba902b7-01")).is_some());
        assert!(of(&format!("01-{TRACE}-00f067aa0ba902b7-00-more")).is_some());
        let zeros = "0".repeat(32);
        let rows = [
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{zeros}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{{{TRACE}}}-00f067aa0ba902b7"),
            "00".to_owned(),
            "nonsense".to_owned(),
        ];
        for row in rows {
            assert_eq!(of(&row), None, "{row}");
        }
        assert_eq!(parent(&HeaderMap::new()), None);
    }
}
