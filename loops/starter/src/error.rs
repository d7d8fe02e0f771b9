//! What can go wrong while the starter model is made.

/// Why a training run ended without a model.
#[derive(Debug, thiserror::Error)]
pub enum StarterError {
    /// The tokenizer could not be trained, read or used.
    #[error("the starter tokenizer failed: {0}")]
    Tokenizer(#[from] tokenizers::Error),
    /// The tokenizer lacks a token of the chat layout.
    #[error("the tokenizer has no token {token}; train it with `hone starter train`")]
    MissingToken {
        /// The token looked for.
        token: &'static str,
    },
    /// A model folder could not be read.
    #[error(transparent)]
    Load(#[from] hone_checkpoint::LoadError),
    /// The chat template could not be rendered.
    #[error("the chat template failed: {0}")]
    Template(#[from] hone_text::template::TemplateError),
    /// The learner could not be made.
    #[error("the learner cannot start: {0}")]
    Learner(#[from] hone_nn::LearnerError),
    /// The learner could not make a step.
    #[error("training stopped: {0}")]
    Step(#[from] hone_nn::StepError),
    /// The weights could not be written as safetensors.
    #[error("model.safetensors could not be made: {0}")]
    Weights(#[from] safetensors::SafeTensorError),
    /// A file of the model folder could not be written.
    #[error("{path}: {source}; give a folder that can be written with --out")]
    Write {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}
