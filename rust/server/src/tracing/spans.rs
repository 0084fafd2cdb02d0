//! Makes the spans of requests that have ended, in the form of OTLP: one of kind server by the semantic conventions for
//! RPC, and one below it for each stage.

use std::time::Duration;

use scorer_engine::{Engine, Stage};
use scorer_proto::CODE_NAMES;
use scorer_proto::otlp::any_value::Value;
use scorer_proto::otlp::span::SpanKind;
use scorer_proto::otlp::status::StatusCode;
use scorer_proto::otlp::{
    AnyValue, ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans, ScopeSpans,
    Span, Status,
};
use tonic::Code;

use super::{Ended, Tracer};

/// Flags of a span's parent: whether it is known to be remote, and that it is.
const KNOWN: u32 = 1 << 8;
const REMOTE: u32 = 1 << 9;

/// Number of spans of a request.
pub(super) fn count(ended: &Ended) -> u64 {
    1 + ended.arrival.stages().map(|(_, times)| times.spans(ended.took).count() as u64).sum::<u64>()
}

/// Makes the message that exports the spans of these requests.
pub(super) fn message(tracer: &Tracer, engine: &Engine, ended: &[Ended]) -> ExportTraceServiceRequest {
    let resource = Resource {
        attributes: vec![
            text("service.name", &tracer.config.service),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("service.instance.id", &tracer.instance),
        ],
    };
    let scope =
        InstrumentationScope { name: "scorer".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let spans = ended.iter().flat_map(|ended| of(tracer, engine, ended)).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans }],
    }
}

/// Makes the spans of a request, that of kind server first.
fn of(tracer: &Tracer, engine: &Engine, ended: &Ended) -> Vec<Span> {
    let Ended { trace, arrival, took, at_us, .. } = ended;
    let end = u64::try_from(*at_us).unwrap_or(0).saturating_mul(1000);
    let start = end.saturating_sub(nanos(*took));
    let flags = u32::from(trace.flags) | KNOWN;
    let server = Span {
        trace_id: trace.trace_id.to_vec(),
        span_id: trace.span_id.to_vec(),
        trace_state: trace.state.clone(),
        parent_span_id: trace.parent.map(Vec::from).unwrap_or_default(),
        name: ended.method.full_name().unwrap_or("grpc").to_owned(),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        attributes: attributes(engine, ended),
        status: is_error(ended.code)
            .then(|| Status { message: String::new(), code: StatusCode::Error.into() }),
        flags: if trace.parent.is_some() { flags | REMOTE } else { flags },
    };
    let two = arrival.steps().count() > 1;
    let stages = arrival.stages().flat_map(|(step, times)| {
        // The spans of a request with two decisions state to which they belong.
        let checkpoint = step.checkpoint().filter(|_| two).map(|at| &engine.checkpoints.at(at).name);
        times.spans(*took).map(move |span| (checkpoint, span, times))
    });
    let stages = stages.map(|(checkpoint, (stage, began, ended), times)| Span {
        trace_id: trace.trace_id.to_vec(),
        span_id: tracer.ids.span().to_vec(),
        trace_state: trace.state.clone(),
        parent_span_id: trace.span_id.to_vec(),
        name: stage.as_str().to_owned(),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: start + nanos(began),
        end_time_unix_nano: start + nanos(ended),
        attributes: {
            let checkpoint = checkpoint.map(|name| text("scorer.checkpoint", name));
            let nodes = if stage == Stage::Evaluate { times.nodes() } else { Vec::new() };
            let nodes = nodes.into_iter().map(|(name, nanos)| {
                let nanos = i64::try_from(nanos).unwrap_or(i64::MAX);
                attribute(&format!("scorer.node.{name}.ns"), Value::IntValue(nanos))
            });
            checkpoint.into_iter().chain(nodes).collect()
        },
        status: None,
        flags,
    });
    std::iter::once(server).chain(stages).collect()
}

fn attributes(engine: &Engine, ended: &Ended) -> Vec<KeyValue> {
    let Ended { arrival, method, code, .. } = ended;
    let code_name = CODE_NAMES[*code as usize];
    let mut all = vec![
        text("rpc.system.name", "grpc"),
        text("rpc.method", method.full_name().unwrap_or("_OTHER")),
        text("rpc.response.status_code", code_name),
    ];
    if is_error(*code) {
        all.push(text("error.type", code_name));
    }
    if let Some(index) = arrival.checkpoint() {
        all.push(text("scorer.checkpoint", &engine.checkpoints.at(index).name));
    }
    let mut sources = arrival.stages().map(|(_, times)| times.source());
    if let Some(source) = sources.next().flatten() {
        all.push(text("scorer.lane", &source.lane));
        all.push(text("scorer.bundle", &source.bundle));
    }
    if let Some((id, replayed)) = arrival.recorded() {
        all.push(text("scorer.decision_id", id));
        all.push(attribute("scorer.replayed", Value::BoolValue(replayed)));
    }
    if method.infers() {
        all.push(attribute("scorer.fallback", Value::BoolValue(arrival.has_fallen_back())));
    }
    if let Some(step) = arrival.steps().nth(1) {
        if let Some(index) = step.checkpoint() {
            all.push(text("scorer.action.checkpoint", &engine.checkpoints.at(index).name));
        }
        if let Some(source) = sources.next().flatten() {
            all.push(text("scorer.action.lane", &source.lane));
            all.push(text("scorer.action.bundle", &source.bundle));
        }
        all.push(attribute("scorer.action.fallback", Value::BoolValue(step.has_fallen_back())));
    }
    if let Some(delay) = arrival.queue_delay() {
        let micros = i64::try_from(delay.as_micros()).unwrap_or(i64::MAX);
        all.push(attribute("scorer.queue_delay_us", Value::IntValue(micros)));
    }
    all
}

/// Whether a code means that the server failed, as the conventions for gRPC define it. Other codes are the caller's
/// errors, or say that the server does what it is configured to do.
fn is_error(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_the_server_are_errors() {
        let errors: Vec<_> = (0..17).map(Code::from_i32).filter(|&code| is_error(code)).collect();
        assert_eq!(errors.len(), 6);
        assert!(!is_error(Code::ResourceExhausted) && !is_error(Code::InvalidArgument));
    }
}
