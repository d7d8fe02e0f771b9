//! Web pages of other origins, over real HTTP.

use hone_tests::{TestApp, client, temporary};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::json;

const APP: &str = "https://app.example";
const CHAT: &str = "/v1/chat/completions";

/// Status, and the origin whose pages may read the answer.
fn told(reply: &Response) -> (u16, Option<&str>) {
    let origin = reply.headers().get("access-control-allow-origin");
    (
        reply.status().as_u16(),
        origin.map(|origin| origin.to_str().unwrap()),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_an_allowed_origin_asks_and_reads() {
    let (_guard, data) = temporary().unwrap();
    let changes = [
        ("model.engine", toml::Value::from("null")),
        ("http.origins_allowed", vec![APP].into()),
    ];
    let app = TestApp::start(&data, &changes).await.unwrap();
    let http = client().unwrap();
    let call = |method: Method, path: &str| http.request(method, format!("{}{path}", app.url));
    let of = |origin: &str, request: RequestBuilder| request.header("origin", origin).send();
    let asking = || {
        call(Method::OPTIONS, CHAT)
            .header("access-control-request-method", "POST")
            .header(
                "access-control-request-headers",
                "authorization,x-stainless-os",
            )
    };
    let reply = of(APP, asking()).await.unwrap();
    assert_eq!(told(&reply), (204, Some(APP)));
    let sendable = &reply.headers()["access-control-allow-headers"];
    assert_eq!(sendable, "authorization,x-stainless-os");
    let stranger = of("https://evil.example", asking()).await.unwrap();
    assert_eq!(told(&stranger), (403, None));
    // A page of another port of this machine is let in, as ever, and not told.
    let neighbour = of("http://localhost:3000", asking()).await.unwrap();
    assert_eq!(told(&neighbour), (405, None));

    let reply = of(APP, call(Method::GET, "/v1/models")).await.unwrap();
    assert_eq!(told(&reply), (200, Some(APP)));
    let message = json!({"role": "user", "content": "hi"});
    let ask = json!({"model": "hone-null", "messages": [message], "stream": true});
    let stream = call(Method::POST, CHAT).json(&ask);
    let reply = of(APP, stream).await.unwrap();
    assert_eq!(told(&reply), (200, Some(APP)));
    let readable = reply.headers()["access-control-expose-headers"].clone();
    assert!(readable.to_str().unwrap().contains("x-hone-turn-id"));
    assert!(reply.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    let wrong = call(Method::POST, CHAT).json(&json!({"model": "hone-null"}));
    let reply = of(APP, wrong).await.unwrap();
    assert_eq!(told(&reply), (400, Some(APP)));
    app.stop().await.unwrap();
}
