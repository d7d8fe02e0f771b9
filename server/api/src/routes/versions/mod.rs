//! Published versions: list, lineage, rollback, pin, trial, compare, import. A caller's own are under `/v1`, any
//! scope's under `/admin/v1`; both are one handler with a [`target::Target`].

pub mod act;
mod common;
pub mod compare;
pub mod import;
pub mod scopes;
pub mod series;
mod target;
pub mod trial;
pub mod view;

pub use target::Target;
use utoipa_axum::routes;

use super::register::Routes;
use crate::rights::Right::{AdminRead, AdminWrite};
use crate::rights::Work::{Compare, Plain};

/// Adds all routes about versions.
pub fn add_to(routes: Routes) -> Routes {
    routes
        .add_own_and_any(Plain, routes!(view::list_versions))
        .add_own_and_any(Plain, routes!(view::get_version))
        .add_own_and_any(Plain, routes!(act::roll_back))
        .add_own_and_any(Plain, routes!(act::pin, act::unpin))
        .add_own_and_any(Plain, routes!(act::resume))
        .add_own_and_any(Plain, routes!(trial::try_out))
        .add_own_and_any(Plain, routes!(trial::promote))
        .add_own_and_any(Plain, routes!(trial::retire, trial::unretire))
        .add_own_and_any(Compare, routes!(compare::compare))
        .add(AdminRead, routes!(scopes::list_scopes))
        .add(AdminRead, routes!(scopes::list_refusals))
        .add(AdminRead, routes!(series::version_series))
        .add(AdminWrite, routes!(import::import_adapter))
}
