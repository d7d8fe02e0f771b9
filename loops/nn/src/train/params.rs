//! What a learner trains.

use std::sync::Arc;

use super::state::Identity;
use crate::adapter::Adapter;
use crate::weights::Model;

/// What is trained, with its f32 masters.
pub(super) enum Params {
    /// The learner's own model; its f32 weights are the masters.
    Full(Box<Model>),
    Adapter {
        base: Arc<Model>,
        masters: Adapter,
        /// The masters rounded, as they would be served; what the forward uses.
        served: Adapter,
    },
}

impl Params {
    pub(super) fn arrays_mut(&mut self) -> Vec<(&mut [f32], bool)> {
        match self {
            Self::Full(model) => model.weights.arrays_mut(),
            Self::Adapter { masters, .. } => masters.arrays_mut(),
        }
    }

    /// Brings the forward's form up to date with the masters.
    pub(super) fn publish(&mut self) {
        if let Self::Adapter {
            masters, served, ..
        } = self
        {
            *served = masters.served();
        }
    }

    pub(super) fn model(&self) -> &Model {
        match self {
            Self::Full(model) => model,
            Self::Adapter { base, .. } => base,
        }
    }

    pub(super) fn adapter(&self) -> Option<&Adapter> {
        match self {
            Self::Full(_) => None,
            Self::Adapter { served, .. } => Some(served),
        }
    }

    pub(super) fn identity(&self) -> Identity {
        match self {
            Self::Full(_) => Identity::full(),
            Self::Adapter { base, masters, .. } => Identity::adapter(&masters.config, &base.digest),
        }
    }

    pub(super) fn copy(&mut self) -> Vec<Vec<f32>> {
        self.arrays_mut().iter().map(|(a, _)| a.to_vec()).collect()
    }

    pub(super) fn restore(&mut self, masters: &[Vec<f32>]) {
        for ((to, _), from) in self.arrays_mut().into_iter().zip(masters) {
            to.copy_from_slice(from);
        }
        self.publish();
    }
}

/// The trained weights of a learner at one time.
#[derive(Debug, Clone)]
pub struct Mark(pub(super) Vec<Vec<f32>>);
