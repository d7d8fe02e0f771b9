//! What is compared: methods, and controls that must behave as controls.

use hone_train::Method;

use hone::config::Config;

/// What suits the built-in model where scores are all that is learned from.
const BY_SCORES: &str = "
    [train]
    score_weight = 1.0
    [train.learner]
    lr = 0.005
    beta1 = 0.9
    beta2 = 0.95
    eps = 1e-8
";

/// One arm of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// Scores, hints and corrections.
    Combined,
    /// Scores only.
    Binary,
    /// Hints only.
    Distillation,
    /// Scores, and second answers learned as first ones.
    RltfSd,
    /// All three, and every user's first complaint comes with the answer it wanted.
    Corrected,
    /// Three users share one policy; their preferences go together.
    Joint,
    /// Nothing is trained.
    NoLearning,
    /// What users say has nothing to do with the answer; trained as `Combined`.
    Shuffled,
    /// Users praise what they dislike and blame what they like; must do worse than no learning.
    Inverted,
    /// Users say with every question what they like: what the model can do when told.
    Told,
}

impl Arm {
    pub(super) const ALL: [Self; 10] = [
        Self::Combined,
        Self::Binary,
        Self::Distillation,
        Self::RltfSd,
        Self::Corrected,
        Self::Joint,
        Self::NoLearning,
        Self::Shuffled,
        Self::Inverted,
        Self::Told,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Binary => "binary",
            Self::Distillation => "distillation",
            Self::RltfSd => "rltf_sd",
            Self::Corrected => "corrected",
            Self::Joint => "joint",
            Self::NoLearning => "no_learning",
            Self::Shuffled => "shuffled",
            Self::Inverted => "inverted",
            Self::Told => "told",
        }
    }

    /// Whether the train loop runs.
    pub(super) fn trains(self) -> bool {
        !matches!(self, Self::NoLearning | Self::Told)
    }

    /// The server's configuration: what ships, for scores alone with [`BY_SCORES`] over it, and then the
    /// given file, but for the pace of the sessions.
    pub(super) fn configured(
        self,
        config: &Config,
        file: Option<&(String, String)>,
    ) -> Result<Config, String> {
        let by_scores = matches!(self, Self::Binary | Self::Inverted | Self::RltfSd);
        let scores = by_scores.then_some((BY_SCORES, "the settings of scores alone"));
        let file = file.map(|(text, name)| (text.as_str(), name.as_str()));
        let mut config = config.clone();
        for layer in scores.into_iter().chain(file) {
            config = config.with(layer).map_err(|error| error.to_string())?;
        }
        let train = &mut config.train;
        train.method = match self {
            Self::Binary | Self::Inverted => Method::BinaryReward,
            Self::Distillation => Method::Distillation,
            Self::RltfSd => Method::RltfSd,
            _ => Method::Combined,
        };
        // People pause between sessions; these do not, so nothing waits for more to come.
        train.batch_turns_min = 1;
        train.batch_wait_ms = 50;
        train.explicit_wait_ms = 50;
        train.tick_ms = 50;
        train.drain_deadline_ms = 2_000;
        config.judge.tick_ms = 50;
        Ok(config)
    }
}
