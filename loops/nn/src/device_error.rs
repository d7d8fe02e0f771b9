//! Why a device fails.

/// Why a device cannot be used, or stopped working.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DeviceError {
    /// This build has no code for it.
    #[error(
        "this build of Hone has no CUDA in it; build one with `make gpu`, or choose the processor"
    )]
    NotBuilt,
    /// The machine has none.
    #[error("there is no CUDA device here ({0}); choose the processor, or repair the driver")]
    None(String),
    /// Its memory does not suffice.
    #[error(
        "the CUDA device has {free} bytes of memory free, and {} needed for {what}",
        are(*needed)
    )]
    Memory {
        /// What the memory is for.
        what: String,
        /// Bytes asked for; 0 where the driver does not say.
        needed: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// It computes something else than the processor.
    #[error(
        "the CUDA device computes other numbers than the processor (logit {at} of the check is \
         {device}, and must be {processor}); nothing is served from it"
    )]
    Differs {
        /// Index of the first logit that differs.
        at: usize,
        /// What the device says.
        device: f32,
        /// What the processor says.
        processor: f32,
    },
    /// It lets tokens through other experts than the processor.
    #[error("the CUDA device chooses other experts than the processor; nothing is served from it")]
    OtherExperts,
    /// The model is of a form that the kernels do not cover.
    #[error("{0}")]
    Unsupported(String),
    /// A call failed.
    #[error("the CUDA device failed while {doing}: {why}")]
    Failed {
        /// What was being done.
        doing: &'static str,
        /// What the driver says.
        why: String,
    },
}

fn are(needed: u64) -> String {
    match needed {
        0 => "more are".to_owned(),
        bytes => format!("{bytes} are"),
    }
}
