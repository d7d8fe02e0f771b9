//! Adapters on a device.

use std::sync::Arc;

use super::args::Matrix;
use super::driver::{Buffer, Driver};
use super::matrix::Packer;
use hone_checkpoint::Target;
use hone_nn::backend::Change;
use hone_nn::{Adapter, DeviceError};

/// What an adapter does to one projection: its matrices `M`.
#[derive(Clone, Copy)]
pub(super) enum Placement<M> {
    /// `A` and `B`.
    LowRank(M, M),
    Dense(M),
}

impl<M> Placement<M> {
    fn map<N>(self, f: impl Fn(M) -> N) -> Placement<N> {
        match self {
            Self::LowRank(a, b) => Placement::LowRank(f(a), f(b)),
            Self::Dense(d) => Placement::Dense(f(d)),
        }
    }
}

/// The matrices of every target of every layer.
pub(crate) struct DeviceAdapter {
    layers: Vec<[Option<Placement<Matrix>>; 7]>,
    /// Where the matrices are.
    _memory: Buffer,
}

impl DeviceAdapter {
    pub(super) fn new(driver: &Arc<dyn Driver>, from: &Adapter) -> Result<Self, DeviceError> {
        let mut packer = Packer::default();
        let mut packed = Vec::with_capacity(from.layers.len());
        for changes in &from.layers {
            packed.push(std::array::from_fn::<_, 7, _>(|target| {
                Some(match changes[target].as_ref()? {
                    Change::LowRank(pair) => {
                        Placement::LowRank(packer.matrix(&pair.a), packer.matrix(&pair.b))
                    }
                    Change::Dense(d) => Placement::Dense(packer.matrix(d)),
                })
            }));
        }
        let memory = packer.upload(driver)?;
        let layers = packed
            .into_iter()
            .map(|places| places.map(|place| place.map(|place| place.map(|m| m.of(&memory)))));
        Ok(Self {
            layers: layers.collect(),
            _memory: memory,
        })
    }

    pub(super) fn change(&self, layer: usize, target: Target) -> Option<Placement<Matrix>> {
        self.layers[layer][target as usize]
    }
}
