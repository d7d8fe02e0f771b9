//! Tokens in, tokens out: `POST /inference/v1/generate` as vLLM has it, and SGLang's `POST /generate`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::completions::{Begun, begin};
use super::name_ignored;
use super::talk::{Admitted, serving};
use crate::Http;
use crate::body::read_json;
use crate::request_context::RequestContext;
use hone_api_types::generate::{Form, GenerateRequest, Reduced, Served, SglangRequest};
use hone_api_types::{JsonObject, RequestError};
use hone_replies::error::{ApiError, ErrorBody};
use hone_replies::{Dialect, generate as reply};

/// Continues tokens.
#[utoipa::path(
    post,
    path = "/inference/v1/generate",
    request_body = GenerateRequest,
    responses(
        (status = 200, description = "The tokens; with `stream` an event stream of the same shape", body = Value),
        (status = 404, description = "No such model", body = ErrorBody),
        (status = 500, body = ErrorBody),
    )
)]
pub async fn generate(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let (begun, form) = begun((&http, &context), request, GenerateRequest::reduce).await?;
    let (frame, merged, about) = begun.admitted.parts();
    let response = match begun.stream {
        true => reply::streamed(frame, merged, form),
        false => reply::whole(frame, merged, &form).await?,
    };
    Ok(named(response, &about, &begun.ignored))
}

/// Continues tokens or a text, in SGLang's words.
#[utoipa::path(
    post,
    path = "/generate",
    request_body = SglangRequest,
    responses(
        (status = 200, description = "The tokens; a list where several were asked for", body = Value),
        (status = 404, description = "No such model", body = ErrorBody),
        (status = 500, body = ErrorBody),
    )
)]
pub async fn sglang_generate(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let (begun, form) = begun((&http, &context), request, SglangRequest::reduce).await?;
    let (frame, merged, about) = begun.admitted.parts();
    let response = reply::sglang(frame, merged, &form).await?;
    Ok(named(response, &about, &begun.ignored))
}

/// Begins what a body asks for that `reduce` reads.
async fn begun(
    (http, context): (&Http, &RequestContext),
    request: Request,
    reduce: impl FnOnce(JsonObject, &Served<'_>) -> Result<Reduced, RequestError>,
) -> Result<(Begun, Form), ApiError> {
    let headers = request.headers().clone();
    let object = read_json(request, http.body_limits()).await?;
    let able = serving(http)?.backend.capabilities();
    let served = Served {
        model: &http.models.name,
        end_tokens: &able.end_tokens,
    };
    let (object, form, param) = reduce(object, &served)?;
    let whose = (http, context, &headers);
    let begun = begin(whose, object, (Dialect::Tokens, param)).await?;
    Ok((begun, form))
}

fn named(mut response: Response, about: &[(&'static str, String)], ignored: &[String]) -> Response {
    Admitted::headers(about, &mut response);
    name_ignored(&mut response, ignored);
    response
}
