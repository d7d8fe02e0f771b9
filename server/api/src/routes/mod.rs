//! Every route, registered and documented by one macro.

pub mod admin;
pub mod admin_turns;
pub mod agents;
pub mod anthropic;
pub mod audit;
pub mod auth;
pub mod chat;
mod common;
pub mod completions;
pub mod console;
pub mod embeddings;
pub mod feedback;
pub mod generate;
pub mod health;
pub mod keys;
pub mod learning;
pub mod models;
pub mod privacy;
pub mod responses;
pub mod sessions;
pub mod stored_responses;
mod talk;
pub mod teams;
pub mod tokens;
pub mod turns;
pub mod users;
pub mod versions;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Http;
use super::openapi;
pub(super) use common::{Reply, ledger_error, name_ignored, set_header};

/// All routes with their document.
pub fn all() -> OpenApiRouter<Arc<Http>> {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(chat::chat_completions))
        .routes(routes!(completions::completions))
        .routes(routes!(generate::generate))
        .routes(routes!(generate::sglang_generate))
        .routes(routes!(responses::create_response))
        .routes(routes!(
            stored_responses::get_response,
            stored_responses::delete_response
        ))
        .routes(routes!(stored_responses::cancel_response))
        .routes(routes!(embeddings::embeddings))
        .routes(routes!(tokens::tokenize))
        .routes(routes!(tokens::detokenize))
        .routes(routes!(anthropic::create_message))
        .routes(routes!(anthropic::count_tokens))
        .routes(routes!(models::list_models))
        .routes(routes!(models::get_model))
        .routes(routes!(feedback::feedback))
        .routes(routes!(sessions::list_sessions))
        .routes(routes!(sessions::get_session))
        .routes(routes!(sessions::list_turns))
        .routes(routes!(turns::get_turn))
        .merge(versions::all())
        .routes(routes!(learning::get_consent, learning::put_consent))
        .routes(routes!(learning::forget))
        .routes(routes!(learning::get_forget))
        .routes(routes!(learning::improvement))
        .routes(routes!(learning::admin_improvement))
        .routes(routes!(learning::learned))
        .routes(routes!(learning::learning))
        .routes(routes!(privacy::list_consents))
        .routes(routes!(privacy::list_forgets))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(health::readyz_learning))
        .routes(routes!(health::startupz))
        .routes(routes!(health::metrics))
        .routes(routes!(admin_turns::list_turns))
        .routes(routes!(admin_turns::get_turn))
        .routes(routes!(admin::status))
        .routes(routes!(admin::events))
        .routes(routes!(console::series))
        .routes(routes!(console::why))
        .routes(routes!(console::config))
        .routes(routes!(console::drain))
        .routes(routes!(admin::pause))
        .routes(routes!(admin::resume))
        .routes(routes!(auth::me))
        .routes(routes!(auth::sign_in))
        .routes(routes!(auth::sign_out))
        .routes(routes!(auth::take_invite))
        .routes(routes!(auth::password))
        .routes(routes!(keys::list_keys, keys::make_key))
        .routes(routes!(keys::change_key, keys::revoke_key))
        .routes(routes!(keys::rotate_key))
        .routes(routes!(keys::list_all_keys))
        .routes(routes!(keys::revoke_any_key))
        .routes(routes!(users::list_users, users::add_user))
        .routes(routes!(users::change_user))
        .routes(routes!(users::invite))
        .routes(routes!(agents::list_agents, agents::add_agent))
        .routes(routes!(agents::change_agent))
        .routes(routes!(agents::list_all_agents))
        .routes(routes!(teams::own_teams))
        .routes(routes!(teams::put_member, teams::drop_member))
        .routes(routes!(teams::list_teams, teams::add_team))
        .routes(routes!(teams::change_team))
        .routes(routes!(audit::list_audit))
        .routes(routes!(audit::verify_audit))
}
