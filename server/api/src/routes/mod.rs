//! Every route: its handler, its document and its rule, declared in one row.

pub mod admin;
pub mod admin_turns;
pub mod agents;
pub mod anthropic;
pub mod audit;
pub mod auth;
pub mod branches;
pub mod chat;
mod common;
pub mod completions;
pub mod console;
pub mod embeddings;
pub mod episodes;
pub mod feedback;
pub mod generate;
pub mod health;
pub mod keys;
pub mod learning;
pub mod mcp;
pub mod memories;
pub mod models;
pub mod privacy;
mod register;
pub mod responses;
pub mod rollouts;
pub mod sessions;
pub mod skills;
pub mod storage;
pub mod stored_responses;
mod talk;
pub mod teams;
pub mod tokens;
pub mod trajectories;
pub mod turns;
pub mod users;
pub mod versions;

use utoipa_axum::routes;

use crate::rights::ForAgents::{Keys, Own};
use crate::rights::Right::{AdminRead, AdminWrite, Developer, Open, User};
use crate::rights::Work::{Answer, Ask};
pub(super) use common::{Reply, name_ignored, set_header};
pub use register::Routes;

/// All routes of the document, with their rules.
pub fn all() -> Routes {
    let routes = completions(Routes::default());
    let routes = tasks(versions::add_to(learning(routes)));
    people(console(routes))
}

/// Asking the model.
fn completions(routes: Routes) -> Routes {
    let kept = User.with(Ask).idempotent();
    routes
        .add(kept, routes!(chat::chat_completions))
        .add(kept, routes!(completions::completions))
        .add(kept, routes!(generate::generate))
        .add(kept, routes!(generate::sglang_generate))
        .add(kept, routes!(responses::create_response))
        .add(User, routes!(stored_responses::get_response))
        .add(User, routes!(stored_responses::delete_response))
        .add(User, routes!(stored_responses::cancel_response))
        .add(kept, routes!(anthropic::create_message))
        .add(User.with(Answer), routes!(anthropic::count_tokens))
        .add(User.with(Ask), routes!(embeddings::embeddings))
        .add(User.with(Answer), routes!(tokens::tokenize))
        .add(User.with(Answer), routes!(tokens::detokenize))
        .add(User, routes!(models::list_models))
        .add(User, routes!(models::get_model))
}

/// What became of answers, and one's own data.
fn learning(routes: Routes) -> Routes {
    let own = User.for_agents(Own);
    let feedback = User.with(Answer).for_agents(Own);
    routes
        .add(feedback, routes!(feedback::feedback))
        .add(feedback, routes!(trajectories::add_trajectory))
        .add(own, routes!(sessions::list_sessions))
        .add(own, routes!(sessions::get_session))
        .add(own, routes!(sessions::list_turns))
        .add(own, routes!(turns::get_turn))
        .add_own_and_any(Ask, routes!(branches::branch))
        .add(own, routes!(learning::get_consent, learning::put_consent))
        .add(
            own,
            routes!(
                memories::list_memories,
                memories::add_memory,
                memories::forget_memories
            ),
        )
        .add(own, routes!(memories::export_memories))
        .add(own, routes!(memories::import_memories))
        .add(
            own,
            routes!(memories::change_memory, memories::forget_memory),
        )
        .add(
            own,
            routes!(
                skills::list_skills,
                skills::add_skill,
                skills::forget_skills
            ),
        )
        .add(
            own,
            routes!(
                skills::get_skill,
                skills::change_skill,
                skills::forget_skill
            ),
        )
        .add(own, routes!(skills::list_versions))
        .add(own, routes!(skills::restore_version))
        .add(own, routes!(skills::export_skill))
        .add(feedback, routes!(mcp::mcp))
        .add(own, routes!(learning::forget))
        .add(own, routes!(learning::get_forget))
        .add(own, routes!(learning::improvement))
        .add(own, routes!(learning::learned))
        .add(own, routes!(learning::learning))
        .add(AdminRead, routes!(learning::admin_improvement))
        .add(AdminRead, routes!(privacy::list_consents))
        .add(AdminRead, routes!(privacy::list_forgets))
}

/// Tasks, and agents that try them.
fn tasks(routes: Routes) -> Routes {
    let work = Developer.for_agents(Own);
    routes
        .add(
            work,
            routes!(rollouts::add_task_set, rollouts::list_task_sets),
        )
        .add(
            work,
            routes!(rollouts::get_task_set, rollouts::remove_task_set),
        )
        .add(work, routes!(rollouts::add_tasks))
        .add(work, routes!(rollouts::release_task))
        .add(
            work.idempotent(),
            routes!(rollouts::add_rollout, rollouts::list_rollouts),
        )
        .add(work, routes!(rollouts::get_rollout))
        .add(work, routes!(rollouts::cancel_rollout))
        .add(work, routes!(rollouts::list_episodes))
        .add(work, routes!(episodes::get_episode))
        .add(work, routes!(rollouts::queues))
        .add(AdminRead, routes!(rollouts::all_queues))
        .add(AdminRead, routes!(rollouts::scaling))
}

/// Probes, and the process as admins see it.
fn console(routes: Routes) -> Routes {
    routes
        .add(Open, routes!(health::livez))
        .add(Open, routes!(health::readyz))
        .add(Open, routes!(health::readyz_learning))
        .add(Open, routes!(health::startupz))
        .add(AdminRead, routes!(health::metrics))
        .add(AdminRead, routes!(admin_turns::list_turns))
        .add(AdminRead, routes!(admin_turns::get_turn))
        .add(AdminRead, routes!(admin_turns::list_reasons))
        .add(AdminRead, routes!(admin::status))
        .add(AdminRead, routes!(admin::events))
        .add(AdminRead, routes!(console::series))
        .add(AdminRead, routes!(console::why))
        .add(AdminRead, routes!(console::config))
        .add(AdminRead, routes!(storage::storage))
        .add(AdminWrite, routes!(console::drain))
        .add(AdminWrite, routes!(admin::pause))
        .add(AdminWrite, routes!(admin::resume))
        .add(AdminRead, routes!(audit::list_audit))
        .add(AdminRead, routes!(audit::verify_audit))
}

/// Sign-in, keys, accounts, agents and teams; the handlers look whose they are.
fn people(routes: Routes) -> Routes {
    let keys = User.for_agents(Keys);
    let new_keys = Developer.for_agents(Keys);
    routes
        .add(User, routes!(auth::me))
        .add(Open, routes!(auth::sign_in))
        .add(Open, routes!(auth::sign_out))
        .add(Open, routes!(auth::take_invite))
        .add(User, routes!(auth::password))
        .add(keys, routes!(keys::list_keys))
        .add(new_keys, routes!(keys::make_key))
        .add(keys, routes!(keys::change_key, keys::revoke_key))
        .add(new_keys, routes!(keys::rotate_key))
        .add(AdminRead, routes!(keys::list_all_keys))
        .add(AdminWrite, routes!(keys::revoke_any_key))
        .add(AdminRead, routes!(users::list_users))
        .add(AdminWrite, routes!(users::add_user))
        .add(AdminWrite, routes!(users::change_user))
        .add(AdminWrite, routes!(users::invite))
        .add(User, routes!(agents::list_agents))
        .add(Developer, routes!(agents::add_agent))
        .add(User, routes!(agents::change_agent))
        .add(AdminRead, routes!(agents::list_all_agents))
        .add(User, routes!(teams::own_teams))
        .add(User, routes!(teams::put_member, teams::drop_member))
        .add(AdminRead, routes!(teams::list_teams))
        .add(AdminWrite, routes!(teams::add_team))
        .add(AdminWrite, routes!(teams::change_team))
}
