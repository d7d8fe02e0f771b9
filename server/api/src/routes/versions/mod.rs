//! Published versions: list, lineage, rollback, pin, trial, compare, import; a caller's own under `/v1`, any
//! scope's under `/admin/v1`.

pub mod act;
pub mod any;
mod common;
pub mod compare;
pub mod import;
pub mod series;
pub mod trial;
pub mod view;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Http;

pub use common::{ActBody, ListQuery};
pub(super) use common::{
    answering_scope, any_scope, check_note, conflict, decision_error, number, own_scope,
    page_limit, read_act, unknown,
};

/// All routes about versions.
pub fn all() -> OpenApiRouter<Arc<Http>> {
    OpenApiRouter::new()
        .routes(routes!(view::list_versions))
        .routes(routes!(view::get_version))
        .routes(routes!(act::roll_back))
        .routes(routes!(act::pin, act::unpin))
        .routes(routes!(act::resume))
        .routes(routes!(trial::try_out))
        .routes(routes!(trial::promote))
        .routes(routes!(trial::retire, trial::unretire))
        .routes(routes!(compare::compare))
        .routes(routes!(any::list_scopes))
        .routes(routes!(any::list_refusals))
        .routes(routes!(any::list_versions_of))
        .routes(routes!(series::version_series))
        .routes(routes!(import::import_adapter))
        .routes(routes!(any::get_version_of))
        .routes(routes!(any::roll_back_of))
        .routes(routes!(any::pin_of, any::unpin_of))
        .routes(routes!(any::resume_of))
        .routes(routes!(trial::try_out_of))
        .routes(routes!(trial::promote_of))
        .routes(routes!(trial::retire_of, trial::unretire_of))
        .routes(routes!(any::compare_of))
}
