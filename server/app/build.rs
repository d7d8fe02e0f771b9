//! With the feature `cuda` the kernels are compiled.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the kernels' sources are.
const KERNELS: &str = "../../loops/cuda/src/kernels";
/// Machine code for these architectures, and PTX of the last for newer ones.
const ARCHITECTURES: [&str; 2] = ["80", "90"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        kernels();
    }
}

fn kernels() {
    println!("cargo:rerun-if-changed={KERNELS}");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let nvcc = match std::env::var_os("CUDA_HOME") {
        Some(home) => PathBuf::from(home).join("bin/nvcc"),
        None => PathBuf::from("nvcc"),
    };
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut command = Command::new(&nvcc);
    command.args(["-fatbin", "-std=c++17", "-O3"]);
    // Products and sums are fused where a kernel says so and nowhere else.
    command.arg("-fmad=false");
    for architecture in ARCHITECTURES {
        command.arg(format!(
            "-gencode=arch=compute_{architecture},code=sm_{architecture}"
        ));
    }
    let newest = ARCHITECTURES[ARCHITECTURES.len() - 1];
    command.arg(format!(
        "-gencode=arch=compute_{newest},code=compute_{newest}"
    ));
    command.arg(Path::new(KERNELS).join("kernels.cu"));
    command.arg("-o").arg(out.join("kernels.fatbin"));
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!(
            "{} could not compile the kernels ({status})",
            nvcc.display()
        ),
        Err(error) => panic!(
            "the feature cuda needs nvcc, and {} does not run ({error}): use `make gpu`, which \
             brings one, or set CUDA_HOME",
            nvcc.display()
        ),
    }
}
