//! The contract of [`Ledger`] as code: every implementation passes [`run`].
//!
//! Each case gets a fresh, empty ledger and leaves it lawful. A case that fails panics with what
//! was expected. [`random`] drives a ledger with seeded random calls from many workers' views.

mod answers;
mod changes;
mod collect;
mod concurrent;
mod erasure;
mod feedback;
mod jobs;
mod judge;
mod memories;
mod people;
mod personal;
mod policies;
mod progress;
mod random;
mod reading;
mod rewards;
mod skills;
mod storage;
mod task_sets;
mod teams;
mod train;
pub mod versions;
mod views;
mod watch;
mod world;

use std::sync::Arc;

use crate::{
    Answers, Changes, Jobs, Ledger, Memories, Personal, Progress, Skills, Storage, Versions,
};
pub use people::people;
pub use random::random;
pub use world::World;

macro_rules! cases {
    ($make:expr; $($module:ident :: $case:ident,)*) => {$(
        let world = World::new($make().await);
        Box::pin($module::$case(&world)).await;
        world.assert_lawful(concat!(stringify!($module), "::", stringify!($case))).await;
        world.ledger.close().await;
    )*};
}

/// Runs every case of [`Personal`]; `make` returns the two views of one empty ledger each time.
pub async fn personal(make: impl AsyncFn() -> (Arc<dyn Ledger>, Arc<dyn Personal>)) {
    macro_rules! personal_cases {
        ($($module:ident :: $case:ident,)*) => {$(
            let (ledger, people) = make().await;
            let world = World::new(ledger);
            Box::pin($module::$case(&world, &*people)).await;
            world.assert_lawful(concat!(stringify!($module), "::", stringify!($case))).await;
            world.ledger.close().await;
        )*};
    }
    personal_cases! {
        personal::a_decision_is_kept_and_replaced,
        personal::wishes_are_listed,
        personal::without_consent_nothing_is_learned,
        personal::a_publish_needs_consent,
        personal::a_held_back_turn_is_judged_and_never_trained,
        personal::a_session_goes_with_everything_in_it,
        personal::a_turn_goes_with_what_repeats_it,
        personal::an_answer_whose_turn_came_later_goes_with_it,
        personal::a_plan_changes_nothing,
        personal::what_is_shared_stays_for_the_others,
        personal::versions_that_learned_from_it_are_tainted,
        personal::samples_of_clean_versions_train_again,
        personal::what_is_tainted_teaches_no_more,
        personal::everything_of_a_scope_goes,
        personal::files_that_stay_keep_no_other_scope_waiting,
        personal::no_wish_is_done_while_a_turn_of_it_stands_under_another,
        personal::what_comes_late_brings_nothing_back,
        personal::an_erasure_goes_on_where_it_stopped,
        personal::only_ones_own_can_be_forgotten,
        personal::a_loud_source_takes_its_share,
        personal::staleness_is_counted_along_the_lineage,
        personal::scored_turns_tell_arms_and_complaints,
        personal::what_was_learned_is_told,
        erasure::a_title_goes_with_any_turn,
        erasure::branches_go_with_the_answer_that_they_go_on_from,
        erasure::what_is_being_removed_is_not_judged_again,
        erasure::what_is_under_way_comes_without_its_words,
        erasure::what_waited_in_a_spool_comes_without_its_words,
        rewards::a_reward_goes_with_its_session,
    }
}

/// Runs every case of [`Memories`]; `make` returns the views of one empty ledger each time.
pub async fn memories(
    make: impl AsyncFn() -> (Arc<dyn Ledger>, Arc<dyn Personal>, Arc<dyn Memories>),
) {
    macro_rules! memory_cases {
        ($($case:ident,)*) => {$(
            let (ledger, people, kept) = make().await;
            let world = World::new(ledger);
            Box::pin(memories::$case(&world, &*people, &*kept)).await;
            world.assert_lawful(concat!("memories::", stringify!($case))).await;
            world.ledger.close().await;
        )*};
    }
    memory_cases! {
        equal_texts_are_one_and_a_topic_has_one,
        a_scope_sees_its_own_and_changes_it,
        a_scope_has_so_many,
        a_newer_fact_replaces_an_older_one,
        a_turn_is_read_once,
        a_verdict_is_read_once,
        erasure_and_consent_remove_them,
    }
}

/// Runs every case of [`Progress`]; `make` returns an empty ledger each time.
pub async fn progress<L: Ledger + Personal + Memories + Progress + 'static>(
    make: impl AsyncFn() -> Arc<L>,
) {
    macro_rules! progress_cases {
        ($($case:ident,)*) => {$(
            let ledger = make().await;
            let case = progress::Case::new(ledger.clone());
            Box::pin(progress::$case(&case)).await;
            case.world.assert_lawful(concat!("progress::", stringify!($case))).await;
            ledger.close().await;
        )*};
    }
    progress_cases! {
        what_is_new_is_read_once,
        what_was_there_before_is_noted_in_pieces,
        a_revised_verdict_is_read_again,
        a_turn_names_what_continues_it,
        an_erasure_leaves_nothing_to_read,
        a_withdrawn_verdict_is_not_read,
        consumers_are_enrolled_and_removed,
    }
}

/// Runs every case of [`Skills`]; `make` returns an empty ledger each time.
pub async fn skills<L>(make: impl AsyncFn() -> Arc<L>)
where
    L: Ledger + Personal + Memories + Skills + Changes + 'static,
{
    macro_rules! skill_cases {
        ($($case:ident,)*) => {$(
            let kept = skills::Kept::new(make().await);
            Box::pin(skills::$case(&kept)).await;
            kept.end(concat!("skills::", stringify!($case))).await;
        )*};
    }
    skill_cases! {
        versions_stay_what_they_were,
        a_scope_sees_its_own,
        what_was_found_is_shown_after_a_release,
        a_scope_has_so_many,
        a_turn_counts_what_it_was_shown,
        corrections_that_repeat_become_a_skill,
        erasure_removes_them,
        drafts_of_forgotten_corrections_bring_nothing,
        consent_off_removes_skills,
    }
}

/// Runs every case of [`Jobs`]; `make` returns an empty ledger each time.
pub async fn jobs<L: Ledger + Personal + Jobs + 'static>(make: impl AsyncFn() -> Arc<L>) {
    macro_rules! job_cases {
        ($($module:ident :: $case:ident,)*) => {$(
            let ledger = make().await;
            let case = jobs::Case::new(ledger.clone());
            Box::pin($module::$case(&case)).await;
            case.world.assert_lawful(concat!(stringify!($module), "::", stringify!($case))).await;
            ledger.close().await;
        )*};
    }
    job_cases! {
        task_sets::sets_are_kept_and_removed,
        task_sets::a_quarantined_task_is_released_and_checked_again,
        task_sets::sets_grow_and_share_contents,
        task_sets::a_set_takes_so_much_and_no_more,
        jobs::work_that_waits_is_counted,
        jobs::a_rollout_begins_its_groups_once,
        jobs::a_rollout_waits_for_room,
        jobs::a_job_is_held_by_one_and_ends_once,
        jobs::what_is_lost_is_tried_again_and_then_skipped,
        jobs::a_group_is_credited_once_with_its_last_episode,
        jobs::cancelling_ends_what_waits_and_what_runs,
        jobs::success_is_told_by_task_and_version,
        jobs::an_erasure_takes_what_came_out,
    }
}

/// Runs every case of [`Changes`]; `make` returns an empty ledger each time.
pub async fn changes<L: Ledger + Personal + Memories + Changes + 'static>(
    make: impl AsyncFn() -> Arc<L>,
) {
    macro_rules! change_cases {
        ($($case:ident,)*) => {$(
            let ledger = make().await;
            let world = World::new(ledger.clone());
            Box::pin(changes::$case(&*ledger, &world)).await;
            world.assert_lawful(concat!("changes::", stringify!($case))).await;
            ledger.close().await;
        )*};
    }
    change_cases! {
        what_is_remembered_elsewhere_is_told,
        turns_of_others_are_read,
    }
}

/// Runs every case of [`Storage`]; `make` returns an empty ledger each time.
pub async fn storage<L: Ledger + Personal + Memories + Progress + Storage + 'static>(
    make: impl AsyncFn() -> Arc<L>,
) {
    macro_rules! storage_cases {
        ($($case:ident,)*) => {$(
            let ledger = make().await;
            let case = storage::Case::new(ledger.clone());
            Box::pin(storage::$case(&case)).await;
            case.world.assert_lawful(concat!("storage::", stringify!($case))).await;
            ledger.close().await;
        )*};
    }
    storage_cases! {
        every_table_is_measured,
        nothing_goes_unless_it_is_asked_for,
        an_old_conversation_goes_with_all_that_nobody_shares,
        what_waits_or_is_compared_on_stays_whole,
        what_a_version_learned_from_keeps_its_row,
        an_erasure_takes_what_repeats_a_turn_without_words,
        without_logprobs_the_words_stay,
        an_owner_has_a_time_of_their_own,
        what_memories_and_checks_tell_of_keeps_its_row,
        votes_and_reports_go_alone,
        a_long_conversation_goes_in_pieces,
        memory_is_waited_for_and_nobody_else,
    }
}

/// Runs every case of [`Answers`]; `make` returns the three views of one empty ledger each time.
pub async fn answers(
    make: impl AsyncFn() -> (Arc<dyn Ledger>, Arc<dyn Answers>, Arc<dyn Personal>),
) {
    macro_rules! answer_cases {
        ($($case:ident,)*) => {$(
            let (ledger, answers, personal) = make().await;
            let world = World::new(ledger);
            Box::pin(answers::$case(&world, &*answers, &*personal)).await;
            world.assert_lawful(concat!("answers::", stringify!($case))).await;
            world.ledger.close().await;
        )*};
    }
    answer_cases! {
        a_retry_gets_its_answer,
        what_is_beyond_the_limits_goes,
        an_erasure_takes_answers_along,
    }
}

/// Runs every case of two processes on one ledger; `make` returns two views of one empty ledger each time, which
/// share nothing but what is stored.
pub async fn concurrent<L: Ledger + Versions + 'static>(make: impl AsyncFn() -> [Arc<L>; 2]) {
    macro_rules! concurrent_cases {
        ($($case:ident,)*) => {$(
            let [one, other] = make().await;
            Box::pin(concurrent::$case([&one, &other])).await;
            World::new(one.clone()).assert_lawful(concat!("concurrent::", stringify!($case))).await;
            other.close().await;
            one.close().await;
        )*};
    }
    concurrent_cases! {
        who_pages_by_number_skips_nothing,
        one_of_two_publishes,
        nothing_is_claimed_twice,
        a_late_holder_changes_nothing,
        two_record_one_session,
    }
}

/// Runs every case; `make` returns an empty ledger each time.
pub async fn run(make: impl AsyncFn() -> Arc<dyn Ledger>) {
    cases! { make;
        collect::turns_come_back_exactly,
        collect::shared_beginnings_do_not_mix,
        collect::recording_again_changes_nothing,
        collect::what_came_from_outside_is_no_versions_answer,
        collect::a_repetition_replaces_what_was_cut,
        collect::what_cannot_train_is_settled_at_once,
        collect::a_next_state_settles_a_turn_once,
        collect::only_open_turns_are_settled,
        collect::open_turns_are_newest_first,
        collect::open_turns_come_in_pages,
        collect::a_page_has_what_a_start_needs,
        feedback::it_may_come_before_its_turn,
        feedback::what_is_early_is_kept_for_an_hour,
        feedback::a_clock_that_goes_back_keeps_nothing_for_ever,
        feedback::the_newest_early_ones_of_an_owner_stay,
        feedback::the_same_client_id_replaces,
        feedback::the_newest_of_many_stay,
        feedback::only_the_owner_is_heard,
        feedback::a_judged_turn_goes_back_to_the_judge,
        feedback::an_abstained_turn_goes_back_to_the_judge,
        feedback::what_was_held_out_or_held_no_lesson_goes_back_to_the_judge,
        feedback::a_batch_keeps_what_it_holds,
        feedback::a_trained_turn_stays_trained,
        rewards::a_reward_reaches_every_main_turn,
        rewards::a_reward_tells_whom_it_misses,
        rewards::a_rule_says_which_turns_a_reward_reaches,
        rewards::the_same_client_id_replaces_a_reward,
        judge::checks_come_back_and_audits_are_counted,
        judge::the_oldest_are_claimed_once,
        judge::a_lease_that_ran_out_is_taken_over,
        judge::a_released_claim_waits_for_its_time,
        judge::a_verdict_comes_back_and_its_revision_is_current,
        judge::a_verdict_is_recorded_once,
        judge::what_cannot_be_judged_is_settled,
        judge::wrong_verdicts_are_refused,
        train::ready_counts_what_is_free,
        train::the_newest_are_claimed_once,
        train::a_correction_is_handed_over_and_makes_its_scope_explicit,
        train::a_renewed_lease_is_not_taken_over,
        train::the_old_the_strange_and_the_many_are_settled,
        train::what_was_trained_teaches_again_by_its_words,
        train::what_a_rollback_took_back_teaches_no_more,
        train::a_publish_is_all_or_nothing,
        train::a_publish_needs_the_head,
        train::a_publish_is_repeated_safely,
        train::nothing_trains_twice,
        train::a_refusal_settles_what_it_holds,
        train::some_claims_settle_alone,
        train::a_batch_that_never_comes_back_is_not_claimed_for_ever,
        train::a_backlog_is_settled_in_pieces,
        policies::versions_grow_and_name_their_parents,
        policies::a_rollback_publishes_again,
        policies::a_rollback_leaves_its_turns_behind,
        policies::scopes_are_apart,
        views::counts_follow_every_turn,
        views::lists_are_newest_first,
        views::scores_are_averaged_by_version,
        reading::pages_cover_every_turn_once,
        reading::filters_narrow_a_list,
        reading::a_line_says_what_a_turn_is,
        reading::a_session_is_told_without_repeating_itself,
        reading::sessions_are_listed_by_last_use_and_found_by_title,
        reading::a_turn_tells_the_batches_it_entered,
        reading::ages_and_waits_are_told,
        views::the_unknown_is_none,
        views::a_closed_ledger_fails,
    }
}
