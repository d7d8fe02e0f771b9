//! The products of a batch's adapters, for launches that compute many of them.

use super::adapter::Placement;
use super::args::{Leave, Linear, Matrix};
use super::places::Places;
use super::plan::Run;
use super::weights::DeviceWeights;
use hone_checkpoint::Target;
use hone_kernels::cpu::padded;
use hone_nn::DeviceError;
use hone_nn::backend::Dims;

/// Rows that a thread of the adapters' kernel computes.
const ADAPTER_ROWS: usize = 4;
/// The targets of a projection and where their columns begin.
type Targets<'a> = &'a [(Target, usize)];
/// Rows: where they begin, and their distance.
type Rows = (u64, usize);
/// A projection's targets, input and output.
type Projection<'a> = (Targets<'a>, Rows, Rows);

/// The launches of one projection's adapters.
#[derive(Clone, Copy, Default)]
pub(super) struct Jobs {
    /// First of the products with `A`, and how many; those that add to the output follow: with
    /// `B`, and with dense changes.
    pub(super) first: usize,
    pub(super) count_a: usize,
    pub(super) count_b: usize,
    pub(super) grid_a: [u32; 2],
    pub(super) grid_b: [u32; 2],
}

pub(super) fn rank_stride(run: &Run) -> usize {
    padded(run.adapter.config.rank())
}

/// Bytes of the floats between the two products of adapters of that rank, of all their rows.
pub(super) fn low_rank_bytes(rows: usize, rank_stride: usize) -> usize {
    // A projection has three targets at most.
    3 * rows * rank_stride * size_of::<f32>()
}

/// Most bytes of the products of so many adapters.
pub(super) fn list_bytes_most(layers: usize, adapters: usize) -> usize {
    2 * Target::ALL.len() * layers * adapters * size_of::<Linear>()
}

/// Per layer the jobs of its four projections.
pub(super) type LayerJobs = Vec<[Jobs; 4]>;

/// The products of all adapters of a batch, layer by layer.
pub(super) fn all_jobs(
    device: &DeviceWeights,
    runs: &[Run],
    places: &Places,
    low_rank: u64,
) -> Result<(Vec<Linear>, LayerJobs), DeviceError> {
    let cfg = &device.model.config;
    let d = Dims::new(cfg);
    let mut list = Vec::new();
    let mut jobs = Vec::with_capacity(cfg.layers);
    for layer in 0..cfg.layers {
        let make = JobMaker {
            device,
            layer,
            runs,
            low_rank,
        };
        let targets: [Projection; 4] = [
            (
                &[(Target::Q, 0), (Target::K, d.q), (Target::V, d.q + d.kv)],
                (places.normed, d.ld_hidden),
                (places.qkv, d.ld_qkv),
            ),
            (
                &[(Target::O, 0)],
                (places.attn, d.ld_q),
                (places.proj, d.ld_hidden),
            ),
            (
                &[(Target::Gate, 0), (Target::Up, d.ffn)],
                (places.normed, d.ld_hidden),
                (places.gate_up, d.ld_gate_up),
            ),
            (
                &[(Target::Down, 0)],
                (places.act, d.ld_ffn),
                (places.proj, d.ld_hidden),
            ),
        ];
        let mut each = [Jobs::default(); 4];
        for (to, target) in each.iter_mut().zip(targets) {
            *to = make.jobs(target, &mut list)?;
        }
        jobs.push(each);
    }
    Ok((list, jobs))
}

/// Makes the products of one layer's adapters.
struct JobMaker<'a> {
    device: &'a DeviceWeights,
    layer: usize,
    runs: &'a [Run<'a>],
    low_rank: u64,
}

impl JobMaker<'_> {
    fn jobs(
        &self,
        (targets, x, y): Projection,
        list: &mut Vec<Linear>,
    ) -> Result<Jobs, DeviceError> {
        let mut jobs = Jobs {
            first: list.len(),
            ..Jobs::default()
        };
        let mut second = Vec::new();
        let mut low_rank = self.low_rank;
        let grid =
            |w: Matrix, rows: usize| [w.out.div_ceil(32), rows.div_ceil(ADAPTER_ROWS) as u32];
        let wider = |a: [u32; 2], b: [u32; 2]| [a[0].max(b[0]), a[1].max(b[1])];
        for run in self.runs {
            let placed = self.device.copy_of(run.adapter)?;
            let stride = rank_stride(run);
            let place = |(at, stride): Rows, column: usize| {
                at + ((run.row * stride + column) * size_of::<f32>()) as u64
            };
            for &(target, column) in targets {
                let Some(change) = placed.change(self.layer, target) else {
                    continue;
                };
                let (Placement::LowRank(_, last) | Placement::Dense(last)) = change;
                let (x, y) = ((place(x, 0), x.1), (place(y, column), y.1));
                let mut adding = Linear {
                    leave: Leave::AddScaled,
                    scale: run.adapter.config.scale(),
                    ..Linear::plain(last, x, y, run.rows)
                };
                if let Placement::LowRank(a, _) = change {
                    let low = (low_rank, stride);
                    list.push(Linear::plain(a, x, low, run.rows));
                    (adding.x, adding.x_stride) = (low_rank, stride as u32);
                    jobs.grid_a = wider(jobs.grid_a, grid(a, run.rows));
                    low_rank += (run.rows * stride * size_of::<f32>()) as u64;
                }
                second.push(adding);
                jobs.grid_b = wider(jobs.grid_b, grid(last, run.rows));
            }
        }
        (jobs.count_a, jobs.count_b) = (list.len() - jobs.first, second.len());
        list.extend(second);
        Ok(jobs)
    }
}
