//! Adapters on a device.

use std::sync::{Arc, OnceLock};

use super::args::Matrix;
use super::driver::{Buffer, DeviceError, Driver};
use super::matrix::Packer;
use crate::adapter::{Adapter, Change, Target};

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

/// Where an adapter keeps its copy on a device, once it has one. A clone has none; equality and
/// digests do not look at it.
#[derive(Default)]
pub(crate) struct Placed(OnceLock<Box<DeviceAdapter>>);

impl Placed {
    pub(super) fn get_or_place(
        &self,
        place: impl FnOnce() -> Result<DeviceAdapter, DeviceError>,
    ) -> Result<&DeviceAdapter, DeviceError> {
        if let Some(placed) = self.0.get() {
            return Ok(placed);
        }
        let placed = Box::new(place()?);
        // Another thread may have been faster; its copy is the same.
        Ok(self.0.get_or_init(|| placed))
    }
}

impl Clone for Placed {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Placed {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl std::fmt::Debug for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let placed = self.0.get().is_some();
        f.debug_tuple("Placed").field(&placed).finish()
    }
}
