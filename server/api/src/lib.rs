//! HTTP: middleware, routes and the forms of requests and replies. Handlers parse, call, render.
//!
//! Never: tensors, training, SQL, who composes the process.

pub mod acts;
pub mod body;
pub mod body_budget;
mod config;
pub mod cors;
pub mod envelope;
pub mod episodes;
pub mod guard;
pub mod lists;
mod mcp;
pub mod metrics;
pub mod openapi;
pub mod page;
pub mod recorded;
pub mod replays;
pub mod request_context;
pub mod rights;
pub mod routes;
pub mod settings;
pub mod standby;
mod state;
pub mod storage_gauge;
pub mod swap;

#[cfg(test)]
#[path = "../../../tests/support/adapters.rs"]
mod adapters;
#[cfg(test)]
#[path = "../../../tests/support/defaults.rs"]
mod defaults;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::future::ready;
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;

use envelope::Entry;
use page::Page;
use rights::Right;
use routes::Routes;

pub use config::{HttpConfig, Key, KeyConfig};
pub use state::{Http, Life, ModelNames, Workers};

/// Every route, with those that are no part of the document.
fn served(page: Arc<Page>) -> Routes {
    let routes = routes::all();
    let document = openapi::route(routes.document());
    routes
        .beside(&[("/openapi.json", Right::User)], document)
        .beside(page::RIGHTS, page::routes(page))
}

/// Every route behind the envelope.
pub fn router(http: Arc<Http>) -> Router {
    let (router, table) = served(http.page.clone()).split();
    let table = Arc::new(table);
    let entry = Entry {
        http: http.clone(),
        table: table.clone(),
    };
    router
        .fallback(move |uri| ready(envelope::unknown_path(&table, &uri)))
        .method_not_allowed_fallback(envelope::wrong_method)
        .layer(from_fn_with_state(http.acts.clone(), acts::layer))
        .layer(from_fn_with_state(http.replaying(), replays::layer))
        .layer(from_fn_with_state(entry, envelope::wrap))
        .with_state(http)
}

/// The finished document, for people's tools and the page's types.
pub fn document() -> String {
    let text = routes::all().document().to_pretty_json();
    let text = text.expect("the document is made of strings and maps");
    text.replace("/{*id}", "/{id}") + "\n"
}
