//! What the learner minimises, by the names that the configuration has for it.

use serde::{Deserialize, Serialize};

/// What a sampled token's advantage does to its log-prob; formulas at [`hone_nn::Objective`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectiveName {
    /// Decoupled PPO with its correction ratio capped; clip-higher where the upper clip is wider.
    DecoupledPpo,
    /// PPO clipped around the policy that sampled: the known-bad form for stale turns.
    Ppo,
    /// CISPO.
    Cispo,
    /// GSPO: one ratio per completion.
    Gspo,
    /// DPPO with the total-variation mask.
    DppoTv,
    /// Truncated importance sampling per token.
    TokenTis,
}

/// Which estimate of the divergence from the base model is penalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KlName {
    /// The squared log-ratio, halved.
    K2,
    /// The estimate that is never negative.
    K3,
    /// The log-ratio. Refused as a penalty: its gradient is zero on average.
    K1,
}

/// On which tokens a hint's teacher is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DistillForm {
    /// On the tokens that were sampled: an advantage of their own.
    SampledToken,
    /// On the student's most likely tokens at every place (hybrid v2).
    TopK,
    /// On answers of its own: with the hint it answers the openings of conversations anew, and
    /// these answers are imitated without it (context distillation, Snell, Klein and Zhong 2022,
    /// arXiv 2209.15189).
    Rehearsed,
    /// On answers of its own that do what a person's words ask, drawn with guidance towards the words
    /// and chosen by how much likelier these make them.
    Context,
}

/// Who reads the hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Teacher {
    /// The version that is trained from: keeps what was learned, and can drift with it.
    Served,
    /// The base model: a fixed target.
    Base,
}
